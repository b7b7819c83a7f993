"""The CPU platform for verl 0.9.1: as for 0.6.1, and what the newer verl must be told besides.

Source of each setting: measured with verl 0.9.1, see cpu_engine_091.py for what is replaced inside the workers.
"""

from __future__ import annotations

from collections.abc import Mapping

from verlbox.platforms import cpu

NAME = cpu.NAME
ROLLOUT = cpu.ROLLOUT
problems = cpu.problems


def verl_overrides(devices: int) -> dict[str, object]:
    """verl's settings for this platform; a recipe's own settings come later and win."""
    # Its FSDP engine does not look at `dtype` any more and computes in bfloat16 unless this says otherwise
    # (workers/engine/fsdp/transformer_impl.py, _build_fsdp_module).
    older = cpu.verl_overrides(devices)
    del older["actor_rollout_ref.actor.fsdp_config.dtype"]
    del older["+critic.model.fsdp_config.mixed_precision.param_dtype"]  # critic.fsdp here
    return {
        **older,
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "fp32",
        "+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype": "fp32",
        "+critic.fsdp.mixed_precision.param_dtype": "fp32",
        "ray_kwargs.ray_init.num_cpus": 8,  # logical: agent loop, reward and queue actors ask for one each
        # One process of each kind: more of them only wait for the two cores of a small machine.
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "reward.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def environment(seed: int) -> Mapping[str, str]:
    """Environment variables of every verl process on this platform."""
    return {
        **cpu.environment(seed),
        "VERL_USE_EXTERNAL_MODULES": "verlbox.platforms.cpu_engine_091",
        "VERL_ENGINE_DEVICE": "cuda",  # the name that verl's FSDP engines are registered under
    }
