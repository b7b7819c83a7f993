"""The published run as facts: what is known of it from its article, beside its 28 rows."""

from __future__ import annotations

from pathlib import Path

from verlbox.report.facts import DataFlow, Hardware, RunFacts

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "recipes" / "reference"
STEPS = REFERENCE / "npu-grpo-910b3.csv"

FACTS = RunFacts(
    name="npu-grpo-910b3",
    platform="npu",
    hardware=Hardware("Ascend 910B3", 1, 64.0),
    versions={"verl": "0.6.1", "torch": "2.7.1+cpu", "vllm": "0.11.0"},
    planned_steps=140,
    verl_overrides={
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": 256,
        "data.val_max_samples": 32,
        "data.seed": None,
        "actor_rollout_ref.rollout.n": 1,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
        "trainer.n_gpus_per_node": 1,
    },
    data=(DataFlow("train", 7500, 7381, {}, 119, 7168), DataFlow("test", 5000, 4949, {}, 51)),
)

# The evaluate stage's summary, as a test may want it: 200 prompts, greedy and four draws.
EVALUATION = {
    "rows": 200,
    "greedy": {
        "base": {"correct": 90, "n": 200, "accuracy": 0.45, "standard_error": 0.0352},
        "trained": {"correct": 163, "n": 200, "accuracy": 0.815, "standard_error": 0.0275},
        "gain": 0.365,
        "mcnemar_p": 3e-18,
        "base_only": 4,
        "trained_only": 77,
    },
    "sampled": {
        "draws": 4,
        "base": {"correct": 86.0, "n": 200, "accuracy": 0.43, "standard_error": 0.028},
        "trained": {"correct": 110.0, "n": 200, "accuracy": 0.55, "standard_error": 0.029},
        "gain": 0.12,
        "standard_error": 0.02,
    },
    "groups": {
        "level": {
            "1": {"base": {"n": 40, "accuracy": 0.4, "standard_error": 0.08}, "trained": {"n": 40, "accuracy": 0.6}}
        }
    },
    "changed": [
        {"index": 1, "question": "3 & <b>4</b>?", "ground_truth": "7", "base": "#### 8", "trained": "| 3+4=7 | #### 7"}
    ],
    "reasons": {"base": {"ok": 90, "wrong": 110}, "trained": {"ok": 163, "wrong": 37}},
}
