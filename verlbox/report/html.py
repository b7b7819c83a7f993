"""A report as one HTML file: no request leaves it, charts are SVG, a small script lets a reader read off values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlbox import __version__
from verlbox.metrics.charts import thin, ticks
from verlbox.metrics.read import Series
from verlbox.report import language
from verlbox.report.figures import CHART_GROUPS
from verlbox.report.language import Language, Say
from verlbox.report.model import (
    Bars,
    Block,
    Cell,
    Chart,
    Code,
    Findings,
    Inline,
    Paragraph,
    Report,
    Section,
    Table,
    Text,
    number,
    text,
)

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("templates")
MOST_POINTS = 600  # of one curve in the file; the CSV has them all
_JOINT = re.compile(r"(?<=\w)[/_](?=\w)|(?<=[A-Za-z_])\.(?=[A-Za-z])")
LOCALES = {"en": "en", "zh": "zh-CN"}


@cache
def environment() -> Environment:
    """The templates of this package, with HTML escaping; a name that is missing is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["breakable"] = breakable
    return made


def breakable(content: str) -> Markup:
    """Escaped text whose long names may break after a slash, a dot or an underscore, where no blank allows it."""
    from markupsafe import Markup, escape

    return Markup(_JOINT.sub(r"\g<0><wbr>", str(escape(content))))


def render(report: Report, lang: Language, beside: Mapping[str, str], notes: Iterable[Text] = ()) -> str:
    """The document. `beside` names the files in the same directory: the chart groups, `metrics`, `summary`; `notes`
    are said at the end."""
    say = language.speaker(lang)
    lines = [
        {
            "status": result.status,
            "demand": say(language.demand(result.line)),
            "got": say(language.got(result)),
            "bound": say(language.bound(result)),
        }
        for result in report.verdict.results
    ]
    span = (
        text("ui.steps", first=str(report.first_step), last=str(report.last_step))
        if report.metrics.steps()
        else text("ui.no-steps")
    )
    thinned = any(len(points) > MOST_POINTS for points in report.metrics.series.values())
    sections = [
        {"id": s.id, "title": say(s.title), "blocks": [_block(b, say, lang) for b in s.blocks]} for s in report.sections
    ]
    return _template("report.html.j2").render(
        locale=LOCALES[lang],
        say=lambda key, **values: say(text(key, **values)),
        title=say(text("ui.title", name=report.title)),
        name=report.title,
        status=report.verdict.overall,
        span=say(span),
        platform=report.facts.platform,
        headline=[{"tone": p.tone, "text": say(p.text)} for p in report.headline],
        tiles=[{"label": say(t.label), "value": t.value, "note": say(t.note)} for t in report.tiles],
        lines=lines,
        sections=sections,
        notes=[say(note) for note in (*notes, *([text("ui.thinned")] if thinned else []))],
        beside=[beside[key] for key in ("metrics", "summary", *CHART_GROUPS) if key in beside],
        version=__version__,
        **assets(),
    )


def document(title: str, parts: Iterable[Section], lang: Language) -> str:
    """Sections under a title, without a verdict: a comparison."""
    say = language.speaker(lang)
    return _template("document.html.j2").render(
        locale=LOCALES[lang],
        say=lambda key, **values: say(text(key, **values)),
        title=title,
        sections=[
            {"id": s.id, "title": say(s.title), "blocks": [_block(b, say, lang) for b in s.blocks]} for s in parts
        ],
        version=__version__,
        **assets(),
    )


def assets() -> dict[str, str]:
    """The style sheet and the script, to be put into a page as they are."""
    return {
        "style": (TEMPLATES / "page.css").read_text(encoding="utf-8"),
        "script": (TEMPLATES / "page.js").read_text(encoding="utf-8"),
    }


def _template(name: str) -> Template:
    return environment().get_template(name)


def _block(block: Block, say: Say, lang: Language) -> dict[str, Any]:
    """A block as the template takes it: its kind, and its texts in the report's language."""
    match block:
        case Paragraph():
            return {"kind": "paragraph", "tone": block.tone, "text": say(block.text)}
        case Table():
            return table(block, say)
        case Chart():
            return {"kind": "chart", **plot(block, say)}
        case Bars():
            parts = [
                {"label": say(part.label), "seconds": number(part.value), "share": 100 * part.share}
                for part in block.parts
            ]
            description = ", ".join(f"{part['label']} {part['share']:.1f} %" for part in parts)
            return {
                "kind": "bars",
                "title": say(block.title),
                "parts": parts,
                "description": say(text("ui.bars-description", parts=description)),
            }
        case Code():
            return {"kind": "code", "caption": say(block.caption), "content": block.content}
        case Findings():
            said = [language.finding(item, lang) for item in block.items]
            items = [
                {"severity": item.severity, "code": item.code, "where": item.where, "said": parts}
                for item, parts in zip(block.items, said, strict=True)
            ]
            mixed = lang != "en" and any(part.language == "en" for parts in said for part in parts.values())
            return {"kind": "findings", "items": items, "mixed": mixed}


