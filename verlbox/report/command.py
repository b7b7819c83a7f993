"""`report RUN|LOGDIR|LOGFILE`: a report on a verlbox run, on any verl TensorBoard directory, or on a bare log."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from verlbox.findings import EXIT_USAGE, FindingsError, register
from verlbox.report.facts import RunFacts

CANNOT_WRITE = register("report-not-written", "error", "The report could not be written.")
UNKNOWN_FORMAT = register("report-unknown-format", "error", "A report format was asked for that does not exist.")

FORMATS = ("md", "html", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `report`."""
    parser.add_argument("run", help="a run directory, a TensorBoard directory, an event file, or verl's console log")
    parser.add_argument("--lang", choices=("en", "zh"), default="en", help="language of the report (default: en)")
    parser.add_argument("--format", default=",".join(FORMATS), help="any of md, html, json, with commas (default: all)")
    parser.add_argument("--out", help="directory for the files (default: RUN/report, or ./report elsewhere)")


def run(
    arguments: argparse.Namespace,
    is_run: Callable[[Path], bool] | None = None,
    load_run: Callable[[Path], RunFacts] | None = None,
) -> int:
    """Writes the report, prints what was written, and returns the exit code: 5 when the acceptance failed.

    `is_run` tells whether a path is a verlbox run directory, whose facts `load_run` then gives. Raises FindingsError
    for a path without metrics, an unknown format, or a directory that cannot be written.
    """
    from verlbox import findings
    from verlbox.metrics.read import read
    from verlbox.report import build, language, write_report
    from verlbox.report.model import text

    formats = [name.strip() for name in arguments.format.split(",") if name.strip()]
    if not formats or set(formats) - set(FORMATS):
        raise FindingsError(
            UNKNOWN_FORMAT.finding(
                f"--format {arguments.format!r} is not a list of {', '.join(FORMATS)}.",
                why="The report cannot be written in that form.",
                fix="For example --format md,html",
            )
        )
    path = Path(arguments.run)
    metrics = read(path)
    ours = load_run is not None and is_run is not None and is_run(path)
    facts = load_run(path) if ours and load_run is not None else facts_of(path)
    report = build.build(facts, metrics)
    out = Path(arguments.out) if arguments.out else path / "report" if ours else Path("report")
    try:
        written = write_report(report, out, arguments.lang, formats)
    except OSError as error:
        raise FindingsError(
            CANNOT_WRITE.finding(
                f"Nothing can be written to {out}: {error.strerror or error}.",
                why="The report needs a directory of its own.",
                fix="Name another with --out DIR, or free some space.",
            ),
            EXIT_USAGE,
        ) from error
    findings.show(report.findings)
    say = language.speaker(arguments.lang)
    print(say(text(f"ui.verdict.{report.verdict.overall}")))
    for paragraph in report.headline:
        print(f"- {say(paragraph.text)}")
    for file in written:
        print(file)
    return report.verdict.exit_code


def facts_of(path: Path) -> RunFacts:
    """What can be known of a run that is not ours: its name, and what its log says when the path is a log."""
    from verlbox.report.from_log import facts_of_log

    if path.is_file() and "tfevents" not in path.name and path.suffix.lower() != ".csv":
        return facts_of_log(path)
    return RunFacts(name=path.resolve().name if path.is_dir() else path.name)
