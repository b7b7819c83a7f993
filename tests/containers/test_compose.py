"""The compose files with a real compose: every profile and overlay, TensorBoard."""

from __future__ import annotations

import json
import shutil
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.containers.conftest import Host, command, wait_until

if TYPE_CHECKING:
    from docker.client import DockerClient


@pytest.fixture(scope="module", autouse=True)
def _needs_compose(client: DockerClient) -> None:
    if shutil.which("docker") is None or command(["docker", "compose", "version"]).code != 0:
        pytest.skip("there is no docker compose")


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--profile", "cluster"],
        ["--file", "compose.yaml", "--file", "compose.ascend-runtime.yaml"],
        ["--env-file", ".env.example"],
    ],
    ids=" ".join,
)
def test_compose_accepts_every_profile_and_overlay(options: list[str]) -> None:
    ended = command(["docker", "compose", *options, "config", "--quiet"])
    assert (ended.code, ended.output) == (0, "")


def test_the_ascend_runtime_takes_the_place_of_devices_and_driver_mounts() -> None:
    files = ["--file", "compose.yaml", "--file", "compose.ascend-runtime.yaml"]
    ended = command(["docker", "compose", *files, "config", "--format", "json"])
    services = json.loads(ended.output)["services"]
    for name in ("npu-grpo", "npu-grpo-grouped", "npu-grpo-official"):
        assert services[name]["runtime"] == "ascend"
        assert "devices" not in services[name]
        assert not any("Ascend" in volume["target"] for volume in services[name]["volumes"])
        assert services[name]["entrypoint"][-1] == name


def test_tensorboard_answers_on_the_loopback_address(host: Host) -> None:
    environment = {**host.environment, "TENSORBOARD_PORT": "0"}
    assert command(["docker", "compose", "up", "--detach", "tensorboard"], environment=environment).code == 0
    try:
        address = command(["docker", "compose", "port", "tensorboard", "6006"], environment=environment).output.strip()
        assert address.startswith("127.0.0.1:")

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"http://{address}/data/environment", timeout=2) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(answers, "TensorBoard", 90)
    finally:
        host.compose("rm", "--stop", "--force", "tensorboard")
