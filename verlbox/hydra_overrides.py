r"""Hydra override strings, read and written without Hydra.

verl is configured by arguments such as `trainer.logger=[console,tensorboard]` or `+data.x='a b'`. This module turns one
into a key and a Python value and back, exactly as Hydra does, so that a plan or a lint sees what verl will see.

Covered: the value grammar of Hydra 1.3 (hydra/grammar/OverrideLexer.g4 and OverrideParser.g4): integers, floats,
booleans, null, quoted and unquoted strings, escapes, lists, dictionaries, interpolations (kept as text).
Not covered, and refused by name: sweeps (`a=1,2`, `choice(...)`) and cast functions (`str(1)`); verl's entry
point is not a multirun application, so Hydra refuses sweeps there too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Prefix = Literal["", "+", "++", "~"]


class OverrideSyntaxError(ValueError):
    """The text is not an override that Hydra would accept for a single run."""


@dataclass(frozen=True)
class Override:
    """One override. `key` keeps a config-group part (`actor@actor_rollout_ref.actor`); `~key` has value None."""

    prefix: Prefix
    key: str
    value: object
    raw: str


_INT = r"(?:0|[1-9](?:_?[0-9])*)"
_POINT = rf"(?:{_INT}\.|{_INT}?\.[0-9](?:_?[0-9])*)"
# The tokens of VALUE_MODE in the order of the lexer file: the longest match wins, of equals the earlier one.
# POINT_FLOAT's two alternatives need their own attempt each, since Python's `|` takes the first, not the longest.
_TOKENS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.DOTALL))
    for kind, pattern in (
        ("(", r"[ \t]*\([ \t]*"),
        (",", r"[ \t]*,[ \t]*"),
        (")", r"[ \t]*\)"),
        ("[", r"\[[ \t]*"),
        ("]", r"[ \t]*\]"),
        ("{", r"\{[ \t]*"),
        ("}", r"[ \t]*\}"),
        (":", r"[ \t]*:[ \t]*"),
        ("=", r"[ \t]*=[ \t]*"),
        ("float", rf"[+-]?{_INT}?\.[0-9](?:_?[0-9])*"),
        ("float", rf"[+-]?{_INT}\."),
        ("float", rf"[+-]?(?:{_INT}?\.[0-9](?:_?[0-9])*|{_POINT}|{_INT})[eE][+-]?[0-9](?:_?[0-9])*"),
        ("float", r"[+-]?(?:[Ii][Nn][Ff]|[Nn][Aa][Nn])"),
        ("int", rf"[+-]?{_INT}"),
        ("bool", r"[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]"),
        ("null", r"[Nn][Uu][Ll][Ll]"),
        ("char", r"[/\-\\+.$%*@?|]"),
        ("id", r"[a-zA-Z_][a-zA-Z0-9_-]*"),
        ("esc", r"(?:\\[\\()\[\]{}:=, \t])+"),
        ("ws", r"[ \t]+"),
        ("quoted", r'"(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)"'),
        ("quoted", r"'(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)'"),
        ("interpolation", r"\$\{[^}]+\}"),
    )
)
_PLAIN = frozenset({"id", "null", "int", "float", "bool", "interpolation", "char", ":", "esc", "ws"})
_DICT_KEY = _PLAIN - {":", "interpolation"}

# Lexer rule DOT_PATH and the parser rule `key`: a path, or group/option, either with @package.
_NAME = r"(?:[a-zA-Z_$][a-zA-Z0-9_$-]*)"
_PACKAGE = rf"(?:(?:{_NAME}|{_INT})(?:\.(?:{_NAME}|{_INT}))+|{_NAME})"
_GROUP = r"(?:[a-zA-Z_][a-zA-Z0-9_-]*(?:/[a-zA-Z_][a-zA-Z0-9_-]*)+)"
_OVERRIDE = re.compile(
    rf"(?P<prefix>\+\+|\+|~|)(?P<key>(?:{_GROUP}|{_PACKAGE})(?:@{_PACKAGE})?)(?:=[ \t]*(?P<value>.*))?", re.S
)

Token = tuple[str, str]


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at = 0
    while at < len(text):
        best, length = "", 0
        for kind, pattern in _TOKENS:
            match = pattern.match(text, at)
            if match and match.end() - at > length:
                best, length = kind, match.end() - at
        if not length:
            raise OverrideSyntaxError(f"Hydra cannot read {text[at]!r} in {text!r}: put the value in quotes")
        found.append((best, text[at : at + length]))
        at += length
    return found


def _unquote(text: str) -> str:
    """The string between the quotes; backslashes are escapes only in a run before a quote (the closing one too)."""
    return re.sub(rf"(\\+)({text[0]}|\Z)", lambda m: "\\" * (len(m[1]) // 2) + m[2], text[1:-1])


def _primitive(tokens: Sequence[Token], text: str) -> object:
    inner = list(tokens)
    if inner and inner[0][0] == "ws":
        inner = inner[1:]
        if not inner:
            raise OverrideSyntaxError(f"a value of blanks only in {text!r}")
    if inner and inner[-1][0] == "ws":
        inner = inner[:-1]
    if len(inner) > 1:
        return "".join(part[1::2] if kind == "esc" else part for kind, part in inner)
    kind, part = inner[0]
    match kind:
        case "int":
            return int(part)
        case "float":
            return float(part)
        case "null":
            return None
        case "bool":
            return part.lower() == "true"
        case "esc":
            return part[1::2]
        case _:
            return part


class _Reader:
    """Recursive descent over the tokens of one value; `at` is the next token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.at = 0

    def kind(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][0] if self.at + ahead < len(self.tokens) else "end"

    def take(self, kind: str) -> str:
        if self.kind() != kind:
            raise self.error()
        self.at += 1
        return self.tokens[self.at - 1][1]

    def error(self) -> OverrideSyntaxError:
        if self.at >= len(self.tokens):
            return OverrideSyntaxError(f"{self.text!r} ends too early: a bracket or a value is missing")
        return OverrideSyntaxError(f"Hydra does not expect {self.tokens[self.at][1]!r} in {self.text!r}: quote it")

    def plain(self, allowed: frozenset[str]) -> object:
        start = self.at
        while self.kind() in allowed:
            self.at += 1
        if self.at == start:
            raise self.error()
        return _primitive(self.tokens[start : self.at], self.text)

    def element(self) -> object:
        if self.kind() == "id" and self.kind(1) == "(":
            name = self.tokens[self.at][1]
            raise OverrideSyntaxError(
                f"functions and sweeps such as {name}(...) are not for a single run: {self.text!r}"
            )
        match self.kind():
            case "quoted":
                return _unquote(self.take("quoted"))
            case "[":
                return self.list()
            case "{":
                return self.dict()
            case _:
                return self.plain(_PLAIN)

    def list(self) -> list[object]:
        self.take("[")
        items: list[object] = []
        while self.kind() != "]":
            if items:
                self.take(",")
            items.append(self.element())
        self.take("]")
        return items

    def dict(self) -> dict[object, object]:
        self.take("{")
        items: dict[object, object] = {}
        while self.kind() != "}":
            if items:
                self.take(",")
            key = self.plain(_DICT_KEY)
            self.take(":")
            items[key] = self.element()
        self.take("}")
        return items

    def value(self) -> object:
        value = self.element()
        if self.kind() == ",":
            raise OverrideSyntaxError(
                f"{self.text!r} is a sweep, which needs --multirun: write [a,b] for a list or quote it"
            )
        if self.kind() != "end":
            raise self.error()
        return value


