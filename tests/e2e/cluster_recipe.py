"""The recipe smoke-cluster, made short, and what shows that both of them trained."""

from __future__ import annotations

import json
from pathlib import Path

STEPS = 6
SHORT = (
    f"train.steps={STEPS}",
    "trainer.save_freq=2",
    f"trainer.test_freq={STEPS}",
    "trainer.val_before_train=false",
    "evaluate.draws=0",
    "acceptance=[]",
)


def assert_both_nodes_trained(run: Path) -> None:
    """The run has come to its last step, with a shard of each of two ranks, and its model is better than the base."""
    manifest = json.loads((run / "manifest.json").read_text())
    assert {name: stage["state"] for name, stage in manifest["stages"].items()}["report"] in ("done", "running")
    last = run / "checkpoints" / f"global_step_{STEPS}" / "actor"
    assert sorted(path.name for path in last.glob("model_*")) == [
        "model_world_size_2_rank_0.pt",
        "model_world_size_2_rank_1.pt",
    ]
    greedy = json.loads((run / "evaluation" / "summary.json").read_text())["greedy"]
    assert greedy["gain"] > 0.1
