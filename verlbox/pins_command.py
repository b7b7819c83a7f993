"""The verb `pins`: `pins check` compares the installed set with a stack, `pins lock` resolves a stack's pins anew."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from verlbox import findings, pins
from verlbox.findings import EXIT_OK, EXIT_PREFLIGHT
from verlbox.stacks import STACKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb; its parser sets `action` to check or lock."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|lock")
    check = actions.add_parser(
        "check", help="fail on conflicts that the stack does not accept, and on accepted ones gone"
    )
    check.add_argument("stack", nargs="?", help="a stack (default: the one that the installed set is nearest to)")
    check.add_argument(
        "--path", action="append", metavar="SITE", help="a folder of installed packages, instead of this Python's own"
    )
    check.add_argument("--json", action="store_true")
    lock = actions.add_parser("lock", help="resolve requirements-STACK.in into the stack's requirement files")
    lock.add_argument("stack", nargs="?", help="a stack (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb; returns 0, or 3 when the check finds something. Raises FindingsError."""
    return _check(arguments) if arguments.action == "check" else _lock(arguments)


def _check(arguments: argparse.Namespace) -> int:
    machine = os.uname().machine
    if arguments.stack:
        stack = pins.stack_named(arguments.stack)
    else:
        stack = pins.likely(pins.installed(arguments.path), machine)
    verdict = pins.check(stack, arguments.path)
    problems = pins.findings_of(verdict, stack)
    if arguments.json:
        content = {
            "stack": stack.name,
            "machine": machine,
            "accepted": [{**asdict(c), "reason": a.reason} for c, a in verdict.accepted],
            "findings": [asdict(finding) for finding in problems],
        }
        print(json.dumps(content, ensure_ascii=False, indent=2))
    else:
        for conflict, entry in verdict.accepted:
            print(f"accepted: {conflict}: {entry.reason}")
        findings.show(problems)
        print(
            f"stack {stack.name} on {machine}: {len(verdict.accepted)} accepted, {len(verdict.unexpected)} unexpected"
            f" conflicts; {len(verdict.gone)} accepted ones gone"
        )
    return EXIT_PREFLIGHT if problems else EXIT_OK


def _lock(arguments: argparse.Namespace) -> int:
    for stack in [pins.stack_named(arguments.stack)] if arguments.stack else STACKS.values():
        print(f"resolving {stack.name} ...", file=sys.stderr)
        for path in pins.lock(stack):
            print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return EXIT_OK
