"""The verb `launch RECIPE`: runs a recipe in the container of its stack."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from verlbox import findings, recipe
from verlbox import run as runs
from verlbox.console import standard
from verlbox.container import devices, engine, images, launch
from verlbox.doctor.machine import Machine, here
from verlbox.findings import EXIT_OK, EXIT_PREFLIGHT, EXIT_USAGE, Finding, FindingsError
from verlbox.recipe import Loaded
from verlbox.stacks import STACKS
from verlbox.stages.download import cache_folder

SEVERAL_MACHINES = findings.register("launch-several-machines", "error", "launch cannot join a Ray cluster.")

RECIPES = Path(__file__).parents[2] / "recipes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb; overrides of the recipe may follow."""
    parser.set_defaults(takes_overrides=True)
    parser.epilog = "Further arguments are overrides, as for `run`."
    parser.add_argument("recipe", help="a recipe file, or the name of one in recipes/")
    parser.add_argument("--devices", type=_numbers, metavar="N,N", help="accelerators by number (default: free ones)")
    parser.add_argument("--dry-run", action="store_true", help="print the docker command and start nothing")
    parser.add_argument("--attach", action="store_true", help="follow the run's container, which is at work already")
    parser.add_argument("--build", action="store_true", help="build the image although there is one")
    parser.add_argument("--name", help="name of the run (default: the recipe's name)")
    parser.add_argument("--runs", help="folder that holds the runs (default: $VERLBOX_RUNS, else ./runs)")
    parser.add_argument("--from", dest="first", metavar="STAGE", help="as for `run`")
    parser.add_argument("--until", dest="last", metavar="STAGE", help="as for `run`")
    parser.add_argument("--accept-drift", action="append", default=[], metavar="KEY", help="as for `run`")
    parser.add_argument("--offline", action="store_true", help="as for `run`")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in text.split(",")}))


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb and returns the container's exit code. Raises FindingsError (3 when this host cannot run it)."""
    loaded = recipe.load(recipe.find(arguments.recipe, RECIPES), arguments.overrides)
    target = runs.place(arguments.runs, arguments.name or loaded.recipe.name)
    _refuse_cluster(loaded)
    if arguments.dry_run:
        contained, problems = _contained(arguments, loaded, target, here(), {}, rootless=False)
        print(launch.as_text(launch.docker_command(contained)))
        findings.show(problems)
        return EXIT_PREFLIGHT if findings.has_errors(problems) else EXIT_OK
    client = engine.connect()
    if arguments.attach:
        return launch.attach(client, target)
    held, rootless = launch.taken(client), engine.rootless(client)
    contained, problems = _contained(arguments, loaded, target, here(), held, rootless)
    if findings.has_errors(problems):
        raise FindingsError(problems, EXIT_PREFLIGHT)
    stack = STACKS[loaded.recipe.stack]
    if arguments.build or not images.present(client, contained.image):
        images.build(stack, standard())
    for mount in contained.mounts:  # the engine would make a missing folder as root
        if not mount.read_only:
            Path(mount.path).mkdir(parents=True, exist_ok=True)
    return launch.start(client, contained, target)


def _contained(
    arguments: argparse.Namespace,
    loaded: Loaded,
    target: runs.Run,
    machine: Machine,
    held: dict[int, str],
    rootless: bool,
) -> tuple[launch.Contained, list[Finding]]:
    """The container, and what on this host is against it."""
    wanted, stack = loaded.recipe, STACKS[loaded.recipe.stack]
    numbers: tuple[int, ...] = ()
    problems: list[Finding] = []
    if stack.platform != "cpu":
        found = devices.look(stack.platform, machine, held)
        numbers, problems = devices.choose(found, wanted.train.devices, arguments.devices)
        if not numbers:  # for the printed command
            numbers = arguments.devices or tuple(range(wanted.train.devices))
    chosen, missing = devices.chosen(stack.platform, numbers, machine)
    contained = launch.describe(
        wanted,
        target,
        _command(arguments, loaded, target),
        image=images.reference(stack),
        user="0:0" if rootless else f"{os.getuid()}:{os.getgid()}",
        cache=cache_folder().resolve(),
        inputs=_inputs(loaded),
        devices=chosen,
        terminal=sys.stdout.isatty(),
    )
    return contained, [*problems, *missing]


def _refuse_cluster(loaded: Loaded) -> None:
    """Raises FindingsError for a recipe that joins a Ray cluster: the container has no way to it."""
    wanted = loaded.recipe.cluster
    if wanted.nodes > 1 or wanted.address:
        raise FindingsError(
            SEVERAL_MACHINES.finding(
                f"{loaded.recipe.name} joins a Ray cluster ({wanted.address or f'{wanted.nodes} nodes'})",
                why="launch starts one container on this machine, and that container is no node of the cluster.",
                fix="Hand the recipe to the cluster: entrypoint.py submit RECIPE --address http://HEAD:8265"
                " (docs/cluster.md).",
                where=loaded.places.get("cluster", str(loaded.path)),
            ),
            EXIT_USAGE,
        )


def _inputs(loaded: Loaded) -> list[Path]:
    """What the container reads of the host: the recipe's file, and a model, tokenizer or data set that lies here."""
    sections = (loaded.recipe.model, loaded.recipe.dataset)
    return [loaded.path.resolve(), *(Path(section.path) for section in sections if section.path)]


def _command(arguments: argparse.Namespace, loaded: Loaded, target: runs.Run) -> list[str]:
    """verlbox's own command line in the container; local paths are absolute there."""
    command = ["run", str(loaded.path.resolve()), "--name", target.name]
    command += ["--from", arguments.first] if arguments.first else []
    command += ["--until", arguments.last] if arguments.last else []
    command += [part for key in arguments.accept_drift for part in ("--accept-drift", key)]
    command += ["--offline"] if arguments.offline else []
    absolute = {"model.path": loaded.recipe.model.path, "dataset.path": loaded.recipe.dataset.path}
    for text in arguments.overrides:
        key = text.partition("=")[0]
        command.append(f"{key}={absolute[key]}" if absolute.get(key) else text)
    return command
