"""A Ray cluster of two containers (profile `cluster`): both train, one is killed, and the run goes on."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.conftest import ROOT, RUN_CANARY, Ended, Host, command, wait_until
from tests.e2e.cluster_recipe import SHORT, assert_both_nodes_trained

RUN = ["python", "/opt/verlbox/entrypoint.py", "run", "smoke-cluster", *SHORT]


@pytest.fixture(scope="module")
def nodes(host: Host) -> Iterator[Host]:
    """The profile's head and worker, healthy; Ray wants a token."""
    if shutil.which("docker") is None or command(["docker", "compose", "version"]).code != 0:
        pytest.skip("there is no docker compose")
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_DASHBOARD_PORT": "0"}
    made = Host(host.runs, {**host.environment, **own})
    try:
        up(made)
        yield made
    finally:
        made.compose("--profile", "cluster", "rm", "--stop", "--force", "ray-head", "ray-worker")


def up(nodes: Host) -> None:
    started = nodes.compose("--profile", "cluster", "up", "--detach", "--wait", "ray-head", "ray-worker", timeout=300)
    assert started.code == 0, started.output


def in_head(*words: str) -> list[str]:
    return ["docker", "compose", "--profile", "cluster", "exec", "-T", "ray-head", *words]


def test_a_killed_container_is_named_and_the_run_goes_on_when_it_is_back(nodes: Host, tmp_path: Path) -> None:
    output = tmp_path / "first.txt"
    with output.open("w") as stream:
        first = subprocess.Popen(
            in_head(*RUN), env={**os.environ, **nodes.environment}, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT
        )
        wait_until(lambda: "\nstep 3/" in output.read_text() or first.poll() is not None, "step 3", 300)
        assert first.poll() is None, output.read_text()
        assert nodes.compose("--profile", "cluster", "kill", "ray-worker").code == 0
        code = first.wait(180)
    said = output.read_text()
    assert code == 4, said
    assert "error[cluster-node-lost]" in said

    up(nodes)
    second: Ended = command(in_head(*RUN), environment=nodes.environment)
    assert second.code == 0, second.output
    assert re.search("resuming after step [24] of 6", second.output), second.output
    assert_both_nodes_trained(nodes.runs / "smoke-cluster")
    workers = _workers(nodes)
    assert len(workers) == 4 and len(set(workers)) == 3, "two attempts, each on two nodes, one of them lost"


def _workers(nodes: Host) -> list[str]:
    """The node of each of verl's workers, by Ray's own account."""
    listed = command(
        in_head("ray", "list", "actors", "--format=json", "--limit=1000", "--address=http://localhost:8265"),
        environment=nodes.environment,
    )
    assert listed.code == 0, listed.output
    actors = json.loads(listed.output[listed.output.index("[") :])
    return [actor["node_id"] for actor in actors if "WorkerDict" in actor["class_name"]]


def test_a_job_is_submitted_from_the_host_and_its_exit_code_comes_back(nodes: Host) -> None:
    published = nodes.compose("--profile", "cluster", "port", "ray-head", "8265").output.strip()
    submit = ["submit", "smoke-cluster", *SHORT, "--address", f"http://{published}", "--until", "preprocess"]
    pytest.importorskip("ray", reason="submit needs the CPU stack here (make install)")
    verlbox = [sys.executable, str(ROOT / "entrypoint.py")]
    ended = command([*verlbox, *submit, "--name", "job"], environment=nodes.environment)
    assert ended.code == 0, ended.output
    assert "train: read 1,024, kept 1,024" in ended.output
    refused = command(
        [*verlbox, *submit, "--name", "job", "dataset.max_prompt_length=64"], environment=nodes.environment
    )
    assert refused.code == 2, refused.output
    assert "run-drift" in refused.output


def test_the_run_is_the_callers_and_holds_no_secret(nodes: Host) -> None:
    files = [path for path in (nodes.runs / "smoke-cluster").rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 20
    assert {path.stat().st_uid for path in files} == {nodes.runs.stat().st_uid}
    hidden = (RUN_CANARY.encode(), nodes.environment["RAY_AUTH_TOKEN"].encode())
    assert [path for path in files if any(secret in path.read_bytes() for secret in hidden)] == []
