"""The command line: verbs only, no logic."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import verlbox
from verlbox import findings
from verlbox.findings import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, EXIT_USAGE, FindingsError
from verlbox.run import STAGES

RECIPES = Path(__file__).parents[1] / "recipes"

# Verbs with a module of their own (`add_arguments`, `run`), imported only when the verb is used.
MODULES = {
    "doctor": ("verlbox.doctor.command", "Check whether this machine can run a recipe."),
    "lint": ("verlbox.lint_command", "Check verl settings without a recipe."),
    "diagnose": ("verlbox.diagnosis.command", "Name the first cause of a failure in logs."),
    "pins": ("verlbox.pins_command", "Check installed packages against a stack's pins, or lock the pins anew."),
    "setup": ("verlbox.setup.command", "Make the environment of a stack without Docker."),
    "launch": ("verlbox.container.command", "Run a recipe in a container of its stack's image."),
    "submit": ("verlbox.submit", "Run a recipe as a job of a Ray cluster."),
    "grade": ("verlbox.grade", "Grade a file of answers as training does."),
    "ask": ("verlbox.ask", "Ask a run's trained model a question."),
    "report": ("verlbox.report.command", "Report on a run, a TensorBoard directory or a log."),
    "compare": ("verlbox.compare", "Compare runs."),
    "export": ("verlbox.export.command", "Write files with which other systems run a recipe or repeat an evaluation."),
}
OF_RUNS = ("report", "compare")  # their arguments may be runs of ours, whose facts go into the result


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb and returns its exit code; findings are shown, never a traceback for what a user can cause."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(argv)
    arguments, overrides = parser.parse_known_args(argv)
    if overrides and not getattr(arguments, "takes_overrides", False):
        parser.error(f"unrecognized arguments: {' '.join(overrides)}")
    stray = [text for text in overrides if text.startswith("-")]
    if stray:
        parser.error(f"unrecognized arguments: {' '.join(stray)} (overrides are key=value, +key=value or ~key)")
    arguments.overrides = overrides
    verb: Callable[[argparse.Namespace], int] = arguments.verb
    try:
        return verb(arguments)
    except FindingsError as error:
        if getattr(arguments, "json", False):
            print(findings.to_json(error.findings))
        else:
            findings.show(error.findings)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `verlbox list | head`
        sys.stderr.close()
        return EXIT_OK


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verlbox", description=verlbox.__doc__)
    parser.add_argument("--version", action="version", version=verlbox.__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(
        name: str, verb: Callable[[argparse.Namespace], int], help_: str, recipe: bool = False
    ) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=help_, description=help_)
        sub.set_defaults(verb=verb, takes_overrides=recipe)
        if recipe:
            sub.add_argument("recipe", help="a recipe file, or the name of one in recipes/")
            sub.epilog = "Further arguments are overrides: train.epochs=1 (recipe), data.train_batch_size=64 (verl)."
            sub.usage = f"%(prog)s [-h] ... {sub.prog.split()[-1]} RECIPE [options] [key=value ...]"
        return sub

    def in_runs(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--runs", help="folder that holds the runs (default: $VERLBOX_RUNS, else ./runs)")

    def place(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--name", help="name of the run (default: the recipe's name)")
        in_runs(sub)

    run = add("run", _run, "Run a recipe, or go on with it.", recipe=True)
    place(run)
    run.add_argument("--from", dest="first", choices=STAGES, help="run this stage and those after it anew")
    run.add_argument("--until", dest="last", choices=STAGES, help="stop after this stage")
    run.add_argument(
        "--accept-drift", action="append", default=[], metavar="KEY", help="go on although KEY has changed"
    )
    run.add_argument("--offline", action="store_true", help="use only what is on this machine")

    plan = add("plan", _plan, "Show what a run would do: steps, verl command, findings.", recipe=True)
    place(plan)
    plan.add_argument("--card", help="an accelerator such as 910B3 or A100-40: what the recipe needs of its memory")
    plan.add_argument("--fit", action="store_true", help="with --card: settings that fit, the algorithm unchanged")
    plan.add_argument("--json", action="store_true")

    add("validate", _validate, "Check a recipe.", recipe=True).add_argument("--json", action="store_true")
    add("show", _show, "Print a recipe with every default written out.", recipe=True)
    add("list", _list, "List the recipes.")

    status = add("status", _status, "Show how far a run has come.")
    status.add_argument("run", help="a run's folder or name")
    in_runs(status)
    status.add_argument("--json", action="store_true")

    watch = add("watch", _watch, "Follow a run that is at work in another terminal.")
    watch.add_argument("run", help="a run's folder or name")
    in_runs(watch)

    for name, (module, help_) in MODULES.items():
        sub = add(name, _of_module, help_)
        sub.set_defaults(module=module, name_of_verb=name)
        if name in argv[:1]:
            importlib.import_module(module).add_arguments(sub)
    return parser


def _of_module(arguments: argparse.Namespace) -> int:
    run: Callable[..., int] = importlib.import_module(arguments.module).run
    if arguments.name_of_verb not in OF_RUNS:
        return run(arguments)
    from verlbox.stages import report

    return run(arguments, is_run=report.is_run, load_run=report.facts_of_path)


def _run(arguments: argparse.Namespace) -> int:
    from verlbox import console, pipeline, process, recipe, run

    loaded = recipe.load(recipe.find(arguments.recipe, RECIPES), arguments.overrides)
    target = run.place(arguments.runs, arguments.name or loaded.recipe.name)
    options = pipeline.Options(arguments.first, arguments.last, arguments.accept_drift, arguments.offline)
    try:
        return pipeline.run(loaded, target, options, console.standard())
    except process.Interrupted as stop:
        print(f"interrupted; the same command goes on with {target.path}", file=sys.stderr)
        return {2: EXIT_INTERRUPTED, 15: EXIT_TERMINATED}[stop.signum]


def _plan(arguments: argparse.Namespace) -> int:
    from verlbox import fit, pipeline, plan, recipe, run

    loaded = recipe.load(recipe.find(arguments.recipe, RECIPES), arguments.overrides)
    target = run.place(arguments.runs, arguments.name or loaded.recipe.name)
    made = pipeline.make_plan(loaded, target)
    script = plan.script(made, loaded.path.resolve(), arguments.overrides)
    memory, problems = fit.describe(made, arguments.card, arguments.fit)
    made = replace(made, findings=(*made.findings, *problems))
    print(plan.as_json(made, script) if arguments.json else plan.as_text(made, script, memory))
    if not arguments.json:
        findings.show(made.findings)
    return EXIT_USAGE if findings.has_errors(made.findings) else EXIT_OK


def _validate(arguments: argparse.Namespace) -> int:
    from verlbox import pipeline, recipe, run

    path = recipe.find(arguments.recipe, RECIPES)
    loaded = recipe.load(path, arguments.overrides)
    made = pipeline.make_plan(loaded, run.Run(run.runs_folder(None) / loaded.recipe.name))
    if arguments.json:
        print(findings.to_json(made.findings))
    else:
        findings.show(made.findings)
    if findings.has_errors(made.findings):
        return EXIT_USAGE
    if not arguments.json:
        print(f"{path}: valid")
    return EXIT_OK


def _show(arguments: argparse.Namespace) -> int:
    from verlbox import recipe

    print(recipe.resolved(recipe.load(recipe.find(arguments.recipe, RECIPES), arguments.overrides).recipe), end="")
    return EXIT_OK


def _list(arguments: argparse.Namespace) -> int:
    from verlbox import recipe

    for path in sorted(RECIPES.glob("*.yaml")):
        loaded = recipe.load(path).recipe
        print(f"{loaded.name:20} {loaded.stack:9} {loaded.description}")
    return EXIT_OK


def _status(arguments: argparse.Namespace) -> int:
    from verlbox import run, status

    found = status.of(run.open_run(arguments.run, run.runs_folder(arguments.runs)))
    print(json.dumps(found, indent=2) if arguments.json else status.as_text(found))
    return EXIT_OK


def _watch(arguments: argparse.Namespace) -> int:
    from verlbox import console, run, status

    opened = run.open_run(arguments.run, run.runs_folder(arguments.runs))
    status.follow(opened, console.standard())
    return EXIT_OK
