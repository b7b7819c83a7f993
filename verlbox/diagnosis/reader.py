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
_REMEMBERED = 200_000  # words of the log, about 20 MB
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
        self._finder = re.compile(_trie(words).encode())
        self._known: dict[bytes, tuple[bytes, ...]] = {}

    def present(self, text: bytes) -> set[bytes]:
        found: set[bytes] = set()
        for token in set(text.translate(None, b"0123456789.").split()):
            words = self._known.get(token)
            if words is None:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                words = self._known[token] = tuple(self._finder.findall(token))
            found.update(words)
        return found


def found_as(word: str, words: Container[str]) -> str:
    """The word that a `Vocabulary` of `words` reports where `word` stands: the shortest that `word` begins with."""
    return next((word[:i] for i in range(1, len(word)) if word[:i] in words), word)


def lines_with(stream: BinaryIO, vocabulary: Vocabulary) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line with a word of `vocabulary`, and of the last lines.

    At the end (number of lines, b""). Memory is bounded by a few chunks of the file. A line longer than a chunk is
    given in pieces under one number.
    """
    number = 1  # of the line that the block starts with
    for block, last in _blocks(stream):
        starts = _line_starts(block, vocabulary.present(block))
        if last:
            starts |= _last_starts(block)
        at = 0
        for start in sorted(starts):
            number += block.count(b"\n", at, start)
            at = start
            stop = block.find(b"\n", start)
            yield number, block[start : stop if stop >= 0 else len(block)]
        number += block.count(b"\n", at)
        if last:
            yield number - (not block or block.endswith(b"\n")), b""


def _trie(words: Iterable[str]) -> str:
    """A regular expression for any of `words`, factored by common beginnings: alternatives cost only where they differ.

    Finds overlapping words too (it matches empty strings with the word in a group ahead), the shortest at each place.
    """
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

    return f"(?=({expression(root)}))" if root else "(?!)"


def _blocks(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """The stream in blocks that end at a line end (or are a chunk without any), and whether the block is the last."""
    held = carry = b""
    while read := stream.read(_CHUNK):
        data = carry + read
        end = data.rfind(b"\n") + 1
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
