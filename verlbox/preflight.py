"""Preflight: what must hold before a run creates anything; every problem is found, not only the first."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from verlbox import cluster, findings, hydra_overrides, lints, verl_keys
from verlbox.findings import EXIT_PREFLIGHT, Finding, FindingsError
from verlbox.plan import PLATFORMS, PUBLISHED_ROWS, ROOT, Plan, Rows, effective_settings, set_settings, verl_command
from verlbox.recipe import WRONG_VALUE, Loaded, Recipe
from verlbox.stacks import STACKS

STACK_MISSING = findings.register("stack-missing", "error", "The software of the recipe's stack is not installed here.")
STACK_DIFFERS = findings.register("stack-differs", "error", "Another version of verl is installed than the stack pins.")

NAMED_KEY = re.compile(r"[a-z_]+(?:\.[a-z_0-9]+)+")
NEEDED = ("verl", "ray", "torch", "transformers")


def dataset_folder(recipe: Recipe) -> Path | None:
    """Where the data set lies if no download is needed: bundled with verlbox, or a local path."""
    from verlbox.hub import bundled

    if recipe.dataset.source == "bundled":
        return bundled.path("dataset", recipe.dataset.name)
    return Path(recipe.dataset.path) if recipe.dataset.path else None


def count_rows(recipe: Recipe) -> Rows:
    """The rows of a recipe's data set: counted before filtering where it is here, else as known of the published set.

    Of published sets with a known tokenizer and prompt the rows after filtering are known (datasets/known_rows.yaml).
    """
    from verlbox import datasets
    from verlbox.datasets import known

    try:
        folder = dataset_folder(recipe)
        if folder is not None:
            train, test = (len(datasets.read(folder, split).records) for split in ("train", "test"))
            return Rows(train, test, "before filtering")
    except FindingsError as error:
        return Rows(None, None, "unknown", tuple(error.findings))
    if isinstance(recipe.model.source, list):
        own = {key: value for group in recipe.train.verl.values() for key, value in group.items()}
        lengths = {"data.max_prompt_length": recipe.dataset.max_prompt_length, **own}
        limit = effective_settings(lengths, recipe.overrides).get("data.max_prompt_length")
        counted = known.find(recipe.dataset.name, recipe.dataset.prompt, recipe.model.name, limit)
        if counted is not None:
            basis = f"after filtering at {limit} tokens, as counted with {counted.tokenizer}'s tokenizer"
            return Rows(counted.train, counted.test, basis)
    published = PUBLISHED_ROWS.get(recipe.dataset.name)
    if published is None:
        return Rows(None, None, "known after download")
    return Rows(*published, "as published, before filtering")


def lint(plan: Plan, places: Mapping[str, str]) -> list[Finding]:
    """What verl's settings of a plan would do, with what is known of data, model and this machine."""
    recipe = plan.recipe
    length = plan.effective.get("data.max_prompt_length")
    facts = lints.Facts(
        verl=STACKS[recipe.stack].verl,
        platform=STACKS[recipe.stack].platform,
        train_rows_after_filter=plan.rows.train,
        val_rows=plan.rows.test,
        # preprocess leaves out what is longer, with the model's own tokenizer
        longest_prompt_tokens=length if isinstance(length, int) else 0,
        environment=lints.shown_environment({**os.environ, **plan.environment}),
        environment_complete=True,
        tty=sys.stdin.isatty(),
        model_is_local=True,
        allow_degenerate_group=recipe.train.allow_degenerate_group,
    )
    found = lints.check(set_settings(plan.settings, recipe.overrides), facts)
    return [replace(finding, where=finding.where or _place(finding, plan, places)) for finding in found]


def _place(finding: Finding, plan: Plan, places: Mapping[str, str]) -> str:
    """Where the setting stands that a finding is about: of those it names, the first that the user wrote."""
    overridden = {hydra_overrides.parse_override(text).key: text for text in plan.recipe.overrides}
    written = {key: group for group, keys in plan.recipe.train.verl.items() for key in keys}
    for key in NAMED_KEY.findall(f"{finding.what} {finding.fix}"):
        if key in overridden:
            return f"command line: {overridden[key]}"
        if key in written:
            return places.get(f"train.verl.{written[key]}.{key}", "")
    return ""


def check(loaded: Loaded, plan: Plan) -> list[Finding]:
    """All findings about a plan on this machine."""
    stack = STACKS[loaded.recipe.stack]
    where = loaded.places.get("stack", str(loaded.path))
    own_ray = cluster.address(loaded.recipe) is None  # else the devices are the cluster's
    there = PLATFORMS[stack.name].problems(loaded.recipe.train.devices) if own_ray else []
    absent = [replace(finding, where=where) for finding in there]
    problems = [*plan.findings, *_criteria(loaded), *absent]
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
    if not own_ray and not findings.has_errors(problems):
        _refuse_cluster(plan)
    return problems


def _refuse_cluster(plan: Plan) -> None:
    """Raises FindingsError when training is still to come and the cluster that it joins cannot carry it."""
    from verlbox.cluster import check as cluster_check

    marker = plan.run.marker("train")
    if marker is not None and marker.state == "done":
        return
    problems = cluster_check.problems(plan)
    if problems:
        raise FindingsError(problems, EXIT_PREFLIGHT)


def _criteria(loaded: Loaded) -> list[Finding]:
    """Lines of acceptance whose parts do not fit together."""
    from verlbox.stages.report import criterion_line

    problems: list[Finding] = []
    for position, criterion in enumerate(loaded.recipe.acceptance):
        try:
            criterion_line(criterion)
        except ValueError as error:
            problems.append(
                WRONG_VALUE.finding(
                    f"acceptance line {position + 1}: {error}",
                    why="The run would end without a verdict on it.",
                    fix="See docs/acceptance.md.",
                    where=loaded.places.get(f"acceptance.{position}", str(loaded.path)),
                )
            )
    return problems
