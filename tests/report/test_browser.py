"""report.html and compare.html in a real headless browser: from file://, offline, on a phone, light and dark."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import chromium, opened, violations
from tests.report.published import EVALUATION, FACTS, STEPS
from verlbox import compare, report
from verlbox.findings import Finding
from verlbox.metrics.acceptance import line
from verlbox.metrics.read import read
from verlbox.report.language import LANGUAGES, Language

FULL = dataclasses.replace(
    FACTS,
    evaluation=EVALUATION,
    training_reasons={"ok": 20, "wrong": 7},
    durations={"train": 4000.0},
    command="python entrypoint.py run recipes/npu-grpo.yaml",
    findings=(Finding("note", "a-code", "What it is.", "Why it matters.", "How to mend it."),),
    acceptance=(line("actor/grad_norm", "<=", 1.0, reducer="max"), line("actor/entropy", ">", 9, severity="warn")),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Kind and language -> page."""
    made: dict[tuple[str, str], Path] = {}
    metrics = read(STEPS)
    for lang in LANGUAGES:
        out = tmp_path_factory.mktemp(lang)
        report.write(FULL, metrics, out, lang, ("html",))
        runs = [compare.Compared(name, FULL, metrics) for name in ("a", "b")]
        compare.write(compare.compare(runs), out, lang, ("html",))
        made["report", lang] = out / "report.html"
        made["compare", lang] = out / "compare.html"
    return made


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", ["report", "compare"])
def test_a_page_opens_clean_fits_and_is_accessible(
    browser: Any, pages: dict[tuple[str, str], Path], kind: str, lang: Language, width: int, dark: bool
) -> None:
    with opened(browser, pages[kind, lang], width=width, dark=dark) as found:
        page = found.page
        assert found.complaints == []
        assert {re.match(r"\w+", address)[0] for address in found.requests} <= {"file", "data"}  # type: ignore[index]
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        smallest = page.evaluate(
            "Math.min(...[...document.querySelectorAll('body *')].filter(e => e.innerText && e.offsetWidth > 1)"
            ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
        )
        assert smallest >= 12.5, "text must be readable on a phone"
        assert violations(page) == []


def test_values_are_read_off_by_pointer_and_keys(browser: Any, pages: dict[tuple[str, str], Path]) -> None:
    with opened(browser, pages["report", "en"]) as found:
        plot = found.page.locator("#chart-score .plot")
        output = found.page.locator("#chart-score output")
        plot.focus()
        assert output.inner_text() == "Step 28: score 0.2801"
        plot.press("ArrowLeft")
        assert output.inner_text() == "Step 27: score 0.3134"
        plot.press("Home")
        assert output.inner_text() == "Step 1: score 0.2523"
        area = found.page.locator("#chart-score .area")
        area.hover(position={"x": area.bounding_box()["width"] - 2, "y": 20})
        assert output.inner_text() == "Step 28: score 0.2801"
        assert found.complaints == []


def test_charts_are_there_without_the_script(browser: Any, pages: dict[tuple[str, str], Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["report", "en"].as_uri())
    assert page.locator(".plot svg .line").count() >= 8
    assert page.locator("#theme").is_hidden()
    context.close()


def test_the_theme_can_be_switched(browser: Any, pages: dict[tuple[str, str], Path]) -> None:
    with opened(browser, pages["report", "en"]) as found:
        colour = "getComputedStyle(document.body).backgroundColor"
        light = found.page.evaluate(colour)
        found.page.locator("#theme").click()
        assert found.page.evaluate(colour) != light
        assert violations(found.page) == []


@pytest.mark.parametrize("kind", ["report", "compare"])
def test_a_chinese_page_has_no_english_label(browser: Any, pages: dict[tuple[str, str], Path], kind: str) -> None:
    labels = "th, caption, summary, h2, h3, dt, figcaption, button, nav a, .badge, .verdict, .eyebrow, .legend li"
    with opened(browser, pages[kind, "zh"]) as found:
        texts = found.page.evaluate(f"[...document.querySelectorAll('{labels}')].map(e => e.textContent.trim())")
        assert len(texts) > 30
        for text in set(texts):
            rest = re.sub(r"[\w.-]*[/_][\w/@.-]*", "", text)  # metric names and settings
            rest = re.sub(r"\b(KL|MFU|FLOP/s|token|McNemar|Fisher|SHA-256|p|t|verl|level|npu|a|b|n|s|GiB)\b", "", rest)
            assert not re.search(r"[A-Za-z]{2,}", rest), text
        assert found.page.evaluate("document.documentElement.lang") == "zh-CN"
