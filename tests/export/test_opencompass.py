"""`export opencompass`: what it writes, and that OpenCompass itself loads, asks and grades it as the run does."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from verlbox import cli

ROOT = Path(__file__).parents[2]
TINY = ROOT / "verlbox" / "assets" / "tiny-qwen2-arithmetic"
PROBLEMS = [
    {
        "problem": "What is $\\frac{1}{2} + \\{0\\}$?  Use {braces} and\na new line.",
        "level": "Level 1",
        "type": "Algebra",
        "solution": "It is $\\boxed{\\frac{1}{2}}$.",
    },
    {"problem": "Two times three?", "level": "Level 2", "type": "Algebra", "solution": "So $\\boxed{6}$."},
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERLBOX_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VERLBOX_CACHE", str(tmp_path / "cache"))


def finished(name: str, tmp_path: Path, *arguments: str) -> Path:
    """A run whose data are prepared; its trained model is a copy of its base model."""
    assert cli.main(["run", "smoke", "--name", name, "--until", "download", "--offline", *arguments]) == 0
    run = tmp_path / "runs" / name
    shutil.copytree(run / "base_model", run / "model")
    return run


def math_run(tmp_path: Path, problems: Sequence[dict[str, str]] = PROBLEMS) -> Path:
    data = tmp_path / "problems"
    data.mkdir()
    train = [{**PROBLEMS[1], "problem": f"Six times {i}?", "solution": f"\\boxed{{{6 * i}}}"} for i in range(64)]
    for split, rows in (("train", train), ("test", problems)):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return finished(
        *("math", tmp_path, "dataset.format=math_lighteval", "dataset.source=local", f"dataset.path={data}"),
        *("dataset.prompt=math-think-answer", "reward.name=graded_math", "reward.arguments={}"),
    )


def exported(run: Path) -> Path:
    assert cli.main(["export", "opencompass", str(run)]) == 0
    return run / "export" / "opencompass"


def test_what_else_is_in_the_folder_stays_when_it_is_written_again(tmp_path: Path) -> None:
    run = math_run(tmp_path)
    results = exported(run) / "outputs" / "summary.csv"  # OpenCompass's own work_dir
    results.parent.mkdir()
    results.touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    exported(run)
    assert results.exists()
    assert cli.main(["export", "opencompass", str(run), "--out", str(tmp_path / "mine")]) == 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["eval_math.py", "math", "notes"]


def test_a_folder_that_cannot_be_made_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = math_run(tmp_path)
    (tmp_path / "file").touch()
    assert cli.main(["export", "opencompass", str(run), "--out", str(tmp_path / "file")]) == 2
    assert "export-not-written" in capsys.readouterr().err


def test_math_problems_are_written_as_the_loader_reads_them(tmp_path: Path) -> None:
    out = exported(math_run(tmp_path))
    written = json.loads((out / "math" / "math.json").read_text(encoding="utf-8"))
    assert list(written) == ["0", "1"]
    assert written["0"] == PROBLEMS[0]


def test_word_problems_keep_both_splits_and_their_answers(tmp_path: Path) -> None:
    out = exported(finished("smoke", tmp_path))
    for split, count in (("train", 1024), ("test", 300)):
        rows = [json.loads(line) for line in (out / "gsm8k" / f"{split}.jsonl").read_text().splitlines()]
        assert len(rows) == count
        assert all(set(row) == {"question", "answer"} and "#### " in row["answer"] for row in rows)


def test_the_configuration_is_python_and_names_both_models(tmp_path: Path) -> None:
    text = (exported(math_run(tmp_path)) / "eval_math.py").read_text(encoding="utf-8")
    ast.parse(text)
    assert re.findall(r"abbr='([\w-]+)'", text) == ["math-base", "math-trained"]
    assert "You are Qwen, created by Alibaba Cloud." in text
    assert '["max_out_len"] = 20' in text


def test_on_an_accelerator_vllm_answers_as_the_rollout_is_set_up(tmp_path: Path) -> None:
    run = math_run(tmp_path)
    kept = yaml.safe_load((run / "recipe.resolved.yaml").read_text(encoding="utf-8"))
    kept["stack"] = "npu"
    kept["train"]["devices"] = 2
    kept["train"]["verl"]["ROLLOUT"] = {
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.8,
        "actor_rollout_ref.rollout.enforce_eager": True,
    }
    (run / "recipe.resolved.yaml").write_text(yaml.safe_dump(kept), encoding="utf-8")
    text = (exported(run) / "eval_math.py").read_text(encoding="utf-8")
    assert "type=VLLMwithChatTemplate" in text
    arguments = "tensor_parallel_size=2, gpu_memory_utilization=0.8, enforce_eager=True, dtype='bfloat16'"
    assert f"model_kwargs=dict({arguments})" in text
    assert "generation_kwargs=dict(temperature=0)" in text
    assert "num_gpus=2" in text


def test_a_run_without_a_trained_model_is_told_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished("smoke", tmp_path)
    shutil.rmtree(run / "model")
    assert cli.main(["export", "opencompass", str(run)]) == 2
    shown = capsys.readouterr().err
    assert "has no trained model" in shown
    assert not (run / "export").exists()


def test_a_data_set_that_is_gone_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished("smoke", tmp_path)
    marker = json.loads((run / "stages" / "download.json").read_text())
    marker["details"]["dataset"]["path"] = str(tmp_path / "removed")
    (run / "stages" / "download.json").write_text(json.dumps(marker))
    assert cli.main(["export", "opencompass", str(run)]) != 0
    assert "dataset-not-found" in capsys.readouterr().err
    assert not (run / "export" / "opencompass").exists()


# --- with OpenCompass itself ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def opencompass(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which OpenCompass can be imported: about 110 MB from the package index."""
    folder = tmp_path_factory.mktemp("opencompass")
    pins = Path(__file__).with_name("opencompass.txt")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "-r", str(pins)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"OpenCompass cannot be installed here, so its loader is not run: {done.stderr[-300:]}")
    return {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "HF_HUB_OFFLINE": "1"}


