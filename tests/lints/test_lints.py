"""Each lint speaks where verl fails or surprises, and is silent next to it."""

from __future__ import annotations

import pytest

from verlbox.lints import ABSENT, UNCERTAIN, Facts, add_facts, check

A, R, F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MINI, MICRO = f"{A}.ppo_mini_batch_size", f"{A}.ppo_micro_batch_size_per_gpu"
GPUS, BATCH, EST = "trainer.n_gpus_per_node", "data.train_batch_size", "algorithm.adv_estimator"
PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"
Config = dict[str, object]

# A run that is right in every respect, as a script would give it.
GOOD: Config = {
    EST: "grpo",
    "data.train_files": "/data/train.parquet",
    "data.val_files": "/data/test.parquet",
    "data.filter_overlong_prompts": True,
    "data.seed": 1,
    BATCH: 256,
    PROMPT: 512,
    RESPONSE: 1024,
    "actor_rollout_ref.model.path": "/models/qwen",
    MINI: 64,
    MICRO: 8,
    f"{A}.use_kl_loss": True,
    f"{R}.name": "vllm",
    f"{R}.n": 8,
    f"{R}.tensor_model_parallel_size": 1,
    f"{R}.log_prob_micro_batch_size_per_gpu": 8,
    f"{F}.log_prob_micro_batch_size_per_gpu": 8,
    "custom_reward_function.path": "/r/reward.py",
    GPUS: 1,
    "trainer.logger": ["console", "tensorboard"],
    "trainer.save_freq": 10,
    "trainer.test_freq": 10,
    "trainer.total_epochs": 1,
}


def codes(config: Config, facts: dict[str, object] | None = None, complete: bool = False) -> dict[str, str]:
    known, unknown = add_facts(Facts(), facts or {})
    assert unknown == []
    return {f.code: f.severity for f in check(config, known, complete=complete) if f.severity != "note"}


def notes(config: Config, facts: dict[str, object] | None = None) -> set[str]:
    return {f.code for f in check(config, add_facts(Facts(), facts or {})[0], complete=False) if f.severity == "note"}


