"""Preflight: what must hold before a run creates anything; every problem is found, not only the first."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from verlbox import cluster, findings, hydra_overrides, known_facts, lints, verl_keys
from verlbox.cluster import check as cluster_check
from verlbox.findings import EXIT_PREFLIGHT, EXIT_USAGE, Finding, FindingsError
from verlbox.plan import PLATFORMS, PUBLISHED_ROWS, Plan, Rows, effective_settings, set_settings, verl_command
from verlbox.platforms import ABSENT
from verlbox.recipe import WRONG_VALUE, Loaded, Recipe
from verlbox.stacks import STACKS
from verlbox.verl_keys import installed
from verlbox.verl_keys.installed import Composed

STACK_MISSING = findings.register("stack-missing", "error", "The software of the recipe's stack is not installed here.")
STACK_DIFFERS = findings.register("stack-differs", "error", "Another version of verl is installed than the stack pins.")
FROM_DATA = findings.register(
    "settings-judged-by-data", "note", "The settings were judged by verlbox's copy of verl's keys, not by verl itself."
)

# Another machine, or another cluster, could run the recipe.
MACHINE = frozenset(code.name for code in (STACK_MISSING, STACK_DIFFERS, ABSENT, *cluster_check.CODES))
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
    composed, notes = compose(plan)
    found = lints.check(set_settings(plan.settings, plan.recipe.overrides), known_facts.gather(plan), composed=composed)
    return [replace(finding, where=finding.where or _place(finding, plan, places)) for finding in [*found, *notes]]


def compose(plan: Plan) -> tuple[Composed | None, list[Finding]]:
    """What the stack's verl makes of a plan's settings where it is installed, else None and, if that needs a word, why.

    Without verl there is nothing to say: a plan is made on any machine.
    """
    pinned, here = STACKS[plan.recipe.stack].verl, installed.version()
    if here is None or pinned not in verl_keys.VERSIONS:
        return None, []
    reason = f"Installed is verl {here}, the stack {plan.recipe.stack} pins {pinned}"
    if here == pinned:
        try:
            return installed.compose("ppo_trainer", verl_command(plan.settings, plan.recipe.overrides)[3:]), []
        except RuntimeError as error:
            reason = f"The installed verl's configuration could not be composed: {error}"
    note = FROM_DATA.finding(
        f"settings are judged by verlbox's copy of the keys of verl {pinned}",
        why=f"{reason}.",
        fix=f"An environment made from {STACKS[plan.recipe.stack].requirements} has that verl.",
    )
    return None, [note]


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
    problems = [*plan.findings, *_criteria(loaded)]
    joined = cluster.address(loaded.recipe)
    if joined is None:  # else the devices are the cluster's
        problems += _devices(plan, loaded.places, where)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        problems.append(
            STACK_MISSING.finding(
                f"not installed here: {', '.join(missing)}",
                why=f"The stack {stack.name} trains with verl {stack.verl}.",
                fix=f"`python entrypoint.py setup {stack.name}` makes an environment with it; use that one.",
                where=where,
            )
        )
    elif (here := metadata.version("verl")) != stack.verl:
        problems.append(
            STACK_DIFFERS.finding(
                f"verl {here} is installed, the stack {stack.name} pins {stack.verl}",
                why="Settings mean different things in different versions of verl.",
                fix=f"Use an environment made from {stack.requirements}.",
                where=where,
            )
        )
    marker = plan.run.marker("train")
    if joined is not None and not findings.has_errors(problems) and (marker is None or marker.state != "done"):
        problems += cluster_check.look(plan, joined)[0]
    return problems


def _devices(plan: Plan, places: Mapping[str, str], where: str) -> list[Finding]:
    """What keeps this machine from giving the devices that verl will ask for; an override of their number counts."""
    recipe = plan.recipe
    wanted = plan.effective.get("trainer.n_gpus_per_node")
    needed = wanted if isinstance(wanted, int) else recipe.train.devices
    number = places.get("train.devices", where)
    if needed != recipe.train.devices:
        number = f"command line: trainer.n_gpus_per_node={needed}"
    found = PLATFORMS[recipe.stack].problems(needed)
    return [replace(finding, where=number if "train.devices" in finding.fix else where) for finding in found]


def exit_code(problems: Sequence[Finding]) -> int:
    """The exit code for problems with an error: 3 when only this machine is in the way, 2 when the recipe is wrong."""
    codes = {finding.code for finding in problems if finding.severity == "error"}
    return EXIT_PREFLIGHT if codes <= MACHINE else EXIT_USAGE


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
