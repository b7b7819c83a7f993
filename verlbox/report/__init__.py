"""Reports: what a run did and what its numbers carry, as Markdown, HTML, JSON, CSV and PNG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from verlbox.metrics import acceptance, charts
from verlbox.metrics.read import Metrics
from verlbox.report import build, figures, html, language, markdown, tables
from verlbox.report.facts import RunFacts
from verlbox.report.language import Language
from verlbox.report.model import Report, Text, text

FORMATS = ("md", "html", "json")


def write(
    facts: RunFacts,
    metrics: Metrics,
    out_dir: Path,
    lang: Language = "en",
    formats: Iterable[str] = FORMATS,
    *,
    bands: Mapping[acceptance.BandKey, acceptance.Band] | None = None,
) -> list[Path]:
    """Writes the report of a run and returns the files, as `write_report` does."""
    return write_report(build.build(facts, metrics, bands), out_dir, lang, formats)


def write_report(report: Report, out_dir: Path, lang: Language = "en", formats: Iterable[str] = FORMATS) -> list[Path]:
    """Writes a report: for `md` and `html` also the CSV tables and the PNG charts that they name; `json` alone is one
    file. Returns the paths written. Raises ValueError for an unknown format, OSError when it cannot write."""
    formats = list(dict.fromkeys(formats))
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ValueError(f"unknown report format {unknown[0]!r}; there are {', '.join(FORMATS)}")
    out_dir.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    beside: dict[str, str] = {}
    notes: list[Text] = []
    if {"md", "html"} & set(formats):
        span = f"step{report.first_step}_{report.last_step}"
        beside = {"metrics": f"metrics_{span}.csv", "summary": f"metrics_summary_{span}.csv"}
        tables.write_metrics(out_dir / beside["metrics"], report.metrics)
        tables.write_summary(out_dir / beside["summary"], report.summary)
        font = charts.chinese_font() if lang == "zh" else None
        if lang == "zh" and font is None:
            notes.append(text("ui.png-labels"))
        beside.update(write_charts(report, out_dir, lang if lang == "en" or font else "en", font))
        written += [out_dir / name for name in beside.values()]
    if "md" in formats:
        file = out_dir / "report.md"
        file.write_text(markdown.render(report, lang, beside, notes), encoding="utf-8")
        written.append(file)
    if "html" in formats:
        file = out_dir / "report.html"
        file.write_text(html.render(report, lang, beside, notes), encoding="utf-8")
        written.append(file)
    if "json" in formats:
        file = out_dir / "report.json"
        tables.write_json(file, report)
        written.append(file)
    return written


def write_charts(report: Report, out_dir: Path, lang: Language, font: str | None = None) -> dict[str, str]:
    """Draws the four PNG files, labelled in a language that `font` has (None: matplotlib's own), and returns their
    names by group."""
    say = language.speaker(lang)
    names = {}
    for group, found in figures.charts(report.facts, report.metrics).items():
        panels = [
            charts.Panel(
                say(chart.title),
                tuple(charts.Line(say(c.label), c.points, c.errors, c.marks) for c in chart.curves),
                say(chart.note) if chart.note is not None else "",
            )
            for chart in found
        ]
        title = f"{report.title}: {say(text(f'ui.png.{group}'))}"
        names[group] = f"{group}.png"
        charts.draw(
            out_dir / names[group],
            title,
            panels,
            step_label=say(text("ui.step")),
            empty=say(text("ui.png.empty")),
            font=font,
        )
    return names


__all__ = ["FORMATS", "RunFacts", "write", "write_charts", "write_report"]
