"""Reads what verl measured, from its TensorBoard event files, its console log or a table of ours, into one table.

Every metric of every step is kept, known to us or not. What could not be read is said in findings, never dropped in
silence. Importing this module is cheap: `parse_line` serves the live progress line.
"""

from __future__ import annotations

import csv
import itertools
import math
import operator
import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from verlbox.findings import Finding, FindingsError, register

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

NO_SOURCE = register("metrics-no-source", "error", "There is no file of metrics at the path that was given.")
SEVERAL_RUNS = register("metrics-several-runs", "error", "A directory holds event files or logs of several runs.")
NONE = register("metrics-none", "warning", "The files hold no training metrics.")
DAMAGED = register("metrics-file-damaged", "warning", "A metrics file is cut off or damaged; what precedes is used.")
LINE_CUT = register("metrics-line-cut", "warning", "The last metrics line of a log is incomplete.")
UNREADABLE = register("metrics-unreadable-values", "warning", "Some values of metrics lines could not be read.")
REPEATED = register("metrics-repeated-steps", "note", "Steps were recorded more than once, as after a resume.")
SUPERSEDED = register("metrics-superseded-steps", "warning", "The last steps belong to an attempt that was abandoned.")
NOT_FINITE = register("metrics-not-finite", "warning", "Metrics took values that are not finite (NaN or infinite).")
GAP = register("metrics-gap", "warning", "Steps are missing between the first and the last.")

VALIDATION_PREFIXES = ("val-core/", "val-aux/", "val/", "test_score/")
EVENT_FILES = "*tfevents*"

Kind = Literal["tensorboard", "log", "csv", "run"]


LARGEST = 1e100  # beyond it squares overflow: no measurement, but the trace of an overflow


def is_number(value: float) -> bool:
    """Whether a value can be computed with: not NaN, not infinite, not beyond LARGEST."""
    return abs(value) < LARGEST


@dataclass(frozen=True)
class Series:
    """One metric: `values[i]` was recorded at step `steps[i]`. Steps increase strictly; values need not be finite."""

    steps: array[int]
    values: array[float]

    def __len__(self) -> int:
        return len(self.steps)

    def finite(self) -> Series:
        """The points whose value is a number, as is_number has it."""
        # A sum is finite only when every value is; then the extremes tell the rest, without a call for each value.
        if not self.values or (
            math.isfinite(sum(self.values)) and max(self.values) < LARGEST and min(self.values) > -LARGEST
        ):
            return self
        kept = [(s, v) for s, v in zip(self.steps, self.values, strict=True) if is_number(v)]
        return series(kept)


@dataclass(frozen=True)
class Metrics:
    """All metrics of a run by name, the files they came from, and what was wrong with those.

    `starts` are the first training steps of its attempts, as far as the files tell: an event file is an attempt, a log
    says what was resumed from, a table of ours says nothing.
    """

    series: Mapping[str, Series]
    kind: Kind
    files: tuple[Path, ...] = ()
    findings: tuple[Finding, ...] = field(default=())
    starts: frozenset[int] = frozenset()

    def get(self, *names: str) -> Series | None:
        """The first of these metrics that was recorded; verl has renamed some between versions."""
        return next((self.series[name] for name in names if name in self.series), None)

    def steps(self) -> list[int]:
        """The training steps, in order: steps at which something other than a validation was recorded."""
        found: set[int] = set()
        for name, points in self.series.items():
            if not is_validation(name):
                found.update(points.steps)
        return sorted(found)

    def all_steps(self) -> list[int]:
        """Every step at which anything was recorded, in order."""
        found: set[int] = set()
        for points in self.series.values():
            found.update(points.steps)
        return sorted(found)


def series(points: Iterable[tuple[int, float]]) -> Series:
    """A series from (step, value) pairs whose steps increase strictly."""
    pairs = list(points)
    return Series(array("q", [s for s, _ in pairs]), array("d", [v for _, v in pairs]))


def is_validation(name: str) -> bool:
    """Whether verl records this metric when it validates rather than at every step."""
    return name.startswith(VALIDATION_PREFIXES)


