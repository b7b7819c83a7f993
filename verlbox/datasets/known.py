"""Rows that preprocess is known to keep of a published data set (known_rows.yaml), for plans made before it is here."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from verlbox.datasets.prompts import PROMPTS


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tokenizer(_Table):
    """One tokenizer with its chat template, and the models that have it; sha256 of the files that were counted with."""

    models: tuple[str, ...]
    tokenizer_config_sha256: str
    vocab_sha256: str
    merges_sha256: str


class KnownRows(_Table):
    """Rows of at most `max_prompt_length` tokens in each split, by data set, prompt and tokenizer."""

    data_sets: tuple[str, ...]
    format: str
    prompt: str
    prompt_sha256: str
    tokenizer: str
    max_prompt_length: int
    train: int
    test: int


class Known(_Table):
    """The whole file."""

    tokenizers: dict[str, Tokenizer]
    rows: tuple[KnownRows, ...]


def load() -> Known:
    """The counts as shipped."""
    return Known.model_validate(yaml.safe_load(Path(__file__).with_name("known_rows.yaml").read_text("utf-8")))


def find(data_set: str, prompt: str, model: str, max_prompt_length: object) -> KnownRows | None:
    """The counts for a data set and a model by their hub names and a prompt by its name; None when not counted.

    A prompt whose text is not the one that was counted has no counts, whatever its name.
    """
    known = load()
    if prompt not in PROMPTS:
        return None
    for rows in known.rows:
        if (
            data_set in rows.data_sets
            and PROMPTS[prompt].sha256 == rows.prompt_sha256
            and model in known.tokenizers[rows.tokenizer].models
            and max_prompt_length == rows.max_prompt_length
        ):
            return rows
    return None