RAISED: list[tuple[Config, dict[str, object], str, str]] = [
    # sampling and learning rates
    ({f"{R}.top_p": 1.5}, {}, "sampling-out-of-range", "error"),
    ({f"{R}.val_kwargs.top_p": 0}, {}, "sampling-out-of-range", "error"),
    ({f"{R}.top_k": -2}, {}, "sampling-out-of-range", "error"),
    ({f"{A}.optim.lr": -1e-6}, {}, "learning-rate-negative", "error"),
    ({f"{A}.optim.lr": 1e-3}, {}, "learning-rate-high", "warning"),
    # batch sizes
    ({BATCH: 100, GPUS: 8}, {}, "batch-not-divisible", "error"),
    ({BATCH: 0}, {}, "size-not-positive", "error"),
    ({BATCH: 256, MINI: 100, GPUS: 1}, {}, "mini-batch-short", "warning"),
    ({MINI: 64, "critic.ppo_micro_batch_size_per_gpu": 20, EST: "gae", GPUS: 1}, {},
     "micro-batch-not-divisor", "error"),
    ({BATCH: 64, "critic.ppo_mini_batch_size": 128, EST: "gae"}, {}, "mini-batch-too-big", "error"),
    ({f"{R}.log_prob_micro_batch_size_per_gpu": None}, {}, "micro-batch-missing", "error"),
    (
        {f"{R}.log_prob_micro_batch_size_per_gpu": 8, f"{R}.log_prob_micro_batch_size": 8},
        {},
        "micro-batch-set-twice",
        "error",
    ),
    (
        {"critic.ppo_micro_batch_size": 8, "critic.ppo_micro_batch_size_per_gpu": 8},
        {},
        "micro-batch-set-twice",
        "error",
    ),
    ({f"{A}.ppo_micro_batch_size": 4, GPUS: 8}, {}, "micro-batch-too-small", "error"),
    ({f"{A}.ppo_micro_batch_size": 24, MINI: 64}, {}, "micro-batch-not-divisor", "error"),
    (
        {f"{A}.use_dynamic_bsz": True, f"{A}.ppo_max_token_len_per_gpu": 1024, PROMPT: 512, RESPONSE: 1024},
        {},
        "token-budget-too-small",
        "error",
    ),
    (
        {f"{A}.use_dynamic_bsz": True, f"{R}.log_prob_use_dynamic_bsz": False},
        {},
        "micro-batch-missing",
        "error",
    ),
    ({BATCH: 256}, {"train_rows_after_filter": 100}, "train-loader-empty", "error"),
    # algorithm
    ({EST: "grpo", f"{R}.n": 1}, {}, "group-of-one", "error"),
    ({EST: "rloo", f"{R}.n": 1}, {}, "group-of-one", "error"),
    ({EST: "grpo", f"{R}.n": 1}, {"allow_degenerate_group": True}, "group-of-one", "warning"),
    ({EST: "grpo", f"{R}.n": ABSENT}, {}, "group-of-one", "error"),
    ({f"{R}.temperature": 0}, {}, "temperature-not-positive", "error"),
    ({EST: "grpo", f"{R}.n": 8, f"{R}.top_k": 1}, {}, "greedy-group", "error"),
    ({EST: "gae", "critic.enable": False}, {}, "critic-missing", "error"),
    ({EST: "grpo", "critic.enable": True}, {}, "critic-not-needed", "warning"),
    ({"actor_rollout_ref.model.path": None}, {}, "model-path-default", "error"),
    ({"algorithm.kl_ctrl.kl_coef": 0.001}, {}, "kl-setting-without-effect", "warning"),
    ({"algorithm.kl_penalty": "low_var_kl"}, {}, "kl-setting-without-effect", "warning"),
    ({f"{A}.kl_loss_coef": 0.001}, {}, "kl-setting-without-effect", "warning"),
    ({f"{A}.use_kl_loss": True, f"{A}.kl_loss_coef": 0}, {}, "kl-coefficient-zero", "warning"),
    ({f"{A}.kl_loss_type": "low-var-kl", f"{A}.use_kl_loss": True}, {}, "unknown-word", "error"),
    ({f"{A}.kl_loss_type": "full", f"{A}.use_kl_loss": True}, {}, "unknown-word", "error"),
    ({f"{A}.clip_ratio": 0.1}, {}, "clip-ratio-without-effect", "warning"),
    ({f"{A}.clip_ratio_c": 1.0}, {}, "clip-ratio-c-too-small", "error"),
    ({f"{A}.policy_loss.loss_mode": "clip-cov"}, {}, "unknown-word", "error"),
    ({f"{A}.optim.lr_scheduler_type": "linear"}, {}, "unknown-word", "error"),
    ({f"{A}.strategy": "deepspeed"}, {}, "unknown-word", "error"),
    ({"critic.loss_agg_mode": "mean"}, {}, "unknown-word", "error"),
    ({"algorithm.kl_ctrl.type": "linear"}, {}, "unknown-word", "error"),
    ({"reward_model.reward_manager": "naïve"}, {}, "unknown-word", "error"),
    ({f"{A}.optim.lr_warmup_steps": 50}, {"total_training_steps": 28}, "warmup-too-long", "warning"),
    (
        {f"{A}.optim.lr_warmup_steps": 5, f"{A}.optim.lr_warmup_steps_ratio": 0.1},
        {},
        "warmup-set-twice",
        "warning",
    ),
    ({f"{A}.optim.lr": 0}, {}, "learning-rate-zero", "warning"),
    ({"trainer.critic_warmup": 40}, {"total_training_steps": 28}, "critic-warmup-too-long", "error"),
    ({f"{A}.fsdp_config.model_dtype": "bf16"}, {}, "bf16-master-weights", "warning"),
    # lengths
    ({PROMPT: 512, RESPONSE: 1024, f"{R}.max_model_len": 512}, {}, "max-model-len-too-small", "error"),
    ({PROMPT: 512, RESPONSE: 1024, f"{R}.max_model_len": 1024}, {}, "max-model-len-cuts", "warning"),
    ({PROMPT: 1024, RESPONSE: 8192}, {}, "batched-tokens-too-few", "error"),
    ({PROMPT: 512, "data.truncation": "left"}, {"longest_prompt_tokens": 612}, "prompt-is-cut", "warning"),
    ({"data.truncation": "cut"}, {}, "unknown-word", "error"),
    ({RESPONSE: 64}, {"task": "gsm8k"}, "response-too-short", "warning"),
    ({RESPONSE: 1024, f"{R}.response_length": 512}, {}, "lengths-differ", "warning"),
    (
        {PROMPT: 512, RESPONSE: 512, f"{R}.max_model_len": 40960},
        {"model_max_position_embeddings": 32768},
        "context-too-short",
        "error",
    ),
    # steps and checkpoints
    ({"trainer.save_freq": -1}, {}, "no-checkpoint", "warning"),
    (
        {"trainer.save_freq": -1, "merge.local_dir": "c/global_step_28/actor"},
        {"total_training_steps": 28},
        "no-checkpoint",
        "error",
    ),
    (
        {"trainer.total_training_steps": 100, "trainer.total_epochs": 1, BATCH: 256},
        {"train_rows_after_filter": 7381},
        "last-step-never-comes",
        "warning",
    ),
    ({"trainer.total_training_steps": 0}, {}, "no-steps", "error"),
    ({"trainer.resume_mode": "resume_path", "trainer.resume_from_path": None}, {}, "resume-path-wrong", "error"),
    (
        {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "c/global_step_5/actor"},
        {},
        "resume-path-wrong",
        "error",
    ),
    ({"trainer.resume_from_path": "c/global_step_5"}, {}, "resume-path-ignored", "warning"),
    ({"trainer.resume_mode": "force"}, {}, "unknown-word", "error"),
    ({"trainer.default_hdfs_dir": "hdfs://x"}, {}, "hdfs-resume", "error"),
    ({f"{A}.checkpoint.save_contents": ["optimizer", "extra"]}, {}, "checkpoint-contents", "warning"),
    ({"trainer.max_critic_ckpt_to_keep": 1, EST: "gae"}, {}, "keeps-one-checkpoint", "warning"),
    (
        {"trainer.save_freq": 10, EST: "gae"},
        {"total_training_steps": 435, "model_parameters": 494032768, "free_disk_gb": 200},
        "checkpoints-fill-disk",
        "warning",
    ),
    ({"trainer.save_freq": 1, "trainer.max_actor_ckpt_to_keep": None}, {"total_training_steps": 140},
     "checkpoints-fill-disk", "warning"),
    (
        {"merge.local_dir": "c/p/e/global_step_15/actor", "trainer.save_freq": 10},
        {"total_training_steps": 28},
        "merge-step-missing",
        "error",
    ),
    ({"merge.local_dir": "c/global_step_28/actor", "merge.backend": "megatron", f"{A}.strategy": "fsdp"}, {},
     "merge-backend-wrong", "error"),
    # devices
    ({GPUS: 4, f"{R}.tensor_model_parallel_size": 3}, {}, "parallel-size-not-divisor", "error"),
    ({f"{R}.tensor_model_parallel_size": 4}, {"num_attention_heads": 14}, "parallel-size-not-divisor", "error"),
    ({f"{R}.pipeline_model_parallel_size": 2}, {}, "pipeline-parallel-unsupported", "error"),
    ({f"{R}.expert_parallel_size": 4, f"{R}.tensor_model_parallel_size": 2}, {}, "expert-parallel-mismatch", "error"),
    ({"trainer.device": "npu"}, {"platform": "cuda"}, "device-mismatch", "error"),
    ({"trainer.device": "cuda"}, {"platform": "cpu"}, "device-mismatch", "error"),
    ({"trainer.device": ABSENT}, {"platform": "npu"}, "device-mismatch", "error"),
    ({f"{R}.name": "hf"}, {}, "rollout-unknown", "error"),
    ({f"{R}.name": "vllm", f"{R}.mode": "server"}, {}, "rollout-unknown", "error"),
    ({f"{R}.mode": "async", "data.return_raw_chat": False}, {}, "raw-chat-missing", "error"),
    ({f"{R}.gpu_memory_utilization": 0}, {}, "memory-utilization-out-of-range", "error"),
    ({"critic.ulysses_sequence_parallel_size": 2, EST: "gae"}, {}, "remove-padding-needed", "error"),
    ({f"{A}.fsdp_config.offload_policy": True}, {}, "offload-without-effect", "warning"),
    ({"actor_rollout_ref.hybrid_engine": False}, {}, "hybrid-engine-off", "error"),
    ({"actor_rollout_ref.model.lora_rank": 1024}, {}, "lora-rank-too-big", "error"),
    ({"trainer.device": "npu"}, {"platform": "npu", "VLLM_ASCEND_ENABLE_NZ": None}, "ascend-nz-on", "error"),
    ({"env.PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}, {"platform": "npu"}, "expandable-segments", "error"),
    ({f"{A}.strategy": "megatron"}, {}, "megatron-config-missing", "error"),
    ({"reward_model.enable_resource_pool": True}, {}, "reward-pool-empty", "error"),
    # loggers
    ({"trainer.logger": ["swanlab"]}, {"SWANLAB_API_KEY": None}, "logger-without-key", "error"),
    ({"trainer.logger": "vemlp_wandb"}, {"VOLC_ACCESS_KEY_ID": None}, "logger-without-key", "error"),
    ({"trainer.logger": ["clearml"]}, {"CLEARML_API_ACCESS_KEY": None}, "logger-without-key", "error"),
    ({"trainer.logger": []}, {}, "no-logger", "warning"),
    ({"trainer.logger": ["tracking"]}, {"WANDB_MODE": "offline"}, "logger-deprecated", "warning"),
    # validation
    ({"data.val_max_samples": 500, "data.seed": None}, {}, "subset-unseeded", "warning"),
    ({"data.train_max_samples": 500, "data.seed": None}, {}, "subset-unseeded", "warning"),
    ({f"{R}.val_kwargs.n": 8}, {}, "validation-repeats-greedy", "warning"),
    ({f"{R}.val_kwargs.temperature": 0.6}, {}, "validation-sampling-ignored", "warning"),
    ({"trainer.val_only": True, "trainer.val_before_train": False}, {}, "val-only-ignored", "warning"),
    ({"data.train_files": ["a.parquet", "b.parquet"], "data.val_files": ["b.parquet"]}, {},
     "validates-on-training-data", "warning"),
    # wiring
    ({"parquet.data_source": "data/gsm8k"}, {}, "data-source-unknown", "error"),
    ({"custom_reward_function.path": "~/reward.py"}, {}, "reward-path-relative", "error"),
    ({"custom_reward_function.path": ABSENT, "custom_reward_function.name": "score"}, {},
     "reward-name-without-path", "warning"),
    ({"custom_reward_function.path": "/r.py"}, {"functions_in_file": ["score"]}, "reward-function-missing", "error"),
    ({"custom_reward_function.path": "/r.py"}, {"reward_parameters": ["solution_str", "ground_truth"]},
     "reward-signature-wrong", "error"),
    ({"data.train_files": "train.jsonl"}, {}, "data-file-kind", "error"),
    ({}, {"parquet_columns": ["prompt", "data_source"]}, "column-missing", "error"),
    ({"actor_rollout_ref.model.path": "Qwen/Qwen2.5-1.5B-Instruct"}, {"HF_HUB_OFFLINE": "1"},
     "offline-model", "warning"),
    # keys
    ({"~trainer.logr": None}, {}, "key-not-there", "error"),
    ({f"{R}.engine_kwargs.vllm.seed": 1}, {}, "key-needs-plus", "error"),
    ({f"+{A}.entropy_coef": 0.1}, {}, "key-refused", "error"),
    ({"+trainer.savefreq": 10}, {}, "key-unread", "warning"),
    ({"trainer.save_freq": "ten"}, {}, "value-type-wrong", "error"),
    ({"trainer.val_before_train": "False"}, {}, "value-type-wrong", "error"),
    ({f"{A}.optim.lr": "1e-6"}, {}, "value-type-wrong", "error"),
    ({"trainer.max_actor_ckpt_to_keep": "2"}, {}, "value-type-wrong", "error"),
    ({"custom_reward_function.path": "/r.py"}, {"verl": "0.9.1"}, "legacy-key-ignored", "error"),
    ({"critic.model.fsdp_config.param_offload": True}, {"verl": "0.9.1"}, "key-unknown", "error"),
    # versions
    ({"torch": "2.8.0", "torch_npu": "2.7.1"}, {}, "versions-conflict", "error"),
    ({"vllm": "0.11.0", "torch": "2.7.1"}, {"platform": "cuda"}, "versions-conflict", "error"),
    ({"vllm": "0.6.3.post1", "torch": "2.6.0+cu126"}, {}, "versions-conflict", "error"),
    ({"vllm": "0.11.0", "vllm-ascend": "0.9.1"}, {}, "versions-conflict", "error"),
    ({"numpy": "2.1.0", "verl": "0.6.1"}, {}, "versions-conflict", "error"),
    ({"pyarrow": "26.0.0", "numpy": "1.26.4"}, {}, "versions-conflict", "error"),
    ({"click": "8.3.0", "python": "3.10.12"}, {}, "versions-conflict", "error"),
    ({"torch-npu": "2.7.1.post2", "cann": "8.3.RC2"}, {}, "versions-conflict", "error"),
    ({"setuptools": "80.9.0"}, {"platform": "npu"}, "versions-conflict", "error"),
    ({"transformers": "4.57.1", "verl": "0.9.1"}, {}, "versions-conflict", "error"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "facts", "code", "severity"), RAISED, ids=[f"{i}-{r[2]}" for i, r in enumerate(RAISED)]
)
def test_it_is_said(config: Config, facts: dict[str, object], code: str, severity: str) -> None:
    assert codes(config, facts).get(code) == severity


SILENT: list[tuple[Config, dict[str, object]]] = [
    ({BATCH: 256, GPUS: 6, f"{R}.n": 3, MINI: 256}, {}),
    ({BATCH: 256, MINI: 64, MICRO: 8, GPUS: 1}, {}),
    ({BATCH: 128, f"{R}.n": 5, MINI: 64, MICRO: 20, GPUS: 8}, {}),
    ({BATCH: 128}, {}),
    ({"critic.ppo_micro_batch_size": 8, EST: "gae"}, {}),
    ({f"{A}.use_dynamic_bsz": True, MICRO: None}, {}),
    ({f"{A}.use_dynamic_bsz": True, f"{R}.log_prob_micro_batch_size": 1, GPUS: 8, MINI: 256}, {}),
    ({EST: "gae", f"{R}.n": 1}, {}),
    ({EST: "reinforce_plus_plus", f"{R}.n": 1}, {}),
    ({EST: "grpo", f"{R}.n": 8}, {}),
    ({EST: "remax"}, {}),
    ({f"{A}.use_kl_loss": True, f"{A}.kl_loss_coef": 0.001, f"{A}.kl_loss_type": "k3"}, {}),
    ({"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.001, "algorithm.kl_penalty": "kl"}, {}),
    ({f"{A}.use_kl_loss": True, "algorithm.use_kl_in_reward": True}, {}),
    ({f"{A}.clip_ratio": 0.2}, {}),
    ({f"{A}.clip_ratio_low": 0.2, f"{A}.clip_ratio_high": 0.28}, {}),
    ({f"{A}.loss_agg_mode": "seq-mean-token-sum-norm", f"{A}.policy_loss.loss_mode": "gspo"}, {}),
    ({f"{A}.optim.lr_scheduler_type": "cosine", f"{A}.strategy": "fsdp2"}, {}),
    ({f"{A}.optim.lr_warmup_steps": 10}, {"total_training_steps": 28}),
    ({f"{A}.entropy_coeff": 0.001, f"{R}.top_p": 0.9, f"{R}.val_kwargs.top_p": 0.7}, {}),
    ({PROMPT: 512, RESPONSE: 1024}, {"model_max_position_embeddings": 32768}),
    ({PROMPT: 30000, RESPONSE: 2048, f"{R}.max_num_batched_tokens": 40000},
     {"model_max_position_embeddings": 32768, "rope_scaling_factor": 4}),
    ({PROMPT: 1024, RESPONSE: 8192, f"{R}.name": "sglang"}, {}),
    ({PROMPT: 512, "data.filter_overlong_prompts": True}, {"longest_prompt_tokens": 612}),
    ({PROMPT: 1024}, {"longest_prompt_tokens": 612}),
    ({RESPONSE: 256}, {"task": "gsm8k"}),
    ({RESPONSE: 1024}, {"task": "math", "prompt_asks_for": "<think> and <answer>"}),
    ({"trainer.save_freq": 70, "trainer.total_epochs": 1, BATCH: 256}, {"train_rows_after_filter": 7381}),
    ({"trainer.save_freq": 10, "trainer.total_epochs": 5, BATCH: 256},
     {"train_rows_after_filter": 7381, "planned_stop_after_step": 28}),
    ({"trainer.resume_mode": "disable"}, {"existing_checkpoint": "c/global_step_28", "total_training_steps": 28}),
    ({"trainer.resume_mode": "auto"}, {"existing_checkpoint": "c/global_step_20", "total_training_steps": 28}),
    ({"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "c/global_step_20"}, {}),
    ({"trainer.max_actor_ckpt_to_keep": 2}, {}),
    ({"trainer.max_critic_ckpt_to_keep": None, "trainer.max_actor_ckpt_to_keep": None}, {}),
    ({"trainer.save_freq": 10, "trainer.max_actor_ckpt_to_keep": 2},
     {"total_training_steps": 435, "model_parameters": 494032768, "free_disk_gb": 200}),
    ({"merge.local_dir": "c/p/e/global_step_28/actor", "trainer.save_freq": 10}, {"total_training_steps": 28}),
    ({f"{A}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"]}, {}),
    ({GPUS: 8, f"{R}.tensor_model_parallel_size": 2}, {"visible_accelerators": 8, "num_attention_heads": 28}),
    ({GPUS: 1}, {"visible_accelerators": 8}),
    ({"trainer.device": "npu"}, {"platform": "npu", "VLLM_ASCEND_ENABLE_NZ": "0"}),
    ({"trainer.device": "cpu", f"{R}.name": "hf"}, {"platform": "cpu"}),
    ({f"{R}.gpu_memory_utilization": 0.8, EST: "grpo"}, {"gpu_gb": 64}),
    ({f"{R}.gpu_memory_utilization": 0.4, EST: "gae"}, {"gpu_gb": 40}),
    ({f"{A}.ulysses_sequence_parallel_size": 2, "actor_rollout_ref.model.use_remove_padding": True, GPUS: 8}, {}),
    ({"env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", f"{R}.free_cache_engine": False}, {}),
    ({"env.PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, {"vllm": "0.11.0"}),
    ({f"{A}.fsdp_config.offload_policy": True, f"{A}.strategy": "fsdp2"}, {}),
    ({"trainer.logger": ["console", "wandb"]}, {"WANDB_API_KEY": "abc"}),
    ({"trainer.logger": ["wandb"]}, {"WANDB_API_KEY": None, "WANDB_MODE": "offline"}),
    ({"trainer.logger": ["wandb"]}, {"WANDB_API_KEY": None, "logged_in": ["wandb"]}),
    ({"trainer.logger": ["swanlab"]}, {"SWANLAB_API_KEY": None, "SWANLAB_MODE": "local"}),
    ({"trainer.logger": "console"}, {}),
    ({"trainer.logger": ["mlflow", "file", "trackio"]}, {}),
    ({"trainer.logger": ["console", "tensorboard"]}, {"wants": "TensorBoard report"}),
    ({"data.val_max_samples": 500, "data.seed": 1}, {}),
    ({"data.val_max_samples": -1, "trainer.test_freq": 10}, {"val_rows": 1319}),
    ({"trainer.val_before_train": False}, {"val_rows": 5000, "gpus": 1}),
    ({"trainer.val_before_train": True}, {"val_rows": 5000, "gpus": 8}),
    ({f"{R}.val_kwargs.do_sample": True, f"{R}.val_kwargs.temperature": 0.6, f"{R}.val_kwargs.n": 8}, {}),
    ({"data.train_files": "train.parquet", "data.val_files": "test.parquet"}, {}),
    ({"parquet.data_source": "openai/gsm8k"}, {}),
    ({"parquet.data_source": "aime2024"}, {}),
    ({"parquet.data_source": "mine", "custom_reward_function.path": "/r.py"}, {}),
    ({"custom_reward_function.path": "/r.py"}, {"functions_in_file": ["compute_score"]}),
    ({"custom_reward_function.path": "/r.py"}, {"reward_parameters": ["solution_str", "**"]}),
    ({}, {"parquet_columns": ["data_source", "prompt", "reward_model", "extra_info"]}),
    ({"actor_rollout_ref.model.path": "/models/x"}, {"HF_HUB_OFFLINE": "1"}),
    ({"+custom_reward_function.reward_kwargs.weight": 0.1}, {}),
    ({"+ray_kwargs.ray_init.num_gpus": 1, "+data.gen_batch_size": 64}, {}),
    ({"+trainer.total_training_steps": 10, "+data.seed": 1}, {}),
    ({"++trainer.val_before_train": False}, {}),
    ({f"+{R}.engine_kwargs.vllm.seed": 1, f"+{R}.limit_images": 2}, {}),
    ({"actor_rollout_ref.model.override_config": {"attn_implementation": "sdpa"}}, {}),
    ({f"{A}.optim": {"lr": 1e-6, "weight_decay": 0.1}}, {}),
    ({"reward.custom_reward_function.path": "/r.py"}, {"verl": "0.9.1"}),
    ({"torch": "2.7.1+cpu", "torch_npu": "2.7.1.post2.dev20251226", "vllm": "0.11.0+empty",
      "vllm-ascend": "0.11.0"}, {}),
    ({"vllm": "0.11.0", "torch": "2.8.0+cu128", "transformers": "4.57.1", "verl": "0.6.1", "numpy": "1.26.4"}, {}),
    ({"vllm": "0.24.0", "torch": "2.11.0+cu130", "transformers": "5.9.0", "verl": "0.9.1", "numpy": "2.3.5"}, {}),
    ({"tensordict": "0.10.0", "pyarrow": "21.0.0", "numpy": "1.26.4"}, {}),
    ({"torch-npu": "2.7.1", "cann": "8.3.RC2"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "facts"), SILENT)
def test_what_is_right_is_left_alone(config: Config, facts: dict[str, object]) -> None:
    assert codes(config, facts) == {}


def test_a_good_run_has_no_error_and_no_warning() -> None:
    facts: dict[str, object] = {
        "train_rows_after_filter": 7381, "val_rows": 1900, "platform": "cuda", "visible_accelerators": 1,
        "model_max_position_embeddings": 32768, "num_attention_heads": 12, "environment_complete": True,
    }  # fmt: skip
    assert codes(GOOD, facts, complete=True) == {}


@pytest.mark.parametrize(
    ("missing", "code"),
    [
        (f"{R}.name", "rollout-name-missing"),
        (MICRO, "micro-batch-missing"),
        (f"{F}.log_prob_micro_batch_size_per_gpu", "micro-batch-missing"),
        (f"{R}.n", "group-of-one"),
        (f"{R}.tensor_model_parallel_size", "parallel-size-not-divisor"),
        ("actor_rollout_ref.model.path", "model-path-default"),
        ("trainer.save_freq", "no-checkpoint"),
        ("trainer.test_freq", "no-validation"),
        (EST, "critic-missing"),
        (GPUS, "devices-missing"),
    ],
)
def test_what_a_complete_run_leaves_out_has_the_default_of_verl(missing: str, code: str) -> None:
    config = {key: value for key, value in GOOD.items() if key != missing}
    assert code in codes(config, {"visible_accelerators": 1}, complete=True)


def test_the_default_logger_needs_a_key() -> None:
    config = {key: value for key, value in GOOD.items() if key != "trainer.logger"}
    assert codes(config, {"environment_complete": True}, complete=True) == {"logger-without-key": "error"}
    assert codes(config, {}, complete=True) == {}  # whether there is a key is not known


def test_a_setting_of_unknown_value_is_not_guessed() -> None:
    config = {**GOOD, "actor_rollout_ref.model.path": UNCERTAIN, f"{R}.n": UNCERTAIN, "trainer.save_freq": UNCERTAIN}
    assert codes(config, {}, complete=True) == {}


def test_interpolated_defaults_follow_what_is_set() -> None:
    follows: Config = {
        f"{A}.use_dynamic_bsz": True,
        f"{A}.ppo_max_token_len_per_gpu": 8192,
        PROMPT: 512,
        RESPONSE: 1024,
    }
    assert codes(follows) == {}
    assert "micro-batch-not-divisor" in codes({EST: "gae", MINI: 60, "critic.ppo_micro_batch_size_per_gpu": 8, GPUS: 1})


def test_notes_inform() -> None:
    assert "clip-fraction-zero" in notes({BATCH: 256, MINI: 256})
    assert "critic-settings-unread" in notes({EST: "grpo", "critic.optim.lr": 1e-5})
    assert "critic-settings-unread" not in notes({EST: "gae", "critic.optim.lr": 1e-5, "critic.model.path": "/m"})
    assert "kl-twice" in notes({f"{A}.use_kl_loss": True, "algorithm.use_kl_in_reward": True})
    assert "estimated-time" in notes(
        {BATCH: 256, "trainer.total_epochs": 1}, {"train_rows_after_filter": 7381, "seconds_per_step": 137.64}
    )
    assert "validation-error" in notes({"data.val_max_samples": 500})
    assert "checkpoint-size" in notes(
        {"trainer.save_freq": 10}, {"total_training_steps": 28, "model_parameters": 1543714304}
    )


def test_facts_that_are_not_understood_are_named() -> None:
    facts, unknown = add_facts(
        Facts(), {"colour": "red", "gpus": "many", "WANDB_API_KEY": "secret-value", "gpu_gb": "40"}
    )
    assert unknown == ["colour", "gpus=many"]
    assert facts.accelerator_gb == 40
    assert "secret-value" not in repr(facts)


# verl 0.9.1's new trainer: what it does differently, read in trainer/ppo/v1/, workers/engine*/ and agent_loop_tq.py.
NEW: dict[str, object] = {"verl": "0.9.1"}
NEW_GOOD: Config = {
    **{key: value for key, value in GOOD.items() if key != "custom_reward_function.path"},
    "reward.custom_reward_function.path": "/r/reward.py",
    f"{R}.log_prob_micro_batch_size_per_gpu": 16,
}


@pytest.mark.parametrize(
    ("config", "facts", "code", "severity"),
    [
        # 256 x 8 rows on two devices: 1,024 each.
        ({GPUS: 2, f"{R}.log_prob_micro_batch_size_per_gpu": 48}, {}, "micro-batch-not-divisor", "error"),
        ({GPUS: 2, f"{F}.log_prob_micro_batch_size_per_gpu": 48}, {}, "micro-batch-not-divisor", "error"),
        ({MICRO: 48}, {}, "micro-batch-not-divisor", "error"),
        ({GPUS: 3, BATCH: 192, MINI: 64}, {}, "batch-not-divisible", "error"),  # 64 x 8 rows on three devices
        ({BATCH: 256, MINI: 100}, {}, "batch-padded", "warning"),
        ({BATCH: 64, MINI: 256, f"{A}.use_dynamic_bsz": True}, {}, "batch-padded", "warning"),
        ({f"{A}.use_dynamic_bsz": True, f"{R}.log_prob_use_dynamic_bsz": False}, {}, "dynamic-batch-differs", "error"),
        ({f"{A}.fsdp_config.dtype": "float32"}, {}, "dtype-without-effect", "warning"),
        ({f"{A}.ppo_micro_batch_size": 8, MICRO: None}, {}, "micro-batch-missing", "error"),
        ({"data.gen_batch_size": 100}, {}, "gen-batch-not-divisor", "error"),
        ({"data.filter_overlong_prompts": False}, {"longest_prompt_tokens": 600}, "prompt-is-cut", "warning"),
        ({}, {"model_max_position_embeddings": 1024}, "context-too-short", "warning"),
        ({f"{R}.max_model_len": 9999}, {"model_max_position_embeddings": 8192}, "context-too-short", "error"),
        ({"trainer.save_freq": 10}, {"existing_checkpoint": "/c/global_step_28", "train_rows_after_filter": 7381},
         "resumes-finished-run", "warning"),
        ({"trainer.total_training_steps": 0}, {}, "no-steps", "error"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_verl_091(config: Config, facts: dict[str, object], code: str, severity: str) -> None:
    assert codes({**NEW_GOOD, **config}, {**NEW, **facts}, complete=True).get(code) == severity


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({}, {}),
        ({GPUS: 3, f"{A}.use_dynamic_bsz": True, BATCH: 48, MINI: 48}, {}),  # filled up to whole mini-batches anyway
        ({f"{A}.loss_agg_mode": "token-sum"}, {}),
        ({f"{A}.fsdp_config.dtype": "bfloat16"}, {}),
        ({f"{A}.fsdp_config.dtype": "float32", f"+{A}.fsdp_config.mixed_precision": {"param_dtype": "fp32"}}, {}),
        ({f"{R}.top_p": 0.95, f"{R}.top_k": 0, f"{A}.optim.lr": 1e-4}, {}),
        ({"trainer.max_actor_ckpt_to_keep": 1}, {}),  # the old one goes when the new one is there
        ({"trainer.default_hdfs_dir": "hdfs://x/y"}, {}),
        ({f"{R}.max_num_batched_tokens": 1024}, {}),
        ({f"{R}.val_kwargs.temperature": 0.6}, {}),  # read without do_sample
        ({f"{R}.val_kwargs.temperature": 0.6, f"{R}.val_kwargs.n": 4}, {}),
        ({"trainer.device": "cuda"}, {"platform": "npu"}),  # corrected by verl itself
        ({"data.gen_batch_size": 64}, {"train_rows_after_filter": 256}),
        ({f"{A}.optim.lr_warmup_steps": 0, f"{A}.optim.lr_warmup_steps_ratio": 0.1}, {}),
    ],
)
def test_what_only_061_minds_is_right_with_verl_091(config: Config, facts: dict[str, object]) -> None:
    assert codes({**NEW_GOOD, **config}, {**NEW, **facts}, complete=True) == {}


def test_the_reasons_name_files_that_the_release_has() -> None:
    """dp_actor.py, fsdp_workers.py and vllm_rollout_spmd.py are gone in 0.9.1."""
    gone = ("dp_actor.py", "fsdp_workers.py", "vllm_rollout_spmd.py", "postprocess_data")
    for config, facts, *_ in RAISED:
        known, _ = add_facts(Facts(), {**facts, **({} if "verl" in facts else NEW)})
        if known.verl != "0.9.1":
            continue
        for finding in check(config, known, complete=False):
            where = [name for name in gone if name in finding.why and "0.6.1" not in finding.why]
            assert where == [], (finding.code, finding.why)


def test_curves_of_verl_091_are_whole_means() -> None:
    config: Config = {BATCH: 256, MINI: 256, MICRO: 8, GPUS: 1}
    assert "loss-curves-scaled" in notes(config)
    assert "loss-curves-scaled" not in notes(config, NEW)


def test_the_critic_of_verl_091_goes_by_tokens_only() -> None:
    config = {EST: "gae", "critic.model.path": "/m", "critic.ppo_micro_batch_size_per_gpu": 4}
    assert "critic-batch-ignored" in notes(config, NEW)
    assert "critic-batch-ignored" not in notes({**config, "+critic.ppo_infer_max_token_len_per_gpu": 8192}, NEW)
    assert "critic-batch-ignored" not in notes(config)
