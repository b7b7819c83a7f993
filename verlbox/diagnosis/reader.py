"""Reads logs: lines of any number and length, in bounded memory, as the matcher wants them.

What is covered: Ray's prefixes and repeat marks, docker compose's prefixes, ANSI colours, carriage returns of progress
bars, bytes that are no UTF-8, a file without line ends. What is not: compressed logs, lines that a terminal wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

MAX_LINE = 1 << 18  # characters of a line that are looked at; metric lines of verl are below 10 KB
_CHUNK = 128 << 10
_REMEMBERED = 100_000  # words (and lines) of the log that are remembered
_LONGEST = 200  # bytes of a word that is remembered: 100,000 of them take 30 MB at most
_ALIKE = 1000
_DIGITS = b"0123456789."
_TAIL = 8  # last lines of a file, given whatever they hold

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_PREFIX = re.compile(
    r"""\s*(?:
        \((?P<ray>
            (?:[\w.:-]+\ ){0,2}pid=\d+(?:,\ ip=[\w.:]+)? | raylet(?:,\ ip=[\w.:]+)? | autoscaler\ \+[\w.]+
        )\)\s?
      | \[(?P<rank>rank\s?\d+)\]:\ ?
      | (?P<service>[\w.-]+)\s{0,30}\|\s(?=.)
    )""",
    re.VERBOSE,
)
_REPEATED = re.compile(r"\s*\[repeated (\d+)x across cluster\].*$")


@dataclass(frozen=True)
class Line:
    """One line of a log. number: from 1. worker: its Ray or rank prefix. repeats: how often Ray says it occurred."""

    number: int
    worker: str
    text: str
    repeats: int = 1


def clean(raw: bytes | str, number: int = 0) -> list[Line]:
    """The line as it reads on a screen, in pieces where a progress bar returned the carriage; empty pieces left out."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    pieces = re.split(r"[\r\n]+", text) if "\r" in text or "\n" in text else [text]
    lines: list[Line] = []
    worker = ""
    for piece in pieces:
        rest = piece[:MAX_LINE]
        for _ in range(3):  # a worker inside a worker inside a compose service
            match = _PREFIX.match(rest)
            if match is None:
                break
            worker = match["ray"] or match["rank"] or worker
            rest = rest[match.end() :]
        repeats = 1
        if "[repeated " in rest and (mark := _REPEATED.search(rest)):
            repeats = int(mark[1])
            rest = rest[: mark.start()]
        if rest.strip():
            lines.append(Line(number, worker, rest, repeats))
    return lines


class Vocabulary:
    """Finds which of many words a text holds, at a cost that grows with the text's vocabulary, not with their number.

    Logs repeat themselves: each of their own words is compared with all of `words` once and then remembered. Digits and
    dots are left out on both sides, because numbers hardly repeat.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._search = re.compile(_trie(words).encode()).search
        self._known: dict[bytes, tuple[bytes, ...]] = {}

    def present(self, text: bytes) -> set[bytes]:
        """The words in `text`; of words that begin alike, the shortest (see `found_as`)."""
        found: set[bytes] = set()
        for token in set(text.translate(None, _DIGITS).split()):
            words = self._known.get(token)
            if words is None:
                words = self._in(token)
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                if len(token) <= _LONGEST:
                    self._known[token] = words
            found.update(words)
        return found

    def _in(self, token: bytes) -> tuple[bytes, ...]:
        found = []
        match = self._search(token)
        while match is not None:
            found.append(match[0])
            match = self._search(token, match.start() + 1)
        return tuple(found)


def found_as(word: str, words: Container[str]) -> str:
    """The word that a `Vocabulary` of `words` reports where `word` stands: the shortest that `word` begins with."""
    return next((word[:i] for i in range(1, len(word)) if word[:i] in words), word)


def lines_with(stream: BinaryIO, vocabulary: Vocabulary) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line with a word of `vocabulary`, and of the last lines.

    At the end (number of lines, b""). The turns of a progress bar are given apart, under one number, and so are the
    pieces of a line longer than a chunk. Lines that differ in digits only are given a thousand times at most, those of
    metrics and of complete progress always. Memory is bounded by a few chunks of the file.
    """
    number = 1  # of the line that the block starts with
    shapes: dict[int, int] = {}  # hash of a line without digits -> how often it was seen
    for block, last in _blocks(stream):
        turns = block.replace(b"\r", b"\n")
        starts = _line_starts(turns, vocabulary.present(block))
        if last:
            starts |= _last_starts(turns)
        at = 0
        for start in sorted(starts):
            number += block.count(b"\n", at, start)
            at = start
            stop = turns.find(b"\n", start)
            line = turns[start : stop if stop >= 0 else len(turns)]
            shape = hash(line.translate(None, _DIGITS))
            seen = shapes[shape] = shapes.get(shape, 0) + 1
            if seen <= _ALIKE or b"step:" in line or b"100%" in line:
                yield number, line
        if len(shapes) > _REMEMBERED:
            shapes.clear()
        number += block.count(b"\n", at)
        if last:
            yield number - (not block or block.endswith(b"\n")), b""


def _trie(words: Iterable[str]) -> str:
    """A regular expression for any of `words`, factored by their beginnings: only where they differ are they tried."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}

    def expression(node: dict[str, Any]) -> str:
        if "" in node:  # a longer word with this beginning is found by this one
            return ""
        branches = [re.escape(char) + expression(child) for char, child in node.items()]
        return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"

    return expression(root) if root else "(?!)"


def _blocks(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """The stream in blocks that end at a line's or turn's end (or are a chunk without any); whether it is the last."""
    held = carry = b""
    while read := stream.read(_CHUNK):
        data = carry + read
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end == 0 and len(data) < 2 * _CHUNK:
            carry = data
            continue
        end = end or len(data)
        if held:
            yield held, False
        held, carry = data[:end], data[end:]
    if carry and held:
        if len(carry) < _CHUNK:
            held += carry
        else:
            yield held, False
            held = carry
    yield held or carry, True


def _line_starts(block: bytes, words: Iterable[bytes]) -> set[int]:
    starts: set[int] = set()
    for word in words:
        hit = block.find(word)
        while hit >= 0:
            starts.add(block.rfind(b"\n", 0, hit) + 1)
            stop = block.find(b"\n", hit)
            if stop < 0:
                break
            hit = block.find(word, stop)
    return starts


def _last_starts(block: bytes) -> set[int]:
    starts: set[int] = set()
    end = len(block)
    while end > 0 and len(starts) < _TAIL:
        end = block.rfind(b"\n", 0, end - 1) + 1
        starts.add(end)
        if end == 0:
            break
    return starts