def parse_value(text: str) -> object:
    """The Python value that Hydra gives to the part after `=` (empty text is the empty string).

    Interpolations (`${a.b}`) stay text. Raises OverrideSyntaxError where Hydra would refuse, and for sweeps and
    functions.
    """
    return _Reader(text).value() if text else ""


def parse_override(text: str) -> Override:
    """Reads `key=value`, `+key=value`, `++key=value`, `~key` or `~key=value`; raises OverrideSyntaxError."""
    match = _OVERRIDE.fullmatch(text)
    if not match:
        hint = "no `=`" if "=" not in text else "the part before `=` is not a dotted key (no blanks around `=`)"
        raise OverrideSyntaxError(f"{text!r} is not an override: {hint}")
    prefix, key, value = match["prefix"], match["key"], match["value"]
    if value is None and prefix != "~":
        raise OverrideSyntaxError(f"{text!r} is not an override: no `=`")
    parsed = None if value is None else parse_value(value)
    return Override(prefix, key, parsed, text)  # type: ignore[arg-type]  # the pattern admits only Prefix


def _quote(text: str) -> str:
    # Hydra reads backslashes literally, except a run of them before a quote (the closing one included).
    return "'" + re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def _stands_unquoted(text: str) -> bool:
    # A backslash is safe or not by what follows it, which in a list is the next separator: always quote it.
    try:
        return "\\" not in text and bool(text) and parse_value(text) == text
    except OverrideSyntaxError:
        return False


def _format_key(key: object) -> str:
    text = str(key) if isinstance(key, str) else format_value(key)
    escaped = re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", text)
    for candidate in (text, escaped):
        try:
            if list(_Reader("{" + candidate + ":0}").dict()) == [key]:
                return candidate
        except OverrideSyntaxError:
            continue
    raise ValueError(f"Hydra's grammar cannot express the dictionary key {key!r}")


def format_value(value: object) -> str:
    """The text that Hydra reads back as `value`: str, int, float, bool, None, lists, tuples (as lists), mappings.

    Strings are quoted only where they must be. A string with `${...}` is an interpolation to Hydra, quoted or not.
    Raises ValueError for other types and for dictionary keys outside Hydra's grammar.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return value if _stands_unquoted(value) else _quote(value)
        case Mapping():
            return "{" + ",".join(f"{_format_key(k)}:{format_value(v)}" for k, v in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(format_value, value)) + "]"
        case _:
            raise ValueError(f"a Hydra override cannot hold a {type(value).__name__}: {value!r}")


def format_override(key: str, value: object, prefix: Prefix = "") -> str:
    """One command-line argument (not quoted for a shell) that sets `key` to `value`; see format_value.

    With prefix `~` and value None it is a plain deletion, `~key`.
    """
    return f"~{key}" if prefix == "~" and value is None else f"{prefix}{key}={format_value(value)}"
