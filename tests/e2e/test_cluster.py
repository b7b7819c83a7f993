"""Real runs on two Ray nodes of one machine: both train, a lost one is named, and a cluster outlives its runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster_recipe import SHORT, STEPS, assert_both_nodes_trained
from tests.e2e.conftest import CANARY, ROOT, Ended, last_step, nothing_left
from tests.ray_nodes import Nodes, cluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A Ray cluster of two nodes, each with one logical device."""
    made = cluster()
    try:
        made.start("head")
        made.start("worker")
        yield made
    finally:
        made.stop()


def command(runs: Path, nodes: Nodes, *words: str) -> tuple[list[str], dict[str, str]]:
    own = {name: nodes.environment[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    places = {"VERLBOX_RUNS": str(runs), "VERLBOX_CACHE": str(runs / "cache"), "HF_TOKEN": CANARY}
    return [sys.executable, str(ROOT / "entrypoint.py"), *words], {**os.environ, **own, **places}


def start(runs: Path, nodes: Nodes, name: str, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
    output = runs / f"{name}.txt"
    line, environment = command(runs, nodes, *words, "--name", name)
    with output.open("w") as stream:
        child = subprocess.Popen(line, env=environment, cwd=runs, stdout=stream, stderr=subprocess.STDOUT)
    return child, output


def wait_for_step(child: subprocess.Popen[bytes], output: Path, step: int) -> None:
    while last_step(output.read_text()) < step:
        assert child.poll() is None, output.read_text()
        time.sleep(0.05)


def finish(runs: Path, nodes: Nodes, *words: str) -> Ended:
    line, environment = command(runs, nodes, *words)
    started = time.monotonic()
    done = subprocess.run(
        line,
        env=environment,
        cwd=runs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    return Ended(done.returncode, done.stdout, time.monotonic() - started)


def nodes_of_workers(nodes: Nodes) -> list[str]:
    """The Ray node of every worker that verl has placed in the cluster so far, dead or alive, by Ray's own account."""
    line = [sys.executable, "-m", "ray.scripts.scripts", "list", "actors", "--format=json", "--limit=1000"]
    line += ["--address", f"http://127.0.0.1:{nodes.dashboard}"]
    done = subprocess.run(
        line, env={**os.environ, **nodes.environment}, capture_output=True, text=True, timeout=60, check=True
    )
    return [actor["node_id"] for actor in json.loads(done.stdout) if "WorkerDict" in actor["class_name"]]


def test_a_lost_node_is_named_and_the_run_goes_on_when_it_is_back(runs: Path, nodes: Nodes) -> None:
    words = ["run", "smoke-cluster", *SHORT, f"cluster.address={nodes.address}"]
    first, output = start(runs, nodes, "lost", *words)
    wait_for_step(first, output, 3)
    nodes.kill("worker")
    assert first.wait(120) == 4, "it neither hangs nor ends well"
    said = output.read_text()
    assert "error[cluster-node-lost]" in said
    assert "goes on from the last checkpoint" in said
    assert "Traceback" not in said
    assert nothing_left(runs / "lost")
    assert nodes.alive("head"), "the cluster is not the run's to end"

    too_few = finish(runs, nodes, *words, "--name", "lost")
    assert too_few.code == 3, too_few.output
    assert "2 nodes with 1 CPU, 1 cpu, 1 GPU each are wanted, and 1 of the cluster's 1 have them" in too_few.output

    nodes.start("worker")
    second = finish(runs, nodes, *words, "--name", "lost")
    assert second.code == 0, second.output
    assert re.search("resuming after step [24] of 6", second.output), second.output  # as far as it came meanwhile
    assert last_step(second.output) == STEPS
    assert_both_nodes_trained(runs / "lost")
    assert nodes.alive("head") and nodes.alive("worker")
    # Two workers an attempt: each of them on a node of its own.
    workers = nodes_of_workers(nodes)
    assert len(workers) == 4
    assert len(set(workers)) == 3, "the head, the worker that was lost, and the one in its place"


def test_a_job_is_submitted_stopped_by_ctrl_c_and_goes_on(runs: Path, nodes: Nodes) -> None:
    url = f"http://127.0.0.1:{nodes.dashboard}"
    words = ["submit", "smoke-cluster", *SHORT, "--address", url, "--runs", str(runs), "--verlbox", str(ROOT)]

    wrong = finish(runs, nodes, *words, "--name", "job", "dataset.source=local", "dataset.path=/there/is/none")
    assert wrong.code == 2, "the cluster's verlbox looks for the files, and its exit code comes back"
    assert "recipe-missing-file" in wrong.output

    first, output = start(runs, nodes, "job", *words)
    wait_for_step(first, output, 3)
    first.send_signal(signal.SIGINT)
    assert first.wait(90) == 130, output.read_text()
    assert nothing_left(runs / "job")
    assert json.loads((runs / "job" / "stages" / "train.json").read_text())["state"] == "interrupted"

    second = finish(runs, nodes, *words, "--name", "job")
    assert second.code == 0, second.output
    assert re.search("resuming after step [24] of 6", second.output), second.output  # as far as it came meanwhile
    assert_both_nodes_trained(runs / "job")
    assert nodes.alive("head") and nodes.alive("worker")
    secrets = (CANARY.encode(), nodes.environment["RAY_AUTH_TOKEN"].encode())
    files = [path for path in (runs / "job").rglob("*") if path.is_file()]
    assert [path for path in files if any(secret in path.read_bytes() for secret in secrets)] == []


def test_the_health_that_kuberay_asks_for_needs_no_token(nodes: Nodes) -> None:
    from verlbox.export.kuberay import HEALTH

    with urllib.request.urlopen(f"http://127.0.0.1:{nodes.agents['head']}{HEALTH['path']}", timeout=5) as answer:
        assert answer.status == 200


def test_a_finished_run_asks_nothing_of_the_cluster(runs: Path, nodes: Nodes) -> None:
    """The last one here: nothing of the cluster is left when the run of the first test is asked for again."""
    for name in ("worker", "head"):
        nodes.kill(name)
    words = ["run", "smoke-cluster", *SHORT, f"cluster.address={nodes.address}", "--name", "lost"]
    again = finish(runs, nodes, *words)
    assert again.code == 0, again.output
    assert "train: done" in again.output
