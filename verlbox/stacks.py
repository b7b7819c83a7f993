"""Stacks: the pinned sets of software that a recipe can ask for, and what differs between their versions of verl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PlatformName = Literal["npu", "cuda", "cpu"]


@dataclass(frozen=True)
class VerlKeys:
    """verl's names for what a recipe says, where they differ between versions.

    Source: verl v0.6.1 trainer/config/ppo_trainer.yaml and trainer/ppo/reward.py, v0.9.1 trainer/config/reward/
    reward.yaml and experimental/reward_loop/. Version 0.9.1 accepts the older reward keys and then ignores them
    (`legacy_reward_impl.yaml`, measured), so the wrong name is a reward that is never called.
    """

    reward_path: str
    reward_function: str
    reward_function_name: str
    reward_arguments: str  # prefix of the reward function's keyword arguments; they need "+"
    reward_manager: str
    reward_manager_name: str
    rollout_seed: str | None  # the engine's sampling seed
    sampler: str | None  # prefix of `path` and `name` of the trainer's replay buffer
    agent_loops: str | None  # the class that hands prompts to the engine and keeps the answers


@dataclass(frozen=True)
class Stack:
    """One pinned set. `requirements` is the file of complete pins at the repository's root."""

    name: str
    platform: PlatformName
    verl: str
    python: str
    requirements: str


# What verl 0.9.1 gives the critic's engine (trainer/ppo/v1/trainer_base.py, _setup; workers/config/engine.py): tokens
# of a micro-batch, with its default; unless the engine goes by rows, those for the update and those without gradients.
CRITIC_BUDGET_091, CRITIC_TOKENS_091 = "critic.ppo_infer_max_token_len_per_gpu", 32768
CRITIC_BY_TOKENS_091 = "critic.fsdp.use_dynamic_bsz"
CRITIC_ROWS_091 = ("critic.fsdp.micro_batch_size_per_gpu", "critic.fsdp.infer_micro_batch_size_per_gpu")

VERL_KEYS: dict[str, VerlKeys] = {
    "0.6.1": VerlKeys(
        reward_path="custom_reward_function.path",
        reward_function="custom_reward_function.name",
        reward_function_name="compute_score",  # one call for a whole batch
        reward_arguments="custom_reward_function.reward_kwargs",
        reward_manager="reward_model.reward_manager",
        reward_manager_name="batch",
        rollout_seed=None,  # RolloutConfig has no such field; the engine always starts from 0
        sampler=None,
        agent_loops=None,
    ),
    "0.9.1": VerlKeys(
        reward_path="reward.custom_reward_function.path",
        reward_function="reward.custom_reward_function.name",
        # Its managers are naive, dapo, gdpo, limited and remote: each calls once a response, from a thread.
        reward_function_name="compute_score_single",
        reward_arguments="reward.custom_reward_function.reward_kwargs",
        reward_manager="reward.reward_manager.name",
        reward_manager_name="naive",
        rollout_seed="actor_rollout_ref.rollout.seed",
        sampler="trainer.v1.sampler.custom_sampler",
        agent_loops="actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    ),
}

STACKS: dict[str, Stack] = {
    stack.name: stack
    for stack in (
        Stack("npu", "npu", verl="0.6.1", python="3.11", requirements="requirements-npu.txt"),
        Stack("cuda", "cuda", verl="0.9.1", python="3.12", requirements="requirements-cuda.txt"),
        Stack("cuda-061", "cuda", verl="0.6.1", python="3.10", requirements="requirements-cuda-061.txt"),
        Stack("cpu", "cpu", verl="0.6.1", python="3.11", requirements="requirements-cpu.txt"),
        Stack("cpu-091", "cpu", verl="0.9.1", python="3.11", requirements="requirements-cpu-091.txt"),
    )
}
