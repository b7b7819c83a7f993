"""Grading of existing outputs, offline, with the graders that training uses.

`python entrypoint.py grade --dataset gsm8k|math FILE.jsonl` reads one JSON object a line and writes one JSON object a
line to standard output, in the order of the input; the summary goes to standard error, or with `--json` to standard
output as the last line. See docs/rewards.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from verlbox.findings import EXIT_OK, EXIT_USAGE, Finding, FindingsError, register, show

Dataset = Literal["gsm8k", "math"]
BATCH = 256  # rows graded together: enough to keep all grading processes busy
MAX_LINE = 10_000_000  # bytes
UNGRADED_SHARE = 0.01

# What a row may call its two texts: our names first, then those of verl's dumped generations.
RESPONSE_FIELDS = ("response", "output")
TRUTH_FIELDS = ("ground_truth", "gts")
ANSWER_FIELDS = ("prediction",)
GOLD_FIELDS = ("gold",)

NO_FILE = register("grade-no-file", "error", "The file of outputs to grade cannot be read.")
BAD_LINE = register("grade-bad-line", "error", "A line of the file to grade is no JSON object with the needed texts.")


@dataclass(frozen=True)
class _Row:
    """One readable input line: its number, all its fields, and the two texts to compare."""

    line: int
    fields: dict[str, Any]
    response: str
    truth: str


@dataclass
class Summary:
    """Totals over the graded rows. `seconds` is the wall time, `slowest` the longest single row."""

    rows: int = 0
    bad_lines: int = 0
    acc: float = 0.0
    score: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: float = 0.0


def _text(fields: dict[str, Any], names: Sequence[str]) -> str:
    """The text under the first of the names that is there. Raises ValueError when none is, or it is no text."""
    name = next((name for name in names if name in fields), None)
    if name is None:
        raise ValueError(f"no field {' or '.join(repr(name) for name in names)}")
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{name!r} is {type(value).__name__}, not a text or number")
    return str(value)


def _read(path: Path, answers: bool) -> Iterator[_Row | Finding]:
    """The rows of a file, and a finding for each line that is none; blank lines are passed over."""
    first, second = (ANSWER_FIELDS, GOLD_FIELDS) if answers else (RESPONSE_FIELDS, TRUTH_FIELDS)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                if len(line) > MAX_LINE:
                    raise ValueError(f"longer than {MAX_LINE:,} bytes")
                fields = json.loads(line.decode("utf-8-sig"))
                if not isinstance(fields, dict):
                    raise ValueError(f"a JSON {type(fields).__name__}, not an object")
                yield _Row(number, fields, _text(fields, first), _text(fields, second))
            except (ValueError, RecursionError) as error:
                yield BAD_LINE.finding(
                    f"line cannot be graded: {error or 'nested too deeply'}",
                    why="a row needs " + " and ".join(repr(names[0]) for names in (first, second)),
                    fix="correct the line; the other lines are graded",
                    where=f"{path}:{number}",
                )


def _grade(rows: Sequence[_Row], dataset: Dataset, answers: bool, timeout: float) -> list[dict[str, Any]]:
    """The results of one batch, in order: score, acc, reason, parts, seconds."""
    from verlbox.rewards import graded_math, gsm8k
    from verlbox.rewards.answers import bare_answer
    from verlbox.rewards.equivalence import judge

    results: list[dict[str, Any]] = []
    if dataset == "math":
        if answers:
            verdicts = judge([(bare_answer(row.truth), bare_answer(row.response)) for row in rows], timeout)
            outcomes = [(verdict.reason, verdict.seconds) for verdict in verdicts]
        else:
            graded = graded_math.grade([row.response for row in rows], [row.truth for row in rows], timeout)
            outcomes = [(item.reason, item.seconds) for item in graded]
        for row, (reason, seconds) in zip(rows, outcomes, strict=True):
            full = graded_math.row("" if answers else row.response, reason)
            parts = {} if answers else {name: full[name] for name in ("accuracy", "format", "steps")}
            score = full["acc"] if answers else full["score"]
            results.append(_result(score, full["acc"], reason, parts, seconds))
        return results
    for row in rows:
        start = time.perf_counter()
        reason = gsm8k.grade_number(row.response, row.truth) if answers else gsm8k.grade(row.response, row.truth)
        seconds = time.perf_counter() - start
        full = gsm8k.row(row.response, reason)
        parts = {} if answers else {"format": full["format"]}
        results.append(_result(full["score"], full["acc"], reason, parts, seconds))
    return results


def _result(score: Any, acc: Any, reason: str, parts: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {"score": score, "acc": acc, "reason": reason, "parts": parts, "seconds": round(seconds, 6)}


def _write(value: dict[str, Any], out: IO[str]) -> None:
    """One JSON line; text that is no valid Unicode (lone surrogates) is written escaped."""
    line = json.dumps(value, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:
        line = json.dumps(value)
    out.write(line + "\n")


def grade_file(
    path: str | Path,
    dataset: Dataset,
    answers: bool = False,
    timeout: float = 1.0,
    out: IO[str] | None = None,
) -> tuple[Summary, list[Finding]]:
    """Grades a JSONL file and writes one JSON object for each readable row to `out` (default: standard output).

    Rows hold `response` and `ground_truth`, or `prediction` and `gold` with `answers` (compared as bare answers). An
    output row holds every field of its input row, then `line`, `score`, `acc`, `reason`, `parts`, `seconds`; an input
    field of one of these names is kept as `input_<name>`. `timeout` is in seconds a row.
    Returns the summary and a finding for each line that could not be read. Raises FindingsError when the file cannot be
    opened, RuntimeError when math-verify is needed and cannot be started.
    """
    path, stream = Path(path), out or sys.stdout
    summary, findings = Summary(), list[Finding]()
    reasons: Counter[str] = Counter()
    start = time.perf_counter()
    waiting: list[_Row] = []

    def flush() -> None:
        for row, graded in zip(waiting, _grade(waiting, dataset, answers, timeout), strict=True):
            result = {"line": row.line, **graded}
            carried = {f"input_{name}" if name in result else name: value for name, value in row.fields.items()}
            _write({**carried, **result}, stream)
            summary.rows += 1
            summary.acc += result["acc"]
            summary.score += result["score"]
            summary.slowest = max(summary.slowest, result["seconds"])
            reasons[result["reason"]] += 1
        stream.flush()
        waiting.clear()

    try:
        for item in _read(path, answers):
            if isinstance(item, Finding):
                findings.append(item)
                continue
            waiting.append(item)
            if len(waiting) == BATCH:
                flush()
    except OSError as error:
        raise FindingsError(
            NO_FILE.finding(
                f"{path} cannot be read: {error.strerror}",
                why="there is nothing to grade without it",
                fix="name a JSONL file with one row a line",
            )
        ) from error
    flush()
    summary.acc /= max(1, summary.rows)
    summary.score /= max(1, summary.rows)
    summary.bad_lines = len(findings)
    summary.reasons = dict(reasons.most_common())
    summary.seconds = round(time.perf_counter() - start, 3)
    return summary, findings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `entrypoint.py grade`."""
    parser.add_argument("file", type=Path, metavar="FILE.jsonl", help="one JSON object a line")
    parser.add_argument("--dataset", required=True, choices=("gsm8k", "math"), help="whose grader to use")
    parser.add_argument("--answers", action="store_true", help="compare `prediction` with `gold` as bare answers")
    parser.add_argument("--timeout", type=float, default=1.0, metavar="SECONDS", help="limit a row (default: 1)")
    parser.add_argument(
        "--json", action="store_true", help="write the summary as the last JSON line of standard output"
    )


def run(arguments: argparse.Namespace) -> int:
    """`entrypoint.py grade`: 0, or 2 when lines could not be read (all others are graded all the same).

    Raises FindingsError when the file cannot be opened.
    """
    from verlbox.rewards.reasons import ungraded_finding

    summary, findings = grade_file(arguments.file, arguments.dataset, arguments.answers, arguments.timeout)
    if arguments.json:
        _write({"summary": asdict(summary)}, sys.stdout)
    else:
        reasons = ", ".join(f"{reason} {count}" for reason, count in summary.reasons.items())
        print(
            f"{summary.rows} rows: acc {summary.acc:.4f}, score {summary.score:.4f} ({reasons or 'none graded'});"
            f" {summary.bad_lines} lines not readable; {summary.seconds} s, slowest row {summary.slowest:.3f} s",
            file=sys.stderr,
        )
    ungraded = ungraded_finding(summary.reasons, UNGRADED_SHARE, where=str(arguments.file))
    show([*findings, *([ungraded] if ungraded else [])])
    return EXIT_USAGE if findings else EXIT_OK
