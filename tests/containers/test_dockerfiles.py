"""The Dockerfiles of the accelerators, as far as they go without their base images and gigabytes of wheels."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
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


def _prefix(version: str) -> Path | None:
    """Where a Python of that version lies on this machine, whole and apart from the system's own."""
    found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")]
    for python in filter(None, found):
        said = command([str(python), "-c", "import sys, ensurepip; print(sys.base_prefix)"])
        if said.code == 0 and said.output.strip() != "/usr":
            return Path(said.output.strip())
    return None


@pytest.fixture
def base_of(base: str, client: DockerClient) -> Iterator[Callable[[str], str | None]]:
    """A stand-in with the Python of a stack: the base image, or one that a Python of this machine is added to; None
    where there is no such Python.
    """
    made: list[str] = []

    def stand_in(stack: str) -> str | None:
        version = STACKS[stack].python
        if f" {version}." in command(["docker", "run", "--rm", base, "python3", "--version"]).output:
            return base
        prefix = _prefix(version)
        if prefix is None:
            return None
        open_ = " ".join(str(parent) for parent in prefix.parents if parent != Path("/"))  # to the image's user
        lines = f"FROM {base}\nCOPY --from=python . {prefix}/\nENV PATH={prefix}/bin:$PATH\nRUN chmod a+x {open_}\n"
        name = f"verlbox-stand-in:{version}"
        words = ["docker", "build", f"--build-context=python={prefix}", f"--tag={name}", "-"]
        built = subprocess.run(words, input=lines, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr
        made.append(name)
        return name

    yield stand_in
    for name in made:
        client.images.remove(name)


@pytest.mark.parametrize("stack", ["npu", "cuda"])
def test_all_but_the_accelerators_wheels_installs_on_a_stand_in(
    stack: str, base: str, base_of: Callable[[str], str | None], client: DockerClient
) -> None:
    found = base_of(stack)
    if found is None:  # the pins of the older CUDA stack have wheels for the Python of any stand-in
        stack = "cuda-061"
    base = found or base
    names = {"NPU_BASE": base} if stack == "npu" else {"CUDA_BASE": base, "CUDA_DEVEL": base}
    built = bake(stack, PARTIAL="1", IMAGES="verlbox-partial", VERSION="test", **names)
    assert built.code == 0, built.output[-5000:]
    image = f"verlbox-partial/{stack}:test"
    try:
        code = "from verlbox import pins; print(*(f'{p.name}=={p.version}' for p in pins.installed().values()))"
        ended = command(["docker", "run", "--rm", "--entrypoint=python", "--workdir=/opt/verlbox", image, "-c", code])
        installed = dict(word.split("==") for word in ended.output.split())
        pinned = pins.pinned(STACKS[stack], "x86_64")
        assert installed["verl"] == pinned["verl"]
        assert installed["ray"] == pinned["ray"]
        assert {name: version for name, version in installed.items() if pinned.get(name) != version} == {}
        left_out = {name for name in pinned if name not in installed}
        assert {"torch", "vllm"} <= left_out
    finally:
        client.images.remove(image)
