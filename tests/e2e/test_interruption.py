"""Interrupted runs: signals, kill -9, and the same command again, until the end that an uninterrupted run reaches."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import Ended, last_step, nothing_left, stop_when, verlbox
from verlbox import checkpoints, process

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

COMMAND = ["run", "smoke", "--name", "interrupted"]


def weights(checkpoint: Path) -> dict[str, object]:
    safetensors = pytest.importorskip("safetensors.torch")
    return dict(safetensors.load_file(checkpoint / "actor" / "huggingface" / "model.safetensors"))


def test_a_run_interrupted_in_every_way_ends_like_one_that_was_not(smoke: Ended, runs: Path) -> None:
    run = runs / "interrupted"

    # Ctrl-C while Ray starts.
    first = stop_when(runs, COMMAND, lambda text: "starting Ray" in text, signal.SIGINT)
    assert first.code == 130, first.output
    assert nothing_left(run)
    assert json.loads((run / "stages" / "train.json").read_text())["state"] == "interrupted"

    # SIGTERM after the first checkpoint: step 4 is kept, the steps after it are not.
    second = stop_when(runs, COMMAND, lambda text: last_step(text) >= 5, signal.SIGTERM)
    assert second.code == 143, second.output
    assert nothing_left(run)

    # kill -9 after the next checkpoint. A torn one, as a kill while writing leaves it, is put beside it.
    third = stop_when(runs, COMMAND, lambda text: last_step(text) >= 9, signal.SIGKILL)
    assert third.code == -9
    assert "resuming after step 4 of 16" in third.output
    torn = run / "checkpoints" / "global_step_12"
    (torn / "actor").mkdir(parents=True, exist_ok=True)
    (torn / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"PK\x03\x04 the beginning of a file")
    (run / "checkpoints" / checkpoints.TRACKER).write_text("12")

    # The same command goes on by itself, and clears up what the killed one left.
    fourth = verlbox(runs, *COMMAND)
    assert fourth.code == 0, fourth.output
    assert "resuming after step 8 of 16" in fourth.output
    assert "checkpoint-set-aside" in fourth.output
    assert (run / "checkpoints.incomplete" / "global_step_12").is_dir()
    assert nothing_left(run)

    # It reached the same last step, and the very same weights.
    whole, mended = (runs / name / "checkpoints" / "global_step_16" for name in ("smoke", "interrupted"))
    expected, found = weights(whole), weights(mended)
    assert expected.keys() == found.keys()
    assert all(bool((expected[name] == found[name]).all()) for name in expected)  # type: ignore[attr-defined]


def test_a_second_process_on_a_run_at_work_is_refused(runs: Path) -> None:
    name = "busy"
    command = ["run", "smoke", "--name", name]
    refused: list[Ended] = []

    def try_second(text: str) -> bool:
        if "starting Ray" not in text:
            return False
        refused.append(verlbox(runs, *command))
        return True

    first = stop_when(runs, command, try_second, signal.SIGTERM)
    assert first.code == 143
    assert refused[0].code == 2
    assert "run-locked" in refused[0].output
    assert process.tagged(str(runs / name)) == []
