"""What a recipe asks of the hubs, and what it gets: plain data, no client in sight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from verlbox.findings import Finding

Kind = Literal["model", "dataset"]
Source = Literal["modelscope", "huggingface", "mirror", "local", "bundled", "random"]
DEFAULT_SOURCES: tuple[Source, ...] = ("modelscope", "huggingface", "mirror")

RECORD = ".verlbox-files.json"

# What ModelScope calls the data sets that Hugging Face has under these names. Models have the same name on both.
MODELSCOPE_NAMES: dict[str, str] = {
    "openai/gsm8k": "modelscope/gsm8k",
    "DigitalLearningGmbH/MATH-lighteval": "AI-ModelScope/MATH-lighteval",
}


@dataclass(frozen=True)
class ModelSpec:
    """A model as a recipe names it. `sources` are tried in order; `revision` None takes the newest and records it.

    `path` is for the source `local`, and for `random` the folder of its tokenizer; `name` is a hub name such as
    Qwen/Qwen2.5-0.5B-Instruct or a bundled one.
    """

    name: str
    sources: tuple[Source, ...] = DEFAULT_SOURCES
    revision: str | None = None
    path: Path | None = None


@dataclass(frozen=True)
class DatasetSpec:
    """A data set as a recipe names it; the fields are those of ModelSpec, `path` may also be a file."""

    name: str
    sources: tuple[Source, ...] = DEFAULT_SOURCES
    revision: str | None = None
    path: Path | None = None


@dataclass(frozen=True)
class Repository:
    """One repository of one hub: what a worker is asked for. `revision` None is the newest."""

    kind: Kind
    name: str
    revision: str | None
    endpoint: str


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it. `sha256` and `git_sha1` (hash of a git blob) are empty where the hub gives none."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True)
class Listing:
    """What a hub holds under a name: the commit (or what stands for it) and the files."""

    revision: str
    files: tuple[HubFile, ...]


@dataclass(frozen=True)
class Progress:
    """State of a download: bytes that are here, and bytes in all."""

    source: Source
    name: str
    done: int
    total: int


@dataclass(frozen=True)
class Patience:
    """How long to wait and how often to try, in seconds and attempts; the defaults suit slow links to busy hubs.

    `stall_seconds`: no byte arrives for so long, the attempt is stopped. `listing_seconds`: the same for the answer to
    the first question (does the repository exist, what is in it).
    """

    attempts: int = 4
    first_wait_seconds: float = 2.0
    stall_seconds: float = 90.0
    listing_seconds: float = 45.0


@dataclass(frozen=True)
class Fetched:
    """A model or data set on this machine, every file checked.

    `sha256` holds the hash of each file, by its path within `path`; `digest` is one hash over all of them, equal for
    equal content wherever it came from. `revision` is the hub's commit (empty for local and bundled). `findings` are
    warnings, such as a source that did not answer.
    """

    path: Path
    source: Source
    name: str
    revision: str
    sha256: Mapping[str, str]
    digest: str
    bytes: int
    from_cache: bool
    findings: tuple[Finding, ...] = field(default=())
