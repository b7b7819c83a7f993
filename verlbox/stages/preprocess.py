"""Preprocess: the data set in verl's schema, over-long and unusable rows left out, counted and listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verlbox import datasets, findings, hydra_overrides
from verlbox.datasets import DATASETS
from verlbox.plan import Plan, base_model, prompt_length_file
from verlbox.recipe import Recipe, flat
from verlbox.run import Run, replacing
from verlbox.stages import Context, Outputs, StageError

NAME = "preprocess"
KEYS = ("format", "prompt", "max_prompt_length", "max_bad_share")
LENGTHS = ("data.max_prompt_length", "data.max_response_length")  # verl's keys that decide which prompts fit


def inputs(recipe: Recipe, run: Run) -> dict[str, Any]:
    settings = {key: value for key, value in flat(recipe.dataset, "dataset").items() if key.split(".")[1] in KEYS}
    own = {f"train.verl.DATA.{k}": v for k, v in recipe.train.verl.get("DATA", {}).items() if k in LENGTHS}
    overrides = [text for text in recipe.overrides if hydra_overrides.parse_override(text).key in LENGTHS]
    prompt = datasets.named(recipe.dataset.prompt)
    found = {**settings, **own, "dataset.prompt.sha256": prompt.sha256}
    return {**found, "overrides": overrides} if overrides else found


def run(context: Context) -> Outputs:
    recipe, run = context.recipe, context.run
    tokenizer = base_model(run)
    dataset = DATASETS["arithmetic" if recipe.dataset.source == "bundled" else recipe.dataset.format]
    wanted = context.plan.effective["data.max_prompt_length"]
    limit = wanted if isinstance(wanted, int) else _room(context.plan, tokenizer)
    train, test, problems = datasets.prepare(
        Path(context.details["download"]["dataset"]["path"]),
        dataset,
        datasets.named(recipe.dataset.prompt),
        tokenizer_path=tokenizer,
        max_prompt_length=limit,
        max_bad_share=recipe.dataset.max_bad_share,
    )
    if findings.has_errors(problems):
        raise StageError(problems, {"train": train.counts, "test": test.counts})
    longest = max(*train.lengths, *test.lengths)
    summary = {
        "max_prompt_length": limit if isinstance(wanted, int) else longest,
        "longest_prompt": longest,
        "prompt": {"name": train.prompt.name, "sha256": train.prompt.sha256},
        **{split.name: {**split.counts, "files": [str(f) for f in split.files]} for split in (train, test)},
    }
    with replacing(run.data) as folder:
        for split in (train, test):
            datasets.write_parquet(split, folder / f"{split.name}.parquet")
        (folder / prompt_length_file(run).name).write_text(f"{summary['max_prompt_length']}\n")
        (folder / "summary.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        datasets.write_bad_rows([train, test], folder / "bad_rows.jsonl")
    for split in (train, test):
        counts = ", ".join(f"{name} {count:,}" for name, count in split.counts.items() if count)
        context.console.line(f"{split.name}: {counts}")
    return Outputs([run.data], summary, problems)


def _room(plan: Plan, model: Path) -> int:
    """Tokens that the model's context leaves for a prompt beside the response."""
    context = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    return int(context) - int(str(plan.effective.get("data.max_response_length", 512)))
