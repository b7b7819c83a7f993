"""The verl command that `plan` prints is the command that trains, and the recipe runs on real GSM8K."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import environment, verlbox
from verlbox import checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def test_the_printed_commands_pasted_into_a_shell_train(runs: Path) -> None:
    overrides = ["train.steps=2", "trainer.save_freq=1", "data.train_batch_size=8"]
    overrides += ["actor_rollout_ref.actor.ppo_mini_batch_size=8", "train.loggers=[tensorboard,wandb]"]
    overrides += ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32"]
    planned = verlbox(runs, "plan", "smoke", "--json", "--name", "pasted", *overrides)
    assert planned.code == 0, planned.output
    script = json.loads(planned.output)["script"]
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment(runs),
        cwd=runs,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "step:2" in done.stdout
    assert (runs / "pasted" / "checkpoints" / checkpoints.TRACKER).read_text() == "2"
    assert list((runs / "pasted" / "logs" / "wandb").glob("offline-run-*")), "wandb keeps its record here, offline"


@pytest.mark.long
def test_two_steps_on_the_real_gsm8k(runs: Path, shared: Path) -> None:
    path = shared / "data" / "gsm8k"
    done = verlbox(
        runs,
        *("run", "smoke", "--name", "gsm8k", "dataset.source=local", f"dataset.path={path}", "train.steps=2"),
        *("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16", "evaluate.draws=0"),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64",
        *("trainer.val_before_train=false", "trainer.test_freq=-1"),
    )
    report = (runs / "gsm8k" / "report" / "report.md").read_text()
    data = json.loads((runs / "gsm8k" / "data" / "summary.json").read_text())
    assert (data["train"]["read"], data["test"]["read"]) == (7473, 1319)
    assert "7,473" in report and "1,319" in report
    assert json.loads((runs / "gsm8k" / "stages" / "train.json").read_text())["details"]["steps"] == 2
    # A model that knows sums below 100 answers hardly any GSM8K problem: the verdict has to say so.
    assert done.code == 5, done.output
    assert "Not accepted" in report
