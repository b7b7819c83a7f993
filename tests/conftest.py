"""Fixtures that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of full data sets and collected cases beside the checkout; tests that need it say what they skip."""
    folder = ROOT.parent / "shared"
    if not (folder / "cases").is_dir():
        pytest.skip("the shared data folder (GSM8K, MATH, collected cases) is not beside this checkout")
    return folder