def read(path: str | Path) -> Metrics:
    """The metrics at a path: a run directory (tensorboard/ and logs/), a directory of event files, an event file,
    a console log, or a CSV table with a column `step`.

    In a run directory event files come first (they have the time of each value) and logs add what is missing there.
    Raises FindingsError when there is no such file, or when a directory mixes several runs.
    """
    path = Path(path)
    if not path.exists():
        raise FindingsError(
            NO_SOURCE.finding(
                f"{path} does not exist.",
                why="There is nothing to report on.",
                fix="Name a run directory, a TensorBoard directory, an event file or verl's console log.",
            )
        )
    if path.is_dir():
        return _checked(_read_directory(path))
    if "tfevents" in path.name:
        return _checked(_read_events([path]))
    if path.suffix.lower() == ".csv":
        return _checked(_read_csv(path))
    return _checked(_read_logs([path]))


def _read_directory(path: Path) -> Metrics:
    if (path / "tensorboard").is_dir() or (path / "logs").is_dir():
        events = sorted((path / "tensorboard").rglob(EVENT_FILES))
        logs = sorted((path / "logs").rglob("*.log"), key=_natural)
        merged = _merge(_read_events(events), _read_logs(logs))
        return replace(merged, kind="run")
    events = sorted(path.rglob(EVENT_FILES))
    if events:
        folders = sorted({file.parent for file in events})
        if len(folders) > 1:
            raise FindingsError(_several_runs(path, folders))
        return _read_events(events)
    logs = [file for file in sorted(path.glob("*.log"), key=_natural) if _has_metrics(file)]
    if len(logs) > 1:
        raise FindingsError(_several_runs(path, logs))
    if not logs:
        raise FindingsError(
            NO_SOURCE.finding(
                f"{path} holds neither TensorBoard event files nor a log with verl's metrics lines.",
                why="There is nothing to report on.",
                fix="Name a run directory, a TensorBoard directory, an event file or verl's console log.",
            )
        )
    return _read_logs(logs)


def _several_runs(path: Path, found: Sequence[Path]) -> Finding:
    names = ", ".join(str(item.relative_to(path)) for item in found[:8])
    return SEVERAL_RUNS.finding(
        f"{path} holds {len(found)} runs: {names}{', ...' if len(found) > 8 else ''}.",
        why="Merging the metrics of different runs would give curves of no run at all.",
        fix="Name one of them; `compare` takes several.",
    )


def _has_metrics(file: Path) -> bool:
    with file.open("rb") as stream:
        return any(b"step:" in line and parse_line(line.decode("utf-8", "replace")) for line in stream)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key under which attempt 10 follows attempt 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


# --- points to series ------------------------------------------------------------------------------------------


@dataclass
class _Table:
    """Points as they come in, in the order of time: name -> ([step], [value])."""

    points: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)

    def begin(self, step: int) -> None:
        """An attempt begins with this step: what earlier ones had recorded from there on does not stand."""
        self.starts = {start for start in self.starts if start < step} | {step}

    def add(self, name: str, step: int, value: float) -> None:
        column = self.points.get(name)
        if column is None:
            column = self.points[name] = ([], [])
        column[0].append(step)
        column[1].append(value)


def _settle(table: _Table, kind: Kind) -> Metrics:
    """Sorts by step; where a step was recorded again, the later value stands. Says so, and says which last steps
    were left by an attempt that a later one went back behind without reaching them."""
    settled: dict[str, Series] = {}
    repeated: set[int] = set()
    stale: set[int] = set()
    for name, (steps, values) in table.points.items():
        if all(map(operator.lt, steps, itertools.islice(steps, 1, None))):
            settled[name] = Series(array("q", steps), array("d", values))
            continue
        latest: dict[int, float] = {}
        for step, value in zip(steps, values, strict=True):
            if step in latest:
                repeated.add(step)
            latest[step] = value
        if not is_validation(name):
            stale.update(step for step in latest if step > steps[-1])
        settled[name] = series(sorted(latest.items()))
    findings = list(table.findings)
    if repeated:
        findings.append(
            REPEATED.finding(
                f"{len(repeated)} step(s) were recorded more than once ({ranges(repeated)}).",
                why="A resumed run trains the steps after its last checkpoint again; the later values are the ones "
                "that led to the final model, so those are used and each step counts once.",
                fix="Nothing, if the run was resumed. Otherwise two runs wrote to one place: separate them.",
            )
        )
    if stale:
        findings.append(
            SUPERSEDED.finding(
                f"Step(s) {ranges(stale)} were recorded before the run went back to an earlier step, and not again.",
                why="They describe weights that were thrown away when the run resumed.",
                fix="Resume the run until it passes them, or read the curves up to the step before.",
            )
        )
    return Metrics(settled, kind, tuple(table.files), tuple(findings), frozenset(table.starts))


