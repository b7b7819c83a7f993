"""A report as data: sections of paragraphs, tables and charts, in no language and no format yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from verlbox.findings import Finding
from verlbox.metrics.acceptance import Verdict
from verlbox.metrics.read import Metrics, Series
from verlbox.report.facts import RunFacts

Tone = Literal["", "good", "warn", "bad", "info"]


@dataclass(frozen=True)
class Text:
    """A message of messages.yaml with its values: translated when the report is written."""

    key: str
    values: Mapping[str, Inline] = field(default_factory=dict)


Inline = Text | str  # a str is a name, a number or a path: the same in every language


def text(key: str, **values: Inline) -> Text:
    return Text(key, values)


@dataclass(frozen=True)
class Paragraph:
    text: Text
    tone: Tone = ""


def plain(key: str, tone: Tone = "", **values: Inline) -> Paragraph:
    return Paragraph(text(key, **values), tone)


@dataclass(frozen=True)
class Cell:
    content: Inline
    tone: Tone = ""


@dataclass(frozen=True)
class Table:
    """`numeric` are the columns that align right; `folded` tables are closed at first where that is possible."""

    caption: Text
    columns: tuple[Text, ...]
    rows: tuple[tuple[Inline | Cell, ...], ...]
    numeric: tuple[int, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Curve:
    """One line of a chart; `errors` are standard errors of its points, `marks` shows each point."""

    label: Inline
    points: Series
    errors: tuple[float, ...] = ()
    marks: bool = False


@dataclass(frozen=True)
class Chart:
    id: str
    title: Text
    curves: tuple[Curve, ...]
    note: Text | None = None


@dataclass(frozen=True)
class Bar:
    label: Inline
    value: float
    share: float


@dataclass(frozen=True)
class Bars:
    """Parts of one whole, in seconds."""

    id: str
    title: Text
    parts: tuple[Bar, ...]


@dataclass(frozen=True)
class Code:
    caption: Text
    content: str


@dataclass(frozen=True)
class Findings:
    items: tuple[Finding, ...]


Block = Paragraph | Table | Chart | Bars | Code | Findings


@dataclass(frozen=True)
class Section:
    id: str
    title: Text
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Tile:
    """A key figure at the top."""

    label: Text
    value: str
    note: Inline = ""


@dataclass(frozen=True)
class Summary:
    """One metric over the run, from its finite values; `count` is their number, `not_finite` that of the others."""

    metric: str
    first_step: int
    first: float
    last_step: int
    last: float
    minimum: float
    maximum: float
    mean: float
    count: int
    not_finite: int


@dataclass(frozen=True)
class Report:
    """Everything that the writers need. `verdict` is the acceptance; `findings` are all there are, worst first."""

    title: str
    facts: RunFacts
    metrics: Metrics
    verdict: Verdict
    headline: tuple[Paragraph, ...]
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    findings: tuple[Finding, ...]
    summary: tuple[Summary, ...]
    first_step: int
    last_step: int


def number(value: float | None, digits: int = 4) -> str:
    """A number for people: `digits` significant digits (fewer where the value is exact with fewer), thousands
    separated, no exponent between 1e-4 and 1e9."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-4 or size >= 1e9:
        shown = f"{value:.{digits - 1}e}"
        mantissa, exponent = shown.split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    if float(value).is_integer() and size < 1e9:
        decimals = 0
    exact = next((d for d in range(decimals) if round(value, d) == value), decimals)
    return f"{value:,.{exact}f}".replace("-", "−")


def signed(value: float, digits: int = 3) -> str:
    """A difference, with its sign."""
    shown = number(value, digits)
    return shown if value <= 0 or not math.isfinite(value) else f"+{shown}"


def percent(share: float, decimals: int = 1) -> str:
    return f"{100 * share:.{decimals}f} %".replace("-", "−")


def p_value(p: float) -> str:
    """A p-value: three decimals, two significant digits below 0.1, and no false precision below 0.001."""
    if math.isnan(p):
        return "–"
    if p < 0.001:
        return "< 0.001"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"


def seconds(value: float) -> str:
    """A duration: `3.25 s`, `2 min 17 s`, `1 h 04 min`."""
    if not math.isfinite(value):
        return "–"
    if value < 60:
        return f"{number(value, 3)} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"


def p_equals(p: float | None) -> str:
    """A p-value with its sign, for sentences: `p = 0.58`, `p < 0.001`."""
    if p is None:
        return "p = –"
    shown = p_value(p)
    return f"p {shown}" if shown.startswith("<") else f"p = {shown}"


def with_error(value: float | None, error: float | None) -> str:
    """A value and its standard error, where there is one."""
    if error is None or not math.isfinite(error):
        return number(value)
    return f"{number(value)} ± {number(error, 2)}"
