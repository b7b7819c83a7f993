"""The catalogue: what goes wrong, as data.

Each file of `entries/` holds the causes of one topic. An entry says which lines give it away (`signals`), what it must
not be confused with, and what to tell the user: cause, why, fix. The loader refuses an entry that is incomplete,
misspelt, or whose patterns the reader could not find quickly (see `Pattern.words`). Each entry is a finding code,
`log-<id>`.

A pattern is a Python regular expression, searched in one line of the log without its Ray prefix and colours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from verlbox.findings import Code, Severity, register

if sys.version_info >= (3, 11):
    from re import _parser as regex_parser  # type: ignore[attr-defined]
else:  # its public name until Python 3.11
    import sre_parse as regex_parser

Platform = Literal["npu", "cuda", "cpu"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)

Failure = Literal["device-oom", "host-oom", "shm", "disk-full"]
FAILURES: tuple[Failure, ...] = get_args(Failure)

# cause: it started here. effect: usually another worker failed first (time-outs, lost peers). wrapper: it only says
# that something failed. With a cause at hand, effects and wrappers are consequences.
Role = Literal["cause", "effect", "wrapper"]
ROLES: tuple[Role, ...] = get_args(Role)

# fatal: the run ends, or its result is worthless. warning: it goes on, something should be looked at. benign: looks
# alarming, is not.
Harm = Literal["fatal", "warning", "benign"]
SEVERITIES: dict[Harm, Severity] = {"fatal": "error", "warning": "warning", "benign": "note"}

# Words of healthy logs (metric names, configuration dumps, answers of models): no pattern may be found by these alone,
# because each line that holds a pattern's word costs a closer look.
COMMON_WORDS = frozenset(
    """
    reward response advantage token grad_norm training memory Setting WARNING should thread physical assistant allocated
    total_num_ validation generation config start torch checkpoint function sequence pad_token_id file have global_step_
    world_size parallel number length score actor critic
    """.split()  # noqa: SIM905 (a list of thirty quoted words reads worse)
)

_TEXT_KEYS = ("cause", "why", "fix", "source")
_PATTERN_KEYS = ("any", "none", "all", "not")
_KEYS = {"id", "platforms", "severity", "role", "failure", "lasting", "signals", "check", "over", *_TEXT_KEYS}
_SIGNAL_KEYS = {*_PATTERN_KEYS, "within"}
_DEFAULT_WITHIN = 200  # lines; eight workers interleave their tracebacks


class CatalogueError(ValueError):
    """The catalogue is wrong: all its faults, one a line. Only a developer can cause it."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression, with what the reader looks for before it tries it.

    words: without blanks, digits and dots; every line with a match contains at least one, so they find the lines in a
    log of any size. The expression is compiled when one of them was found.
    """

    expression: str
    words: tuple[str, ...]

    def search(self, text: str) -> re.Match[str] | None:
        return _compiled(self.expression).search(text)


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


@dataclass(frozen=True)
class Entry:
    """One cause.

    any: one of these on a line is the signal. none: not on that line. all: each of these also seen, at most `within`
    lines before or after (or on the line itself). not: seen in that range, it is something else. check: the name of a
    function in `matcher.CHECKS` over the matched groups. over: ids that this entry explains away. lasting: the run
    goes on but its result is worthless, so later steps do not make it harmless.
    """

    id: str
    topic: str
    severity: Harm
    cause: str
    why: str
    fix: str
    source: str
    any: tuple[Pattern, ...]
    code: Code
    none: tuple[Pattern, ...] = ()
    all: tuple[Pattern, ...] = ()
    not_near: tuple[Pattern, ...] = ()
    within: int = _DEFAULT_WITHIN
    platforms: tuple[Platform, ...] = ()
    role: Role = "cause"
    failure: Failure | None = None
    lasting: bool = False
    check: str = ""
    over: tuple[str, ...] = field(default=())


def required_literals(expression: str) -> tuple[tuple[str, ...], ...]:
    """Sets of literal strings, of each of which every match of `expression` contains at least one; longest first.

    A set has one string, a run of plain characters that stands in every match, or one string for each branch of an
    alternation.
    """
    sets = dict.fromkeys(tuple(dict.fromkeys(s)) for s in _literal_sets(regex_parser.parse(expression).data))
    return tuple(sorted(sets, key=lambda s: -min(map(len, s))))


def _literal_sets(tokens: Iterable[tuple[Any, Any]]) -> list[list[str]]:
    sets: list[list[str]] = []
    run = ""
    for op, value in [*tokens, ("END", None)]:
        name = str(op)
        plain = [chr(value)] if name == "LITERAL" else []
        if name == "SUBPATTERN" and all(str(o) == "LITERAL" for o, _ in value[-1].data):
            plain = [chr(v) for _, v in value[-1].data]
        if plain or name == "AT":  # a position takes no characters
            run += "".join(plain)
            continue
        if run:
            sets.append([run])
        run = ""
        if name == "SUBPATTERN":
            sets += _literal_sets(value[-1].data)
        elif name == "BRANCH":
            branches = [max(_literal_sets(b.data), key=lambda s: min(map(len, s)), default=[]) for b in value[1]]
            if all(branches):
                sets.append([literal for branch in branches for literal in branch])
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and value[0] >= 1:
            inner = _literal_sets(value[2].data)
            single = len(inner) == 1 and len(inner[0]) == 1 and len(value[2].data) == len(inner[0][0])
            sets += [[inner[0][0] * value[0]]] if single else inner
    return sets


@cache
def search_words(expression: str) -> tuple[str, ...]:
    """The most telling words to look for: every match contains one of them; empty if there are none."""
    best: tuple[int, tuple[str, ...]] = (0, ())
    for literals in required_literals(expression):
        words = tuple(max(_WORD.findall(text), key=_telling, default="") for text in literals)
        telling = min(map(_telling, words))
        if telling > best[0]:
            best = (telling, tuple(dict.fromkeys(words)))
    return best[1]


_WORD = re.compile(r"[^\s\d.]{2,}")


def _telling(word: str) -> int:
    """0: finds nothing, or half of a healthy log. Otherwise the longer, the rarer."""
    if any(word in common for common in COMMON_WORDS):
        return 0
    return len(word) if len(word) >= 4 or (word.isupper() and len(word) >= 2) else 0


def parse(files: Mapping[str, str]) -> list[Entry]:
    """The entries of YAML texts by topic. Raises CatalogueError with all faults of all files."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    faults: list[str] = []
    raw: dict[str, tuple[str, dict[str, Any]]] = {}
    for topic, text in files.items():
        for number, item in enumerate(yaml.load(text, Loader=loader) or [], start=1):
            name = item.get("id") if isinstance(item, dict) else None
            if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
                faults.append(f"{topic}, entry {number}: needs an id in kebab-case")
            elif name in raw:
                faults.append(f"{topic}: {name} is there twice")
            else:
                raw[name] = (topic, item)
    for name, (topic, item) in raw.items():
        faults += [f"{topic}: {name}: {fault}" for fault in _faults(item, raw.keys())]
    if faults:
        raise CatalogueError("\n".join(faults))
    return [_entry(topic, item) for topic, item in raw.values()]


