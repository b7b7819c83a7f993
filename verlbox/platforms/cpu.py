"""The CPU platform: no accelerator, real verl; what verl needs to be told for it.

verl schedules its workers by a Ray resource named after the device, so the machine is given one logical device.
Source of each setting: measured with verl 0.6.1, see cpu_engine.py for what is replaced inside the workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from verlbox.findings import Finding

NAME = "cpu"
ROLLOUT = "Hugging Face generate in place of vLLM"
ROOT = Path(__file__).parents[2]


def problems(needed: int = 1) -> list[Finding]:
    """What keeps this machine from being such a platform: nothing, every machine has a CPU."""
    return []


def verl_overrides(devices: int) -> dict[str, object]:
    """verl's settings for this platform; a recipe's own settings come later and win."""
    return {
        "trainer.device": "cpu",
        "+ray_kwargs.ray_init.num_gpus": devices,
        "+ray_kwargs.ray_init.resources.cpu": devices,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "ray_kwargs.ray_init.num_cpus": 2,  # logical; more would only pre-start idle workers
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "critic.strategy": "fsdp2",
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.ref.use_torch_compile": False,
        "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
        "actor_rollout_ref.model.use_remove_padding": False,
        "critic.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "critic.model.enable_gradient_checkpointing": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "+critic.model.override_config.attn_implementation": "sdpa",
        "+critic.model.fsdp_config.mixed_precision.param_dtype": "fp32",  # the critic computes in bfloat16 otherwise
        "actor_rollout_ref.rollout.name": "hf",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    }


def environment(seed: int) -> Mapping[str, str]:
    """Environment variables of every verl process on this platform."""
    return {
        "VERL_USE_EXTERNAL_MODULES": "verlbox.platforms.cpu_engine",
        "VERLBOX_SEED": str(seed),
        "PYTHONPATH": str(ROOT),
        "RAY_worker_niceness": "0",  # Ray's default is 15: on a machine that has other work, training starves
        "OMP_NUM_THREADS": "1",  # two workers' thread pools on two cores slow each other down
    }
