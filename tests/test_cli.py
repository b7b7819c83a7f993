from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from verlbox import cli

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERLBOX_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VERLBOX_CACHE", str(tmp_path / "cache"))


def test_list_names_every_shipped_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == {path.stem for path in (ROOT / "recipes").glob("*.yaml")}


def test_show_prints_a_recipe_with_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "smoke", "train.seed=7"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["train"]["seed"] == 7
    assert shown["dataset"]["max_bad_share"] == 0.01


def test_plan_is_also_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "smoke", "--json", "data.train_batch_size=64"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["rows"] == {"train": 1024, "test": 300, "basis": "before filtering"}
    assert plan["steps"]["per_epoch"] == 16
    assert plan["command"][-1] == "data.train_batch_size=64"


@pytest.mark.parametrize("verb", ["plan", "validate", "run"])
def test_bad_input_is_reported_at_once_with_exit_code_2_and_nothing_is_created(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main([verb, "smoke", "train.epoch=2", "train.seed=x", "dataset.source=local", "dataset.path=none"])
    assert code == 2
    shown = capsys.readouterr().err
    assert "did you mean train.epochs" in shown.lower()
    assert "train.seed" in shown
    assert not (tmp_path / "runs").exists()


def write_rows(path: Path, count: int) -> None:
    rows = [{"question": f"What is {i} plus 1?", "answer": f"{i}+1={i + 1}\n#### {i + 1}"} for i in range(count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def local(path: Path) -> list[str]:
    return ["dataset.source=local", f"dataset.path={path}"]


@pytest.mark.parametrize(("rows", "code"), [(0, "dataset-empty"), (31, "train-loader-empty")])
def test_too_little_data_is_found_before_anything_is_created(
    rows: int, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "data" / "train.jsonl", rows)
    write_rows(tmp_path / "data" / "test.jsonl", 8)
    assert cli.main(["run", "smoke", *local(tmp_path / "data")]) == 2
    shown = capsys.readouterr().err
    assert f"error[{code}]" in shown
    if rows:
        assert "smoke.yaml:" in shown, "the place of the batch size"
    assert not (tmp_path / "runs").exists()


def test_an_acceptance_line_that_makes_no_sense_is_found_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = (ROOT / "recipes" / "smoke.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(recipe.replace('operator: ">=", bound: 0.15', "operator: within, bound: 0.15"))
    assert cli.main(["run", "mine.yaml"]) == 2
    shown = capsys.readouterr().err
    assert "mine.yaml:" in shown and "within" in shown
    assert not (tmp_path / "runs").exists()


def test_unknown_recipes_runs_and_options_are_findings_or_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "smok"]) == 2
    assert "Did you mean smoke" in capsys.readouterr().err
    assert cli.main(["status", "nothing"]) == 2
    for arguments in (["plan", "smoke", "--nonsense"], ["status", "x", "a=1"], ["run", "smoke", "--from", "training"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == 2


def test_stages_until_preprocess_leave_verified_rows_and_are_skipped_the_second_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "data" / "train.jsonl", 70)
    write_rows(tmp_path / "data" / "test.jsonl", 8)
    command = ["run", "smoke", "--until", "preprocess", "train.steps=1", *local(tmp_path / "data")]
    assert cli.main(command) == 0
    run = tmp_path / "runs" / "smoke"
    marker = json.loads((run / "stages" / "preprocess.json").read_text())
    assert (marker["state"], marker["details"]["train"]["kept"], marker["details"]["test"]["kept"]) == ("done", 70, 8)
    capsys.readouterr()
    assert cli.main(command) == 0
    shown = capsys.readouterr().err
    assert "download: done (" in shown and "preprocess: done (" in shown
    assert "..." not in shown, "no stage ran"

    # Other rows under the same name are drift, and named.
    write_rows(tmp_path / "data" / "train.jsonl", 71)
    assert cli.main(command) == 2
    assert "--accept-drift dataset.content" in capsys.readouterr().err
    assert cli.main([*command, "--accept-drift", "dataset.content"]) == 0
    marker = json.loads((run / "stages" / "preprocess.json").read_text())
    assert marker["details"]["train"]["kept"] == 71


def test_a_stage_cannot_begin_before_the_one_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "smoke", "--from", "merge"]) == 2
    assert "error[stage-order]" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_status_tells_done_from_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "smoke", "--until", "download"]) == 0
    capsys.readouterr()
    assert cli.main(["status", "smoke", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["working"] is False
    assert status["stages"]["download"]["state"] == "done"
    assert status["stages"]["train"]["state"] == "not started"


def test_a_full_disk_is_a_finding_and_nothing_half_written_counts(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system can only be mounted by root: the full disk is not tried")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here: the full disk is not tried")
    try:
        command = [sys.executable, str(ROOT / "entrypoint.py"), "run", "smoke", "--runs", str(small)]
        done = subprocess.run([*command, "--until", "preprocess"], capture_output=True, text=True, check=False)
        assert done.returncode == 4, done.stderr
        assert "error[disk-full]" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (small / "smoke" / "data").exists()
        subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
        again = subprocess.run([*command, "--until", "preprocess"], capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stderr
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_the_light_verbs_import_neither_torch_nor_verl_nor_ray() -> None:
    for verb in (["--help"], ["list"], ["plan", "smoke"], ["validate", "smoke"]):
        command = [sys.executable, "-X", "importtime", str(ROOT / "entrypoint.py"), *verb]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert not imported & {"torch", "verl", "ray", "transformers", "numpy", "pandas", "pyarrow"}, verb
