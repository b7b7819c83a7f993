"""Merge: verl's shards become one Hugging Face model, which counts only when it loads and equals what was trained."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from verlbox import process
from verlbox.recipe import Recipe
from verlbox.run import Run, replacing
from verlbox.stages import Context, Outputs, command_failed
from verlbox.stages.train import child_environment

NAME = "merge"


def inputs(recipe: Recipe, run: Run) -> dict[str, Any]:
    return {"stack": recipe.stack}


def run(context: Context) -> Outputs:
    run = context.run
    checkpoint = Path(context.details["train"]["checkpoint"])
    log = run.logs / "merge.log"
    with replacing(run.model) as folder:
        report = folder / "merge.json"
        command = [sys.executable, "-m", "verlbox.merging", str(checkpoint / "actor"), str(folder), str(report)]
        environment = child_environment(context.plan)
        code = process.run(command, log=log, tag=run.tag, environment=environment, cwd=run.path)
        if code != 0:
            raise command_failed("verl's merger, or the check of its result,", code, log)
        facts = json.loads(report.read_text())
        report.unlink()
    context.console.line(
        f"merged {facts['parameters']:,} parameters ({facts['dtype']}), equal to {facts['compared_with']}"
    )
    return Outputs([run.model], {"checkpoint": str(checkpoint), "path": str(run.model), **facts})
