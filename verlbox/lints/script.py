"""Finds the calls of verl's main_ppo in a shell script and the settings they get. Reads; runs nothing.

Covered: line continuations, comments, single and double quotes, variables and arrays set in the script,
`${X:-default}`, whole-number arithmetic, `export`, assignments before a command, here-documents (skipped), several
calls, `"$@"`.
Not covered: conditions (the last assignment in the text wins), functions, `source`. What cannot be known without
running it (`$(date)`, a variable from outside, a loop variable) is marked UNKNOWN, and no lint guesses it.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from verlbox.findings import Finding, register

UNKNOWN = "\ue000"  # stands for text that only running the script could tell

CUT_OFF = register(
    "script-cuts-command", "error", "Settings after a comment or a broken continuation never reach verl."
)
EXIT_HIDDEN = register("script-hides-exit-code", "warning", "The script goes on, or ends well, when training fails.")

_MAIN = re.compile(r"(?:^|[./])verl[./]trainer[./]main_ppo(?:\.py)?$|^main_ppo\.py$")
_LOOKS_LIKE_OVERRIDE = re.compile(r"(?:\+\+?|~)?[A-Za-z_]\w*(?:\.\w+)+=|~[A-Za-z_]\w*(?:\.\w+)+$")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PARAMETER = re.compile(r"([A-Za-z_]\w*|[@*#?$!]|\d+)(?:\[([^\]]*)\])?(?:(:?[-=+?])(.*))?", re.DOTALL)
_RESERVED = re.compile(r"if|then|elif|else|fi|while|until|do|done|case|esac|in|[{}!]|time|exec|nohup|command|sudo")
_LONG_OPTIONS = {"-cn": "--config-name", "-cp": "--config-path", "-cd": "--config-dir"}
_TAKEN_OVER = ("HOME", "PWD", "USER")  # what a path may begin with


@dataclass(frozen=True)
class Call:
    """One call of main_ppo. `environment` is what the script exports up to it; `cut_off` what looks lost after it."""

    line: int
    overrides: tuple[str, ...]
    options: tuple[str, ...]
    environment: Mapping[str, str]
    cut_off: tuple[str, ...] = ()
    piped: bool = False


@dataclass
class _Word:
    """A word as pieces; blanks split it only where an expansion was not quoted."""

    pieces: list[tuple[str, bool]] = field(default_factory=list)
    fields: list[list[str]] = field(default_factory=list)  # "${array[@]}": further words
    bare: bool = True  # nothing in it was quoted

    def add(self, text: str, splits: bool = False) -> None:
        self.pieces.append((text, splits))

    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)

    def words(self) -> list[str]:
        """The words the shell makes of it."""
        found: list[str] = [""]
        started = not self.bare
        for text, splits in self.pieces:
            if not splits:
                found[-1] += text
                started = True
                continue
            parts = re.split(r"[ \t\n]+", text)
            for number, part in enumerate(parts):
                if number and found[-1]:
                    found.append("")
                found[-1] += part
        found = [word for word in found if word] or ([""] if started and not self.fields else [])
        return found + [word for group in self.fields for word in group]


class _Script:
    """The text and how far it is read, with the variables and arrays set so far."""

    def __init__(self, text: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        self.text = text
        self.at = 0
        self.arguments = list(arguments)
        taken = {name: os.environ[name] for name in _TAKEN_OVER if name in os.environ}
        self.variables: dict[str, str] = {**taken, **variables}
        self.arrays: dict[str, list[str]] = {}
        self.exported: dict[str, str] = {}
        self.heredocs: list[tuple[str, bool]] = []

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def ahead(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def skip_blanks(self) -> None:
        while True:
            if self.ahead() in (" ", "\t", "\r") and self.ahead():
                self.at += 1
            elif self.ahead(2) == "\\\n":
                self.at += 2
            elif self.ahead(3) == "\\\r\n":
                self.at += 3
            else:
                return

    def skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def skip_balanced(self, opening: str, closing: str) -> str:
        """Skips from just after `opening` to its `closing`; returns what is between. Quotes inside are respected."""
        depth, start = 1, self.at
        while self.at < len(self.text):
            char = self.ahead()
            if char == "\\":
                self.at += 1
            elif char in "'\"":
                end = self.text.find(char, self.at + 1)
                self.at = len(self.text) if end < 0 else end
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth == 0:
                    self.at += 1
                    return self.text[start : self.at - 1]
            self.at += 1
        return self.text[start:]

    # Expansion

    def variable(self, name: str) -> str:
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else ""
        return self.variables.get(name, UNKNOWN)

    def expand(self, text: str) -> str:
        """`text` as inside double quotes."""
        inner = _Script(text, self.arguments, {})
        inner.variables, inner.arrays = self.variables, self.arrays
        word = _Word()
        while inner.at < len(text):
            if inner.ahead() == '"':  # "${X:-"default"}": quotes inside are quotes
                inner.at += 1
            else:
                inner.in_double_quotes(word)
        return word.text() + "".join(" ".join(group) for group in word.fields)

    def parameter(self, text: str) -> str | list[str]:
        """The value of `${text}`; a list for "[@]" and `@`."""
        match = _PARAMETER.fullmatch(text)
        if not match:
            return UNKNOWN
        name, index, how, other = match.groups()
        if name in "@*" and how is None:
            return list(self.arguments)
        if name.isdigit():
            known = 1 <= int(name) <= len(self.arguments)
            value = self.arguments[int(name) - 1] if known else UNKNOWN
        elif index in ("@", "*"):
            return list(self.arrays.get(name, [self.variable(name)]))
        elif index is not None:
            return UNKNOWN
        else:
            value = self.variable(name)
        if how is None:
            return value
        unset = value == UNKNOWN or (value == "" and how.startswith(":"))
        match how[-1]:
            case "-":
                return self.expand(other) if unset else value
            case "=":
                if unset:
                    self.variables[name] = value = self.expand(other)
                return value
            case "+":
                return "" if unset else self.expand(other)
            case _:
                return value

    def dollar(self) -> str | list[str]:
        """The expansion that begins with the `$` at `at`."""
        self.at += 1
        if self.ahead(2) == "((":
            self.at += 2
            inside = self.skip_balanced("(", ")")
            self.at += self.ahead() == ")"
            return _arithmetic(self.expand(re.sub(r"(?<![\w$}])([A-Za-z_]\w*)", r"${\1}", inside)))
        if self.ahead() == "(":
            self.at += 1
            self.skip_balanced("(", ")")
            return UNKNOWN
        if self.ahead() == "{":
            self.at += 1
            return self.parameter(self.skip_balanced("{", "}"))
        match = _NAME.match(self.text, self.at) or re.compile(r"[@*#?$!0-9]").match(self.text, self.at)
        if not match:
            return "$"
        self.at = match.end()
        return self.parameter(match[0])

    def in_double_quotes(self, word: _Word) -> None:
        char = self.ahead()
        if char == "$":
            value = self.dollar()
            if isinstance(value, list):
                word.fields.append(value)
            else:
                word.add(value)
        elif char == "`":
            self.at = self.text.find("`", self.at + 1) + 1 or len(self.text)
            word.add(UNKNOWN)
        elif char == "\\" and self.ahead(2)[1:] in ("$", "`", '"', "\\", "\n"):
            word.add("" if self.ahead(2)[1:] == "\n" else self.ahead(2)[1:])
            self.at += 2
        else:
            word.add(char)
            self.at += 1

    def word(self) -> _Word:
        """The word at `at`, which is not blank."""
        word = _Word()
        while self.at < len(self.text):
            char = self.ahead()
            if char in " \t\r\n;&|<>)" or (char == "(" and not _opens_array(word)):
                break
            if char == "(":
                self.at += 1
                word.fields.append(self.array())
                break
            if char == "'":
                end = self.text.find("'", self.at + 1)
                end = len(self.text) if end < 0 else end
                word.add(self.text[self.at + 1 : end])
                word.bare = False
                self.at = end + 1
            elif char == '"':
                word.bare = False
                self.at += 1
                while self.at < len(self.text) and self.ahead() != '"':
                    self.in_double_quotes(word)
                self.at += 1
            elif char == "\\":
                if self.ahead(2) == "\\\n":
                    self.at += 2
                    continue
                word.add(self.ahead(2)[1:])
                self.at += 2
            elif char == "$":
                value = self.dollar()
                if isinstance(value, list):
                    word.fields.append(value)
                else:
                    word.add(value, splits=True)
            elif char == "`":
                self.in_double_quotes(word)
            else:
                word.add(char)
                self.at += 1
        return word

    def array(self) -> list[str]:
        items: list[str] = []
        while self.at < len(self.text):
            self.skip_blanks()
            if self.ahead() == "\n":
                self.at += 1
            elif self.ahead() == "#":
                self.skip_comment()
            elif self.ahead() == ")":
                self.at += 1
                break
            elif self.at < len(self.text):
                before = self.at
                items += self.word().words()
                self.at += self.at == before  # an operator has no place here: pass over it
        return items

    # Commands

    def redirection(self) -> bool:
        """Skips one; whether there was one."""
        match = re.compile(r"(?:\d*|&)(<<-?|>>|[<>]&?|>\||<<<)").match(self.text, self.at)
        if not match:
            return False
        self.at = match.end()
        if self.ahead() == "(":
            self.at += 1
            self.skip_balanced("(", ")")
            return True
        self.skip_blanks()
        target = self.word()
        if match[1].startswith("<<") and match[1] != "<<<":
            self.heredocs.append((target.text(), match[1].endswith("-")))
        return True

    def skip_heredocs(self) -> None:
        for end, tabs in self.heredocs:
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at = stop + 1
                if (line.lstrip("\t") if tabs else line) == end:
                    break
        self.heredocs.clear()

    def command(self) -> tuple[list[_Word], str, bool]:
        """The next simple command: its words, the operator that ends it, and whether a comment ended it."""
        words: list[_Word] = []
        while self.at < len(self.text):
            self.skip_blanks()
            char = self.ahead()
            if char == "#":
                self.skip_comment()
                return words, "\n", bool(words)
            if char == "\n":
                self.at += 1
                self.skip_heredocs()
                return words, "\n", False
            if self.redirection():
                continue
            if char in (";", "&", "|", "(", ")"):
                operators = re.compile(r"&&|\|\||\|&|;;|[;&|()]").match(self.text, self.at)
                assert operators
                self.at = operators.end()
                return words, operators[0], False
            if char:
                before = self.at
                words.append(self.word())
                self.at += self.at == before  # a stray operator
        return words, "", False


def _opens_array(word: _Word) -> bool:
    return bool(re.fullmatch(r"[A-Za-z_]\w*\+?=", word.text())) and word.bare


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _arithmetic(text: str) -> str:
    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case _:
                raise ValueError(text)

    try:
        return str(value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return UNKNOWN


def _take_assignments(script: _Script, words: list[_Word], *, export: bool) -> list[_Word]:
    """Carries out the assignments at the front of `words`; returns the rest."""
    while words:
        match = _ASSIGNMENT.fullmatch(words[0].text())
        if not match or not words[0].pieces or not _is_plain_name(words[0]):
            break
        name, append, value = match.groups()
        if value.startswith("~/") and words[0].bare:  # expanded in an assignment, and there only
            value = script.variable("HOME") + value[1:]
        if words[0].fields and not value:
            items = [item for group in words[0].fields for item in group]
            script.arrays[name] = [*script.arrays.get(name, []), *items] if append else items
        else:
            script.arrays.pop(name, None)
            script.variables[name] = (script.variables.get(name, "") if append else "") + value
            if export or name in script.exported:
                script.exported[name] = script.variables[name]
        words = words[1:]
    return words


def _is_plain_name(word: _Word) -> bool:
    """Whether the part before `=` was written out, as an assignment's must be."""
    head = ""
    for text, splits in word.pieces:
        if splits:
            return False
        head += text
        if "=" in head:
            return True
    return False


