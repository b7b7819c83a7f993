"""Stacks: every one is complete, and says what its version of verl calls things."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import pytest

from verlbox import verl_keys
from verlbox.plan import PLATFORMS
from verlbox.rewards import graded_math, gsm8k
from verlbox.stacks import STACKS, VERL_KEYS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_has_a_platform_of_its_kind_and_keys_of_its_verl(name: str) -> None:
    stack = STACKS[name]
    assert stack.platform == PLATFORMS[name].NAME
    assert stack.verl in VERL_KEYS
    settings = PLATFORMS[name].verl_overrides(1)
    assert settings["trainer.device"] == stack.platform
    assert settings["actor_rollout_ref.rollout.name"] == ("hf" if stack.platform == "cpu" else "vllm")
    assert PLATFORMS[name].environment(7)["PYTHONPATH"] == str(ROOT)


@pytest.mark.parametrize("name", STACKS)
def test_the_keys_of_a_platform_are_in_its_verl(name: str) -> None:
    known = verl_keys.load(STACKS[name].verl)
    for key in PLATFORMS[name].verl_overrides(1):
        assert key.startswith("+") != (key in known.defaults), key


@pytest.mark.parametrize("version", VERL_KEYS)
def test_the_reward_keys_are_in_verl_and_not_the_ones_it_ignores(version: str) -> None:
    keys, known = VERL_KEYS[version], verl_keys.load(version)
    for key in (keys.reward_path, keys.reward_function, keys.reward_manager):
        assert key in known.defaults
    assert (keys.rollout_seed is None) == ("actor_rollout_ref.rollout.seed" not in known.defaults)
    assert keys.reward_path.startswith("reward.") == (version == "0.9.1")


@pytest.mark.parametrize("reward", [gsm8k, graded_math])
@pytest.mark.parametrize(
    ("version", "passed"),
    [
        ("0.6.1", {"data_sources", "solution_strs", "ground_truths", "extra_infos"}),
        ("0.9.1", {"data_source", "solution_str", "ground_truth", "extra_info"}),
    ],
)
def test_every_reward_has_the_function_that_each_version_calls(
    reward: ModuleType, version: str, passed: set[str]
) -> None:
    function = getattr(reward, VERL_KEYS[version].reward_function_name)
    assert passed <= set(inspect.signature(function).parameters)


def test_the_pins_of_the_cpu_stacks_are_of_their_verl() -> None:
    for name in ("cpu", "cpu-091"):
        pins = (ROOT / STACKS[name].requirements).read_text().splitlines()
        assert f"verl=={STACKS[name].verl}" in pins
        assert not [line for line in pins if line and not line.startswith("#") and "==" not in line]
