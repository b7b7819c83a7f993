"""What is known of a plan beside its settings, for the lints: the data, the model, this machine, earlier steps."""

from __future__ import annotations

import csv
import os
import shutil
import sys
from collections.abc import Mapping

from verlbox import fit, lints, memory, recipe, status
from verlbox.datasets.prompts import PROMPTS
from verlbox.findings import FindingsError
from verlbox.plan import PLATFORMS, ROOT, Plan
from verlbox.stacks import STACKS

# What a format's problems are, as the lints call it. Bundled data has a format too, but answers of its own length.
TASKS = {"gsm8k": "gsm8k", "math_lighteval": "math"}
TIME = "perf/time_per_step"


def gather(plan: Plan) -> lints.Facts:
    """The facts of a plan; what cannot be known here and now stays None. Sizes as in `lints.Facts`."""
    stack, dataset = STACKS[plan.recipe.stack], plan.recipe.dataset
    length = plan.effective.get("data.max_prompt_length")
    prompt = PROMPTS.get(dataset.prompt)
    config = fit.model_config(plan) or {}
    seconds, basis = _seconds(plan)
    return lints.Facts(
        verl=stack.verl,
        platform=stack.platform,
        train_rows_after_filter=plan.rows.train,
        val_rows=plan.rows.test,
        # preprocess leaves out what is longer, with the model's own tokenizer
        longest_prompt_tokens=length if isinstance(length, int) else 0,
        environment=lints.shown_environment({**os.environ, **plan.environment}),
        environment_complete=True,
        tty=sys.stdin.isatty(),
        model_is_local=True,
        allow_degenerate_group=plan.recipe.train.allow_degenerate_group,
        model_max_position_embeddings=_whole(config.get("max_position_embeddings")),
        rope_scaling_factor=_rope_factor(config),
        num_attention_heads=_whole(config.get("num_attention_heads")),
        model_parameters=_parameters(config),
        seconds_per_step=seconds,
        seconds_basis=basis,
        free_disk_gb=_free_disk(plan),
        task=None if dataset.source == "bundled" else TASKS[dataset.format],
        prompt_asks_for=f"{prompt.system or ''} {prompt.instruction or ''}" if prompt else None,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rope_factor(config: Mapping[str, object]) -> float | None:
    scaling = config.get("rope_scaling")
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    return float(factor) if isinstance(factor, int | float) else None


def _parameters(config: Mapping[str, object]) -> int | None:
    try:
        return memory.parameters(memory.shape(config))
    except FindingsError:
        return None  # a family that the memory planner does not know


def _seconds(plan: Plan) -> tuple[float | None, str | None]:
    """Seconds of a step and who measured them: this run's earlier steps, else the published run of a shipped recipe."""
    last = status.last_step(plan.run.logs / "train.log")
    if last and "timing_s/step" in last["metrics"]:
        return float(last["metrics"]["timing_s/step"]), "as this run's last step"
    shipped = ROOT / "recipes" / f"{plan.recipe.name}.yaml"
    for table in (ROOT / "recipes" / "reference").glob(f"{plan.recipe.name}-*.csv"):
        with table.open(encoding="utf-8", newline="") as stream:
            seconds = [float(row[TIME]) for row in csv.DictReader(stream) if row.get(TIME)]
        if seconds and shipped.exists() and recipe.load(shipped).recipe == plan.recipe:
            card = table.stem.removeprefix(f"{plan.recipe.name}-")
            return sum(seconds) / len(seconds), f"as the published run on a {card}"
    return None, None


def _free_disk(plan: Plan) -> float | None:
    """GB free where the run is or would be, on a machine that could carry it; elsewhere the disk says nothing."""
    if PLATFORMS[plan.recipe.stack].problems(1):
        return None
    place = next(folder for folder in (plan.run.path, *plan.run.path.parents) if folder.exists())
    return shutil.disk_usage(place).free / 1e9
