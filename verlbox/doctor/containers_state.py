"""What Docker says of itself: engine, compose, runtimes. The checks that judge it are in containers.py."""

from __future__ import annotations

import json
from dataclasses import dataclass

from verlbox.doctor.machine import Machine

SECONDS = 1.5  # a running engine answers in a tenth of that


@dataclass(frozen=True)
class Docker:
    """`client` is false without a docker command; `server` empty when no engine answers, for the reason `trouble`."""

    client: bool
    server: str = ""
    trouble: str = ""
    compose: str = ""
    runtimes: tuple[str, ...] = ()


def look(machine: Machine) -> Docker:
    """Asks docker for its engine's version, the compose plugin's, and the engine's runtimes."""
    said = machine.program(["docker", "version", "--format", "{{json .Server}}"], SECONDS)
    if said is None:
        return Docker(client=False)
    compose = machine.program(["docker", "compose", "version", "--short"], SECONDS)
    plugin = compose.out.strip().lstrip("v") if compose and compose.code == 0 else ""
    server = _json(said.out)
    if said.code or not isinstance(server, dict) or not server.get("Version"):
        return Docker(True, trouble=said.err.strip() or "no answer", compose=plugin)
    info = machine.program(["docker", "info", "--format", "{{json .Runtimes}}"], SECONDS)
    runtimes = _json(info.out) if info and info.code == 0 else None
    names = tuple(sorted(runtimes)) if isinstance(runtimes, dict) else ()
    return Docker(True, str(server["Version"]), compose=plugin, runtimes=names)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
