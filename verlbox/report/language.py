"""The languages of reports: messages.yaml, and the words for what the acceptance judged."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from verlbox.findings import Finding
from verlbox.metrics.acceptance import BUILT_IN, EVALUATION, Band, Line, Result
from verlbox.report.model import Inline, Text, number, text

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
MESSAGES = Path(__file__).with_name("messages.yaml")
FINDINGS = Path(__file__).with_name("findings.zh.yaml")

Say = Callable[[Inline], str]


@cache
def messages() -> dict[str, dict[str, str]]:
    """Key -> language -> message."""
    loaded: dict[str, dict[str, str]] = _load(MESSAGES)
    return loaded


def _load(file: Path) -> Any:
    import yaml

    return yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def summaries() -> dict[str, str]:
    """What each finding code means, in Chinese."""
    loaded: dict[str, str] = _load(FINDINGS)["summaries"]
    return loaded


@cache
def _sentences() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), form) for pattern, form in _load(FINDINGS)["sentences"]]


def _in_chinese(sentence: str) -> str | None:
    """A sentence of the report's own findings in Chinese; None for any other."""
    for pattern, form in _sentences():
        if match := pattern.fullmatch(sentence):
            return form.format(match[0], *(_in_chinese(part) or part for part in match.groups("")))
    return None


@dataclass(frozen=True)
class Said:
    """A sentence and the language that it is in."""

    text: str
    language: Language


def finding(of: Finding, language: Language) -> dict[str, Said]:
    """The parts of a finding that are not empty, as a report says them: "summary" (Chinese only, where the words that
    follow are not), "what", "why", "fix". Sentences of other modules stay English."""
    parts = {"what": of.what, "why": of.why, "fix": of.fix}
    if language == "en":
        return {name: Said(content, "en") for name, content in parts.items() if content}
    said = {}
    for name, content in parts.items():
        if content:
            translated = _in_chinese(content)
            said[name] = Said(content, "en") if translated is None else Said(translated, "zh")
    if of.code in summaries() and any(part.language == "en" for part in said.values()):
        return {"summary": Said(summaries()[of.code], "zh"), **said}
    return said


def speaker(language: Language) -> Say:
    """The function that puts a text into a language. It raises KeyError for a message that does not exist."""
    catalogue = messages()

    def say(inline: Inline) -> str:
        if isinstance(inline, str):
            return inline
        return catalogue[inline.key][language].format(**{name: say(value) for name, value in inline.values.items()})

    return say


def demand(line: Line) -> Text:
    """What an acceptance line is about."""
    if line == BUILT_IN:
        return text("acceptance.learned")
    if line.metric.startswith(EVALUATION):
        return text("acceptance.evaluation", metric=line.metric)
    what = text(f"acceptance.{line.reducer}", metric=line.metric)
    return text("acceptance.window", what=what, window=str(line.window)) if line.window else what


def bound(result: Result) -> Inline:
    """The bound that a line was held against."""
    if result.line == BUILT_IN:
        return ""
    limit = result.bound
    if isinstance(limit, Band):
        key = "acceptance.band-of" if limit.reference else "acceptance.band"
        return text(key, low=f"{limit.low:g}", high=f"{limit.high:g}", reference=limit.reference)
    sign = {">=": "≥", "<=": "≤", "==": "="}.get(result.line.operator, result.line.operator)
    return f"{sign} {limit:g}"


def got(result: Result) -> Inline:
    """The value that a line found, or why there is none."""
    if result.line == BUILT_IN and result.status == "pass":
        return text("acceptance.learned-yes")
    if result.reason:
        return text(f"acceptance.{result.reason}")
    return number(result.value)
