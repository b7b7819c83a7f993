"""The launcher: one container for one run, started as the calling user, followed to its end, and removed.

What it guarantees: the container has what the run needs and no more (read-only root, no capabilities, no network when
model and data are here); its output is shown as it comes; SIGINT and SIGTERM reach verlbox inside; its exit code is
returned. When the launcher itself dies, the container goes on, and `--attach` takes it up again. Runs, cache and local
inputs are mounted at the paths that they have on the host, so that the same run can be gone on with in either place.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlbox import findings, process
from verlbox.container import engine
from verlbox.container.devices import Chosen
from verlbox.findings import EXIT_PREFLIGHT, EXIT_USAGE, Finding, FindingsError
from verlbox.recipe import AT_HAND, Recipe
from verlbox.run import RUNS_VARIABLE, Run
from verlbox.stacks import STACKS
from verlbox.stages.download import CACHE_VARIABLE

if TYPE_CHECKING:
    from docker.client import DockerClient
    from docker.models.containers import Container

RUNNING = findings.register("container-running", "error", "A container is at work on the same run already.")
NOT_RUNNING = findings.register("container-absent", "error", "There is no container of the run to attach to.")
NOT_STARTED = findings.register("container-not-started", "error", "The engine refused to start the container.")

RUN_LABEL, DEVICES_LABEL = "io.verlbox.run", "io.verlbox.devices"
STOP_SECONDS = 120  # verl and Ray are given 20 s to end (process.GRACE_SECONDS), then files are put in order
# Bytes; a limit only. Ray wants 30 % of the memory for its object store, or 95 % of this where that is less
# and over 10 GB; where this is smaller it falls back to /tmp (_private/utils.py, resolve_object_store_memory).
SHARED_MEMORY = 16 << 30

# Passed on by name where they are set, to runs that use the network.
PASSED = (
    *("HF_TOKEN", "HF_ENDPOINT", "MODELSCOPE_API_TOKEN", "MODELSCOPE_DOMAIN", "WANDB_API_KEY", "SWANLAB_API_KEY"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)


@dataclass(frozen=True)
class Mount:
    """A folder or file of the host, at the same path in the container."""

    path: str
    read_only: bool = False


@dataclass(frozen=True)
class Contained:
    """A container as it will be started. `passed` are variables that keep their value and are never shown."""

    name: str
    image: str
    command: tuple[str, ...]
    user: str
    mounts: tuple[Mount, ...]
    environment: Mapping[str, str]
    passed: tuple[str, ...]
    labels: Mapping[str, str]
    network: bool
    terminal: bool
    device_files: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()


def describe(
    recipe: Recipe,
    run: Run,
    command: Sequence[str],
    *,
    image: str,
    user: str,
    cache: Path,
    inputs: Iterable[Path],
    devices: Chosen,
    terminal: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Contained:
    """The container for a run. `inputs` are the recipe's file and local inputs, `command` is verlbox's own."""
    platform = STACKS[recipe.stack].platform
    network = needs_network(recipe)
    written = dict.fromkeys((str(run.path.parent), str(cache)))
    read = dict.fromkeys((*(str(path) for path in inputs), *devices.mounts))
    return Contained(
        name=f"verlbox-{re.sub('[^A-Za-z0-9_.-]', '-', run.name)}",
        image=image,
        command=tuple(command),
        user=user,
        mounts=(*(Mount(path) for path in written), *(Mount(path, read_only=True) for path in read)),
        environment={RUNS_VARIABLE: str(run.path.parent), CACHE_VARIABLE: str(cache)},
        passed=tuple(name for name in PASSED if network and environment.get(name)),
        labels={RUN_LABEL: str(run.path), DEVICES_LABEL: ",".join(map(str, devices.numbers))},
        network=network,
        terminal=terminal,
        device_files=devices.files,
        gpus=devices.numbers if platform == "cuda" else (),
        groups=devices.groups,
    )


def needs_network(recipe: Recipe) -> bool:
    """Whether a run talks to anything outside: a hub, or a logger's server."""
    return (
        recipe.model.source not in AT_HAND
        or recipe.dataset.source not in AT_HAND
        or any(logger != "tensorboard" for logger in recipe.train.loggers)
    )


TMPFS = {"/tmp": "exec,mode=1777", "/home/verlbox": "mode=1777"}
ULIMITS = {"nofile": 1 << 20, "memlock": -1, "stack": 1 << 26}  # collectives lock the memory that devices read


def _ulimits(contained: Contained) -> Mapping[str, int]:
    return ULIMITS if contained.gpus or contained.device_files else {}


