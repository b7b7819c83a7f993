"""`diagnose LOG...`: what went wrong, told from logs.

Exit code 0: the logs were read, whatever they say (the finding is the result, not a failure of the command); 2: a log
cannot be read.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verlbox.diagnosis.catalogue import PLATFORMS
from verlbox.diagnosis.matcher import Cause, Diagnosis, diagnose_stream, with_file
from verlbox.findings import EXIT_OK, EXIT_USAGE, FindingsError, register, show

LOG_UNREADABLE = register("log-unreadable", "error", "A log file does not exist or cannot be read.")


def add_arguments(parser: ArgumentParser) -> None:
    """The command's arguments: logs (`-` is standard input), --platform, --json."""
    parser.add_argument("logs", nargs="+", metavar="LOG", help="console log of any size; - reads standard input")
    parser.add_argument(
        "--platform",
        choices=PLATFORMS,
        help="what the run was on, where the log does not tell it",
    )
    parser.add_argument("--json", action="store_true", help="print the diagnoses as JSON")


def run(arguments: Namespace) -> int:
    """Prints the diagnosis of each log. Raises FindingsError (exit code 2) naming every log that cannot be read."""
    diagnoses: dict[str, Diagnosis] = {}
    unreadable = []
    for name in arguments.logs:
        try:
            with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as stream:
                diagnoses[name] = diagnose_stream(stream, arguments.platform)
        except OSError as error:
            unreadable.append(
                LOG_UNREADABLE.finding(
                    f"cannot read {name}: {error.strerror}",
                    why="a diagnosis needs the log's text",
                    fix="give the path of a console log (a run keeps its own under logs/), or - for standard input",
                    where=name,
                )
            )
    if arguments.json:
        print(json.dumps([_as_json(name, d) for name, d in diagnoses.items()], ensure_ascii=False, indent=2))
    else:
        for name, diagnosis in diagnoses.items():
            _print(name, diagnosis)
    if unreadable:
        raise FindingsError(unreadable, EXIT_USAGE)
    return EXIT_OK


def _print(name: str, diagnosis: Diagnosis) -> None:
    step = "" if diagnosis.last_step is None else f", last step {diagnosis.last_step}"
    print(f"{name}: {diagnosis.outcome} ({diagnosis.lines} lines{step})")
    show(with_file(diagnosis, name).findings, sys.stdout)
    for title, causes in (("followed from it", diagnosis.consequences), ("harmless", diagnosis.harmless)):
        for cause in causes:
            if not any(cause == shown for shown in diagnosis.causes):
                print(
                    f"  {title}: line {cause.line}: {cause.entry.cause}{' (the run went on)' if cause.survived else ''}"
                )


def _as_json(name: str, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "log": name,
        "outcome": diagnosis.outcome,
        "failure": diagnosis.failure,
        "unknown": diagnosis.unknown,
        "last_step": diagnosis.last_step,
        "lines": diagnosis.lines,
        "findings": [asdict(f) for f in diagnosis.findings],
        "causes": [_cause(c) for c in diagnosis.causes],
        "consequences": [_cause(c) for c in diagnosis.consequences],
        "harmless": [_cause(c) for c in diagnosis.harmless],
        "worth_reading": [asdict(line) for line in diagnosis.worth_reading],
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "code": cause.entry.code.name,
        "severity": cause.entry.severity,
        "role": cause.entry.role,
        "failure": cause.entry.failure,
        "line": cause.line,
        "worker": cause.worker,
        "text": cause.text,
        "count": cause.count,
        "deciding": [asdict(line) for line in cause.deciding],
        "survived": cause.survived,
        "source": cause.entry.source,
    }