def _sorted_arguments(given: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hydra's options (each with its value, as --name=value) and the overrides."""
    options: list[str] = []
    overrides: list[str] = []
    waiting = False
    for word in given:
        if waiting:
            options[-1] += f"={word}"
            waiting = False
        elif word.startswith("-"):
            options.append(_LONG_OPTIONS.get(word, word))
            waiting = word in _LONG_OPTIONS or word in _LONG_OPTIONS.values()
        elif word:
            overrides.append(word)
    return tuple(options), tuple(overrides)


def find_calls(text: str, arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> list[Call]:
    """The main_ppo calls of a shell script, in order.

    arguments: what `"$@"` stands for. variables: values from outside the script, by name.
    """
    script = _Script(text, arguments, variables or {})
    calls: list[Call] = []
    last_call: int | None = None
    while script.at < len(script.text):
        script.skip_blanks()
        start = script.at
        words, ended_by, _ = script.command()
        while words and words[0].bare and _RESERVED.fullmatch(words[0].text()):
            words = words[1:]
        if not words:
            continue
        first = words[0].text()
        if first in ("export", "declare", "local", "readonly", "typeset"):
            for word in words[1:]:
                if _NAME.fullmatch(word.text()) and first == "export":
                    script.exported[word.text()] = script.variable(word.text())
                _take_assignments(script, [word], export=first == "export" or "-x" in words[1].text())
            continue
        if first == "unset":
            for word in words[1:]:
                script.exported.pop(word.text(), None)
                script.variables.pop(word.text(), None)
            continue
        if first == "for" and len(words) > 1:
            script.variables[words[1].text()] = UNKNOWN
            continue
        if last_call is not None and _LOOKS_LIKE_OVERRIDE.match(first):
            lost = [text for word in words for text in word.words() if _LOOKS_LIKE_OVERRIDE.match(text)]
            call = calls[last_call]
            calls[last_call] = Call(
                call.line, call.overrides, call.options, call.environment, (*call.cut_off, *lost), call.piped
            )
            continue
        before = dict(script.exported)
        rest = _take_assignments(script, words, export=True)
        environment = dict(script.exported)
        if rest:
            script.exported = before  # assignments before a command are for that command only
        else:
            script.exported = {k: v for k, v in script.exported.items() if k in before}
        flat = [text for word in rest for text in word.words()]
        main = next((number for number, word in enumerate(flat) if _MAIN.search(word)), None)
        if main is None:
            if flat:
                last_call = None
            continue
        options, overrides = _sorted_arguments(flat[main + 1 :])
        last_call = len(calls)
        calls.append(Call(script.line(start), overrides, options, environment, piped=ended_by in ("|", "|&")))
    return calls


def findings_of(call: Call, text: str, where: str) -> list[Finding]:
    """What is wrong with the call as shell, not with its settings."""
    found: list[Finding] = []
    if call.cut_off:
        found.append(
            CUT_OFF.finding(
                f"{len(call.cut_off)} settings never reach verl: {', '.join(call.cut_off[:5])}"
                + (", ..." if len(call.cut_off) > 5 else ""),
                why="A comment between continued lines, or a blank after a backslash, ends the command there.",
                fix="move the comment above the command; leave nothing after a backslash",
                where=where,
            )
        )
    if call.piped and not re.search(r"\bpipefail\b|PIPESTATUS", text):
        found.append(
            EXIT_HIDDEN.finding(
                "the call is piped, and the script does not look at its exit code",
                why="A pipe returns the exit code of its last command: `| tee` makes every failure a success.",
                fix="set -o pipefail at the top of the script",
                where=where,
            )
        )
    return found