def _merge(first: Metrics, second: Metrics) -> Metrics:
    """The points of both; where both have one, that of `first` stands."""
    merged = dict(first.series)
    for name, points in second.series.items():
        known = merged.get(name)
        if known is None:
            merged[name] = points
            continue
        both = dict(zip(points.steps, points.values, strict=True))
        if both.keys() <= set(known.steps):
            continue
        both.update(zip(known.steps, known.values, strict=True))
        merged[name] = series(sorted(both.items()))
    findings = tuple(dict.fromkeys(first.findings + second.findings))
    return Metrics(merged, first.kind, first.files + second.files, findings, first.starts | second.starts)


def _checked(metrics: Metrics) -> Metrics:
    """Adds the findings that concern the table as a whole."""
    findings = list(metrics.findings)
    steps = metrics.steps()
    if not steps:
        findings.append(
            NONE.finding(
                "No training step was recorded.",
                why="The run ended before its first step, or these files are not verl's.",
                fix="Look at the end of the run's log; `diagnose LOG` names known causes.",
            )
        )
    elif missing := steps[-1] - steps[0] + 1 - len(steps):
        present = set(steps)
        lost = [s for s in range(steps[0], steps[-1]) if s not in present] if missing < 100_000 else []
        findings.append(
            GAP.finding(
                f"{missing} step(s) between {steps[0]} and {steps[-1]} were not recorded"
                + (f" ({ranges(lost)})." if lost else "."),
                why="Means and trends leave them out.",
                fix="Use the complete log or all event files of the run.",
            )
        )
    bad = {
        name: count for name, points in sorted(metrics.series.items()) if (count := len(points) - len(points.finite()))
    }
    if bad:
        named = ", ".join(f"{name} ({count})" for name, count in list(bad.items())[:6])
        findings.append(
            NOT_FINITE.finding(
                f"{sum(bad.values())} value(s) of {len(bad)} metric(s) are NaN or infinite: {named}"
                + (", ..." if len(bad) > 6 else "."),
                why="verl 0.6.1 skips an update whose gradients are not finite and goes on; minima, maxima and "
                "means here leave such values out.",
                fix="Lower the learning rate, or look for an overflow at the first such step.",
            )
        )
    return replace(metrics, findings=tuple(findings))


def ranges(steps: Iterable[int], most: int = 6) -> str:
    """Steps as text, runs folded: `3-7, 9`; at most `most` runs, then an ellipsis."""
    runs: list[list[int]] = []
    for step in sorted(steps):
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:most])
    return text + (", ..." if len(runs) > most else "")


# --- console log -----------------------------------------------------------------------------------------------

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(r"(?<![\w/.])step:\s*(\d+)(\s-\s|,\s)")
_NUMBER = re.compile(
    r"\s*(?:(?:np|numpy)\.\w+\()?\s*([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|infinity))\)?\s*",
    re.IGNORECASE,
)
_RESUMED = re.compile(r"Resuming from \S*global_step_(\d+)")  # verl 0.6.1 and 0.9.1, once the checkpoint is loaded
_TRUTH = re.compile(r"\s*(?:np\.)?(True|False)_?\s*")
_REPEAT_MARK = re.compile(r"\s*\[repeated \d+x across cluster\].*$")


def plain(line: str) -> str:
    """A line of a log without terminal colours."""
    return _ANSI.sub("", line)


def parse_line(line: str) -> tuple[int, dict[str, float]] | None:
    """The step and the metrics of one line of verl's console log; None when it is not a metrics line.

    Takes both spellings, `step:3 - key:value - key:value` (verl) and `step: 3, key: value` (tutorials), Ray's prefix
    and colours, and numpy's `np.float64(...)`. A value that cannot be read is left out.
    """
    parsed = _parse(line)
    return None if parsed is None else (parsed[0], parsed[1])


