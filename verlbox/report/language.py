"""The languages of reports: messages.yaml, and the words for what the acceptance judged."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

from verlbox.metrics.acceptance import BUILT_IN, EVALUATION, Band, Line, Result
from verlbox.report.model import Inline, Text, number, text

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
MESSAGES = Path(__file__).with_name("messages.yaml")

Say = Callable[[Inline], str]


@cache
def messages() -> dict[str, dict[str, str]]:
    """Key -> language -> message."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loaded: dict[str, dict[str, str]] = yaml.load(MESSAGES.read_text(encoding="utf-8"), Loader=loader)
    return loaded


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
