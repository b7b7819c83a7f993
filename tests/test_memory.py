"""The memory planner: counts that are known, directions that must hold, plans that fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verlbox import memory, recipe
from verlbox.cli import RECIPES
from verlbox.findings import FindingsError
from verlbox.lints import Facts, check
from verlbox.plan import Rows, make
from verlbox.run import Run

A, R, F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
Config = dict[str, object]
# The published runs' own settings (docs/memory.md).
NPU: Config = {
    "algorithm.adv_estimator": "grpo", "data.train_batch_size": 256, "data.max_prompt_length": 512,
    "data.max_response_length": 1024, f"{A}.ppo_mini_batch_size": 256, f"{A}.ppo_micro_batch_size_per_gpu": 8,
    f"{R}.log_prob_micro_batch_size_per_gpu": 8, f"{F}.log_prob_micro_batch_size_per_gpu": 8, f"{A}.use_kl_loss": True,
    f"{R}.name": "vllm", f"{R}.tensor_model_parallel_size": 1, f"{R}.gpu_memory_utilization": 0.8,
    "trainer.n_gpus_per_node": 1, "trainer.device": "npu",
}  # fmt: skip
PPO: Config = {
    "data.train_batch_size": 256, "data.max_prompt_length": 512, "data.max_response_length": 256,
    f"{A}.ppo_mini_batch_size": 64, f"{A}.ppo_micro_batch_size_per_gpu": 4, "critic.ppo_micro_batch_size_per_gpu": 4,
    f"{R}.log_prob_micro_batch_size_per_gpu": 8, f"{R}.name": "vllm", f"{R}.tensor_model_parallel_size": 1,
    f"{R}.gpu_memory_utilization": 0.4, "trainer.n_gpus_per_node": 1,
}  # fmt: skip
SMALL, MIDDLE, LARGE = (memory.shape(memory.KNOWN_CONFIGS[f"Qwen2.5-{size}"]) for size in ("0.5B", "1.5B", "7B"))


def phase(estimate: memory.Estimate, name: str) -> memory.Phase:
    return next(p for p in estimate.phases if p.name == name)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-3B", 3_085_938_688),
        ("/models/Qwen2.5-7B-Instruct/", 7_615_616_512),
    ],
)
def test_parameters_are_the_known_counts(name: str, count: int) -> None:
    config = memory.known_config(name)
    assert config is not None
    assert memory.parameters(memory.shape(config)) == count


def test_parameters_of_a_llama_from_its_config(shared: Path) -> None:
    config = json.loads((shared / "data" / "smollm2-tokenizer" / "model_config.json").read_text(encoding="utf-8"))
    assert memory.parameters(memory.shape(config)) == 134_515_008  # HuggingFaceTB/SmolLM2-135M


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2"])
def test_parameters_agree_with_transformers(family: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        family, vocab_size=500, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, tie_word_embeddings=family.startswith("gemma"),
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    given = {**config.to_dict(), "head_dim": 24 if family != "qwen2" else 16}
    if family == "qwen2":
        config.head_dim = 16
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    assert memory.parameters(memory.shape(given)) == sum(p.numel() for p in model.parameters())


def test_a_model_it_cannot_count_is_a_finding() -> None:
    with pytest.raises(FindingsError, match="model-shape-unknown"):
        memory.shape({"model_type": "mixtral"})
    with pytest.raises(FindingsError, match="intermediate_size"):
        memory.shape({"model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9,
                      "num_hidden_layers": 1})  # fmt: skip
    assert memory.known_config("meta-llama/Llama-3.1-8B") is None


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40"), ("NVIDIA A100 80GB PCIe", "A100-80"), ("A100 40GB", "A100-40"),
        ("NVIDIA H100 80GB HBM3", "H100-80"), ("NVIDIA H200", "H200"), ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("4090", "RTX4090"), ("NVIDIA L40S", "L40S"), ("NVIDIA L4", "L4"), ("Tesla T4", "T4"), ("Ascend910B3", "910B3"),
        ("910B4", "910B4"), ("A100", None), ("B300", None),
    ],
)  # fmt: skip
def test_cards_are_known_by_the_names_tools_print(name: str, card: str | None) -> None:
    found = memory.find_card(name)
    assert (found and found.name) == card


def test_resident_states_are_twelve_bytes_a_parameter() -> None:
    rollout = phase(memory.estimate(MIDDLE, NPU, memory.CARDS["910B3"]), "rollout")
    states = rollout.parts["actor weights"] + rollout.parts["actor optimizer"]
    assert states == pytest.approx(12 * 1_543_714_304 / 1e9)


def test_the_published_npu_run_is_tight_in_the_rollout() -> None:
    plan = memory.estimate(MIDDLE, NPU, memory.CARDS["910B3"])
    assert (plan.verdict, plan.deciding.name) == ("tight", "rollout")


def test_the_published_ppo_run_fits_and_its_first_setting_does_not() -> None:
    assert memory.estimate(SMALL, PPO, memory.CARDS["A100-40"]).verdict == "fits"
    greedy = memory.estimate(SMALL, {**PPO, f"{R}.gpu_memory_utilization": 0.9}, memory.CARDS["A100-40"])
    assert (greedy.verdict, greedy.deciding.name) == ("does not fit", "rollout")
    assert [f.severity for f in greedy.findings] == ["error"]  # arithmetic alone says so


def test_the_engines_share_and_states_explain_a_published_peak() -> None:
    # verl GRPO, Qwen2.5-0.5B on 8 x 80 GB: 52.8 GiB allocated at the peak (perf/max_memory_allocated_gb of its log).
    config: Config = {
        **PPO,
        "algorithm.adv_estimator": "grpo",
        f"{R}.gpu_memory_utilization": 0.6,
        f"{A}.use_kl_loss": True,
    }
    plan = memory.estimate(SMALL, config, memory.CARDS["A100-80"], devices=8)
    assert phase(plan, "rollout").total * 1e9 / 2**30 == pytest.approx(52.8, rel=0.1)


MEASURED: dict[tuple[str, str], tuple[list[str], dict[str, float]]] = {
    # Recipe and model: micro-batches as they were on one H200 (benchmarks/gpu, experiments tuned-v0-fused and
    # grpo-quarter, 2026-11-30), and PyTorch's peak of allocated memory in each phase, GB, optimizer states included.
    ("cuda-ppo", "Qwen2.5-0.5B"): (
        [
            "actor_rollout_ref.model.use_fused_kernels=true",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=23000",
            "critic.ppo_max_token_len_per_gpu=23000",
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=30700",
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=30700",
        ],
        {"log-probabilities": 14.0, "reference": 14.9, "values": 13.4, "critic update": 45.9, "actor update": 48.8},
    ),
    ("cuda-grpo", "Qwen2.5-1.5B"): (
        [
            "data.max_response_length=1024",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16000",
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=32000",
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=32000",
        ],
        {"log-probabilities": 32.3, "actor update": 79.1},
    ),
}


@pytest.mark.parametrize(("recipe_name", "model"), MEASURED)
def test_planned_peaks_of_the_trainer_are_near_those_measured_on_a_gpu(
    recipe_name: str, model: str, tmp_path: Path
) -> None:
    overrides, peaks = MEASURED[recipe_name, model]
    loaded = recipe.load(RECIPES / f"{recipe_name}.yaml", overrides)
    settings = make(loaded, Run(tmp_path), Rows(7473, 1319, "as published"), None).effective
    plan = memory.estimate(memory.shape(memory.KNOWN_CONFIGS[model]), settings, memory.CARDS["H200"], verl="0.9.1")
    outside = {"engine", "engine's graphs", "context"}  # PyTorch's allocator in the trainer does not count these
    planned = {
        p.name: sum(size for part, size in p.parts.items() if part not in outside)
        for p in plan.phases
        if p.name in peaks
    }
    assert planned == pytest.approx(peaks, rel=0.08)


@pytest.mark.parametrize(
    ("change", "name", "smaller"),
    [
        ({f"{A}.ppo_micro_batch_size_per_gpu": 2}, "actor update", True),
        ({f"{A}.fsdp_config.optimizer_offload": True}, "rollout", True),
        ({f"{A}.fsdp_config.param_offload": True}, "rollout", True),
        ({f"{R}.log_prob_micro_batch_size_per_gpu": 2}, "log-probabilities", True),
        ({f"{R}.gpu_memory_utilization": 0.5}, "rollout", True),
        ({"actor_rollout_ref.model.use_remove_padding": True}, "log-probabilities", True),
        ({"actor_rollout_ref.model.enable_gradient_checkpointing": False}, "actor update", False),
        ({f"{A}.entropy_coeff": 0.001}, "actor update", False),
        ({"data.max_response_length": 2048}, "actor update", False),
        ({f"{R}.free_cache_engine": False}, "actor update", False),
    ],
)
def test_each_setting_moves_its_phase_the_right_way(change: Config, name: str, smaller: bool) -> None:
    card = memory.CARDS["A100-80"]
    before, after = (phase(memory.estimate(MIDDLE, c, card), name).total for c in (NPU, {**NPU, **change}))
    assert (after < before) == smaller
    assert after != before


def test_sharding_divides_states_and_not_activations() -> None:
    one, eight = (phase(memory.estimate(MIDDLE, NPU, memory.CARDS["H200"], n), "actor update").parts for n in (1, 8))
    assert eight["actor optimizer"] == pytest.approx(one["actor optimizer"] / 8)
    assert eight["activations"] == one["activations"]


def test_an_engine_without_room_for_one_sequence_does_not_start() -> None:
    config = {**NPU, f"{R}.gpu_memory_utilization": 0.05}
    plan = memory.estimate(MIDDLE, config, memory.CARDS["A100-80"])
    assert plan.verdict == "does not fit"
    assert "no room to cache" in plan.findings[0].what
    changes, fitted = memory.fit(MIDDLE, config, memory.CARDS["A100-80"])
    assert fitted.kv_tokens >= fitted.longest
    assert f"{R}.gpu_memory_utilization" in changes


ALLOWED = (
    "micro_batch",
    "max_token_len",
    "gpu_memory_utilization",
    "free_cache_engine",
    "offload",
    "gradient_checkpointing",
)


@pytest.mark.parametrize(
    ("model", "config", "card", "devices"),
    [
        (SMALL, PPO, "A100-40", 1), (SMALL, PPO, "RTX4090", 1), (MIDDLE, PPO, "L40S", 1), (MIDDLE, NPU, "910B3", 1),
        (SMALL, NPU, "910B4", 1), (SMALL, {**PPO, f"{R}.gpu_memory_utilization": 0.9}, "A100-40", 1),
        (MIDDLE, {**NPU, f"{A}.ppo_micro_batch_size_per_gpu": 64}, "A100-80", 1), (LARGE, PPO, "A100-80", 8),
        (MIDDLE, {**NPU, f"{A}.use_dynamic_bsz": True, f"{A}.ppo_max_token_len_per_gpu": 131072}, "H100-80", 1),
    ],
)  # fmt: skip
def test_fit_proposes_what_fits_and_leaves_the_algorithm_alone(
    model: memory.ModelShape, config: Config, card: str, devices: int
) -> None:
    changes, plan = memory.fit(model, config, memory.CARDS[card], devices)
    assert plan.verdict == "fits"
    assert all(any(word in key for word in ALLOWED) for key in changes)
    assert not any(key.endswith((".n", "train_batch_size", "ppo_mini_batch_size", "_length")) for key in changes)
    unfit = memory.estimate(model, config, memory.CARDS[card], devices).verdict != "fits"
    assert bool(changes) == unfit
    # Nothing in the proposal is needless, and verl accepts it.
    for key in changes:
        fewer = {name: value for name, value in changes.items() if name != key}
        assert memory.estimate(model, {**config, **fewer}, memory.CARDS[card], devices).verdict != "fits"
    errors = {f.code for f in check({**config, **changes}, Facts(), complete=False) if f.severity == "error"}
    assert errors <= {f.code for f in check(config, Facts(), complete=False) if f.severity == "error"}


def test_what_cannot_fit_is_said_to_not_fit() -> None:
    _, plan = memory.fit(LARGE, PPO, memory.CARDS["A100-80"], 1)
    assert plan.verdict == "does not fit"
    assert plan.deciding.name == "actor update"


def test_host_memory_grows_with_what_is_moved_there() -> None:
    card = memory.CARDS["910B3"]
    plain = sum(memory.estimate(MIDDLE, NPU, card).host.values())
    moved = {**NPU, f"{A}.fsdp_config.param_offload": True, f"{A}.fsdp_config.optimizer_offload": True}
    assert sum(memory.estimate(MIDDLE, moved, card).host.values()) == pytest.approx(plain + 12 * 1.543714304)


def test_the_plan_as_text_names_the_phase_that_decides() -> None:
    text = memory.to_text(memory.estimate(MIDDLE, NPU, memory.CARDS["910B3"]))
    assert "rollout" in next(line for line in text.splitlines() if "decides" in line)
    assert "tight" in text
