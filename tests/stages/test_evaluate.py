from __future__ import annotations

import io
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from verlbox import recipe
from verlbox.console import Console
from verlbox.plan import Rows, make
from verlbox.run import Run
from verlbox.stages import Context, evaluate

ROOT = Path(__file__).parents[2]

ROWS = [
    {
        "prompt": [{"role": "user", "content": f"question {i}"}],
        "reward_model": {"ground_truth": str(i)},
        "extra_info": {"level": "Level 1" if i < 4 else "Level 5"},
    }
    for i in range(10)
]


def answers(correct: dict[int, set[int]]) -> list[dict[str, Any]]:
    """Answers to every row: `correct[draw]` are the rows that were answered right."""
    return [
        {
            "index": i,
            "draw": draw,
            "response": f"{draw}/{i}",
            "acc": float(i in right),
            "reason": "ok" if i in right else "wrong",
        }
        for draw, right in correct.items()
        for i in range(10)
    ]


def test_greedy_accuracy_gain_and_test_are_those_of_the_paired_answers() -> None:
    summary = evaluate.summarise(answers({0: {0, 1, 2}}), answers({0: {1, 2, 3, 4, 5, 6}}), ROWS)
    greedy = summary["greedy"]
    assert (greedy["base"]["accuracy"], greedy["trained"]["accuracy"]) == (0.3, 0.6)
    assert greedy["gain"] == pytest.approx(0.3)
    assert (greedy["base_only"], greedy["trained_only"]) == (1, 4)
    # Exact binomial, 1 of 5 changed for the worse: 2 * (1 + 5) / 32.
    assert greedy["mcnemar_p"] == pytest.approx(0.375)
    # sqrt(0.3 * 0.7 / 10)
    assert greedy["base"]["standard_error"] == pytest.approx(0.1449, abs=1e-4)
    assert "sampled" not in summary


def test_sampled_answers_are_clustered_by_prompt() -> None:
    base = answers({0: set(), 1: {0, 1}, 2: {0, 1}})
    trained = answers({0: set(), 1: {0, 1, 2, 3}, 2: {0, 1, 2, 3}})
    sampled = evaluate.summarise(base, trained, ROWS)["sampled"]
    assert sampled["draws"] == 2
    assert sampled["base"]["accuracy"] == pytest.approx(0.2)
    # Both draws of a prompt agree, so there are 10 observations, not 20: sqrt(0.2 * 0.8 / 9).
    assert sampled["base"]["standard_error"] == pytest.approx(0.1333, abs=1e-4)
    assert sampled["gain"] == pytest.approx(0.2)


def test_accuracy_is_given_by_level_where_the_data_has_levels() -> None:
    groups = evaluate.summarise(answers({0: {0, 1}}), answers({0: {0, 1, 2, 9}}), ROWS)["groups"]
    assert groups["level"]["Level 1"]["trained"]["n"] == 4
    assert groups["level"]["Level 1"]["trained"]["accuracy"] == 0.75
    assert groups["level"]["Level 5"]["base"]["accuracy"] == 0.0


def test_answers_that_were_lost_are_listed_before_those_that_were_won() -> None:
    changed = evaluate.summarise(answers({0: {7}}), answers({0: {2}}), ROWS)["changed"]
    assert [(c["index"], c["trained_correct"]) for c in changed] == [(7, False), (2, True)]
    assert changed[0]["question"] == "question 7"
    assert changed[0]["ground_truth"] == "7"


def test_reasons_are_counted_for_greedy_answers() -> None:
    reasons = evaluate.summarise(answers({0: {1}, 1: set()}), answers({0: {1, 2}, 1: set()}), ROWS)["reasons"]
    assert reasons == {"base": {"ok": 1, "wrong": 9}, "trained": {"ok": 2, "wrong": 8}}


def test_cached_answers_belong_to_one_engine_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked_of(stack: str, *versions: str) -> list[Path]:
        loaded = recipe.load(ROOT / "recipes" / "smoke.yaml", [f"stack={stack}"])
        context = Context(make(loaded, Run(tmp_path), Rows(1024, 300, "after filtering"), 31), False, console, {})
        files = []
        for version in versions:
            monkeypatch.setattr(metadata, "version", lambda name, known=version: known)
            files.append(evaluate._cache_file({"rows": "a", "model": "b", "engine": evaluate.engine(context)}))
        return files

    console = Console(io.StringIO())
    files = [*asked_of("cpu", "4.57.6", "5.9.0"), *asked_of("cuda", "0.24.0", "0.11.0"), *asked_of("npu", "0.11.0")]
    assert len(set(files)) == 4
    assert files[3] == files[4], "the same engine in the same version, on whatever device"
