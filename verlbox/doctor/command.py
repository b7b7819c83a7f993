"""The verb `doctor [RECIPE]`: says whether this machine can run a recipe, and mends what is harmless to mend."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from verlbox import findings, pins, recipe
from verlbox import run as runs
from verlbox.doctor import checks
from verlbox.doctor.machine import Machine, age, here
from verlbox.doctor.subject import Check, Checked, Subject
from verlbox.findings import EXIT_OK, EXIT_PREFLIGHT, Finding
from verlbox.platforms import cuda, npu
from verlbox.stacks import STACKS, Stack
from verlbox.stages.download import cache_folder

RECIPES = Path(__file__).parents[2] / "recipes"

# Seconds from the start of this process for all questions that may take long. With an accelerator the imports alone
# take a minute or more; without, those that do not finish in time are named, and the run finds their errors as fast.
PATIENCE = {"cpu": 2.2, "npu": 120.0, "cuda": 120.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb; overrides of the recipe may follow in `overrides`."""
    parser.set_defaults(takes_overrides=True)
    parser.add_argument("recipe", nargs="?", help="a recipe, or a stack (default: the stack that fits this machine)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--fix", action="store_true", help="create missing folders, write export lines to a file; nothing else"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb; returns 0, or 3 when there is an error. Raises FindingsError for a recipe that cannot be read."""
    start = time.monotonic() - age()
    machine = here()
    loaded = None
    if arguments.recipe is None:
        stack = nearest_stack(machine)
    elif arguments.recipe in STACKS and not (RECIPES / f"{arguments.recipe}.yaml").exists():
        stack = STACKS[arguments.recipe]
    else:
        place = recipe.find(arguments.recipe, RECIPES)
        loaded = recipe.load(place, getattr(arguments, "overrides", [])).recipe
        stack = STACKS[loaded.stack]
    subject = Subject(
        machine=machine,
        stack=stack,
        runs=str(runs.runs_folder(None)),
        cache=str(cache_folder()),
        devices=loaded.train.devices if loaded else 1,
        recipe=loaded,
        until=start + PATIENCE[stack.platform],
    )
    if stack.platform != "cpu" and not arguments.json and subject.installed:
        print("importing the stack's packages, which takes a minute or more ...", file=sys.stderr)
    results = checks.run(subject)
    problems = findings.by_severity(finding for _, checked in results for finding in checked.findings)
    done = repair(results, subject) if arguments.fix else []
    code = EXIT_PREFLIGHT if findings.has_errors(problems) else EXIT_OK
    if arguments.json:
        print(as_json(subject, results, problems, done, code))
    else:
        print(as_text(subject, results, problems))
        findings.show(problems)
        print("\n".join(done), end="\n" if done else "")
    return code


def nearest_stack(machine: Machine) -> Stack:
    """Without a recipe: the stack of the accelerator that is here, and of its stacks the one that is installed."""
    platform = "npu" if npu.devices(machine.root) else "cuda" if cuda.devices(machine.root) else "cpu"
    installed = pins.likely(pins.installed(machine.sites), machine.architecture)
    if installed.platform == platform:
        return installed
    return next(stack for stack in STACKS.values() if stack.platform == platform)


def as_text(subject: Subject, results: Sequence[tuple[Check, Checked]], problems: Sequence[Finding]) -> str:
    """A line for each check, with the worst that it found, and a verdict."""
    mark = {"error": "ERROR", "warning": "warn", "note": "note"}
    name = (
        f"recipe {subject.recipe.name}, stack {subject.stack.name}" if subject.recipe else f"stack {subject.stack.name}"
    )
    lines = [f"{name} (verl {subject.stack.verl}, Python {subject.stack.python})"]
    for check, checked in results:
        worst = findings.by_severity(checked.findings)[:1]
        state = mark[worst[0].severity] if worst else "ok"
        lines.append(f"{state:6}{check.group:11}{check.name:18}{checked.fact}")
    counts = [(sum(f.severity == kind for f in problems), kind) for kind in findings.SEVERITIES]
    found = ", ".join(f"{number} {kind}{'s' if number > 1 else ''}" for number, kind in counts if number)
    return "\n".join([*lines, found or "nothing to complain about"])


def as_json(
    subject: Subject,
    results: Sequence[tuple[Check, Checked]],
    problems: Sequence[Finding],
    done: Sequence[str],
    code: int,
) -> str:
    """The same for programs."""
    content = {
        "recipe": subject.recipe.name if subject.recipe else None,
        "stack": subject.stack.name,
        "exit_code": code,
        "checks": [{"group": c.group, "name": c.name, "fact": checked.fact} for c, checked in results],
        "findings": [asdict(finding) for finding in problems],
        "done": list(done),
    }
    return json.dumps(content, ensure_ascii=False, indent=2)


def repair(results: Sequence[tuple[Check, Checked]], subject: Subject) -> list[str]:
    """Makes the folders and writes the export lines that the checks offer; returns what was done, in words."""
    repairs = list(dict.fromkeys(repair for _, checked in results for repair in checked.repairs))
    done: list[str] = []
    for folder in (r.folder for r in repairs if r.folder):
        place = subject.machine.path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
            done.append(f"made {place}")
        except OSError as error:
            done.append(f"could not make {place}: {error.strerror}")
    lines = [r.line for r in repairs if r.line]
    if lines:
        script = subject.machine.path(subject.runs) / f"environment-{subject.stack.name}.sh"
        try:
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text("\n".join(lines) + "\n", "utf-8")
            done.append(f"wrote {len(lines)} lines to {script}; now: source {shlex.quote(str(script))}")
        except OSError as error:
            done.append(f"could not write {script}: {error.strerror}")
    return done or ["nothing that --fix may mend"]
