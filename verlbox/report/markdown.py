"""A report as Markdown: verdict first, tables, and the PNG charts beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from verlbox import __version__
from verlbox.findings import Finding
from verlbox.report import language
from verlbox.report.figures import CHART_GROUPS
from verlbox.report.language import Language, Said, Say
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
    text,
)

# Underscores inside a word and a < that opens no tag are no markup.
_MARKUP = re.compile(r"[\\|*`\[]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|<(?=[A-Za-z/!?])")
_TONES = {"good": "✅ ", "warn": "⚠️ ", "bad": "❌ ", "info": "", "": ""}
_STATUS = {"pass": "✅", "warn": "⚠️", "fail": "❌"}
_GROUP_OF_SECTION = {
    "reward": "reward_metrics",
    "health": "policy_health",
    "stability": "stability_metrics",
    "efficiency": "efficiency_metrics",
}


def render(report: Report, lang: Language, beside: Mapping[str, str], notes: Iterable[Text] = ()) -> str:
    """The document. `beside` names the files in the same directory by what they are: the chart groups, `metrics`,
    `summary`; `notes` are said at the end."""
    say = language.speaker(lang)
    lines = [f"# {say(text('ui.title', name=_escape(report.title)))}", ""]
    lines += [f"## {_STATUS[report.verdict.overall]} {say(text(f'ui.verdict.{report.verdict.overall}'))}", ""]
    if report.metrics.steps():
        span = text("ui.steps", first=str(report.first_step), last=str(report.last_step))
    else:
        span = text("ui.no-steps")
    lines += [say(span) + (f" · {_escape(report.facts.platform)}" if report.facts.platform else ""), ""]
    for paragraph in report.headline:
        lines += [_paragraph(paragraph, say), ""]
    lines += _acceptance(report, say)
    for section in report.sections:
        lines += [f"## {say(section.title)}", ""]
        for block in section.blocks:
            lines += _block(block, say, lang)
        group = _GROUP_OF_SECTION.get(section.id, "")
        if group in beside:
            lines += [f"![{say(text(f'ui.png.{group}'))}]({beside[group]})", ""]
    names = [f"`{beside[key]}`" for key in ("metrics", "summary", *CHART_GROUPS) if key in beside]
    if names:
        lines += [say(text("ui.files-beside", files=", ".join(names))), ""]
    for note in notes:
        lines += [say(note), ""]
    lines += [say(text("ui.made-by", version=__version__)), ""]
    return "\n".join(lines)


def document(title: str, sections: Iterable[Section], lang: Language) -> str:
    """Sections under a title, without a verdict: a comparison."""
    say = language.speaker(lang)
    lines = [f"# {_escape(title)}", ""]
    for section in sections:
        lines += [f"## {say(section.title)}", ""]
        for block in section.blocks:
            lines += _block(block, say, lang)
    return "\n".join([*lines, say(text("ui.made-by", version=__version__)), ""])


def _acceptance(report: Report, say: Say) -> Iterable[str]:
    rows = [
        (
            f"{_STATUS[result.status]} {say(text(f'ui.status.{result.status}'))}",
            _escape(say(language.demand(result.line))),
            _escape(say(language.got(result))),
            _escape(say(language.bound(result))),
        )
        for result in report.verdict.results
    ]
    names = [say(text(f"column.{c}")) for c in ("status", "demand", "value", "bound")]
    yield from (f"**{say(text('acceptance.caption'))}**", "")
    yield from _grid(names, rows, (2,))
    if len(rows) == 1:
        yield from (say(text("acceptance.only-learned")), "")


def _block(block: Block, say: Say, lang: Language) -> Iterable[str]:
    match block:
        case Paragraph():
            yield from (_paragraph(block, say), "")
        case Table():
            yield from (f"**{say(block.caption)}**", "")
            rows = [tuple(_cell(cell, say) for cell in row) for row in block.rows]
            yield from _grid([say(column) for column in block.columns], rows, block.numeric)
        case Bars():
            return  # the table that follows has the same numbers
        case Code():
            yield from (f"**{say(block.caption)}**", "", "```sh", block.content, "```", "")
        case Findings():
            said = [language.finding(finding, lang) for finding in block.items]
            if lang != "en" and any(part.language == "en" for parts in said for part in parts.values()):
                yield from (say(text("ui.findings-english")), "")
            for finding, parts in zip(block.items, said, strict=True):
                yield from _finding(finding, parts, say)
            yield ""
        case Chart():
            return  # the PNG files show the same


def _finding(finding: Finding, said: Mapping[str, Said], say: Say) -> Iterable[str]:
    where = f" ({say(text('ui.where'))}: `{finding.where}`)" if finding.where else ""
    severity = say(text(f"ui.severity.{finding.severity}"))
    yield f"- **{severity}** `{finding.code}`{where}: {_escape(said.get('summary', said['what']).text)}"
    if "summary" in said:
        yield f"  {_escape(said['what'].text)}"
    yield from (
        f"  {say(text(f'ui.{label}'))}: {_escape(said[label].text)}" for label in ("why", "fix") if label in said
    )


def _paragraph(paragraph: Paragraph, say: Say) -> str:
    return _TONES[paragraph.tone] + _escape(say(paragraph.text))


def _cell(cell: Inline | Cell, say: Say) -> str:
    return _escape(say(cell.content if isinstance(cell, Cell) else cell))


def _escape(content: str) -> str:
    """Content that Markdown must not take for markup, on one line."""
    flat = " ".join(content.split())
    return _MARKUP.sub(r"\\\g<0>", flat)


def _grid(names: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int]) -> Iterable[str]:
    yield "| " + " | ".join(names) + " |"
    yield "|" + "|".join(" ---: " if i in numeric else " --- " for i in range(len(names))) + "|"
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""
