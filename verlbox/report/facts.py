"""What a report knows of a run beside its metrics. Plain data: a verlbox run fills all of it, a bare log nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verlbox.findings import Finding
from verlbox.metrics.acceptance import Line


@dataclass(frozen=True)
class DataFlow:
    """Rows of one split: read, bad by reason, too long, kept, and used in an epoch (train only; None elsewhere).

    `sources` are the kept rows by data source, empty when unknown. `graded` is how many a validation takes of them
    where verl said so (its first versions dropped the last batch that was not full).
    """

    split: str
    read: int
    kept: int
    bad: Mapping[str, int] = field(default_factory=dict)
    too_long: int = 0
    used_per_epoch: int | None = None
    sources: Mapping[str, int] = field(default_factory=dict)
    graded: int | None = None


@dataclass(frozen=True)
class Hardware:
    """The devices of a run. `device` is the vendor's name of one, `memory_gib` the memory of one; `host` is the machine
    that holds them, and `cores` those of its processors that the run may use."""

    device: str
    count: int = 1
    memory_gib: float | None = None
    host: str = ""
    cores: int | None = None


@dataclass(frozen=True)
class FileFact:
    """A file of the run: path relative to the run directory, size in bytes, content hash."""

    path: str
    sha256: str
    size: int | None = None


@dataclass(frozen=True)
class RunFacts:
    """Everything but the metrics. Empty means unknown, and the report says so where it matters.

    `rollout` names what generates the answers in training. `verl_overrides` are the settings that verl saw, dotted key
    -> value. `evaluation` is the content of evaluation/summary.json. `training_reasons` counts the reward's reason
    codes over all training steps. `durations` are seconds by stage. `command` is what reproduces the run, as typed.
    `from_log` says that the settings are those that verl printed into a log.
    """

    name: str = ""
    description: str = ""
    platform: str = ""
    rollout: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    verl_overrides: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Hardware | None = None
    data: tuple[DataFlow, ...] = ()
    evaluation: Mapping[str, Any] | None = None
    training_reasons: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    acceptance: tuple[Line, ...] = ()
    files: tuple[FileFact, ...] = ()
    durations: Mapping[str, float] = field(default_factory=dict)
    planned_steps: int | None = None
    command: str = ""
    commit: str = ""
    from_log: bool = False
