"""Preflight: what must hold before a run creates anything; every problem is found, not only the first."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

from verlbox import findings
from verlbox.findings import Finding, FindingsError
from verlbox.plan import PLATFORMS, PUBLISHED_ROWS, ROOT, Plan, Rows
from verlbox.recipe import Loaded, Recipe
from verlbox.stacks import STACKS

STACK_MISSING = findings.register("stack-missing", "error", "The software of the recipe's stack is not installed here.")
STACK_DIFFERS = findings.register("stack-differs", "error", "Another version of verl is installed than the stack pins.")

NEEDED = ("verl", "ray", "torch", "transformers")


def dataset_folder(recipe: Recipe) -> Path | None:
    """Where the data set lies if no download is needed: bundled with verlbox, or a local path."""
    from verlbox.hub import bundled

    if recipe.dataset.source == "bundled":
        return bundled.dataset_path(recipe.dataset.name)
    return Path(recipe.dataset.path) if recipe.dataset.path else None


def count_rows(recipe: Recipe) -> Rows:
    """The rows of a recipe's data set before filtering: counted where it is here, as published where it is not."""
    from verlbox import datasets

    try:
        folder = dataset_folder(recipe)
        if folder is not None:
            train, test = (len(datasets.read(folder, split).records) for split in ("train", "test"))
            return Rows(train, test, "before filtering")
    except FindingsError as error:
        return Rows(None, None, "unknown", tuple(error.findings))
    published = PUBLISHED_ROWS.get(recipe.dataset.name)
    if published is None:
        return Rows(None, None, "known after download")
    return Rows(*published, "as published, before filtering")


def check(loaded: Loaded, plan: Plan) -> list[Finding]:
    """All findings about a plan on this machine."""
    stack = STACKS[loaded.recipe.stack]
    where = loaded.places.get("stack", str(loaded.path))
    problems = [*plan.findings, *PLATFORMS[stack.platform].problems()]
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        problems.append(
            STACK_MISSING.finding(
                f"not installed here: {', '.join(missing)}",
                why=f"The stack {stack.name} trains with verl {stack.verl}.",
                fix=f"Run `make install`, or pip install -r {ROOT / stack.requirements}, and use that environment.",
                where=where,
            )
        )
    elif (installed := metadata.version("verl")) != stack.verl:
        problems.append(
            STACK_DIFFERS.finding(
                f"verl {installed} is installed, the stack {stack.name} pins {stack.verl}",
                why="Settings mean different things in different versions of verl.",
                fix=f"Use an environment made from {stack.requirements}.",
                where=where,
            )
        )
    return problems
