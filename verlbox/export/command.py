"""The verb `export FORMAT ...`: each format is a module of this folder with `HELP`, `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

FORMATS: tuple[str, ...] = ("opencompass", "kuberay", "slurm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-command for each format."""
    formats = parser.add_subparsers(required=True, metavar="FORMAT")
    for name in FORMATS:
        module = importlib.import_module(f"verlbox.export.{name}")
        sub = formats.add_parser(name, help=module.HELP, description=module.HELP)
        sub.set_defaults(export=module.run)
        module.add_arguments(sub)


def run(arguments: argparse.Namespace) -> int:
    """Writes the files and returns the exit code. Raises FindingsError."""
    export: Callable[[argparse.Namespace], int] = arguments.export
    return export(arguments)
