"""What the formats that run a recipe on other systems share: their arguments, the recipe, and where the text goes."""

from __future__ import annotations

import argparse
from pathlib import Path

from verlbox import cluster, findings, recipe
from verlbox.findings import EXIT_USAGE, FindingsError
from verlbox.plan import ROOT
from verlbox.recipe import Recipe
from verlbox.stacks import STACKS

NOT_WRITTEN = findings.register("export-not-written", "error", "The exported file could not be written.")


def add_arguments(parser: argparse.ArgumentParser, use: str) -> None:
    """The arguments of such a format, overrides after them; `use` is the command that takes the output."""
    parser.set_defaults(takes_overrides=True)
    parser.epilog = f"Further arguments are overrides, as for `run`. The output is for `{use}`."
    parser.add_argument("recipe", help="a recipe file, or the name of one in recipes/")
    parser.add_argument("--name", help="name of the run and of the job (default: the recipe's name)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write here (default: standard output)")


def load(arguments: argparse.Namespace, *, files_here: bool) -> Recipe:
    """The recipe with its overrides, for a cluster of the job's own. `files_here` and errors as in recipe.load."""
    path = recipe.find(arguments.recipe, ROOT / "recipes")
    return cluster.without_address(recipe.load(path, arguments.overrides, files_here=files_here).recipe)


def node_cpus(wanted: Recipe) -> int:
    """The processor cores that a node is given: 8 a device, at least 4. A guess for the site to correct."""
    return max(4, 8 * wanted.train.devices)


def node_memory_gib(wanted: Recipe) -> int:
    """The memory that a node is given, in GiB: 64 a device, 16 on the CPU stack. A guess for the site to correct."""
    return 16 if STACKS[wanted.stack].platform == "cpu" else 64 * wanted.train.devices


def write(text: str, out: Path | None) -> None:
    """Writes to a file, or to standard output. Raises FindingsError when the file cannot be written."""
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise not_written(out, error) from error


def not_written(out: Path, error: OSError) -> FindingsError:
    """What is said when `out` cannot be written."""
    return FindingsError(
        NOT_WRITTEN.finding(f"{out}: {error.strerror}", why="Nothing can be exported to there.", fix="Name another."),
        EXIT_USAGE,
    )
