"""Checks of the network: the sources that the recipe needs, the ports of Ray, a Ray cluster left over."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from verlbox import findings
from verlbox.doctor.host import CLOCK
from verlbox.doctor.machine import Machine, Reply
from verlbox.doctor.subject import Checked, Repair, Subject
from verlbox.findings import Finding
from verlbox.recipe import AT_HAND, Dataset, Model

UNREACHABLE = findings.register("source-unreachable", "error", "No source of the model or data set answers.")
SILENT = findings.register("source-silent", "note", "A source does not answer, another one does.")
RAY_RUNNING = findings.register("ray-address", "warning", "Ray is told to join a cluster instead of starting its own.")
RAY_PORT = findings.register("ray-port-taken", "note", "Another program listens on a port that Ray uses by default.")

SECONDS = 1.5  # for all sources together: they are asked at the same time
SKEW = 300.0  # seconds; signatures of requests are refused from about there

# Ray's own defaults: GCS, client server, dashboard. `ray.init` takes others when they are taken, `ray start` does not.
RAY_PORTS = {6379: "GCS", 10001: "client server", 8265: "dashboard"}


def _sources(section: Model | Dataset) -> list[str]:
    return [section.source] if isinstance(section.source, str) else list(section.source)


def _cached(cache: Path, kind: str, section: Model | Dataset) -> bool:
    """Whether the shared cache holds a complete copy (hub/fetch.py describes its layout)."""
    shelf = cache / f"{kind}s" / section.name.replace("/", "--")
    return any(shelf.glob(f"{section.revision or '*'}/.verlbox-files.json"))


def sources(subject: Subject) -> Checked:
    """The hubs of the recipe's model and data set: nothing is asked for what is bundled, local or in the cache."""
    from verlbox.hub.client import endpoints

    if subject.recipe is None:
        return Checked("no recipe given: no source is asked")
    cache = subject.machine.path(subject.cache)
    wanted: dict[str, list[str]] = {}
    for kind, section in (("model", subject.recipe.model), ("dataset", subject.recipe.dataset)):
        names = [name for name in _sources(section) if name not in AT_HAND]
        if names and not _cached(cache, kind, section):
            wanted[f"{kind} {section.name}"] = names
    if not wanted:
        return Checked("no source is needed: model and data set are bundled, local or in the cache")
    addresses: Mapping[str, str] = {str(name): address for name, address in endpoints().items()}
    asked = sorted({addresses[name] for names in wanted.values() for name in names})
    replies = _ask_all(subject.machine, asked)
    problems = [finding for what, names in wanted.items() for finding in _judge(what, names, addresses, replies)]
    for address, reply in replies.items():
        if reply.date is not None and abs(reply.date - subject.machine.now) > SKEW:
            problems.append(
                CLOCK.finding(
                    f"the clock is {subject.machine.now - reply.date:+.0f} s off the one of {_host(address)}",
                    why="Signed requests are refused, and logs of several machines cannot be put in order.",
                    fix="sudo timedatectl set-ntp true",
                )
            )
            break
    answered = [_host(a) for a, reply in replies.items() if reply.status]
    return Checked(
        f"{len(answered)} of {len(asked)} sources answer" + f": {', '.join(answered)}" * bool(answered), problems
    )


def _ask_all(machine: Machine, addresses: list[str]) -> dict[str, Reply]:
    """The replies of all addresses, within the time for one: looking up a name has no time limit of its own."""
    replies = {address: Reply(0, f"no answer within {SECONDS:g} s") for address in addresses}

    def one(address: str) -> None:
        replies[address] = machine.ask(address, SECONDS)

    threads = [threading.Thread(target=one, args=(address,), daemon=True) for address in addresses]
    deadline = time.monotonic() + SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(replies)


def _host(address: str) -> str:
    return urlsplit(address).hostname or address


def _judge(what: str, names: list[str], addresses: Mapping[str, str], replies: Mapping[str, Reply]) -> list[Finding]:
    silent = [name for name in names if not replies[addresses[name]].status]
    if not silent:
        return []
    reasons = "; ".join(f"{name} ({_host(addresses[name])}): {replies[addresses[name]].reason}" for name in silent)
    kind = what.partition(" ")[0]
    if len(silent) == len(names):
        return [
            UNREACHABLE.finding(
                f"{what}: no source answers. {reasons}",
                why="The download stage would fail.",
                fix=f"Set HTTPS_PROXY, or HF_ENDPOINT to a mirror that can be reached; or get the files on another"
                f" machine and set {kind}.source=local {kind}.path=FOLDER.",
            )
        ]
    others = ", ".join(other for other in names if other not in silent)
    return [
        SILENT.finding(
            f"{what}: {reasons}",
            why=f"It is tried first or in between, which takes time; {others} answers.",
            fix=f"{kind}.source={next(other for other in names if other not in silent)}",
        )
    ]


def ray(subject: Subject) -> Checked:
    """Whether a run of one node will have a Ray of its own, and whether Ray's usual ports are free."""
    machine = subject.machine
    listening = {port for table in ("tcp", "tcp6") for port in _listening(machine.read(f"/proc/net/{table}") or "")}
    taken = {port: use for port, use in RAY_PORTS.items() if port in listening}
    problems: list[Finding] = []
    repairs: list[Repair] = []
    wants_a_cluster = subject.recipe is not None and subject.recipe.cluster.nodes > 1
    address = machine.environment.get("RAY_ADDRESS", "local")
    if address not in ("", "local") and not wants_a_cluster:
        problems.append(
            RAY_RUNNING.finding(
                f"RAY_ADDRESS={address} is set",
                why="The run would join that cluster, with its devices and its environment, or fail if it is gone.",
                fix="unset RAY_ADDRESS",
            )
        )
        repairs.append(Repair(line="unset RAY_ADDRESS"))
    if taken:
        ports = ", ".join(f"{port} ({use})" for port, use in taken.items())
        problems.append(
            RAY_PORT.finding(
                f"something listens on {ports}",
                why="A run finds other ports by itself; `ray start` does not. A cluster left over also holds memory"
                " and devices.",
                fix="ray stop, if it is a cluster that is no longer needed.",
            )
        )
    return Checked("Ray's usual ports are " + ("free" if not taken else "taken"), problems, repairs)


def _listening(table: str) -> list[int]:
    """Ports of /proc/net/tcp or tcp6 in state 0A (listen)."""
    return [
        int(m[1], 16) for m in re.finditer(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A ", table, re.M)
    ]
