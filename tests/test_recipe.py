from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from verlbox import recipe
from verlbox.findings import Finding, FindingsError

VALID = """\
name: tiny
description: a recipe for tests
stack: cpu
model: {name: tiny-qwen2-arithmetic, source: bundled}
dataset:
  format: gsm8k
  name: arithmetic
  source: bundled
reward: {name: gsm8k}
train:
  epochs: 2
  verl:
    DATA:
      data.train_batch_size: 16
    ACTOR:
      actor_rollout_ref.actor.optim.lr: 1e-4
"""


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str = VALID) -> Path:
        path = tmp_path / "tiny.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def problems(path: Path, *arguments: str, cwd: Path | None = None) -> list[Finding]:
    with pytest.raises(FindingsError) as caught:
        recipe.load(path, arguments, cwd)
    assert caught.value.exit_code == 2
    return caught.value.findings


def test_a_number_with_an_exponent_but_no_point_is_a_number(write: Write) -> None:
    loaded = recipe.load(write())
    assert loaded.recipe.train.verl["ACTOR"]["actor_rollout_ref.actor.optim.lr"] == 1e-4


def test_words_that_yaml_1_1_reads_as_booleans_stay_words(write: Write) -> None:
    loaded = recipe.load(write(VALID.replace("a recipe for tests", "off")))
    assert loaded.recipe.description == "off"


def test_all_problems_are_reported_together_with_file_and_line(write: Write) -> None:
    text = VALID.replace("epochs: 2", "epoch: 2\n  seed: many").replace(
        "reward: {name: gsm8k}", "reward: {name: gsm9k}"
    )
    path = write(text)
    found = problems(path, "train.stepps=3")
    places = {(f.code, f.where) for f in found}
    assert ("recipe-unknown-key", f"{path}:11") in places
    assert ("recipe-wrong-value", f"{path}:12") in places
    assert ("recipe-wrong-value", f"{path}:9") in places
    assert ("recipe-unknown-key", "command line: train.stepps=3") in places
    assert len(found) == 4


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("train.epoch=1", "train.epochs"),
        ("epochs=1", "train.epochs"),
        ("trian.epochs=1", "train.epochs"),
        ("dataset.pth=x", "dataset.path"),
    ],
)
def test_a_misspelt_key_names_the_nearest_right_one(write: Write, argument: str, meant: str) -> None:
    (finding,) = problems(write(), argument)
    assert meant in finding.fix


def test_a_duplicate_key_is_an_error_that_names_both_lines(write: Write) -> None:
    path = write(VALID + "stack: cpu\n")
    (finding,) = problems(path)
    assert finding.code == "recipe-duplicate-key"
    assert finding.where == f"{path}:17"
    assert f"{path}:3" in finding.what


@pytest.mark.parametrize("text", ["name: [", "name:\n\t- x", "- a\n- b", "", "a: &x [*x]"])
def test_a_file_that_is_no_recipe_is_a_finding(write: Write, text: str) -> None:
    assert problems(write(text))


def test_bytes_that_are_not_utf8_are_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"name: \xff\xfe")
    assert problems(path)[0].code == "recipe-unreadable"


def test_a_missing_dataset_path_is_found_before_anything_runs(write: Write, tmp_path: Path) -> None:
    (finding,) = problems(write(), "dataset.source=local", "dataset.path=nowhere", cwd=tmp_path)
    assert finding.code == "recipe-missing-file"
    assert str(tmp_path / "nowhere") in finding.what
    assert finding.where == "command line: dataset.path=nowhere"


def test_paths_are_relative_to_the_file_or_to_the_working_directory(write: Write, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "here" / "rows").mkdir(parents=True)
    in_file = VALID.replace("  name: arithmetic\n  source: bundled", "  name: mine\n  source: local\n  path: rows")
    assert recipe.load(write(in_file)).recipe.dataset.path == str(tmp_path / "rows")
    loaded = recipe.load(write(), ["dataset.source=local", "dataset.path=rows"], tmp_path / "here")
    assert loaded.recipe.dataset.path == str(tmp_path / "here" / "rows")


def test_verl_keys_pass_through_verbatim_and_last(write: Write) -> None:
    arguments = [
        "train.epochs=3",
        "+data.extra=1",
        "~trainer.val_before_train",
        "actor_rollout_ref.rollout.n=8",
        "++a.b=1",
    ]
    (finding,) = problems(write(), *arguments)
    assert finding.where == "command line: ++a.b=1"
    loaded = recipe.load(write(), arguments[:-1])
    assert loaded.recipe.train.epochs == 3
    assert loaded.recipe.overrides == arguments[1:-1]


def test_a_key_under_the_wrong_heading_is_an_error(write: Write) -> None:
    (finding,) = problems(write(VALID.replace("data.train_batch_size", "trainer.save_freq")))
    assert "does not belong under DATA" in finding.what


def test_the_resolved_recipe_loads_to_the_same_recipe(write: Write, tmp_path: Path) -> None:
    loaded = recipe.load(write(), ["train.steps=7", "actor_rollout_ref.rollout.n=8"]).recipe
    again = tmp_path / "resolved.yaml"
    again.write_text(recipe.resolved(loaded), encoding="utf-8")
    assert recipe.load(again).recipe == loaded
    assert yaml.safe_load(again.read_text())["train"]["seed"] == 1


def test_the_schema_for_editors_is_that_of_the_code() -> None:
    root = Path(__file__).parents[1]
    written = json.loads((root / "recipes" / "recipe.schema.json").read_text(encoding="utf-8"))
    assert written == recipe.Recipe.model_json_schema(), "run python tools/make_recipe_schema.py"


def test_a_local_data_set_is_named_after_its_place(write: Write, tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    arguments = ["dataset.source=local", f"dataset.path={tmp_path / 'gsm8k'}"]
    assert recipe.load(write(), arguments).recipe.dataset.name == "gsm8k"
    assert recipe.load(write(), [*arguments, "dataset.name=mine"]).recipe.dataset.name == "mine"


def test_random_weights_keep_the_models_name_and_need_a_tokenizer(write: Write, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    arguments = ["model.name=Qwen/Qwen2.5-0.5B", "model.source=random", "model.path=tokenizer"]
    model = recipe.load(write(), arguments, tmp_path).recipe.model
    assert (model.name, model.path) == ("Qwen/Qwen2.5-0.5B", str((tmp_path / "tokenizer").resolve()))
    (finding,) = problems(write(), "model.source=random", cwd=tmp_path)
    assert "model.source is random, but model.path is not set" in finding.what
