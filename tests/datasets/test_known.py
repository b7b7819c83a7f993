"""Rows known before anything is downloaded: used where they hold, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from verlbox import pipeline, preflight, recipe
from verlbox.datasets import PROMPTS, known
from verlbox.run import Run

ROOT = Path(__file__).parents[2]
MATH = "DigitalLearningGmbH/MATH-lighteval"
MODEL = "Qwen/Qwen2.5-1.5B-Instruct"


def load(name: str, *arguments: str) -> recipe.Recipe:
    return recipe.load(ROOT / "recipes" / f"{name}.yaml", arguments).recipe


def test_counts_hold_for_the_text_of_a_prompt_not_for_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = known.find(MATH, "math-think-answer", MODEL, 512)
    assert found is not None and (found.train, found.test) == (7381, 4949)
    changed = replace(PROMPTS["math-think-answer"], system="Think first.")
    monkeypatch.setitem(PROMPTS, "math-think-answer", changed)
    assert known.find(MATH, "math-think-answer", MODEL, 512) is None


@pytest.mark.parametrize(
    ("data_set", "prompt", "model", "limit"),
    [
        ("someone/MATH", "math-think-answer", MODEL, 512),
        (MATH, "none", MODEL, 512),
        (MATH, "no-such-prompt", MODEL, 512),
        (MATH, "math-think-answer", "Qwen/Qwen3-8B", 512),
        (MATH, "math-think-answer", MODEL, 1024),
        (MATH, "math-think-answer", MODEL, "auto"),
    ],
)
def test_nothing_is_known_of_what_was_not_counted(data_set: str, prompt: str, model: str, limit: object) -> None:
    assert known.find(data_set, prompt, model, limit) is None


def test_the_published_run_is_planned_with_its_28_steps() -> None:
    loaded = recipe.load(ROOT / "recipes" / "npu-grpo.yaml", [])
    made = pipeline.make_plan(loaded, Run(ROOT / "runs" / "absent"))
    assert made.steps is not None
    assert (made.rows.train, made.rows.test, made.steps.total) == (7381, 4949, 28)
    assert made.rows.basis == "after filtering at 512 tokens, as counted with Qwen2.5-Instruct's tokenizer"


@pytest.mark.parametrize("file", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_recipe_with_data_from_a_hub_knows_its_rows(file: Path) -> None:
    rows = preflight.count_rows(load(file.stem))
    bundled = load(file.stem).dataset.source == "bundled"
    assert rows.basis.startswith("before filtering" if bundled else "after filtering at 512 tokens")


@pytest.mark.parametrize(
    "argument", ["data.max_prompt_length=1024", "dataset.max_prompt_length=auto", "model.name=Qwen/Qwen3-8B"]
)
def test_without_counts_the_plan_says_before_filtering(argument: str) -> None:
    rows = preflight.count_rows(load("npu-grpo", argument))
    assert (rows.train, rows.test, rows.basis) == (7500, 5000, "as published, before filtering")
