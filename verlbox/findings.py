"""Findings: what verlbox has to say to a user, in one form, from every part of the program.

A finding says what is wrong, why it matters and how to mend it. Each has a code that is registered once, beside the
module that raises it; docs/findings.md is generated from that registry.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

# Exit codes of the command line (DESIGN, decision 6).
EXIT_OK = 0
EXIT_USAGE = 2  # recipe or usage error
EXIT_PREFLIGHT = 3  # this machine cannot run the recipe
EXIT_STAGE = 4  # a stage failed
EXIT_ACCEPTANCE = 5  # the run finished, its result is not acceptable
EXIT_INTERRUPTED = 130  # Ctrl-C
EXIT_TERMINATED = 143  # SIGTERM


@dataclass(frozen=True)
class Finding:
    """One thing to tell the user. `where` is a place such as `recipes/x.yaml:12`, or empty."""

    severity: Severity
    code: str
    what: str
    why: str
    fix: str
    where: str = ""


@dataclass(frozen=True)
class Code:
    """A registered finding code: kebab-case name, usual severity, one sentence for the documentation."""

    name: str
    severity: Severity
    meaning: str

    def finding(self, what: str, *, why: str, fix: str, where: str = "", severity: Severity | None = None) -> Finding:
        """The finding of this code; `severity` departs from the usual one where the case calls for it."""
        return Finding(severity or self.severity, self.name, what, why, fix, where)


_registry: dict[str, Code] = {}


def register(name: str, severity: Severity, meaning: str) -> Code:
    """Registers a code; call it at module level. Raises ValueError when the name is taken."""
    if name in _registry:
        raise ValueError(f"finding code {name!r} is registered twice")
    _registry[name] = Code(name, severity, meaning)
    return _registry[name]


def registered() -> list[Code]:
    """All codes registered by the modules imported so far, by name."""
    return [_registry[name] for name in sorted(_registry)]


class FindingsError(Exception):
    """Stops the program with findings (at least one of them an error) and an exit code: never shown as a traceback."""

    def __init__(self, findings: Finding | Sequence[Finding], exit_code: int = EXIT_USAGE) -> None:
        self.findings: list[Finding] = [findings] if isinstance(findings, Finding) else list(findings)
        self.exit_code = exit_code
        super().__init__("; ".join(f"{f.code}: {f.what}" for f in self.findings))


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(f.severity == "error" for f in findings)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then warnings, then notes; otherwise in the order given, without exact repeats."""
    unique = dict.fromkeys(findings)
    return sorted(unique, key=lambda f: SEVERITIES.index(f.severity))


def to_json(findings: Iterable[Finding]) -> str:
    return json.dumps([asdict(f) for f in by_severity(findings)], ensure_ascii=False, indent=2)


def to_text(findings: Iterable[Finding]) -> str:
    """Plain lines, for pipes and logs: the same content as the table."""
    lines: list[str] = []
    for f in by_severity(findings):
        place = f"{f.where}: " if f.where else ""
        lines += [f"{f.severity}[{f.code}] {place}{f.what}"]
        lines += [f"  {label}: {text}" for label, text in (("why", f.why), ("fix", f.fix)) if text]
    return "\n".join(lines)


def show(findings: Iterable[Finding], stream: IO[str] | None = None) -> None:
    """Prints findings: a table on a terminal, plain lines elsewhere; nothing when there are none."""
    stream = stream or sys.stderr
    ordered = by_severity(findings)
    if not ordered:
        return
    if not stream.isatty():
        print(to_text(ordered), file=stream)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colour = {"error": "bold red", "warning": "yellow", "note": "cyan"}
    table = Table(show_lines=True, expand=True)
    table.add_column("", no_wrap=True)
    table.add_column("what")
    table.add_column("why")
    table.add_column("fix")
    for f in ordered:
        what = Text(f"{f.where}\n" if f.where else "", style="dim")
        what.append(f.what, style="not dim")
        table.add_row(Text(f"{f.severity}\n{f.code}", style=colour[f.severity]), what, Text(f.why), Text(f.fix))
    Console(file=stream).print(table)
