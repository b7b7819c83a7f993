"""Every word of a report exists in both languages."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from verlbox.report.language import LANGUAGES, messages, speaker
from verlbox.report.model import text

PACKAGE = Path(__file__).parents[2] / "verlbox"
SOURCES = [*sorted((PACKAGE / "report").glob("*.py")), PACKAGE / "compare.py"]
SOURCES += sorted((PACKAGE / "report" / "templates").glob("*.j2"))


def fields(message: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(message) if name}


@pytest.mark.parametrize("key", sorted(messages()))
def test_a_message_has_both_languages_with_the_same_values(key: str) -> None:
    message = messages()[key]
    assert set(message) == set(LANGUAGES)
    assert fields(message["en"]) == fields(message["zh"])
    words = re.sub(r"\{\w+\}|[\w.]*/[\w*]+|\b[a-z]+_\w+|[a-z]+\.[a-z]+", "", message["zh"])
    stripped = re.sub(
        r"(?i)\b(kl|mfu|verl|verlbox|fisher|mcnemar|sha-256|p|t|png|csv|nan|token|tflop/s|grpo|cpu|gib|r|flop/s|train)\b",
        "",
        words,
    )
    if re.search(r"[A-Za-z]{3,}", message["en"]) and re.search(r"[A-Za-z]", stripped):
        assert re.search(r"[\u4e00-\u9fff]", stripped), f"{key} looks untranslated: {message['zh']}"


def test_every_message_that_is_asked_for_exists() -> None:
    known = messages()
    for source in SOURCES:
        content = source.read_text(encoding="utf-8")
        for key in re.findall(r"""(?:text|plain|say)\(\s*["']([a-z][\w.-]+\.[\w.-]*\w)["']""", content):
            assert key in known, f"{source.name}: {key}"


def test_no_message_is_left_over() -> None:
    content = "".join(source.read_text(encoding="utf-8") for source in SOURCES)
    made = ["acceptance", "column", "chart", "phase", "compare", "evaluation", "curve"]
    made += ["ui.verdict", "ui.status", "ui.severity", "ui.png"]
    prefixes = (*(f"{name}." for name in made), "health.divided-", "stability.clip-", "ui.why", "ui.fix")
    for key in messages():
        if not key.startswith(prefixes):
            assert f'"{key}"' in content or f"'{key}'" in content, f"nothing says {key}"


def test_a_missing_message_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError):
        speaker("en")(text("no.such.message"))