def docker_command(contained: Contained) -> list[str]:
    """The docker command that starts the same container. Values of secrets are not in it, only their names."""
    c = contained
    options = ["--rm", f"--name={c.name}", f"--user={c.user}", "--read-only", "--cap-drop=ALL"]
    options += ["--security-opt=no-new-privileges:true", f"--shm-size={SHARED_MEMORY}"]
    options += [f"--stop-timeout={STOP_SECONDS}"]
    options += ["--tty"] if c.terminal else []
    options += [] if c.network else ["--network=none"]
    options += [f"--tmpfs={path}:{how}" for path, how in TMPFS.items()]
    options += [f"--ulimit={name}={value}" for name, value in _ulimits(c).items()]
    options += [f"--group-add={group}" for group in c.groups]
    options += [f"--device={path}" for path in c.device_files]
    options += [f'--gpus="device={",".join(map(str, c.gpus))}"'] if c.gpus else []
    for mount in c.mounts:
        options.append(f"--mount=type=bind,src={mount.path},dst={mount.path}" + (",ro" if mount.read_only else ""))
    options += [f"--env={name}={value}" for name, value in c.environment.items()]
    options += [f"--env={name}" for name in c.passed]
    options += [f"--label={name}={value}" for name, value in c.labels.items()]
    return ["docker", "run", *options, c.image, *c.command]


def as_text(command: Sequence[str]) -> str:
    """A docker command to paste into a shell, an option a line."""
    return " \\\n  ".join([shlex.join(command[:2]), *(shlex.quote(part) for part in command[2:])])


