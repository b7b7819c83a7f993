"""The stages of a run, one file each: `inputs` names what the result depends on, `run(context)` produces it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verlbox import findings
from verlbox.console import Console
from verlbox.findings import EXIT_STAGE, Finding, FindingsError
from verlbox.plan import Plan
from verlbox.recipe import Recipe
from verlbox.run import Run

COMMAND_FAILED = findings.register("command-failed", "error", "A command that a stage started ended with an error.")


@dataclass(frozen=True)
class Context:
    """What a stage is given.

    details: the details of the markers of the stages before it, by stage. keep: puts what a stage has found so far into
    its marker while it runs, in place of what it kept before, for whoever looks at the run meanwhile.
    """

    plan: Plan
    offline: bool
    console: Console
    details: Mapping[str, Mapping[str, Any]]
    keep: Callable[[Sequence[Finding]], None] = lambda _: None

    @property
    def recipe(self) -> Recipe:
        return self.plan.recipe

    @property
    def run(self) -> Run:
        return self.plan.run


@dataclass(frozen=True)
class Outputs:
    """What a stage made: files or folders, facts for later stages and the report, and what it has to say."""

    files: list[Path]
    details: Mapping[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


class StageError(FindingsError):
    """A stage that failed; `details` go into its marker (the exit code of a child, the log it wrote)."""

    def __init__(self, problems: Finding | list[Finding], details: Mapping[str, Any] | None = None) -> None:
        super().__init__(problems, EXIT_STAGE)
        self.details = details or {}


def command_failed(what: str, code: int, log: Path) -> StageError:
    """The error for a command that ended with `code`, with the end of its log."""
    finding = COMMAND_FAILED.finding(
        f"{what} ended with exit code {code}; the end of its log:\n{tail(log)}",
        why="The stage has no result.",
        fix=f"Read {log}, mend the cause and run the same command again: it continues from here.",
        where=str(log),
    )
    return StageError(finding, {"exit_code": code, "log": str(log)})


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a text file."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 16384))
        text = stream.read().decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-lines:])
