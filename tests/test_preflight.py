"""Preflight: what this machine cannot carry is said before anything is created, at its place, with the right code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verlbox import cli, preflight, recipe
from verlbox.cli import RECIPES
from verlbox.findings import EXIT_PREFLIGHT, EXIT_USAGE, Finding
from verlbox.pipeline import make_plan
from verlbox.platforms import cuda
from verlbox.run import Run


def absent(tmp_path: Path, *arguments: str) -> list[Finding]:
    loaded = recipe.load(RECIPES / "cuda-grpo.yaml", arguments)
    found = preflight.check(loaded, make_plan(loaded, Run(tmp_path / "run")))
    return [finding for finding in found if finding.code == "platform-absent"]


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "devices", lambda root: [0])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("argument", "place"),
    [
        ("train.devices=2", "command line: train.devices=2"),
        ("trainer.n_gpus_per_node=2", "command line: trainer.n_gpus_per_node=2"),
    ],
)
def test_two_devices_on_a_machine_with_one_are_found_before_anything_starts(
    tmp_path: Path, argument: str, place: str
) -> None:
    (finding,) = absent(tmp_path, argument)
    assert finding.severity == "error" and finding.what == "1 of the 2 GPUs that the recipe asks for"
    assert finding.where == place


@pytest.mark.usefixtures("one_gpu")
def test_one_device_on_a_machine_with_one_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert absent(tmp_path) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (finding,) = absent(tmp_path)
    assert "hides 1" in finding.what


def test_the_exit_code_tells_a_wrong_recipe_from_a_machine_that_cannot_carry_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--runs", str(tmp_path / "runs")]
    if Path("/dev/davinci0").exists():
        pytest.skip("this machine has an Ascend NPU")
    assert cli.main(["run", "npu-grpo", *at]) == EXIT_PREFLIGHT
    assert "error[platform-absent]" in capsys.readouterr().err
    assert cli.main(["run", "npu-grpo", "data.train_batch_size=7", *at]) == EXIT_USAGE
    shown = capsys.readouterr().err
    assert "error[mini-batch-too-big]" in shown and "error[platform-absent]" in shown
    assert not (tmp_path / "runs").exists()


def test_what_only_the_filtered_rows_show_stops_the_run_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """80 rows fill a batch of 64; the 40 that are left after the filter do not."""
    data = tmp_path / "data"
    data.mkdir()
    short, long = "Add 3 and 4.", "Add 3 and 4, please, and " * 20
    for split in ("train", "test"):
        rows = [{"question": short if number % 2 else long, "answer": "#### 7"} for number in range(80)]
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["run", "smoke", "dataset.source=local", f"dataset.path={data}", "dataset.max_prompt_length=60"]
    assert cli.main([*asked, "--runs", str(tmp_path / "runs"), "--until", "train"]) == EXIT_USAGE
    assert "error[train-loader-empty]" in capsys.readouterr().err
    stages = tmp_path / "runs" / "smoke" / "stages"
    assert (stages / "preprocess.json").exists() and not (stages / "train.json").exists()
