"""Charts stay small and true: spikes survive thinning, ticks are round, files are PNG."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verlbox.metrics.charts import Line, Panel, draw, thin, ticks
from verlbox.metrics.read import series


def test_thinning_keeps_ends_and_extremes() -> None:
    values = [0.0] * 20_000
    values[7777], values[12_345] = 99.0, -99.0
    thinned = thin(series(enumerate(values)), 600)
    assert len(thinned) <= 602
    assert (thinned.steps[0], thinned.steps[-1]) == (0, 19_999)
    assert {99.0, -99.0} <= set(thinned.values)


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_cover_the_range(low: float, width: float) -> None:
    found = ticks(low, low + width)
    assert 2 <= len(found) <= 9
    assert found[0] <= low + 1e-6 * width + 1e-6
    assert found[-1] >= low + width - 1e-6 * width - 1e-6


def test_ticks_are_round() -> None:
    assert ticks(0.2198, 0.3337, 5) == [0.2, 0.25, 0.3, 0.35]
    assert ticks(1, 28, 5) == [0, 10, 20, 30]


@pytest.mark.parametrize("panels", [(), (Panel("one", (Line("a", series([(1, 1.0)])),)),)])
def test_a_png_is_drawn_for_nothing_and_for_one_point(tmp_path: Path, panels: tuple[Panel, ...]) -> None:
    file = tmp_path / "x.png"
    draw(file, "title", panels, step_label="Step", empty="not recorded", font=None)
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width > 400
    assert height > 300


def test_a_constant_gets_ticks_around_it() -> None:
    assert ticks(0.0, 0.0) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert min(ticks(5.0, 5.0)) < 5.0 < max(ticks(5.0, 5.0))