def _parse(line: str) -> tuple[int, dict[str, float], int] | None:
    """As parse_line, with the number of values that could not be read."""
    if "step:" not in line:
        return None
    text = plain(line)
    match = _STEP.search(text)
    if match is None:
        return None
    separator = " - " if "-" in match[2] else ", "
    values: dict[str, float] = {}
    unreadable = 0
    pending = ""  # the start of a name that holds the separator itself, as a data source may
    for token in _REPEAT_MARK.sub("", text[match.end() :]).split(separator):
        name, colon, number = (pending + token).rpartition(":")
        if not colon:
            pending += token + separator
            continue
        value = _number(number)
        if value is None:
            unreadable += 1
        else:
            values[name.strip()] = value
        pending = ""
    unreadable += bool(pending)
    return (int(match[1]), values, unreadable) if values else None


def _number(text: str) -> float | None:
    if match := _NUMBER.fullmatch(text):
        return float(match[1])
    if match := _TRUTH.fullmatch(text):
        return float(match[1] == "True")
    return None


def _lines(file: Path) -> Iterator[tuple[str, bool]]:
    """The lines of a log that may hold metrics or say that a run goes on, each with whether it is complete. Progress
    bars end lines with \\r."""
    with file.open("rb") as stream:
        for raw in stream:
            if b"step:" in raw or b"Resuming from" in raw:
                complete = raw.endswith(b"\n")
                parts = raw.decode("utf-8", "replace").split("\r")
                for i, part in enumerate(parts):
                    yield part, complete or i < len(parts) - 1


def _read_logs(files: Sequence[Path]) -> Metrics:
    table = _Table(files=list(files))
    for file in files:
        unreadable = 0
        last = -1  # the last training step
        try:
            for line, complete in _lines(file):
                parsed = _parse(line)
                if parsed is None:
                    if resumed := _RESUMED.search(line):
                        last = int(resumed[1])
                        table.begin(last + 1)
                    continue
                step, values, bad = parsed
                if not all(map(is_validation, values)):
                    if step <= last or last < 0:
                        table.begin(step)
                    last = step
                if not complete:
                    # The last number may have lost digits: 0.05 cut to 0.0 would read as a value.
                    kept = dict(list(values.items())[:-1]) if not bad else values
                    table.findings.append(_line_cut(file, step, len(kept)))
                    values, bad = kept, 0
                unreadable += bad
                for name, value in values.items():
                    table.add(name, step, value)
        except OSError as error:
            table.findings.append(_damaged(file, str(error)))
        if unreadable:
            table.findings.append(
                UNREADABLE.finding(
                    f"{unreadable} value(s) on metrics lines could not be read.",
                    why="They are missing from every table and curve.",
                    fix="Use the run's TensorBoard files, which do not suffer from mixed output.",
                    where=str(file),
                )
            )
    return _settle(table, "log")


def _line_cut(file: Path, step: int, kept: int) -> Finding:
    return LINE_CUT.finding(
        f"The log ends inside the metrics line of step {step}; the {kept} complete value(s) of it are used.",
        why="The process was killed, or the log was copied while it was being written.",
        fix="Use the complete log or the run's TensorBoard files.",
        where=str(file),
    )


def _damaged(file: Path, reason: str) -> Finding:
    return DAMAGED.finding(
        f"The file is damaged: {reason}.",
        why="Values after this place are missing from the report.",
        fix="Copy the file again, or use the run's console log.",
        where=str(file),
    )


# --- TensorBoard event files -----------------------------------------------------------------------------------
# TensorBoard's own loader checks each record in pure Python: 1.2 million values take minutes. Here the framing is
# read directly (TFRecord: length, masked CRC-32C of the length, data, masked CRC-32C of the data; format in
# tensorflow/core/lib/io/record_writer.h) and the records are TensorBoard's own protocol buffers.

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_FLOAT = struct.Struct("<f")
# How nearly every record of a long run looks (torch's SummaryWriter): wall time, step, a summary of one value, which
# has a tag below 128 bytes and a simple_value. The parser of protocol buffers takes three times as long for these.
_SIMPLE = re.compile(
    rb"\x09.{8}\x10([\x80-\xff]{0,8}[\x00-\x7f])\x2a[\x00-\x7f]\x0a[\x00-\x7f]\x0a([\x00-\x7f])(.+)\x15(.{4})",
    re.DOTALL,
)


