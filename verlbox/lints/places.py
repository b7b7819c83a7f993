"""Where verl does what a lint speaks of: by release, because 0.9.1's trainer and workers are other files.

Read in verl 0.6.1 and in 0.9.1 with `trainer.use_v1` (its default): trainer/ppo/v1/trainer_base.py with the sync
trainer, workers/engine_workers.py and workers/engine/fsdp/transformer_impl.py in place of trainer/ppo/ray_trainer.py,
workers/fsdp_workers.py and workers/actor/dp_actor.py.
"""

from __future__ import annotations

from verlbox.lints.settings import Settings

_PLACES: dict[str, tuple[str, str]] = {  # what: (0.6.1, 0.9.1)
    "fit": ("ray_trainer.py fit()", "trainer_base.py fit()"),
    "load": ("ray_trainer.py _load_checkpoint()", "trainer_base.py _load_checkpoint()"),
    "loader": ("ray_trainer.py _create_dataloader()", "trainer_base.py _init_dataloader()"),
    "kl in reward": ("ray_trainer.py", "trainer_base.py _compute_advantage()"),
    "update": ("dp_actor.py update_policy()", "engine_workers.py train_mini_batch()"),
    "loss": ("dp_actor.py", "workers/utils/losses.py ppo_loss()"),
    "optimizer step": ("dp_actor.py _optimizer_step()", "engine/fsdp/transformer_impl.py optimizer_step()"),
    "schedule": ("fsdp_workers.py", "engine/fsdp/transformer_impl.py _build_lr_scheduler()"),
    "rollout": ("fsdp_workers.py _build_rollout()", "engine_workers.py init_model()"),
    "mesh": ("fsdp_workers.py create_device_mesh()", "engine/fsdp/utils.py create_device_mesh()"),
    "offload policy": ("fsdp_workers.py", "engine/fsdp/transformer_impl.py _build_fsdp_module()"),
    "sleep": ("fsdp_workers.py trainer_mode()", "vllm_async_server.py sleep()"),
    "sampling": ("vllm_rollout_spmd.py", "agent_loop_tq.py"),
    "engine": ("vllm_rollout_spmd.py", "vllm_async_server.py _validate_configs()"),
    "devices": ("ray_trainer.py", "single_controller/ray/base.py"),
}


def place(s: Settings, what: str) -> str:
    """The file and function that does this in the release the settings are for."""
    return _PLACES[what][0 if s.is_old else 1]
