"""What a plan knows beside its settings reaches the lints: model, data, disk, earlier steps."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from verlbox import recipe
from verlbox.cli import RECIPES
from verlbox.findings import Finding
from verlbox.pipeline import make_plan
from verlbox.run import Run

STEP = "step:{} - critic/score/mean:0.5 - timing_s/step:{}\n"


def found(tmp_path: Path, name: str, *arguments: str) -> dict[str, Finding]:
    plan = make_plan(recipe.load(RECIPES / f"{name}.yaml", arguments), Run(tmp_path / "run"))
    return {finding.code: finding for finding in plan.findings}


def test_a_response_that_cannot_hold_the_form_of_the_prompt_is_found_in_a_recipe(tmp_path: Path) -> None:
    assert "response-too-short" not in found(tmp_path, "npu-grpo")
    short = found(tmp_path, "npu-grpo", "data.max_response_length=256")["response-too-short"]
    assert short.severity == "warning" and "<think>" in short.what
    assert short.where == "command line: data.max_response_length=256"


def test_the_task_is_told_by_the_format_not_by_the_name_of_a_folder(tmp_path: Path) -> None:
    local = ("dataset.source=local", f"dataset.path={tmp_path}", "dataset.prompt=none")
    row = '{"question": "1+1?", "answer": "It is 2.\\n#### 2"}\n'
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(row)
    for name in ("aftermath", "mine"):
        limit = (f"dataset.name={name}", "data.max_response_length=256")
        assert "response-too-short" not in found(tmp_path, "cuda-ppo", *local, *limit), "enough for GSM8K's form"
    short = found(tmp_path, "cuda-ppo", *local, "dataset.name=aftermath", "data.max_response_length=128")
    assert "GSM8K" in short["response-too-short"].why
    assert "response-too-short" not in found(tmp_path, "smoke"), "bundled answers are short"


def test_the_models_context_is_known_before_the_model_is_here(tmp_path: Path) -> None:
    beyond = found(tmp_path, "npu-grpo", "data.max_response_length=40000")["context-too-short"]
    assert beyond.severity == "error" and "32768" in beyond.what


def test_checkpoints_are_weighed_by_the_models_size(tmp_path: Path) -> None:
    # 1,543,714,304 parameters x 12 bytes; PPO keeps a critic of the same shape (and another head) beside the actor.
    assert "18.5 GB" in found(tmp_path, "npu-grpo")["checkpoint-size"].what
    assert found(tmp_path, "cuda-ppo")["checkpoint-size"].what == "2 checkpoints of 11.9 GB are kept, 23.7 GB together"
    assert found(tmp_path, "smoke")["checkpoint-size"].what == "2 checkpoints of 8 MB are kept, 16 MB together"


def test_a_disk_that_is_too_small_is_a_warning_where_the_run_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(2 << 20, 1 << 20, 1 << 20))
    full = found(tmp_path, "smoke")["checkpoints-fill-disk"]
    assert full.severity == "warning" and "16 MB together" in full.what
    # A laptop that plans a run of another machine says nothing of its own disk.
    assert "checkpoints-fill-disk" not in found(tmp_path, "npu-grpo")


def test_time_is_estimated_from_the_published_run_only_for_that_very_recipe(tmp_path: Path) -> None:
    assert found(tmp_path, "npu-grpo")["estimated-time"].what == (
        "about 1.1 hours (28 x 137.6 s, as the published run on a 910b3)"
    )
    assert "estimated-time" not in found(tmp_path, "npu-grpo", "data.train_batch_size=128")


def test_a_run_that_goes_on_is_estimated_from_its_own_steps(tmp_path: Path) -> None:
    logs = Run(tmp_path / "run").logs
    logs.mkdir(parents=True)
    (logs / "train.log").write_text(STEP.format(1, 90.0) + STEP.format(2, 60.0))
    assert found(tmp_path, "npu-grpo")["estimated-time"].what == (
        "about 0.5 hours (28 x 60 s, as this run's last step)"
    )
