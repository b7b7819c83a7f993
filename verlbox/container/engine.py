"""The Docker engine: a connection to it, or a finding that says why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verlbox import findings
from verlbox.findings import EXIT_PREFLIGHT, FindingsError

if TYPE_CHECKING:
    import docker

ABSENT = findings.register("engine-absent", "error", "No Docker engine answers.")
DENIED = findings.register("engine-denied", "error", "This user may not use the Docker engine.")

HINT = "Without Docker: `python entrypoint.py run RECIPE` in an environment of the stack."


def connect() -> docker.DockerClient:
    """A client of the engine that DOCKER_HOST or the default socket names. Raises FindingsError (exit code 3)."""
    import docker

    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as error:
        raise FindingsError(explain(error), EXIT_PREFLIGHT) from error
    except (OSError, ValueError) as error:  # a connection that breaks, an address that cannot be read
        raise FindingsError(explain(error), EXIT_PREFLIGHT) from error
    return client


def explain(error: BaseException) -> findings.Finding:
    """What keeps an engine from answering. requests and urllib3 wrap the cause; their text holds it."""
    text = str(error)
    if "PermissionError" in text or "permission denied" in text.lower():
        return DENIED.finding(
            "the Docker engine does not let this user in",
            why="Its socket belongs to root and the group docker.",
            fix=f"sudo usermod -aG docker $USER && newgrp docker. {HINT}",
        )
    reason = "there is no socket" if "FileNotFoundError" in text else text
    return ABSENT.finding(
        f"no Docker engine answers: {reason}",
        why="`launch` starts the recipe in a container.",
        fix=f"sudo systemctl start docker, or set DOCKER_HOST to where the engine listens. {HINT}",
    )


def rootless(client: docker.DockerClient) -> bool:
    """Whether the engine runs as this user, so that root in a container is this user on the host."""
    return any("rootless" in option for option in client.info().get("SecurityOptions") or [])
