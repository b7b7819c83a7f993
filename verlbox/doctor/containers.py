"""Checks of Docker: needed on a host that gets a stack from its image, a note elsewhere."""

from __future__ import annotations

from verlbox import findings
from verlbox.doctor.machine import in_container, version
from verlbox.doctor.subject import Checked, Subject
from verlbox.findings import Finding

ABSENT = findings.register("docker-absent", "note", "Docker is not installed, or its engine does not answer.")
COMPOSE = findings.register("compose-old", "warning", "Docker's compose plugin is missing or too old.")
RUNTIME = findings.register("container-runtime", "error", "The engine cannot pass the accelerator to a container.")

OLDEST_COMPOSE = (2, 20)  # `include`, and `depends_on` with `required`


def engine(subject: Subject) -> Checked:
    if in_container(subject.machine):
        return Checked("inside a container")
    docker = subject.docker
    if not docker.client:
        problem = ABSENT.finding(
            "there is no docker command",
            why="Only `docker compose run` needs it; runs without Docker do not.",
            fix="https://docs.docker.com/engine/install, or use the environment of this Python.",
        )
        return Checked("no Docker", [problem])
    if not docker.server:
        denied = "permission denied" in docker.trouble.lower()
        problem = ABSENT.finding(
            "Docker's engine " + ("does not let this user in" if denied else "does not answer") + f": {docker.trouble}",
            why="Only `docker compose run` needs it; runs without Docker do not.",
            fix="sudo usermod -aG docker $USER && newgrp docker" if denied else "sudo systemctl start docker",
        )
        return Checked("Docker's engine does not answer", [problem])
    problems: list[Finding] = []
    if version(docker.compose) < OLDEST_COMPOSE:
        problems.append(
            COMPOSE.finding(
                f"compose {docker.compose or 'is not installed'}, 2.20 or newer is needed",
                why="compose.yaml uses what older versions do not know.",
                fix="sudo apt-get install docker-compose-plugin",
                severity="error" if subject.from_image else "warning",
            )
        )
    return Checked(f"engine {docker.server}, compose {docker.compose or 'none'}", problems)


def runtime(subject: Subject) -> Checked:
    """The engine's runtime for the platform's devices; a plain engine can pass Ascend's, but not NVIDIA's."""
    docker = subject.docker
    if in_container(subject.machine) or not docker.server:
        return Checked("no engine to ask")
    name = {"cuda": "nvidia", "npu": "ascend"}[subject.platform]
    if name in docker.runtimes or (name == "nvidia" and _cdi(subject)):
        return Checked(f"runtime {name} is there")
    if name == "ascend":
        return Checked("no Ascend runtime; compose.yaml passes the devices themselves")
    problem = RUNTIME.finding(
        "the engine has no NVIDIA runtime",
        why='A container would see no GPU: `could not select device driver "nvidia"`.',
        fix="sudo apt-get install -y nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker"
        " && sudo systemctl restart docker",
        severity="error" if subject.from_image else "note",
    )
    return Checked("no NVIDIA runtime", [problem])


def _cdi(subject: Subject) -> bool:
    """Whether NVIDIA's devices are described for the engine itself (CDI)."""
    return any(subject.machine.names(folder) for folder in ("/etc/cdi", "/var/run/cdi"))
