"""The graded mathematics reward against scored examples of the published one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verlbox.rewards import graded_math

# Where the published reward's answer check is wrong; docs/rewards.md says why.
DEPARTURES = {
    "truncated inside think": 0.0,
    "equivalence \\frac14 vs \\frac{1}{4}": 1.0,
    "equivalence 25\\% vs 25": 1.0,
    "equivalence 1\\,234 vs 1234": 1.0,
    "equivalence (-\\infty, 3) vs x<3": 1.0,
    "equivalence e^{i\\pi} vs -1": 1.0,
}


def test_scores_agree_with_the_published_reward_except_where_its_answer_check_is_wrong(shared: Path) -> None:
    lines = (shared / "data/published-recipe/reward_golden.jsonl").read_text(encoding="utf-8").splitlines()
    departed = set()
    for line in lines:
        case = json.loads(line)
        row = graded_math.compute_score_single("math", case["response"], case["ground_truth"])
        assert row["format"] == pytest.approx(case["format"]), case["name"]
        assert row["steps"] == pytest.approx(case["cot"]), case["name"]
        if row["score"] != pytest.approx(case["score"]):
            departed.add(case["name"])
            assert row["score"] == pytest.approx(DEPARTURES[case["name"]]), case["name"]
    assert departed == set(DEPARTURES)


@pytest.mark.parametrize("split", ["train", "test"])
def test_gold_answers_that_the_published_reward_rejects_are_accepted_here(shared: Path, split: str) -> None:
    cases = json.loads((shared / f"data/published-recipe/reward_self_mismatch_{split}.json").read_text())
    golds = [case["gold"] for case in cases if case["gold"].strip()]
    responses = [f"<think>\nso\n</think>\n<answer>\n\\boxed{{{gold}}}\n</answer>" for gold in golds]
    assert [item.reason for item in graded_math.grade(responses, golds)] == ["ok"] * len(golds)


def test_a_wrong_answer_earns_nothing_however_good_its_form() -> None:
    response = (
        "<think>\n1. Write the equation 2x = 8.\n2. Solve for x.\n3. Therefore x = 5.\n</think>\n"
        "<answer>\n\\boxed{5}\n</answer>"
    )
    row = graded_math.compute_score_single("math", response, "4")
    assert (row["score"], row["acc"], row["accuracy"]) == (0.0, 0.0, 0.0)
    assert row["format"] == pytest.approx(0.2)
    assert row["steps"] == 0.1


def test_several_answer_blocks_must_all_be_right() -> None:
    blocks = "<answer>\\boxed{1/2}</answer> and again <answer>\\boxed{0.5}</answer>"
    assert graded_math.grade([blocks], ["\\frac12"])[0].reason == "ok"
    assert graded_math.grade([blocks + "<answer>\\boxed{3}</answer>"], ["\\frac12"])[0].reason == "wrong"


def test_reason_log_counts_every_batch(tmp_path: Path) -> None:
    from verlbox.rewards import reasons

    log = tmp_path / "reasons.jsonl"
    for _ in range(2):
        graded_math.compute_score(["m"] * 2, ["\\boxed{4}", "none"], ["4", "4"], reason_log=str(log))
    assert reasons.read_tally(log) == {"ok": 2, "no_answer": 2}
