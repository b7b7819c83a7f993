"""Stacks: the pinned sets of software that a recipe can ask for, and what differs between their versions of verl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PlatformName = Literal["npu", "cuda", "cpu"]


@dataclass(frozen=True)
class VerlKeys:
    """verl's names for what a recipe says, where they differ between versions.

    Source: verl v0.6.1 trainer/config/ppo_trainer.yaml and v0.9.1 trainer/config/reward/reward.yaml. Version 0.9.1
    accepts the older names and then ignores them (measured), so the wrong name is a reward that is never called.
    """

    reward_path: str
    reward_function: str
    reward_arguments: str  # prefix of the reward function's keyword arguments; they need "+"
    reward_manager: str
    reward_manager_name: str


@dataclass(frozen=True)
class Stack:
    """One pinned set. `requirements` is the file of complete pins at the repository's root."""

    name: str
    platform: PlatformName
    verl: str
    python: str
    requirements: str


VERL_KEYS: dict[str, VerlKeys] = {
    "0.6.1": VerlKeys(
        reward_path="custom_reward_function.path",
        reward_function="custom_reward_function.name",
        reward_arguments="custom_reward_function.reward_kwargs",
        reward_manager="reward_model.reward_manager",
        reward_manager_name="batch",
    ),
}

STACKS: dict[str, Stack] = {
    stack.name: stack
    for stack in (Stack("cpu", "cpu", verl="0.6.1", python="3.11", requirements="requirements-cpu.txt"),)
}
