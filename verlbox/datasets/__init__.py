"""Data sets: reading what lies on the disk, converting it to verl's rows, saying what was left out and why.

`prepare` does it all for a train and a test split; `read`, `convert` and `write_parquet` are its parts.
"""

from verlbox.datasets.build import (
    DATASETS,
    Dataset,
    Split,
    convert,
    overlap,
    prepare,
    prompt_tokens,
    write_bad_rows,
    write_parquet,
)
from verlbox.datasets.files import RawSplit, read
from verlbox.datasets.prompts import PROMPTS, Prompt, named
from verlbox.datasets.rows import BadRow, Row

__all__ = [
    "DATASETS",
    "PROMPTS",
    "BadRow",
    "Dataset",
    "Prompt",
    "RawSplit",
    "Row",
    "Split",
    "convert",
    "named",
    "overlap",
    "prepare",
    "prompt_tokens",
    "read",
    "write_bad_rows",
    "write_parquet",
]
