"""The Dockerfiles of the accelerators, as far as they go without their base images and gigabytes of wheels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.containers.conftest import ROOT, bake, command
from verlbox import pins
from verlbox.stacks import STACKS

if TYPE_CHECKING:
    from docker.client import DockerClient

DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)
def test_buildx_has_nothing_to_complain_about(file: Path, base: str) -> None:
    arguments = [f"--build-arg={name}={base}" for name in ("BASE", "DEVEL")]
    ended = command(["docker", "build", "--check", f"--file={file}", *arguments, str(ROOT)])
    assert ended.code == 0, ended.output
    assert "no warnings found" in ended.output


# Of the CUDA stacks the older one: the pins of the other are for Python 3.12 only, which the stand-in may not have.
@pytest.mark.parametrize("stack", ["npu", "cuda-061"])
def test_all_but_the_accelerators_wheels_installs_on_a_stand_in(stack: str, base: str, client: DockerClient) -> None:
    names = {"NPU_BASE": base} if stack == "npu" else {"CUDA_BASE": base, "CUDA_DEVEL": base}
    built = bake(stack, PARTIAL="1", IMAGES="verlbox-partial", VERSION="test", **names)
    assert built.code == 0, built.output[-5000:]
    image = f"verlbox-partial/{stack}:test"
    code = "from verlbox import pins; print(*(f'{p.name}=={p.version}' for p in pins.installed().values()))"
    ended = command(["docker", "run", "--rm", "--entrypoint=python", "--workdir=/opt/verlbox", image, "-c", code])
    installed = dict(word.split("==") for word in ended.output.split())
    pinned = pins.pinned(STACKS[stack], "x86_64")
    assert installed["verl"] == pinned["verl"]
    assert installed["ray"] == pinned["ray"]
    assert {name: version for name, version in installed.items() if pinned.get(name) != version} == {}
    assert {"torch", "vllm"} & installed.keys() == set()
    client.images.remove(image)
