"""`launch` on a real engine: streams, signals, exit codes, attaching again, and the command that it prints."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.containers.conftest import ROOT, command, launcher, wait_until
from verlbox.container import launch
from verlbox.run import Run

if TYPE_CHECKING:
    from docker.client import DockerClient

pytestmark = pytest.mark.usefixtures("cpu_image")


@pytest.fixture
def place(tmp_path: Path, client: DockerClient) -> Iterator[Path]:
    """A folder for runs and cache; containers that a failed test has left on it are removed."""
    yield tmp_path
    for container in client.containers.list(all=True, filters={"label": launch.RUN_LABEL}):
        if container.labels[launch.RUN_LABEL].startswith(str(tmp_path)):
            container.remove(force=True)


def _environment(place: Path) -> dict[str, str]:
    return {"VERLBOX_CACHE": str(place / "cache"), "VERLBOX_RUNS": str(place / "runs")}


def _start(place: Path, *words: str) -> tuple[subprocess.Popen[str], Path]:
    output = place / f"output-{time.monotonic_ns()}.txt"
    with output.open("w") as stream:
        child = subprocess.Popen(
            launcher(*words),
            env={**os.environ, **_environment(place)},
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            text=True,
        )
    return child, output


def test_a_run_ends_with_its_exit_code_and_no_container(place: Path, client: DockerClient) -> None:
    ended = command(launcher("smoke", "--name", "short", "--until", "preprocess"), environment=_environment(place))
    assert ended.code == 0, ended.output
    assert "preprocess: done" in ended.output
    assert (place / "runs/short/data/train.parquet").stat().st_uid == os.getuid()
    assert launch.of_run(client, Run(place / "runs/short")) is None


def test_an_error_in_the_container_comes_out_with_its_exit_code(place: Path) -> None:
    ended = command(launcher("smoke", "--from", "train"), environment=_environment(place))
    assert ended.code == 2
    assert "stage-order" in ended.output


def test_the_printed_command_does_the_same(place: Path) -> None:
    words = launcher("smoke", "--name", "printed", "--until", "download", "--dry-run")
    printed = command(words, environment=_environment(place))
    for folder in ("cache", "runs"):
        (place / folder).mkdir()
    ended = command(shlex.split(printed.output.replace("\\\n", " ")))
    assert ended.code == 0, ended.output
    assert (place / "runs/printed/stages/download.json").exists()


def test_a_signal_reaches_the_training_which_can_be_taken_up_again_when_the_launcher_dies(
    place: Path, client: DockerClient
) -> None:
    run = Run(place / "runs/long")
    first, output = _start(place, "smoke", "--name", "long", "train.steps=64")
    wait_until(lambda: "starting Ray" in output.read_text() or first.poll() is not None, "training", 120)
    assert first.poll() is None, output.read_text()

    refused = command(launcher("smoke", "--name", "long", "train.steps=64"), environment=_environment(place))
    assert refused.code == 2
    assert "container-running" in refused.output

    first.kill()
    first.wait()
    container = launch.of_run(client, run)
    assert container is not None
    assert container.status == "running"

    second, output = _start(place, "smoke", "--name", "long", "--attach")
    wait_until(lambda: "starting Ray" in output.read_text(), "the output from the beginning", 30)
    begun = time.monotonic()
    second.send_signal(signal.SIGINT)
    code = second.wait(60)
    assert code == 130, output.read_text()
    assert time.monotonic() - begun < 60
    assert launch.of_run(client, run) is None
    assert '"state": "interrupted"' in (run.path / "stages/train.json").read_text()


def test_a_container_that_someone_else_removes_is_a_finding(place: Path, client: DockerClient) -> None:
    launched, output = _start(place, "smoke", "--name", "removed", "--until", "preprocess")
    wait_until(lambda: "preprocess ..." in output.read_text(), "the container", 120)
    container = launch.of_run(client, Run(place / "runs/removed"))
    assert container is not None
    container.remove(force=True)
    assert launched.wait(60) in (3, 137), output.read_text()  # 137 when the engine told the exit code in time
    assert "Traceback" not in output.read_text()


def test_attaching_to_nothing_is_a_finding(place: Path) -> None:
    ended = command(launcher("smoke", "--name", "none", "--attach"), environment=_environment(place))
    assert ended.code == 2
    assert "container-absent" in ended.output


def test_a_missing_image_and_no_way_to_its_base_is_a_finding(place: Path) -> None:
    absent = {"VERLBOX_IMAGES": "verlbox-absent", "CPU_BASE": "registry.invalid/python:3.11-slim"}
    ended = command(launcher("smoke"), environment={**_environment(place), **absent})
    assert ended.code == 3, ended.output
    assert "image-unreachable" in ended.output
    assert "docs/images.md" in ended.output
    assert not (place / "runs").exists()


def test_a_gpu_on_an_engine_without_one_is_a_finding_with_the_fix(place: Path, client: DockerClient) -> None:
    if "nvidia" in client.info()["Runtimes"]:
        pytest.skip("this engine has NVIDIA's runtime")
    ended = command(launcher("cuda-ppo", "--devices", "0"), environment=_environment(place))
    assert ended.code == 3
    assert "platform-absent" in ended.output