def _faults(item: dict[str, Any], ids: Iterable[str]) -> Iterator[str]:
    yield from (f"unknown key {key!r}" for key in sorted(item.keys() - _KEYS))
    for key in _TEXT_KEYS:
        if not isinstance(item.get(key), str) or not item[key].strip():
            yield f"{key} must be a text"
    if item.get("severity") not in SEVERITIES:
        yield f"severity must be one of {', '.join(SEVERITIES)}"
    if item.get("role", "cause") not in ROLES:
        yield f"role must be one of {', '.join(ROLES)}"
    if item.get("failure") is not None and item["failure"] not in FAILURES:
        yield f"failure must be one of {', '.join(FAILURES)}"
    if not isinstance(item.get("lasting", False), bool):
        yield "lasting must be true or false"
    if not isinstance(item.get("check", ""), str):
        yield "check must be the name of a check"
    yield from (f"unknown platform {p!r}" for p in item.get("platforms", []) if p not in PLATFORMS)
    yield from (f"over names {other!r}, which does not exist" for other in item.get("over", []) if other not in ids)
    signals = item.get("signals")
    if not isinstance(signals, dict) or not signals.get("any"):
        yield "signals must hold `any`"
        return
    yield from (f"unknown key signals.{key}" for key in sorted(signals.keys() - _SIGNAL_KEYS))
    if not isinstance(signals.get("within", 1), int) or signals.get("within", 1) < 0:
        yield "signals.within must be a number of lines"
    for key in _PATTERN_KEYS:
        patterns = signals.get(key, [])
        if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
            yield f"signals.{key} must be a list of regular expressions"
            continue
        for expression in patterns:
            try:
                words = search_words(expression)
            except re.error as error:
                yield f"signals.{key}: {expression!r} is no regular expression: {error}"
                continue
            if key != "none" and not words:
                yield f"signals.{key}: {expression!r} needs plain text with a telling word, in each branch"


def _entry(topic: str, item: dict[str, Any]) -> Entry:
    signals = item["signals"]
    compiled = {key: tuple(_pattern(p) for p in signals.get(key, [])) for key in _PATTERN_KEYS}
    cause = " ".join(item["cause"].split())
    return Entry(
        id=item["id"],
        topic=topic,
        severity=item["severity"],
        cause=cause,
        why=" ".join(item["why"].split()),
        fix=" ".join(item["fix"].split()),
        source=" ".join(item["source"].split()),
        any=compiled["any"],
        none=compiled["none"],
        all=compiled["all"],
        not_near=compiled["not"],
        within=signals.get("within", _DEFAULT_WITHIN),
        platforms=tuple(item.get("platforms", ())),
        role=item.get("role", "cause"),
        failure=item.get("failure"),
        lasting=item.get("lasting", False),
        check=item.get("check", ""),
        over=tuple(item.get("over", ())),
        code=Code(f"log-{item['id']}", SEVERITIES[item["severity"]], cause),
    )


def _pattern(expression: str) -> Pattern:
    return Pattern(expression, search_words(expression))


@cache
def load() -> tuple[Entry, ...]:
    """The catalogue that comes with verlbox; its codes enter the registry of findings on the first call."""
    folder = resources.files(__package__) / "entries"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".yaml"))
    entries = parse({n.removesuffix(".yaml"): (folder / n).read_text(encoding="utf-8") for n in names})
    for entry in entries:
        register(entry.code.name, entry.code.severity, entry.code.meaning)
    return tuple(entries)
