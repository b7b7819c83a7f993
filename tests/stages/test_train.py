from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from verlbox import pipeline, recipe
from verlbox.cluster import check
from verlbox.console import Console
from verlbox.diagnosis.catalogue import load
from verlbox.diagnosis.health import Bounds
from verlbox.plan import Plan, Rows, make, reason_log
from verlbox.rewards import reasons
from verlbox.run import Run
from verlbox.stages import Context, StageError, train

ROOT = Path(__file__).parents[2]
LINE = (
    "\x1b[36m(TaskRunner pid=7)\x1b[0m step:{} - critic/score/mean:0.53 - response_length/mean:13.25 - "
    "timing_s/step:{} - perf/throughput:2026.4"
)


def plan(tmp_path: Path, *arguments: str) -> Plan:
    loaded = recipe.load(ROOT / "recipes" / "smoke.yaml", arguments)
    return make(loaded, Run(tmp_path), Rows(1024, 300, "after filtering"), 31)


def context(tmp_path: Path, *arguments: str) -> Context:
    return Context(plan(tmp_path, *arguments), False, Console(io.StringIO()), {})


def test_each_step_is_one_line_with_an_estimate_of_what_is_left() -> None:
    stream = io.StringIO()
    progress = train.Progress(Console(stream), total=4, step=0)
    progress.feed(LINE.format(0, 1.0))  # the validation before training is no step
    progress.feed(LINE.format(1, 4.0))
    progress.feed("something else")
    progress.feed(LINE.format(2, 2.0))
    assert stream.getvalue().splitlines() == [
        "step 1/4 | reward 0.530 | length 13.2 | tokens/s 2,026 | 4.0 s/step | ETA 12.0 s",
        "step 2/4 | reward 0.530 | length 13.2 | tokens/s 2,026 | 2.0 s/step | ETA 6.0 s",
    ]


@pytest.mark.parametrize("override", ["trainer.save_freq=-1", "trainer.save_freq=0", "~trainer.save_freq"])
def test_training_without_any_checkpoint_is_refused_before_it_starts(tmp_path: Path, override: str) -> None:
    with pytest.raises(StageError, match="train-without-checkpoints"):
        train.run(context(tmp_path, override))


def test_a_critic_is_expected_in_the_checkpoint_only_where_one_is_trained(tmp_path: Path) -> None:
    actor = ["model", "optimizer", "extra", "hf_model"]
    assert train._expected(plan(tmp_path)) == {"actor": actor}
    # The critic has no Hugging Face copy unless it is asked for one: its own contents count.
    expected = {"actor": actor, "critic": ["model", "optimizer", "extra"]}
    assert train._expected(plan(tmp_path, "algorithm.adv_estimator=gae")) == expected


def test_what_training_depends_on_names_every_recipe_key_and_the_software(tmp_path: Path) -> None:
    made = plan(tmp_path, "train.seed=5", "actor_rollout_ref.rollout.n=4")
    inputs = train.inputs(made.recipe, made.run)
    assert inputs["train.seed"] == 5
    assert inputs["overrides"] == ["actor_rollout_ref.rollout.n=4"]
    assert inputs["train.verl.ALGORITHM.algorithm.adv_estimator"] == "grpo"
    assert inputs["verl"] == "0.6.1"


def test_the_ladder_is_climbed_only_where_the_recipe_asks_and_only_so_often(tmp_path: Path) -> None:
    assert train._next_rung(context(tmp_path), []) is None
    allowed = context(tmp_path, "train.on_oom=step_down", "train.on_oom_times=2")
    first = train._next_rung(allowed, [])
    assert first == {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.4}
    second = train._next_rung(allowed, [first])
    assert second is not None and second != first
    assert train._next_rung(allowed, [first, second]) is None


def test_a_checkpoint_folder_of_the_users_own_is_followed(tmp_path: Path) -> None:
    made = plan(tmp_path, f"trainer.default_local_dir={tmp_path}/elsewhere")
    assert train.checkpoint_folder(made) == tmp_path / "elsewhere"
    assert train.checkpoint_folder(replace(made, effective={"trainer.default_local_dir": "c"})) == tmp_path / "c"


def test_every_health_bound_of_a_recipe_is_one_of_the_health_checks() -> None:
    bounds = {field.name for field in fields(Bounds)}
    assert set(get_args(recipe.HealthBound)) == bounds


# verl's place is taken by a script that prints what it is told to, and waits for files in between: what is tested is
# what another process sees meanwhile.
STAND_IN = """
import pathlib, sys, time
for line in pathlib.Path(__file__).with_name("lines").read_text().splitlines():
    if line.startswith("WAIT "):
        while not pathlib.Path(line[5:]).exists():
            time.sleep(0.05)
    else:
        print(line, flush=True)
sys.exit(1)
"""
OUT_OF_MEMORY = (
    "\x1b[36m(WorkerDict pid=7)\x1b[0m torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.71 GiB. GPU 0"
    " has a total capacity of 39.39 GiB of which 1.62 GiB is free. Process 7 has 37.75 GiB memory in use. Of the"
    " allocated memory 36.10 GiB is allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated."
)


