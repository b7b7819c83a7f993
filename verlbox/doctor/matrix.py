"""The compatibility matrix (matrix.yaml) and how an installed combination stands in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

Standing = Literal["on-matrix", "author-tested"]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Combination(_Row):
    """Versions by package (and `cann`) that go together, by whose word."""

    versions: dict[str, str]
    standing: Standing
    source: str


class TorchNpuCann(_Row):
    """torch-npu release -> CANN releases."""

    source: str
    pairs: dict[str, list[str]]


class CannDrivers(_Row):
    """A CANN release and the driver releases its release note names."""

    cann: str
    drivers: list[str]
    source: str


class CudaDriver(_Row):
    """The CUDA of a stack's torch, the oldest driver for it, and the toolkit's own driver."""

    stack: str
    cuda: str
    oldest: str
    toolkit: str
    source: str


class Matrix(_Row):
    """All tables of matrix.yaml."""

    combinations: dict[str, list[Combination]]
    torch_npu_cann: TorchNpuCann
    cann_drivers: list[CannDrivers]
    cuda_drivers: list[CudaDriver]


@cache
def load() -> Matrix:
    """The matrix as shipped."""
    return Matrix.model_validate(yaml.safe_load(Path(__file__).with_name("matrix.yaml").read_text("utf-8")))


def plain(version: str) -> str:
    """A version without local part and nightly date: 2.7.1.post2 of "2.7.1.post2.dev20251226", 2.7.1 of "2.7.1+cpu"."""
    return re.sub(r"\.dev\d+$", "", version.split("+", maxsplit=1)[0]).lower()


def standing(platform: str, installed: Mapping[str, str]) -> Combination | None:
    """The row that an installed combination matches; None when it is unknown."""
    for row in load().combinations[platform]:
        if all(plain(installed.get(name, "")) == wanted.lower() for name, wanted in row.versions.items()):
            return row
    return None


def nearest(platform: str, installed: Mapping[str, str]) -> Combination:
    """The row that shares the most versions with what is installed, for advice."""
    rows = load().combinations[platform]
    return max(rows, key=lambda r: sum(plain(installed.get(n, "")) == v.lower() for n, v in r.versions.items()))
