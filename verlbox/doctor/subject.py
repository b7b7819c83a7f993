"""What the doctor looks at (a machine, for a stack and perhaps a recipe) and what a check returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from verlbox import pins
from verlbox.doctor import containers_state
from verlbox.doctor.machine import Machine, in_container
from verlbox.findings import Finding
from verlbox.recipe import Recipe
from verlbox.stacks import PlatformName, Stack

# What a stack's environment is recognised by: without any of them, nothing of the stack is installed here.
ENGINES: Mapping[PlatformName, tuple[str, ...]] = {
    "npu": ("verl", "ray", "torch", "torch-npu", "transformers", "vllm", "vllm-ascend"),
    "cuda": ("verl", "ray", "torch", "transformers", "vllm"),
    "cpu": ("verl", "ray", "torch", "transformers"),
}


@dataclass(frozen=True)
class Repair:
    """Something harmless that --fix may do: make a folder, or put a line into a file of environment settings."""

    folder: str = ""
    line: str = ""


@dataclass(frozen=True)
class Checked:
    """What a check found: one line of facts for the table, findings, and repairs that --fix may make."""

    fact: str
    findings: Sequence[Finding] = ()
    repairs: Sequence[Repair] = ()


@dataclass(frozen=True)
class Subject:
    """A machine that is to run a stack. `devices` is how many accelerators; `runs` and `cache` are folders.

    `until` (monotonic clock, seconds) is when slow questions to this machine are given up.
    """

    machine: Machine
    stack: Stack
    runs: str
    cache: str
    devices: int = 1
    recipe: Recipe | None = None
    until: float = field(default_factory=lambda: time.monotonic() + 2.0)

    @property
    def platform(self) -> PlatformName:
        return self.stack.platform

    @cached_property
    def packages(self) -> Mapping[str, pins.Package]:
        """What is installed, by canonical name."""
        return pins.installed(self.machine.sites)

    @cached_property
    def lock(self) -> Mapping[str, str]:
        """The version that the stack pins for each package on such a machine."""
        return pins.pinned(self.stack, self.machine.architecture)

    @cached_property
    def docker(self) -> containers_state.Docker:
        return containers_state.look(self.machine)

    @property
    def installed(self) -> bool:
        """Whether all main packages of the stack are installed here."""
        return all(name in self.packages for name in ENGINES[self.platform])

    @cached_property
    def from_image(self) -> bool:
        """Whether this is a Docker host that will get the stack from its image: nothing of it is installed here."""
        if self.platform == "cpu" or in_container(self.machine) or not self.docker.server:
            return False
        return not any(name in self.packages for name in ENGINES[self.platform])

    @property
    def service(self) -> str:
        """How the container of this stack is started."""
        return f"docker compose run {self.recipe.name if self.recipe else '<recipe>'}"


@dataclass(frozen=True)
class Check:
    """A check by name and group; `platforms` are those it says something about."""

    name: str
    group: str
    function: Callable[[Subject], Checked]
    platforms: tuple[PlatformName, ...] = ("npu", "cuda", "cpu")
