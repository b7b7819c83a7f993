"""verlbox's own word problems (bundled, no network): GSM8K's format under a data source of their own."""

from __future__ import annotations

from collections.abc import Mapping

from verlbox.datasets import gsm8k
from verlbox.datasets.prompts import Prompt
from verlbox.datasets.rows import BadRow, Row

DATA_SOURCE = "verlbox/arithmetic"


def to_row(record: Mapping[str, object], index: int, split: str, prompt: Prompt) -> Row | BadRow:
    """verl's row of a bundled word problem, or why there is none."""
    return gsm8k.to_row(record, index, split, prompt, data_source=DATA_SOURCE)