def loaded(out: Path, tokenizer: Path, environment: dict[str, str]) -> dict[str, Any]:
    (config,) = out.glob("eval_*.py")
    child = Path(__file__).with_name("opencompass_child.py")
    found = out / "found.json"
    command = [sys.executable, str(child), str(config), str(tokenizer), str(found)]
    done = subprocess.run(command, env=environment, cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    content: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return content


def training_prompts(run: Path, tokenizer_path: Path) -> list[str]:
    """The prompts of the test split as verl renders them from its parquet file (chat template, generation prompt)."""
    import pyarrow.parquet
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    rows = pyarrow.parquet.read_table(run / "data" / "test.parquet", columns=["prompt"]).column("prompt").to_pylist()
    return [tokenizer.apply_chat_template(row, tokenize=False, add_generation_prompt=True) for row in rows]


@pytest.mark.long
def test_opencompass_asks_the_training_prompt_and_takes_the_right_answer(
    tmp_path: Path, opencompass: dict[str, str]
) -> None:
    run = math_run(tmp_path)
    assert cli.main(["run", str(run / "recipe.resolved.yaml"), "--name", "math", "--until", "preprocess"]) == 0
    found = loaded(exported(run), TINY, opencompass)
    assert found["prompts"] == training_prompts(run, TINY)
    assert found["references"] == ["\\frac{1}{2}", "6"]
    assert (found["loader"], found["evaluator"], found["perfect"]) == ("MATHDataset", "MATHEvaluator", 100)
    assert found["max_out_len"] == 20
    assert [model["abbr"] for model in found["models"]] == ["math-base", "math-trained"]


@pytest.mark.long
def test_the_whole_of_math_is_loaded_with_a_reference_to_each_problem(
    tmp_path: Path, opencompass: dict[str, str], shared: Path
) -> None:
    rows = (shared / "data" / "math" / "test.jsonl").read_text(encoding="utf-8").split("\n")
    found = loaded(exported(math_run(tmp_path, [json.loads(row) for row in rows if row])), TINY, opencompass)
    assert len(found["prompts"]) == len(found["references"]) == 5000
    assert all(found["references"])
    assert found["perfect"] == 100


@pytest.mark.long
@pytest.mark.timeout(900)
def test_opencompass_measures_what_the_evaluation_measures(tmp_path: Path, opencompass: dict[str, str]) -> None:
    # Its whole command line: inference and grading of both models, here one and the same, on the 300 bundled problems.
    from verlbox.generate import Sampling, answers
    from verlbox.rewards import gsm8k

    out = exported(finished("smoke", tmp_path))
    main = "from opencompass.cli.main import main; main()"
    command = [sys.executable, "-c", main, "eval_smoke.py", "--debug"]
    done = subprocess.run(command, env=opencompass, cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    row = re.search(r"^gsm8k\s+\w+\s+accuracy\s+gen\s+([\d.]+)\s+([\d.]+)$", done.stdout, re.MULTILINE)
    assert row is not None, done.stdout[-3000:]
    problems = [json.loads(line) for line in (out / "gsm8k" / "test.jsonl").read_text().splitlines()]
    asked = [[{"role": "user", "content": problem["question"]}] for problem in problems]
    given = {answer["index"]: answer["response"] for answer in answers(TINY, asked, Sampling(max_new_tokens=20))}
    truths = [problem["answer"].split("#### ")[1] for problem in problems]
    right = sum(gsm8k.grade(given[index], truth) == "ok" for index, truth in enumerate(truths))
    assert [float(value) for value in row.groups()] == [pytest.approx(100 * right / 300, abs=0.005)] * 2