def table(block: Table, say: Say) -> dict[str, Any]:
    """A table as the template takes it."""

    def cell(content: Inline | Cell) -> dict[str, str]:
        if isinstance(content, Cell):
            return {"text": say(content.content), "tone": content.tone}
        return {"text": say(content), "tone": ""}

    return {
        "kind": "table",
        "caption": say(block.caption),
        "columns": [say(column) for column in block.columns],
        "rows": [[cell(content) for content in row] for row in block.rows],
        "numeric": set(block.numeric),
        "folded": block.folded,
    }


def plot(chart: Chart, say: Say) -> dict[str, Any]:
    """A chart as the template takes it: paths in a square of 1000 by 1000 units that the page stretches, tick labels
    as shares of it in per cent, and the points for the script."""
    curves = [(say(curve.label), thin(curve.points, MOST_POINTS), curve) for curve in chart.curves]
    steps = [step for _, points, _ in curves for step in (points.steps[0], points.steps[-1]) if len(points)]
    first, last = min(steps), max(steps)
    lows, highs = [], []
    for _, points, curve in curves:
        errors = curve.errors if len(curve.errors) == len(points) else [0.0] * len(points)
        lows += [v - e for v, e in zip(points.values, errors, strict=True)]
        highs += [v + e for v, e in zip(points.values, errors, strict=True)]
    levels = ticks(min(lows), max(highs), 5)
    bottom, top = levels[0], levels[-1]

    def x(step: float) -> float:
        return 500.0 if first == last else 1000 * (step - first) / (last - first)

    def y(value: float) -> float:
        return 1000 * (top - value) / (top - bottom)

    drawn, described = [], []
    for i, (label, points, curve) in enumerate(curves):
        errors = curve.errors if len(curve.errors) == len(points) else ()
        places = [(x(s), y(v)) for s, v in zip(points.steps, points.values, strict=True)]
        drawn.append(
            {
                "label": label,
                "colour": i % 8,
                "path": "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places),
                "dots": [f"M{a:.1f} {b:.1f}h.01" for a, b in places] if curve.marks or len(places) == 1 else [],
                "bars": [
                    f"M{x(s):.1f} {y(v - e):.1f}V{y(v + e):.1f}"
                    for s, v, e in zip(points.steps, points.values, errors, strict=True)
                ]
                if errors
                else [],
                "data": {
                    "name": label,
                    "steps": list(points.steps),
                    "values": [number(v) for v in points.values],
                    "heights": [round(y(v) / 10, 2) for v in points.values],
                },
            }
        )
        described.append(_in_words(label, points, say))
    return {
        "id": chart.id,
        "title": say(chart.title),
        "note": say(chart.note) if chart.note is not None else "",
        "curves": drawn,
        "legend": len(drawn) > 1 or any("/" in label for label, _, _ in curves),
        "levels": [{"at": y(v) / 10, "text": _tick(v)} for v in levels],
        "steps": [{"at": x(s) / 10, "text": f"{s:,}"} for s in _step_ticks(first, last)],
        "description": say(text("ui.chart-description", first=str(first), last=str(last), curves="; ".join(described))),
        "data": json.dumps({"first": first, "last": last, "curves": [c["data"] for c in drawn]}, ensure_ascii=False),
    }


def _in_words(label: str, points: Series, say: Say) -> str:
    return say(
        text(
            "ui.chart-curve",
            name=label,
            start=number(points.values[0]),
            end=number(points.values[-1]),
            low=number(min(points.values)),
            high=number(max(points.values)),
        )
    )


def _tick(value: float) -> str:
    size = abs(value)
    shown = f"{value:.0e}" if size and (size < 1e-4 or size >= 1e6) else f"{value:,.10f}".rstrip("0").rstrip(".")
    return shown.replace("-", "−")


def _step_ticks(first: int, last: int) -> list[int]:
    if first == last:
        return [first]
    inner = [int(t) for t in ticks(first, last, 5) if first <= t <= last and float(t).is_integer()]
    return inner if len(inner) > 1 else [first, last]