def create_arguments(
    contained: Contained, environment: Mapping[str, str] = os.environ
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same for the SDK: arguments of `create_container`, and of `create_host_config`."""
    from docker.types import DeviceRequest, Ulimit
    from docker.types import Mount as DockerMount

    c = contained
    own = {
        "name": c.name,
        "image": c.image,
        "command": list(c.command),
        "user": c.user,
        "tty": c.terminal,
        "environment": {**c.environment, **{name: environment[name] for name in c.passed}},
        "labels": dict(c.labels),
        "stop_timeout": STOP_SECONDS,
    }
    host = {
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "shm_size": SHARED_MEMORY,
        "tmpfs": TMPFS,
        "ulimits": [Ulimit(name=name, soft=value, hard=value) for name, value in _ulimits(c).items()],
        "group_add": [str(group) for group in c.groups],
        "devices": [f"{path}:{path}:rwm" for path in c.device_files],
        "mounts": [DockerMount(m.path, m.path, type="bind", read_only=m.read_only) for m in c.mounts],
    }
    if c.gpus:
        host["device_requests"] = [DeviceRequest(device_ids=[str(g) for g in c.gpus], capabilities=[["gpu"]])]
    if not c.network:
        host["network_mode"] = "none"
    return own, host


# --- containers that are there --------------------------------------------------------------------------------------


def of_run(client: DockerClient, run: Run) -> Container | None:
    """The container of a run, at work or ended."""
    found = client.containers.list(all=True, filters={"label": f"{RUN_LABEL}={run.path}"})
    return found[0] if found else None


def taken(client: DockerClient) -> dict[int, str]:
    """The accelerators that running containers of ours hold: their memory may not be in use yet."""
    held: dict[int, str] = {}
    for container in client.containers.list(filters={"label": DEVICES_LABEL}):
        for number in filter(None, container.labels[DEVICES_LABEL].split(",")):
            held[int(number)] = f"container {container.name}"
    return held


def attach(client: DockerClient, run: Run) -> int:
    """Follows the container of a run, from the beginning of its output, to its end. Raises FindingsError."""
    container = of_run(client, run)
    if container is None:
        raise FindingsError(
            NOT_RUNNING.finding(
                f"no container is at work on {run.path}",
                why="There is nothing to attach to.",
                fix="Leave out --attach; the run goes on where it stopped.",
            ),
            EXIT_USAGE,
        )
    return follow(container)


def start(client: DockerClient, contained: Contained, run: Run) -> int:
    """Starts a container and follows it to its end. Raises FindingsError when one is at work, or it cannot start."""
    from docker.errors import APIError

    earlier = of_run(client, run)
    if earlier is not None and earlier.status in ("running", "created", "paused", "restarting"):
        raise FindingsError(
            RUNNING.finding(
                f"container {earlier.name} is at work on {run.path}",
                why="Two processes on one run would destroy each other's files.",
                fix="Add --attach to follow it, or --name for another run.",
            ),
            EXIT_USAGE,
        )
    if earlier is not None:  # its launcher died; what it had to say is in the run's logs
        earlier.remove(force=True)
    container = None
    try:
        own, host = create_arguments(contained)  # the SDK's `containers.create` knows no stop_timeout
        created = client.api.create_container(**own, host_config=client.api.create_host_config(**host))
        container = client.containers.get(created["Id"])
        return follow(container, begin=True)
    except APIError as error:
        if container is not None:
            with contextlib.suppress(APIError):
                container.remove(force=True)
        raise FindingsError(refused(contained, error), EXIT_PREFLIGHT) from error


def refused(contained: Contained, error: Exception) -> Finding:
    """What the engine's refusal means."""
    text = str(getattr(error, "explanation", None) or error)
    if 'driver "nvidia"' in text or "nvidia-container-cli" in text or "CDI device" in text:
        fix = (
            "sudo apt-get install -y nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker"
            " && sudo systemctl restart docker"
        )
    elif "is already in use" in text:
        fix = f"docker rm {contained.name}, or --name for another run"
    elif "device information" in text:
        fix = "`python entrypoint.py doctor` says what is wrong with the device."
    else:
        fix = "`launch --dry-run` prints the docker command, which can be changed and run by hand."
    return NOT_STARTED.finding(
        f"the engine does not start {contained.name}: {text}", why="The run has not begun.", fix=fix
    )


def follow(container: Container, begin: bool = False) -> int:
    """Shows a container's output as it comes, forwards SIGINT and SIGTERM, removes it, and returns its exit code.

    A container that has not ended STOP_SECONDS after a signal is killed. When the launcher is killed, or told to stop
    twice, the container goes on without it. Raises FindingsError when someone else removes the container.
    """
    from docker.errors import APIError, NotFound

    terminal = container.attrs["Config"]["Tty"]  # its one stream is stdout
    readers = [
        threading.Thread(target=_copy, args=(container, name), daemon=True)
        for name in (("stdout",) if terminal else ("stdout", "stderr"))
    ]
    stopped: process.Interrupted | None = None
    with process.interruptible():
        try:
            if begin:
                container.start()
                if terminal:
                    size = shutil.get_terminal_size()
                    container.resize(size.lines, size.columns)
            for reader in readers:
                reader.start()
            while any(reader.is_alive() for reader in readers):
                readers[0].join(0.2)
                readers[-1].join(0.2)
        except process.Interrupted as stop:
            stopped = stop
    if stopped is not None and not _stop(container, stopped.signum, readers):
        container.remove(force=True)
        return 128 + stopped.signum
    try:
        code = int(container.wait()["StatusCode"])
    except NotFound as error:
        raise FindingsError(
            NOT_RUNNING.finding(
                f"container {container.name} was removed while it was followed",
                why="Its exit code is lost.",
                fix="`python entrypoint.py status` says how far the run has come; the same command goes on.",
            ),
            EXIT_PREFLIGHT,
        ) from error
    except OSError as error:
        raise FindingsError(engine.explain(error), EXIT_PREFLIGHT) from error
    with contextlib.suppress(APIError):  # someone else is removing it
        container.remove(force=True)
    return code


def _stop(container: Container, number: int, readers: Sequence[threading.Thread]) -> bool:
    """Passes a signal on and waits for the container to end; returns whether it had been started at all."""
    if not _kill(container, number):
        return False
    for reader in readers:
        if reader.ident is None:  # the signal came before
            reader.start()
    deadline = time.monotonic() + STOP_SECONDS
    for reader in readers:
        reader.join(max(0.0, deadline - time.monotonic()))
    if any(reader.is_alive() for reader in readers):
        _kill(container, signal.SIGKILL)
    return True


def _kill(container: Container, number: int, patience: float = 5.0) -> bool:
    """Sends a signal to a container, which may just be starting, or have ended; False when it does not start."""
    from docker.errors import APIError

    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            container.kill(signal=number)
            return True
        except APIError:
            with contextlib.suppress(APIError):
                container.reload()
            if container.status not in ("created", "running"):
                return True
            time.sleep(0.2)
    return False


def _copy(container: Container, name: str) -> None:
    """Copies one of a container's streams, from its beginning, to this process's stream of the same name.

    Not by attaching: the SDK loses what the engine sends with its first answer then.
    """
    target = sys.stdout.buffer if name == "stdout" else sys.stderr.buffer
    with contextlib.suppress(OSError):  # who reads the output has gone, or the engine has: `follow` finds out
        for chunk in container.logs(stream=True, follow=True, stdout=name == "stdout", stderr=name == "stderr"):
            target.write(chunk)
            target.flush()
