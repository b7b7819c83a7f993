"""The smoke recipe as shipped: it learns, its model loads, its report and manifest say what happened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import CANARY, Ended, nothing_left, verlbox

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def test_it_ends_well_and_leaves_no_process(smoke: Ended, runs: Path) -> None:
    assert smoke.code == 0, smoke.output
    assert "verdict: pass" in smoke.output
    assert nothing_left(runs / "smoke")


def test_the_model_learned_on_held_out_problems(smoke: Ended, runs: Path) -> None:
    summary = json.loads((runs / "smoke" / "evaluation" / "summary.json").read_text())
    assert summary["rows"] == 300
    assert summary["greedy"]["gain"] >= 0.15
    assert summary["sampled"]["gain"] >= 0.08
    assert summary["sampled"]["draws"] == 4
    greedy = summary["greedy"]
    assert greedy["gain"] == pytest.approx(greedy["trained"]["accuracy"] - greedy["base"]["accuracy"])


def test_the_merged_model_loads_and_answers_differently_from_the_base(smoke: Ended, runs: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(runs / "smoke" / "model")
    assert model.config.model_type == "qwen2"
    texts = {}
    for name in ("base", "trained"):
        lines = (runs / "smoke" / "evaluation" / f"{name}.jsonl").read_text().splitlines()
        texts[name] = [row["response"] for row in map(json.loads, lines) if row["draw"] == 0]
    assert len(texts["base"]) == len(texts["trained"]) == 300
    assert sum(a != b for a, b in zip(texts["base"], texts["trained"], strict=True)) >= 30


def test_the_report_states_both_accuracies_with_n_and_standard_error(smoke: Ended, runs: Path) -> None:
    summary = json.loads((runs / "smoke" / "evaluation" / "summary.json").read_text())["greedy"]
    text = (runs / "smoke" / "report" / "report.md").read_text()
    assert "300 held-out prompts" in text
    said = re.search(r"greedy accuracy went from ([\d.]+) \(± ([\d.]+)\) to ([\d.]+) \(± ([\d.]+)\)", text)
    assert said is not None
    known = [summary[model][key] for model in ("base", "trained") for key in ("accuracy", "standard_error")]
    assert [float(number) for number in said.groups()] == pytest.approx(known, abs=0.0006)


def test_the_manifest_says_what_the_run_was_made_of(smoke: Ended, runs: Path) -> None:
    manifest = json.loads((runs / "smoke" / "manifest.json").read_text())
    assert manifest["packages"]["verl"] == manifest["stack"]["verl"] == "0.6.1"
    assert "algorithm.adv_estimator=grpo" in manifest["verl"]["command"]
    assert manifest["steps"]["total"] == 16
    assert len(manifest["model"]["sha256"]) == 64
    assert manifest["dataset"]["prepared"]["train"]["kept"] == 1024
    assert {stage["state"] for stage in manifest["stages"].values()} <= {"done", "running"}


def test_no_secret_of_the_environment_is_in_any_file(smoke: Ended, runs: Path) -> None:
    files = [path for path in (runs / "smoke").rglob("*") if path.is_file()]
    assert len(files) > 30
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    assert CANARY not in smoke.output


def test_the_same_command_again_is_quick_and_writes_nothing(smoke: Ended, runs: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        files = (path for path in (runs / "smoke").rglob("*") if path.is_file() and path.name != ".lock")
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in files}

    before = state()
    again = verlbox(runs, "run", "smoke")
    assert again.code == 0, again.output
    assert again.seconds < 3
    assert state() == before


def test_a_changed_recipe_is_refused_by_name_and_nothing_is_touched(smoke: Ended, runs: Path) -> None:
    before = (runs / "smoke" / "recipe.resolved.yaml").read_bytes()
    other = verlbox(runs, "run", "smoke", "train.steps=20", "actor_rollout_ref.actor.optim.lr=1e-4")
    assert other.code == 2
    assert "train.steps: 16 -> 20" in other.output
    assert "optim.lr=1e-4" in other.output
    assert (runs / "smoke" / "recipe.resolved.yaml").read_bytes() == before


def test_lost_outputs_are_made_again_from_where_they_were_lost(smoke: Ended, runs: Path) -> None:
    run = runs / "smoke"
    known = (run / "model" / "model.safetensors").read_bytes()
    (run / "model" / "model.safetensors").unlink()
    again = verlbox(runs, "run", "smoke", "--until", "merge")
    assert again.code == 0, again.output
    assert "train: done (" in again.output, "training was not repeated"
    assert (run / "model" / "model.safetensors").read_bytes() == known