def put_in_verls_place(folder: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = folder / "verl" / "trainer"
    trainer.mkdir(parents=True)
    for package in (trainer.parent, trainer):
        (package / "__init__.py").touch()
    (trainer / "main_ppo.py").write_text(STAND_IN)
    (trainer / "lines").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_fatal_finding_is_in_the_marker_at_once_for_other_processes_to_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, after = tmp_path / "seen", tmp_path / "after"
    lines = [LINE.format(1, 4.0), OUT_OF_MEMORY, f"WAIT {seen}", LINE.format(2, 4.0), f"WAIT {after}", OUT_OF_MEMORY]
    put_in_verls_place(tmp_path / "stand-in", lines, monkeypatch)
    run = Run(tmp_path / "run")
    run.logs.mkdir(parents=True)
    (run.path / "recipe.resolved.yaml").touch()  # what makes the folder a run
    given = replace(context(run.path, "stack=cuda-061"), console=Console(stream := io.StringIO()))

    def status() -> Any:
        command = [sys.executable, "entrypoint.py", "status", str(run.path), "--json"]
        return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)["stages"]["train"]

    def wait_for(codes: list[str]) -> None:
        deadline = time.monotonic() + 60
        while [f["code"] for f in status().get("findings", [])] != codes:
            assert time.monotonic() < deadline, status()
        assert status()["state"] == "running"

    with run.locked(), ThreadPoolExecutor() as pool:
        ended = pool.submit(pipeline._run_stage, train, given, {}, [])
        wait_for(["log-cuda-out-of-memory"])
        assert "log-cuda-out-of-memory" in stream.getvalue()
        seen.touch()
        wait_for([])  # a further step: it was survived
        after.touch()
        with pytest.raises(StageError):
            ended.result(timeout=60)
    assert [f["code"] for f in status()["findings"]] == ["log-cuda-out-of-memory", "command-failed"]


def test_answers_that_the_grader_could_not_grade_are_told_at_the_next_step_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_verls_place(tmp_path / "stand-in", [LINE.format(step, 4.0) for step in (1, 2, 3)], monkeypatch)
    run = Run(tmp_path / "run")
    run.logs.mkdir(parents=True)
    graded: list[reasons.Reason] = ["ok" for _ in range(90)]
    graded += ["timeout" for _ in range(10)]
    reasons.append_tally(reason_log(run), graded)
    kept: list[list[str]] = []
    given = replace(
        context(run.path),
        console=Console(stream := io.StringIO()),
        keep=lambda found: kept.append([f.code for f in found]),
    )
    with pytest.raises(StageError):
        train.run(given)
    assert stream.getvalue().count("error[reward-ungraded]") == 1
    assert kept == [["reward-ungraded"]]


BROKEN = (
    "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
NODE_DIED = "ray.exceptions.NodeDiedError: Task failed because the node it was running on is dead or unavailable."
UNSAFE_GRADER = "ValueError: signal only works in main thread of the main interpreter"


@pytest.mark.parametrize(
    ("said", "looks", "first"),
    [
        (OUT_OF_MEMORY, 1, "log-cuda-out-of-memory"),  # the cluster was asked before training only
        (f"{BROKEN}\n{OUT_OF_MEMORY}", 1, "log-cuda-out-of-memory"),
        (BROKEN, 2, "cluster-node-lost"),
        (NODE_DIED, 2, "cluster-node-lost"),
        (UNSAFE_GRADER, 2, "cluster-node-lost"),  # a fault, but none that ends a run
        ("something that nobody knows", 2, "cluster-node-lost"),
    ],
)
def test_the_cluster_is_asked_for_lost_nodes_unless_the_log_names_another_cause(
    said: str, looks: int, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [{"a": "10.0.0.7", "b": "10.0.0.8"}, {"a": "10.0.0.7"}]
    monkeypatch.setattr(check, "look", lambda plan, address: ([], answers.pop(0)))
    put_in_verls_place(tmp_path / "stand-in", said.splitlines(), monkeypatch)
    run = Run(tmp_path / "run")
    run.logs.mkdir(parents=True)
    with pytest.raises(StageError) as failed:
        train.run(context(run.path, "stack=cuda-061", "cluster.nodes=2", "cluster.address=10.0.0.7:6379"))
    assert (2 - len(answers), failed.value.findings[0].code) == (looks, first)


def test_what_looks_like_a_lost_node_is_in_the_catalogue() -> None:
    assert {entry.code.name for entry in load()} >= train.LOOK_LIKE_A_LOST_NODE


def test_every_rung_of_the_ladder_is_told_and_recorded_when_nothing_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_verls_place(tmp_path / "stand-in", [OUT_OF_MEMORY], monkeypatch)
    run = Run(tmp_path / "run")
    run.logs.mkdir(parents=True)
    asked = ("stack=cuda-061", "train.on_oom=step_down", "train.on_oom_times=2")
    given = replace(context(run.path, *asked), keep=lambda found: seen.append([f.code for f in found]))
    seen: list[list[str]] = []
    with pytest.raises(StageError) as failed:
        train.run(given)
    codes = [finding.code for finding in failed.value.findings]
    assert codes == ["log-cuda-out-of-memory", "train-stepped-down", "train-stepped-down", "command-failed"]
    assert len(failed.value.details["step_downs"]) == 2
    assert ["train-stepped-down"] in seen, "the second attempt's marker says at once what it is"
