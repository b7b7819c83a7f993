"""Names the first cause of a failure from a log's lines, live or afterwards.

What is covered: causes of the catalogue, in whatever order Ray's workers print them; the root before what merely
follows from it (time-outs of other ranks, dead actors, wrapped exceptions); failures that the run survived, and noise
of a process that ends after its work is done; health of the training metrics. What is not: causes that leave no line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal

from verlbox.diagnosis.catalogue import ROLES, Entry, Failure, Pattern, Platform, load
from verlbox.diagnosis.health import Bounds, Health, read_metrics
from verlbox.diagnosis.reader import Line, Vocabulary, clean, found_as, lines_with
from verlbox.findings import Finding, register

UNKNOWN = register("log-unknown", "error", "The run failed, and the catalogue does not know this failure.")

# failed: a fatal finding. finished: the work was done. unclear: neither is in the log.
Outcome = Literal["failed", "finished", "unclear"]

_SHOWN = 300  # characters of a line that are shown
_WORTH = 8
_FINISHED = re.compile(r"Final validation metrics|Training Progress: 100%\|")
# What `_piece` looks at besides the catalogue: progress, ends, exceptions, and what tells the platform.
_WORDS_OF_A_RUN = (
    *("step:", "Final", "Progress:", "scratch", "Resuming", "Traceback", "Error", "Exception", "Fatal", "Killed"),
    *("torch_npu", "ascend", "device=npu", "platform", "NCCL"),
)
_RESTARTED = re.compile(r"Training from scratch|Resuming from ")
_EXCEPTION = re.compile(
    r"^\s*(?:(?:ERROR|CRITICAL|FATAL)\b[^\]]{0,60}\]\s*|\[E\S* \S+ \S+\]\s*)?"
    r"(?:(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Killed|Exceeded|Timeout|NotFound)(?::|$|\()"
    r"|Fatal Python error|Segmentation fault|Aborted|Killed$|terminate called|Traceback \(most recent call last\)"
    r"|Bus error|FATAL\b|panic:)|core dumped"
)
# The line of an exception itself, with a message.
_REAL = re.compile(
    r"^\s*(?:(?:ERROR|CRITICAL|FATAL)\b[^\]]{0,60}\]\s*|\[E\S* \S+ \S+\]\s*)?"
    r"(?!ray\.exceptions\.|SystemExit|KeyboardInterrupt)"
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Exceeded|NotFound)(?:\(['\"]|: *)\S(?!.*RayTaskError)"
)
_WRAPPING = re.compile(r"^\s*ray\.exceptions\.|direct cause of the following|^\s*(?:File|Traceback)\b|RayTaskError")
# Not the bare words: verl prints its whole configuration, which names all platforms.
_PLATFORM_SIGNS: tuple[tuple[Platform, re.Pattern[str]], ...] = (
    (
        "npu",
        re.compile(r"torch_npu|vllm[-_]ascend|[Pp]lugin ascend|NPU out of memory|Ascend/ascend-toolkit|device=npu"),
    ),
    ("cuda", re.compile(r"CUDA out of memory|Automatically detected platform cuda|NCCL version \d|libcuda\.so\.1")),
)


@dataclass(frozen=True)
class Cause:
    """An entry that the log shows. line, worker, text: where it first did. count: how many lines did.

    deciding: up to three lines, the first of each pattern that matched. survived: the run went on to further steps.
    """

    entry: Entry
    line: int
    worker: str
    text: str
    count: int = 1
    deciding: tuple[Line, ...] = ()
    survived: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """What a log says. findings: the first cause first; empty for a healthy log.

    causes: the catalogue's entries behind the findings, in the same order. consequences: what followed from them.
    harmless: lines that look alarming and are not, and faults that the run survived. unknown: it failed, and no entry
    fits. worth_reading: lines to read then. last_step: of the last metrics line. lines: length of the log.
    """

    outcome: Outcome
    findings: tuple[Finding, ...]
    causes: tuple[Cause, ...] = ()
    consequences: tuple[Cause, ...] = ()
    harmless: tuple[Cause, ...] = ()
    unknown: bool = False
    worth_reading: tuple[Line, ...] = ()
    last_step: int | None = None
    lines: int = 0

    @property
    def failure(self) -> Failure | None:
        """What was exhausted, if that is the first cause: `device-oom`, `host-oom`, `shm` or `disk-full`."""
        return self.causes[0].entry.failure if self.causes and self.outcome == "failed" else None


@dataclass
class _Hit:
    entry: Entry
    line: Line
    count: int
    deciding: dict[int, Line]  # pattern -> the first line that it matched
    survived: bool = False


@dataclass
class _Signals:
    """The patterns of all entries, each once, with what they are for."""

    words: set[str]
    by_word: dict[bytes, list[int]]  # word as the vocabulary finds it -> indices of patterns
    patterns: list[Pattern]
    triggers: list[list[Entry]]  # the entries that a pattern is a signal of


def _signals(entries: tuple[Entry, ...]) -> _Signals:
    patterns: dict[str, int] = {}
    listed: list[Pattern] = []
    triggers: list[list[Entry]] = []
    by_word: dict[bytes, list[int]] = {}
    words = {*_WORDS_OF_A_RUN, *(w for e in entries for p in (*e.any, *e.all, *e.not_near) for w in p.words)}

    def index(pattern: Pattern) -> int:
        key = pattern.expression
        if key not in patterns:
            patterns[key] = len(listed)
            listed.append(pattern)
            triggers.append([])
            for word in pattern.words:
                by_word.setdefault(found_as(word, words).encode(), []).append(patterns[key])
        return patterns[key]

    for entry in entries:
        for pattern in entry.any:
            triggers[index(pattern)].append(entry)
        for pattern in (*entry.all, *entry.not_near):
            index(pattern)
    return _Signals(words, by_word, listed, triggers)


class Watcher:
    """Reads a log line by line and says at once what is fatal; `finish` gives the whole diagnosis.

    platform: what the run is known to run on; told from the lines when None. bounds: of the health checks.
    entries: the catalogue; another one in tests.
    """

    def __init__(
        self,
        platform: Platform | None = None,
        bounds: Bounds | None = None,
        entries: tuple[Entry, ...] | None = None,
    ) -> None:
        self._entries = load() if entries is None else entries
        self._signals = _signals(self._entries)
        self.vocabulary = Vocabulary(self._signals.words)
        self._platform = platform
        self._told_platform: Platform | None = None  # by the log itself
        self._health = Health(bounds)
        self._health_findings: list[tuple[int, Finding]] = []
        self._hits: dict[str, _Hit] = {}
        self._pending: dict[str, _Hit] = {}
        self._seen: dict[str, int] = {}  # pattern -> the last line that matched it
        self._number = 0
        self._last_step: int | None = None
        self._finished_at = 0
        self._worth: dict[str, Line] = {}
        self._unexplained: dict[str, Line] = {}  # exceptions that no entry knows and that wrap no other
        self._failing = False
        self._recent: deque[Line] = deque(maxlen=3)

    def feed(self, line: bytes | str) -> list[Finding]:
        """What this line adds: new fatal findings and warnings, each once while it lasts."""
        self._number += 1
        return self.feed_numbered(self._number, line)

    def feed_numbered(self, number: int, line: bytes | str) -> list[Finding]:
        """As `feed`, for a reader that leaves out lines in between: number counts from 1 and never falls."""
        self._number = number
        new: list[Finding] = []
        for piece in clean(line, number):
            new += self._piece(piece)
        return new

    def standing(self) -> list[Finding]:
        """The errors and warnings that hold at this line: without what the run has survived since."""
        found = self._diagnose(None).findings
        return [f for f in found if f.severity != "note" and f.code != UNKNOWN.name]

    def finish(self, exit_code: int | None = None) -> Diagnosis:
        """The diagnosis of all lines so far. exit_code: of the process that wrote them, where it is known: 0 does not
        prove success, another one proves failure."""
        for hit in list(self._pending.values()):
            self._settle(hit, at_end=True)
        for finding in self._health.finish():
            self._health_findings.append((self._number, finding))
        return self._diagnose(exit_code)

    def _piece(self, line: Line) -> list[Finding]:
        self._recent.append(line)
        metrics = read_metrics(line.text)
        if metrics is not None:
            return self._step(line, *metrics)
        text = line.text
        if self._platform is None and self._told_platform is None:
            self._told_platform = next((p for p, sign in _PLATFORM_SIGNS if sign.search(text)), None)
        if _FINISHED.search(text):
            self._finished_at = line.number
            self._forget()
        elif _RESTARTED.search(text):
            self._finished_at = 0
        elif _EXCEPTION.search(text):
            self._note(line)
        new: list[Finding] = []
        triggered: dict[str, tuple[Entry, int]] = {}
        for index in self._matching(text):
            self._seen[self._signals.patterns[index].expression] = line.number
            for entry in self._signals.triggers[index]:
                triggered.setdefault(entry.id, (entry, index))
        for entry, index in triggered.values():
            excluded = any(p.search(text) for p in entry.none)
            if not excluded and (not entry.check or CHECKS[entry.check](_groups(entry, text))):
                self._trigger(entry, line, index)
        if not triggered and len(self._unexplained) < _WORTH and _REAL.search(text):
            self._unexplained.setdefault(_kind(text), line)
        for hit in list(self._pending.values()):
            new += self._settle(hit)
        return new

    def _matching(self, text: str) -> list[int]:
        candidates: set[int] = set()
        for word in self.vocabulary.present(text.encode("utf-8", "replace")):
            candidates.update(self._signals.by_word.get(word, ()))
        return [i for i in sorted(candidates) if self._signals.patterns[i].search(text)]

    def _step(self, line: Line, step: int, metrics: Mapping[str, float]) -> list[Finding]:
        if self._last_step is None or step > self._last_step:
            for hit in self._hits.values():  # what happened before did not stop it
                hit.survived = hit.survived or not hit.entry.lasting
            self._forget()
        self._last_step = step
        new = self._health.feed(step, metrics, _where(line))
        self._health_findings += [(line.number, f) for f in new]
        return new

    def _trigger(self, entry: Entry, line: Line, pattern: int) -> None:
        held, waiting = self._hits.get(entry.id), self._pending.get(entry.id)
        if held is not None and held.survived:
            held = None
        if waiting is not None and entry.all and line.number - waiting.line.number > entry.within:
            waiting = None  # what it waits for did not come; this line may be nearer
        known = held or waiting
        if known is None:
            self._pending[entry.id] = _Hit(entry, line, line.repeats, {pattern: line})
            return
        known.count += line.repeats
        if len(known.deciding) < 3:
            known.deciding.setdefault(pattern, line)

    def _settle(self, hit: _Hit, at_end: bool = False) -> list[Finding]:
        """Decides a pending hit where its surroundings allow it."""
        entry, at = hit.entry, hit.line.number
        near = [abs(self._seen.get(p.expression, -(10**12)) - at) <= entry.within for p in entry.all]
        excluded = any(abs(self._seen.get(p.expression, -(10**12)) - at) <= entry.within for p in entry.not_near)
        over = at_end or self._number - at > entry.within
        if excluded or (over and not all(near)):
            self._pending.pop(entry.id, None)
            return []
        if not all(near) or (entry.not_near and not over):
            return []
        self._pending.pop(entry.id, None)
        self._hits[entry.id] = hit
        told = (
            entry.severity != "benign" and entry.role != "wrapper" and (entry.role == "cause" or not self._finished_at)
        )
        if not told or not self._possible(entry) or self._outdone(entry):
            return []
        return [_finding(_cause(hit))]

    def _possible(self, entry: Entry) -> bool:
        """Whether the entry can occur on this platform. What only the log tells may be wrong, so it does not hide a
        fault; it only withholds the comfort that a line is harmless here."""
        platform = self._platform or (self._told_platform if entry.severity == "benign" else None)
        return not entry.platforms or platform is None or platform in entry.platforms

    def _outdone(self, entry: Entry) -> bool:
        return any(entry.id in h.entry.over and self._possible(h.entry) for h in self._hits.values() if not h.survived)

    def _forget(self) -> None:
        """What happened before this line is over."""
        self._failing = False
        self._worth.clear()
        self._unexplained.clear()

    def _note(self, line: Line) -> None:
        """Keeps the lines most worth reading: the first of each kind, roots before wrappers."""
        if "Traceback (most" in line.text:
            self._failing = True
            return
        self._failing = True
        kind = _kind(line.text)
        if kind in self._worth:
            return
        if len(self._worth) >= _WORTH:
            wrapping = next((k for k, held in self._worth.items() if _WRAPPING.search(held.text)), None)
            if wrapping is None or _WRAPPING.search(line.text):
                return
            del self._worth[wrapping]
        self._worth[kind] = line

    def _diagnose(self, exit_code: int | None) -> Diagnosis:
        hits = [h for h in self._hits.values() if self._possible(h.entry) and not self._outdone(h.entry)]
        finished = self._finished_at > 0
        if finished:  # a process that dies after its work is done: Ray tears down workers that way
            hits = [h for h in hits if h.entry.role == "cause" or h.line.number < self._finished_at]
            for hit in hits:
                hit.survived = hit.survived or (not hit.entry.lasting and hit.line.number < self._finished_at)
        hits.sort(key=lambda h: (ROLES.index(h.entry.role), h.line.number))
        fatal = [h for h in hits if h.entry.severity == "fatal" and not h.survived]
        warnings = [h for h in hits if h.entry.severity == "warning"]
        harmless = [h for h in hits if h.entry.severity == "benign" or (h.entry.severity == "fatal" and h.survived)]
        roots = [h for h in fatal if h.entry.role == "cause"]
        lead = roots or fatal[:1]
        if lead and lead[0].entry.role == "wrapper" and self._unexplained:
            lead = []  # it only says that something failed, and what failed is in the log
        consequences = [h for h in fatal if h not in lead]
        health = sorted(self._health_findings, key=lambda pair: pair[0])
        found = [(h.line.number, _finding(_cause(h))) for h in lead]
        found += [(n, f) for n, f in health if f.severity == "error"]
        findings = [f for _, f in found] + [_finding(_cause(h)) for h in warnings]
        findings += [f for _, f in health if f.severity != "error"]
        causes = [*lead, *warnings]
        failed = bool(found)
        worth = tuple(self._worth.values())
        died = bool(consequences) and not finished
        unknown = not failed and (died or (not finished and (self._failing or exit_code not in (None, 0))))
        if unknown:
            worth = worth or tuple(self._recent)
            findings.insert(0, _unknown(worth, exit_code, next(iter(self._unexplained.values()), None)))
        if not findings and not finished and self._last_step is None:
            causes = [h for h in harmless if h.entry.severity == "benign"]
            findings = [_finding(_cause(h)) for h in causes]
        return Diagnosis(
            outcome="failed" if failed or unknown else "finished" if finished else "unclear",
            findings=tuple(findings),
            causes=tuple(_cause(h) for h in causes),
            consequences=tuple(_cause(h) for h in consequences),
            harmless=tuple(_cause(h) for h in harmless),
            unknown=unknown,
            worth_reading=worth if unknown else (),
            last_step=self._last_step,
            lines=self._number,
        )


def diagnose(lines: Iterable[bytes | str], platform: Platform | None = None, bounds: Bounds | None = None) -> Diagnosis:
    """The diagnosis of a log given as lines."""
    watcher = Watcher(platform, bounds)
    for line in lines:
        watcher.feed(line)
    return watcher.finish()


def diagnose_stream(stream: BinaryIO, platform: Platform | None = None, bounds: Bounds | None = None) -> Diagnosis:
    """The diagnosis of a log of any size, read in bounded memory: lines without a word of the catalogue are skipped."""
    watcher = Watcher(platform, bounds)
    for number, raw in lines_with(stream, watcher.vocabulary):
        watcher.feed_numbered(number, raw)
    return watcher.finish()


def _cause(hit: _Hit) -> Cause:
    line = hit.line
    deciding = tuple(replace(d, text=d.text.strip()[:_SHOWN]) for d in hit.deciding.values())
    return Cause(hit.entry, line.number, line.worker, line.text.strip()[:_SHOWN], hit.count, deciding, hit.survived)


def _finding(cause: Cause) -> Finding:
    entry = cause.entry
    return entry.code.finding(entry.cause, why=f"{entry.why} (line: {cause.text})", fix=entry.fix, where=_where(cause))


def _where(at: Line | Cause) -> str:
    number = at.number if isinstance(at, Line) else at.line
    return f"line {number} ({at.worker})" if at.worker else f"line {number}"


def _kind(text: str) -> str:
    """What lines that differ only in numbers and addresses have in common."""
    return re.sub(r"[0-9a-fx]{4,}|\d+", "#", text)[:120]


def _unknown(worth: tuple[Line, ...], exit_code: int | None, first: Line | None) -> Finding:
    """first: the exception that the rest followed from, where one is known to be no wrapper."""
    shown = "; ".join(f"line {w.number}: {w.text.strip()[:_SHOWN]}" for w in worth)
    code = "" if exit_code is None else f" (exit code {exit_code})"
    what = f"the run failed{code} and the cause is not in the catalogue"
    if first is not None:
        what = f"the run failed{code} with an error that is not in the catalogue: {first.text.strip()[:_SHOWN]}"
        return UNKNOWN.finding(
            what,
            why=f"the lines most worth reading, the earliest first: {shown}",
            fix="read the traceback above this line",
            where=_where(first),
        )
    return UNKNOWN.finding(
        what,
        why=f"the lines most worth reading, the earliest first: {shown}" if worth else "the log says nothing about it",
        fix="read the first of these lines and the traceback above it; with HYDRA_FULL_ERROR=1 Hydra shows it whole",
        where=_where(worth[0]) if worth else "",
    )


def _groups(entry: Entry, text: str) -> dict[str, str]:
    for pattern in entry.any:
        if match := pattern.search(text):
            return {name: value for name, value in match.groupdict().items() if value is not None}
    return {}


_UNITS = {"B": 2**-30, "bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 2.0**10}


def _gib(text: str) -> float:
    number, unit = text.split()
    return float(number) * _UNITS[unit]


def _held_by_others(groups: Mapping[str, str]) -> bool:
    """Device memory in use is far more than this process holds: another process has it.

    groups: total, free and own, each like `10.65 GiB`. A tenth of the card is left for driver and workspace.
    """
    if not {"total", "free", "own"} <= groups.keys():
        return False
    total, free, own = (_gib(groups[name]) for name in ("total", "free", "own"))
    return total - free - own > max(0.1 * total, 0.5 * own)


CHECKS: dict[str, Callable[[Mapping[str, str]], bool]] = {"held-by-others": _held_by_others}


def with_file(diagnosis: Diagnosis, name: str) -> Diagnosis:
    """The same diagnosis with the log's name before each place."""
    placed = (replace(f, where=f"{name}, {f.where}" if f.where else name) for f in diagnosis.findings)
    return replace(diagnosis, findings=tuple(placed))