def _records(data: bytes) -> Iterator[bytes]:
    """The records of an event file. Raises ValueError at the first one that is cut off or damaged."""
    from google_crc32c import value as crc32c

    header, footer = _HEADER.unpack_from, _FOOTER.unpack_from
    at, end = 0, len(data)
    while at < end:
        start = at + 12
        if start > end:
            raise ValueError(f"it ends inside a record, at byte {at}")
        length, check = header(data, at)
        crc = crc32c(data[at : at + 8])
        if ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF != check:
            raise ValueError(f"checksum of a record's length differs, at byte {at}")
        stop = start + length
        if stop + 4 > end:
            raise ValueError(f"it ends inside a record, at byte {at}")
        record = data[start:stop]
        crc = crc32c(record)
        if ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF != footer(data, stop)[0]:
            raise ValueError(f"checksum of a record differs, at byte {at}")
        yield record
        at = stop + 4


def _varint(coded: bytes) -> int:
    """A number of protocol buffers: seven bits a byte, the lowest first."""
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(coded))


def _scalar(value: Summary.Value) -> float | None:
    """The number in a summary, as written by SummaryWriter.add_scalar (either style); None for anything else."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "tensor":
        from tensorboard.util.tensor_util import make_ndarray

        content = make_ndarray(value.tensor)
        if content.size == 1 and content.dtype.kind in "fiu":
            return float(content.reshape(-1)[0])
    return None


def _read_events(files: Sequence[Path]) -> Metrics:
    if not files:
        return Metrics({}, "tensorboard")
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    # A long run repeats few tags, and each step for all of them.
    name_of = lru_cache(maxsize=None)(lambda tag: tag.decode("utf-8"))
    step_of = lru_cache(maxsize=64)(_varint)
    table = _Table(files=list(files))
    attempts: list[tuple[float, Path, _Table]] = []
    for file in files:
        began = math.inf
        points = _Table()
        try:
            for record in _records(file.read_bytes()):
                simple = None if began is math.inf else _SIMPLE.fullmatch(record)
                if simple is not None:
                    number, length, tag, value = simple.groups()
                    if length[0] == len(tag):
                        points.add(name_of(tag), step_of(number), _FLOAT.unpack(value)[0])
                        continue
                event = Event.FromString(record)
                if began is math.inf:
                    began = event.wall_time
                for summary in event.summary.value:
                    found = _scalar(summary)
                    if found is not None:
                        points.add(summary.tag, event.step, found)
        except (ValueError, OSError, DecodeError) as error:
            table.findings.append(_damaged(file, str(error)))
        attempts.append((began, file, points))
    for _, _, points in sorted(attempts, key=lambda attempt: (attempt[0], attempt[1].name)):
        trained = [min(steps) for name, (steps, _) in points.points.items() if not is_validation(name)]
        if trained:
            table.begin(min(trained))
        for name, (steps, values) in points.points.items():
            known = table.points.setdefault(name, ([], []))
            known[0].extend(steps)
            known[1].extend(values)
    return _settle(table, "tensorboard")


# --- tables of ours --------------------------------------------------------------------------------------------


def _read_csv(file: Path) -> Metrics:
    table = _Table(files=[file])
    unreadable = 0
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        rows = csv.DictReader(stream)
        if "step" not in (rows.fieldnames or ()):
            raise FindingsError(
                NO_SOURCE.finding(
                    f"{file} has no column `step`.",
                    why="A table of metrics has one row a step.",
                    fix="Name a metrics_step*.csv of a report, event files, or verl's console log.",
                )
            )
        for row in rows:
            step = _number(row["step"] or "")
            if step is None or not math.isfinite(step):
                unreadable += 1
                continue
            for name, text in row.items():
                if name is None or name == "step" or not isinstance(text, str) or not text.strip():
                    continue
                value = _number(text)
                if value is None:
                    unreadable += 1
                else:
                    table.add(name, int(step), value)
    if unreadable:
        table.findings.append(
            UNREADABLE.finding(
                f"{unreadable} cell(s) of the table are not numbers.",
                why="They are missing from every table and curve.",
                fix="Repair the table.",
                where=str(file),
            )
        )
    return _settle(table, "csv")
