"""The ladder: what to change, rung by rung, when a device ran out of memory, without touching the algorithm.

Order: the engine's share of memory, micro-batches and token budgets, offload, torch.compile. It is the order of the
published CUDA run, with offload put in where it helps most. Batch, mini-batch, lengths, n, learning rates and KL stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verlbox.stacks import CRITIC_BUDGET_091, CRITIC_BY_TOKENS_091, CRITIC_ROWS_091, CRITIC_TOKENS_091

UTILIZATION = "actor_rollout_ref.rollout.gpu_memory_utilization"
LEAST_UTILIZATION = 0.3  # below, vLLM has little room for its cache beside the weights
MICRO_BATCHES = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
)
BUDGETS = (
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "critic.ppo_max_token_len_per_gpu",
)
COMPILE = ("actor_rollout_ref.actor.use_torch_compile", "actor_rollout_ref.ref.use_torch_compile")


def next_rung(effective: Mapping[str, object], critic_fsdp: str) -> dict[str, Any] | None:
    """The settings of the next rung for settings in effect, or None when there is none left.

    `critic_fsdp` is the prefix of the critic's FSDP settings, which differs between versions of verl. A rung that is
    already taken is recognised by its settings, so the same call climbs down step by step; a key that verl's
    configuration does not have comes with Hydra's `++`.
    """
    smaller = {**_smaller(effective), **_smaller_critic_091(effective, critic_fsdp)}
    rungs = (_utilization(effective), smaller, _offload(effective, critic_fsdp), _no_compile(effective))
    return next((rung for rung in rungs if rung), None)


def _utilization(effective: Mapping[str, object]) -> dict[str, Any]:
    share = effective.get(UTILIZATION, 0.5)
    if not isinstance(share, float | int) or share - 0.1 < LEAST_UTILIZATION:
        return {}
    return {UTILIZATION: round(share - 0.1, 2)}


def _smaller(effective: Mapping[str, object]) -> dict[str, Any]:
    """At most half of every micro-batch above 1, or of every token budget that still holds the longest sequence.

    The smaller micro-batch divides the larger one: the rows that had to divide by that divide by this as well.
    """
    longest = _longest(effective)
    halved: dict[str, Any] = {}
    for key in MICRO_BATCHES:
        value = effective.get(key)
        if isinstance(value, int) and value > 1:
            halved[key] = _divisor(value)
    for key in BUDGETS:
        value = effective.get(key)
        if isinstance(value, int) and value > longest:
            halved[key] = max(value // 2, longest)
    return halved


def _divisor(size: int) -> int:
    """The largest divisor of a size above 1 that is at most half of it."""
    return next(part for part in range(size // 2, 0, -1) if size % part == 0)


def _smaller_critic_091(effective: Mapping[str, object], critic_fsdp: str) -> dict[str, Any]:
    if critic_fsdp != "critic.fsdp" or effective.get("algorithm.adv_estimator", "gae") != "gae":
        return {}
    if effective.get(CRITIC_BY_TOKENS_091) is False:
        rows = {key: value for key in CRITIC_ROWS_091 if isinstance(value := effective.get(key), int) and value > 1}
        return {f"++{key}": _divisor(value) for key, value in rows.items()}
    tokens, longest = effective.get(CRITIC_BUDGET_091, CRITIC_TOKENS_091), _longest(effective)
    if not isinstance(tokens, int) or tokens <= longest:
        return {}
    return {f"++{CRITIC_BUDGET_091}": max(tokens // 2, longest)}


def _longest(effective: Mapping[str, object]) -> int:
    """Tokens of the longest sequence that the settings allow."""
    lengths = [effective.get(f"data.max_{part}_length", 512) for part in ("prompt", "response")]
    return sum(length for length in lengths if isinstance(length, int))


def _offload(effective: Mapping[str, object], critic_fsdp: str) -> dict[str, Any]:
    sections = ["actor_rollout_ref.actor.fsdp_config"]
    if effective.get("algorithm.adv_estimator", "gae") == "gae":
        sections.append(critic_fsdp)
    keys = [f"{section}.{part}_offload" for section in sections for part in ("param", "optimizer")]
    return {key: True for key in keys if effective.get(key) is not True}


def _no_compile(effective: Mapping[str, object]) -> dict[str, Any]:
    return {key: False for key in COMPILE if effective.get(key) is not False}
