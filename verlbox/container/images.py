"""The images of the stacks: their names, whether they are here, and building them with docker/docker-bake.hcl.

Images are built by buildx, which the SDK does not speak: its build call reaches the engine's older builder, which
knows neither cache mounts nor secrets.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import verlbox
from verlbox import findings, manifest
from verlbox.console import Console
from verlbox.findings import EXIT_PREFLIGHT, Finding, FindingsError
from verlbox.stacks import Stack

if TYPE_CHECKING:
    import docker

BUILD_FAILED = findings.register("image-build-failed", "error", "The image of a stack could not be built.")
UNREACHABLE = findings.register(
    "image-unreachable", "error", "An image is not here, and what it is built from is not reachable."
)
NO_BUILDX = findings.register(
    "buildx-missing", "error", "Docker's buildx plugin, which builds the images, is missing or too old."
)

ROOT = Path(__file__).parents[2]
BAKE = ROOT / "docker" / "docker-bake.hcl"
OLDEST_BUILDX = (0, 12)  # bake with named contexts chosen by a variable, and `description` of variables

NETWORK = re.compile(
    r"failed to resolve source metadata|failed to do request|dial tcp|no such host|i/o timeout|TLS handshake"
    r"|Temporary failure (?:in name resolution|resolving)|Could not resolve|Network is unreachable"
    r"|Failed to establish a new connection|Could not connect to|Connection timed out|connection refused"
)


def reference(stack: Stack, environment: Mapping[str, str] = os.environ) -> str:
    """The image of a stack, as docker-bake.hcl and compose.yaml name it."""
    return f"{environment.get('VERLBOX_IMAGES') or 'verlbox'}/{stack.name}:{verlbox.__version__}"


def present(client: docker.DockerClient, name: str) -> bool:
    """Whether the engine has an image."""
    from docker.errors import ImageNotFound

    try:
        client.images.get(name)
    except ImageNotFound:
        return False
    return True


def build_command(stack: Stack, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The command that builds a stack's image; the variables of docker-bake.hcl come from the environment."""
    wheels = environment.get("WHEELS")
    allowed = [f"--allow=fs.read={wheels}"] if wheels else []
    return ["docker", "buildx", "bake", "--file", str(BAKE), "--load", "--progress=plain", *allowed, stack.name]


def build_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of that command: the version and commit of these sources, and this image's prefix."""
    own = {"VERSION": verlbox.__version__, "IMAGES": environment.get("VERLBOX_IMAGES") or "verlbox"}
    revision = manifest.revision()
    return {**environment, **own, **({"REVISION": revision} if revision else {})}


def build(stack: Stack, console: Console) -> None:
    """Builds a stack's image and shows the builder's output. Raises FindingsError (exit code 3)."""
    _require_buildx()
    last: deque[str] = deque(maxlen=60)
    command = build_command(stack)
    with subprocess.Popen(
        command, cwd=ROOT, env=build_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as builder:
        assert builder.stdout is not None
        for line in builder.stdout:
            last.append(line.rstrip())
            console.line(line.rstrip())
    if builder.returncode:
        raise FindingsError(explain(stack, list(last)), EXIT_PREFLIGHT)


def explain(stack: Stack, output: list[str]) -> Finding:
    """What a failed build's last lines say."""
    name = reference(stack)
    errors = [line for line in output if "ERROR" in line or "error:" in line] or output[-1:]
    text = errors[-1].strip() if errors else "no output"
    if any(NETWORK.search(line) for line in output):
        return UNREACHABLE.finding(
            f"{name} is not here and cannot be built without network: {text}",
            why="Its base image and packages come from a registry and an index.",
            fix=f"Bring it from another machine (docker save {name} | ssh ... docker load), or name mirrors in the"
            " environment: docs/images.md.",
        )
    return BUILD_FAILED.finding(
        f"{name} could not be built: {text}",
        why="The recipe's software comes from it.",
        fix="Read the output above; `docker buildx bake` can be run again, it goes on from its cache.",
    )


def _require_buildx() -> None:
    try:
        said = subprocess.run(["docker", "buildx", "version"], capture_output=True, text=True, check=False)
        found = re.search(r"\bv?(\d+)\.(\d+)\.\d+", said.stdout) if said.returncode == 0 else None
    except OSError:
        found = None
    if found is None or (int(found[1]), int(found[2])) < OLDEST_BUILDX:
        raise FindingsError(
            NO_BUILDX.finding(
                f"docker buildx {found[0] if found else 'is not installed'}",
                why="The images are built with cache mounts and build secrets, which older builders do not have.",
                fix="sudo apt-get install docker-buildx-plugin",
            ),
            EXIT_PREFLIGHT,
        )
