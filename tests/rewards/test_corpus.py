"""The graders on the collected cases, on real model answers, on all of MATH, and on a hostile corpus."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from verlbox.rewards import answers, equivalence, graded_math, gsm8k, pool

# Rows of equiv_cases.jsonl that cannot be met: each is contradicted by another row (its line) or by reward cases (their
# ids), which are met. docs/rewards.md has the table.
CONTRADICTED: dict[int, tuple[int | str, ...]] = {
    130: (129,),  # the same pair
    190: ("R-217",),  # the same pair
    263: (261, 262),  # a hundredth without a percent sign
    273: ("R-161",),  # (11,7) and (7,11) are different elements
    284: (102, 109, "R-291"),  # hundreds of characters behind a box
    310: (193, 311),  # the same pair
    350: ("R-301", "R-302"),  # several answer blocks
}
SLACK = 2.0  # seconds above the timeout that a busy machine may add
PATIENT = 10.0  # seconds, where values and not times are tested


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def grade_case(case: dict[str, Any]) -> str:
    if case["dataset"] == "gsm8k":
        return gsm8k.grade(case["response"], case["ground_truth"])
    return graded_math.grade([case["response"]], [case["ground_truth"]])[0].reason


def test_collected_reward_cases_are_judged_by_value_and_in_time(shared: Path) -> None:
    cases = rows_of(shared / "cases/reward_cases.jsonl")
    pool.shared().ask("1", "1")  # start-up is not an item's time
    wrong, slow = [], []
    for case in cases:
        start = time.monotonic()
        reason = grade_case(case)
        if time.monotonic() - start > case["max_seconds"]:
            slow.append(case["id"])
        if (reason == "ok") != case["correct"] and not case["ambiguous"]:
            wrong.append((case["id"], reason))
    assert (wrong, slow) == ([], [])


def bare(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(answers.bare_answer(row["gold"]), answers.bare_answer(row["prediction"])) for row in rows]


def test_collected_equivalence_cases(shared: Path) -> None:
    rows = rows_of(shared / "data/equiv_cases.jsonl")
    verdicts = equivalence.judge(bare(rows), timeout=PATIENT)
    wrong = {
        line
        for line, (row, verdict) in enumerate(zip(rows, verdicts, strict=True), start=1)
        if (verdict.reason == "ok") != row["expected_equal"]
    }
    assert wrong == set(CONTRADICTED)


def test_each_equivalence_case_that_is_not_met_is_contradicted_by_cases_that_are(shared: Path) -> None:
    rows = rows_of(shared / "data/equiv_cases.jsonl")
    cases = {case["id"]: case for case in rows_of(shared / "cases/reward_cases.jsonl")}
    for line, others in CONTRADICTED.items():
        row = rows[line - 1]
        for other in others:
            if isinstance(other, int):
                assert rows[other - 1]["expected_equal"] != row["expected_equal"], (line, other)
            else:
                assert cases[other]["correct"] != row["expected_equal"], (line, other)
                assert not cases[other]["ambiguous"], (line, other)
    assert [rows[129][key] for key in ("prediction", "gold")] == [rows[128][key] for key in ("prediction", "gold")]
    assert [rows[309][key] for key in ("prediction", "gold")] == [rows[192][key] for key in ("prediction", "gold")]
    assert f"\\boxed{{{rows[189]['prediction'].strip('$')}}}" in cases["R-217"]["response"]
    assert rows[189]["gold"].strip("$") == cases["R-217"]["ground_truth"]


def test_real_model_answers(shared: Path) -> None:
    rows = rows_of(shared / "data/math_model_answer_pairs.jsonl")
    verdicts = equivalence.judge(bare(rows), timeout=PATIENT)
    wrong = {
        number
        for number, (row, verdict) in enumerate(zip(rows, verdicts, strict=True))
        if (verdict.reason == "ok") != row["expected_equal"]
    }
    assert wrong == set()


@pytest.fixture(scope="module")
def solutions(shared: Path) -> list[str]:
    return [row["solution"] for split in ("train", "test") for row in rows_of(shared / f"data/math/{split}.jsonl")]


def test_every_math_solution_earns_its_own_answer(solutions: list[str]) -> None:
    golds = [next(iter(answers.committed(solution)), "") for solution in solutions]
    graded = graded_math.grade(solutions, golds, timeout=PATIENT)
    exceptions = [(number, item.reason) for number, item in enumerate(graded) if item.reason != "ok"]
    assert len(graded) == 12_500
    # Their boxes are empty: "there are \\boxed{} primes in that range".
    assert exceptions == [(5341, "no_answer"), (5343, "no_answer")]


def test_another_problems_answer_is_wrong_unless_the_values_are_equal(solutions: list[str]) -> None:
    golds = [next(iter(answers.committed(solution)), "") for solution in solutions]
    others = golds[:]
    random.Random(0).shuffle(others)
    verdicts = equivalence.judge(list(zip(golds, others, strict=True)), timeout=PATIENT)
    equal = {
        pair
        for pair, verdict in zip(zip(golds, others, strict=True), verdicts, strict=True)
        if verdict.reason == "ok" and pair[0].replace(" ", "") != pair[1].replace(" ", "")
    }
    assert {verdict.reason for verdict in verdicts} <= {"ok", "wrong", "unparsable"}
    # What is equal though spelled differently: fractions and units, seen by eye when this list was made.
    assert all(numeric(gold) == numeric(other) for gold, other in equal), equal


def numeric(text: str) -> float:
    """A second, independent reading of simple answers: a fraction or decimal with its unit cut off."""
    text = re.sub(
        r"^\s*[A-Za-z]+\s*=|\\text\{[^}]*\}|\\mbox\{[^}]*\}|\\[$%!,]|\^\\circ|\\%", "", text.replace("\\!", "")
    ).strip(" .,")
    text = text.replace(",", "")
    match = re.fullmatch(r"(-?)\\[dt]?frac\s*\{?(\d+?)\}?\s*\{?(\d+)\}?", text)
    if match:
        return float(f"{match[1]}1") * int(match[2]) / int(match[3])
    top, _, bottom = text.partition("/")
    return float(top) / float(bottom or 1)


HOSTILE = [
    "9^{9^{9^{9}}}",
    "10**10**10",
    "10^{10^{10^{10}}}",
    "1000000!",
    "((100000!)!)!",
    "\\binom{10^9}{10^8}",
    "\\sum_{k=1}^{1000000000} k^{k}",
    "\\prod_{k=1}^{10000000} k",
    "\\int_0^1 x^{x^{x^{x}}} \\, dx",
    "\\lim_{n \\to \\infty} \\frac{n!}{n^n}",
    "(a+b+c+d)^{100000}",
    "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}^{10000000}",
    "(" * 1900 + "1" + ")" * 1900,
    "{" * 1900 + "1" + "}" * 1900,
    "\\frac{1}{" * 400 + "1" + "}" * 400,
    "\\sqrt{" * 600 + "2" + "}" * 600,
    "x^" * 1900 + "x",
    "+".join("1" * 1900),
    ",".join("1" * 1900),
    "=".join("x" * 1900),
    "1" * 100_000,
    "x+" * 50_000,
    "\x00" * 50,
    "\\boxed{\x00}",
    "\ud800\udfff",
    "a" * 50 + "!" * 3000,
    "-" * 3900 + "1",
    "__import__('os').system('true')",
    "\\text{" * 600 + "}" * 600,
    "0.\\overline{" + "3" * 3000 + "}",
    "1" + " " * 3000 + "2",
    "\\pm" * 900,
    "1\\pm" * 12 + "1",
    "[" * 1900 + "]" * 1900,
    "|" * 3000,
    "1:" * 1500 + "1",
]


def test_hostile_answers_cost_at_most_the_timeout_and_are_never_right() -> None:
    pool.shared().ask("1", "1")
    for answer in HOSTILE:
        start = time.monotonic()
        (verdict,) = equivalence.judge([("72", answer)])
        assert time.monotonic() - start < pool.TIMEOUT + SLACK, answer[:60]
        assert verdict.reason != "ok", answer[:60]
        start = time.monotonic()
        graded_math.compute_score_single("m", f"<answer>\\boxed{{{answer}}}</answer>", "72")
        gsm8k.compute_score_single("g", f"#### {answer}", "72")
        assert time.monotonic() - start < pool.TIMEOUT + SLACK, answer[:60]
