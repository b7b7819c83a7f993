"""A real Docker engine and the images built on it, shared by the tests of this folder.

DOCKER_HOST says which engine. Base images and indexes come from the environment, as docs/images.md describes:
CPU_BASE, PIP_INDEX_URL, TORCH_INDEX, APT_MIRROR, WHEELS. Where no engine answers, the tests here are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import verlbox
from verlbox.container import engine, images
from verlbox.findings import FindingsError
from verlbox.stacks import STACKS

if TYPE_CHECKING:
    from docker.client import DockerClient

ROOT = Path(__file__).parents[2]
CALLER = 12345  # who owns the results: neither root nor the image's own user
BUILD_CANARY, RUN_CANARY = "canary-build-1f0c9a77e6", "canary-run-83b1d2c4f0"
SECRETS = ("HF_TOKEN", "MODELSCOPE_API_TOKEN", "WANDB_API_KEY", "SWANLAB_API_KEY")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.containers)
            item.add_marker(pytest.mark.timeout(1200))


@dataclass(frozen=True)
class Ended:
    """A command that has ended: exit code, output, seconds."""

    code: int
    output: str
    seconds: float


def command(
    words: Sequence[str], *, environment: Mapping[str, str] | None = None, cwd: Path = ROOT, timeout: float = 900
) -> Ended:
    started = time.monotonic()
    done = subprocess.run(
        list(words),
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    return Ended(done.returncode, done.stdout, time.monotonic() - started)


def wait_until(true: Callable[[], bool], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.2)


@pytest.fixture(scope="session")
def client() -> Iterator[DockerClient]:
    try:
        found = engine.connect()
    except FindingsError as error:
        pytest.skip(f"no Docker engine: {error.findings[0].what} (set DOCKER_HOST)")
    yield found
    found.close()


@pytest.fixture(scope="session")
def base(client: DockerClient) -> str:
    """A base image with Python 3.11: CPU_BASE, or the default of docker-bake.hcl."""
    return os.environ.get("CPU_BASE") or "python:3.11-slim"


def bake(target: str, **variables: str) -> Ended:
    """Builds an image as `launch` does, with secrets in the environment and in a netrc that must not end up in it."""
    environment = {**images.build_environment(), **variables, **dict.fromkeys(SECRETS, BUILD_CANARY)}
    with tempfile.NamedTemporaryFile("w", suffix=".netrc") as netrc:
        print(f"machine index.invalid login somebody password {BUILD_CANARY}", file=netrc, flush=True)
        words = [*images.build_command(STACKS[target], environment), f"--allow=fs.read={netrc.name}"]
        words += [f"--set=*.secrets=id=netrc,src={netrc.name}"]
        return command(words, environment=environment, timeout=1200)


@pytest.fixture(scope="session")
def cpu_image(client: DockerClient, base: str) -> str:
    """The CPU image, built from these sources."""
    built = bake("cpu", CPU_BASE=base)
    assert built.code == 0, built.output[-5000:]
    print(f"built the CPU image in {built.seconds:.0f} s")
    return images.reference(STACKS["cpu"])


@dataclass(frozen=True)
class Host:
    """A folder of the host as compose sees it: runs owned by CALLER, a named volume for the cache."""

    runs: Path
    environment: Mapping[str, str]

    def compose(self, *words: str, timeout: float = 900) -> Ended:
        return command(["docker", "compose", *words], environment=self.environment, timeout=timeout)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory, cpu_image: str) -> Iterator[Host]:
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command for compose")
    runs = tmp_path_factory.mktemp("host") / "runs"
    runs.mkdir()
    if os.getuid() == 0:
        os.chown(runs, CALLER, CALLER)
    owner = runs.stat()
    environment = {
        "UID": str(owner.st_uid),
        "GID": str(owner.st_gid),
        "VERLBOX_RUNS": str(runs),
        "VERLBOX_VERSION": verlbox.__version__,
        "COMPOSE_PROJECT_NAME": "verlbox-tests",
        **dict.fromkeys(SECRETS, RUN_CANARY),
    }
    made = Host(runs, environment)
    yield made
    made.compose("--profile", "cluster", "down", "--volumes", "--timeout", "5")


def launcher(*words: str) -> list[str]:
    """The launcher as a command of its own."""
    return [sys.executable, str(ROOT / "entrypoint.py"), "launch", *words]
