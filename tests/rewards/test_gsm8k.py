"""GSM8K's reward on real solutions and on the forms in which people and models write a number."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from verlbox.rewards import gsm8k, reasons

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
@pytest.mark.parametrize("method", ["strict", "flexible"])
def test_every_published_solution_earns_its_own_answer(
    shared: Path, split: str, rows: int, method: gsm8k.Method
) -> None:
    lines = (shared / "data/gsm8k" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    solutions = [json.loads(line)["answer"] for line in lines]
    truths = [text.rpartition("#### ")[2] for text in solutions]
    results = gsm8k.compute_score([""] * rows, solutions, truths, method=method)
    assert [row["acc"] for row in results] == [1.0] * rows


def test_published_model_solutions_are_judged_as_their_authors_did(shared: Path) -> None:
    checked = 0
    for line in (shared / "data/gsm8k/example_model_solutions.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        gold = row["ground_truth"].rpartition("A:")[2]
        for model, solution in row.items():
            if isinstance(solution, dict):
                verdict = gsm8k.grade(solution["solution"], gold)
                assert (verdict == "ok") == solution["is_correct"], (model, solution["solution"])
                checked += 1
    assert checked == 4 * 1319


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("72", "72"),
        ("  **$1,234.50**  ", "1234.5"),
        ("1{,}500 m", "1500"),
        ("70 000", "70000"),
        ("1\u202f234\u202f567.5 km", "1234567.5"),
        ("12 345/1000", "2469/200"),
        ("１２３个", "123"),
        ("−5", "-5"),
        ("- $5", "-5"),
        ("48 + 24 = 72", "72"),
        ("72 = 48 + 24", "72"),
        ("72 (48 + 24)", "72"),
        ("3 1/2 hours", "7/2"),
        ("\\frac{1}{2}", "1/2"),
        ("15 cm^2", "15"),
        ("5 p.m.", "5"),
        ("Rs. 60", "60"),
        ("25%", "25"),
        ("2.5e3", "2500"),
        ("$1.5 million", "1500000"),
        ("72 <<48+24=72>>", "72"),
    ],
)
def test_a_line_states_its_one_number(line: str, value: str) -> None:
    from fractions import Fraction

    from verlbox.rewards.answers import line_value

    assert line_value(plain(line)).value == Fraction(value)


def plain(text: str) -> str:
    from verlbox.rewards.answers import plain_text

    return plain_text(text)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("#### 72 or 73", "wrong"),
        ("#### 71\n#### 72", "wrong"),  # a list of guesses
        ("#### 71\nNo, I forgot one.\n#### 72", "ok"),
        ("#### 48 + 24", "unparsable"),
        ("#### 9**9**9", "unparsable"),
        ("#### 72/0", "unparsable"),
        ("####", "unparsable"),
        ("so 48 + 24 = 72", "no_answer"),
        ("<think>#### 72</think>", "no_answer"),
        ("<think>#### 72", "no_answer"),
        ("#### " + "7" * 5000, "too_long"),
        ("x" * 300_000 + "#### 72", "too_long"),
        ("", "no_answer"),
    ],
)
def test_reason_codes_say_what_was_wrong(response: str, reason: str) -> None:
    assert gsm8k.grade(response, "72", "strict") == reason


def test_flexible_accepts_boxes_and_stated_answers_that_strict_does_not() -> None:
    for response in ("The total is \\boxed{72}.", "The answer is 72.", "<answer>72</answer>", "A: 72"):
        assert gsm8k.grade(response, "72", "flexible") == "ok"
        assert gsm8k.grade(response, "72", "strict") == "no_answer"
    assert gsm8k.grade("\\boxed{71} and then\n#### 72", "72", "flexible") == "wrong"


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="strict or flexible"):
        gsm8k.compute_score([""], ["#### 1"], ["1"], method="lenient")  # type: ignore[arg-type]


def test_every_row_has_the_same_keys_and_one_reason() -> None:
    rows = gsm8k.compute_score(["a"] * 3, ["#### 1,000", "#### 2", "no"], ["1000", "1", "1"], [{}, {}, None])
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert [row["reason"] for row in rows] == ["ok", "wrong", "no_answer"]
    assert [sum(float(row[f"reason_{code}"]) for code in reasons.REASONS) for row in rows] == [1.0, 1.0, 1.0]
    assert [row["format"] for row in rows] == [1.0, 1.0, 0.0]


def test_it_costs_neither_sympy_nor_a_process() -> None:
    program = (
        "import sys; from verlbox.rewards import gsm8k\n"
        "assert gsm8k.compute_score_single('s', '#### 72', '72')['acc'] == 1.0\n"
        "heavy = {'sympy', 'math_verify', 'numpy', 'torch', 'multiprocessing'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
