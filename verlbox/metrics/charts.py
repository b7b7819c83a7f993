"""Charts of metrics as PNG files, and the thinning that lets a chart of 20,000 steps stay small and true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verlbox.metrics.read import Series, series

CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "SimHei",
)
COLOURS = ("#2563eb", "#d9480f", "#0f766e", "#9333ea", "#b45309", "#be185d", "#4d7c0f", "#0369a1")


@dataclass(frozen=True)
class Line:
    """A curve of a panel; `errors` are drawn as bars, `marks` shows each point."""

    label: str
    points: Series
    errors: tuple[float, ...] = ()
    marks: bool = False


@dataclass(frozen=True)
class Panel:
    title: str
    lines: tuple[Line, ...]
    note: str = ""


def thin(points: Series, most: int = 600) -> Series:
    """At most about `most` of the finite points: for each group of neighbouring steps the lowest and the highest
    value, and always the first and the last, so that no spike gets lost."""
    finite = points.finite()
    n = len(finite)
    if n <= most:
        return finite
    groups = max(1, (most - 2) // 2)
    kept = {0, n - 1}
    for group in range(groups):
        start, stop = group * n // groups, (group + 1) * n // groups
        span = range(start, stop)
        kept.add(min(span, key=finite.values.__getitem__))
        kept.add(max(span, key=finite.values.__getitem__))
    return series((finite.steps[i], finite.values[i]) for i in sorted(kept))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover the range: steps of 1, 2, 2.5 or 5 times a power of ten. Source: Heckbert, "Nice
    numbers for graph labels", Graphics Gems (1990) 61."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return []
    size = max(abs(low), abs(high))
    if size == 0:
        high = 1.0
    elif high - low <= 1e-9 * size:
        low, high = low - 0.1 * size, high + 0.1 * size
    raw = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999), 10 * power)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def chinese_font() -> str | None:
    """The name of an installed font that matplotlib can use for Chinese, or None."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CHINESE_FONTS if name in installed), None)


def draw(file: Path, title: str, panels: Sequence[Panel], *, step_label: str, empty: str, font: str | None) -> None:
    """Draws the panels, two a row, into a PNG file. `empty` is written where there is nothing to draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    style: dict[str, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.unicode_minus": False,
    }
    if font:
        style["font.family"] = [font, "DejaVu Sans"]
    with mpl.rc_context(style):
        rows = max(1, math.ceil(len(panels) / 2))
        columns = 2 if len(panels) > 1 else 1
        figure = Figure(figsize=(5.6 * columns, 3.2 * rows + 0.5), dpi=120, layout="constrained")
        figure.suptitle(title, fontsize=12, fontweight="bold")
        grid = figure.subplots(rows, columns, squeeze=False)
        places = [axes for row in grid for axes in row]
        for axes, panel in zip(places, panels, strict=False):
            _draw_panel(axes, panel, step_label)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        if not panels:
            places[0].set_visible(False)
            figure.text(0.5, 0.5, empty, ha="center", va="center", color="#666666")
        figure.savefig(file, format="png", metadata={"Software": "verlbox"})


def _draw_panel(axes: Any, panel: Panel, step_label: str) -> None:
    for i, line in enumerate(panel.lines):
        colour = COLOURS[i % len(COLOURS)]
        if line.errors and len(line.errors) == len(line.points):
            axes.errorbar(
                line.points.steps,
                line.points.values,
                yerr=line.errors,
                color=colour,
                marker="o",
                markersize=3.5,
                linewidth=1.3,
                capsize=2,
                label=line.label,
            )
            continue
        points = thin(line.points, 1500)
        mark = "o" if line.marks or len(points) == 1 else None
        axes.plot(
            points.steps, points.values, color=colour, linewidth=1.3, marker=mark, markersize=3.5, label=line.label
        )
    axes.set_title(panel.title, loc="left", pad=16 if panel.note else 6)
    axes.set_xlabel(step_label)
    if len(panel.lines) > 1 or any("/" in line.label for line in panel.lines):
        axes.legend(frameon=False, fontsize=8)
    if panel.note:
        axes.annotate(panel.note, (0, 1.01), xycoords="axes fraction", va="bottom", fontsize=7.5, color="#555555")
