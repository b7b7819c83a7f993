"""Whether the Ray cluster that a run joins can carry it, found out before anything is created.

Covered: is there a cluster at the address, is this machine one of its nodes, are there enough nodes with enough
devices free, do all of them run the same software, have the same verlbox and see the same files. What is not covered:
the network between the devices, which only training shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from verlbox import cluster, findings
from verlbox.findings import Finding
from verlbox.plan import OWN_RAY, ROOT, Plan
from verlbox.recipe import WRONG_VALUE
from verlbox.stacks import STACKS

UNREACHABLE = findings.register("cluster-unreachable", "error", "No Ray cluster answers at the address.")
REFUSED = findings.register("cluster-refused", "error", "The Ray cluster refuses this machine's token.")
NOT_A_NODE = findings.register("cluster-not-joined", "error", "This machine cannot join the Ray cluster's jobs.")
TOO_SMALL = findings.register("cluster-too-small", "error", "The Ray cluster has too few nodes or devices.")
BUSY = findings.register("cluster-busy", "error", "The Ray cluster's devices are taken by another job.")
DIFFERS = findings.register("cluster-software-differs", "error", "Nodes of the Ray cluster run other software.")
NOT_SHARED = findings.register("cluster-files-not-shared", "error", "A node of the Ray cluster does not see the files.")
LOST = findings.register("cluster-node-lost", "error", "A node of the Ray cluster was lost while training.")
SILENT = findings.register("cluster-node-silent", "error", "A node of the Ray cluster does not answer.")
CODES = (
    UNREACHABLE,
    REFUSED,
    NOT_A_NODE,
    TOO_SMALL,
    BUSY,
    DIFFERS,
    NOT_SHARED,
    SILENT,
)  # of a cluster not fit for a run

SECONDS_TO_CONNECT = 5.0
SECONDS_TO_SETTLE = 15.0  # after a run was stopped, until Ray has its devices back
SECONDS_IN_ALL = 150.0
HOW = "docs/cluster.md shows how nodes are started."
# What ray.init takes only when it starts a cluster (ray 2.55.1 and 2.60.0, _private/worker.py, init).
REFUSED_BY_RAY = ("num_cpus", "num_gpus", "resources", "labels", "object_store_memory")


def look(plan: Plan, address: str) -> tuple[list[Finding], dict[str, str]]:
    """Everything that keeps the cluster at an address from carrying the plan, and the cluster's nodes (id -> name)."""
    wrong = _wrong_address(address)
    if wrong or (address != "auto" and not _listens(address)):
        found = wrong or [_unreachable(address, f"nothing listens on {address}")]
        return [*(_by_environment(plan, address, one) for one in found), *_own_settings(plan)], {}
    if found := _own_settings(plan):
        return found, {}
    answer = _probe(_request(plan, address))
    return judge(plan, address, answer), {node["id"]: node["name"] for node in answer.get("nodes", [])}


def lost(plan: Plan, address: str, before: Mapping[str, str]) -> list[Finding]:
    """What became of the nodes that there were (`before`, as `look` gave them) when training has failed."""
    found, now = look(plan, address)
    silent = [finding for finding in found if finding.code in (UNREACHABLE.name, SILENT.name)]
    gone = ", ".join(name for node, name in before.items() if node not in now)
    if not gone or (silent and not now):
        return silent
    finding = LOST.finding(
        f"the Ray cluster lost {gone} while training",
        why="Its machine, its container or its Ray ended, and with it that node's part of the model.",
        fix="Bring the node back (or another one; nodes have no state of their own), and run the same command again: it"
        " goes on from the last checkpoint.",
    )
    return [finding, *silent]


def _wrong_address(address: str) -> list[Finding]:
    """An address of another kind than the one that nodes of a cluster use."""
    host, _, port = address.rpartition(":")
    if address == "auto" or ("/" not in address and host and port.isdigit()):
        return []
    if "://" in address:
        why = "That is the address of Ray's job API or of Ray Client, which verl does not use."
        fix = (
            "From outside the cluster: `entrypoint.py submit RECIPE --address http://HEAD:8265`. On a node: HEAD:6379."
        )
    else:
        why, fix = (
            "An address is host:port, or auto for the cluster that runs on this machine.",
            "For instance HEAD:6379.",
        )
    return [WRONG_VALUE.finding(f"the cluster's address is {address}", why=why, fix=fix)]


def _by_environment(plan: Plan, address: str, finding: Finding) -> Finding:
    """The finding with a word on RAY_ADDRESS where the address is from there: other programs set it as well."""
    if address == "auto" or plan.recipe.cluster.address or plan.recipe.cluster.nodes > 1:
        return finding
    fix = f"{finding.fix} The address is that of {cluster.ADDRESS_VARIABLE}: unset it for a Ray of the run's own."
    return replace(finding, fix=fix)


def _own_settings(plan: Plan) -> list[Finding]:
    """Settings of a Ray that is started, which one that is joined refuses."""
    given = [f"{OWN_RAY}{name}" for name in REFUSED_BY_RAY if plan.effective.get(f"{OWN_RAY}{name}") is not None]
    return [
        WRONG_VALUE.finding(
            f"{key} is set, and the run joins a cluster",
            why="Ray takes it only where it starts a cluster, and stops otherwise.",
            fix=f"Leave {key} out; `ray start` on the nodes has options for it.",
        )
        for key in given
    ]


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT):
            return True
    except (OSError, OverflowError):
        return False


def _unreachable(address: str, reason: str) -> Finding:
    several = "" if address != "auto" else " A recipe with several nodes joins a cluster that is there already."
    return UNREACHABLE.finding(
        f"no Ray cluster at {address}: {reason}",
        why=f"Training past one machine is a job of a Ray cluster.{several}",
        fix=f"Start the cluster, or set cluster.address or RAY_ADDRESS to its head. {HOW}",
    )


def _request(plan: Plan, address: str) -> dict[str, Any]:
    return {
        "address": address,
        "needed": cluster.needed(STACKS[plan.recipe.stack], _devices(plan)),
        "nodes": _nodes(plan),
        "folders": sorted({str(_existing(folder)) for folder in _folders(plan)}),
        "files": [str(file) for file in _files(plan)],
        "patience": SECONDS_TO_SETTLE,
    }


def _devices(plan: Plan) -> int:
    """Devices on a node, as verl will ask for them; an override of the recipe's number counts."""
    number = plan.effective.get("trainer.n_gpus_per_node")
    return number if isinstance(number, int) else plan.recipe.train.devices


def _nodes(plan: Plan) -> int:
    number = plan.effective.get("trainer.nnodes")
    return number if isinstance(number, int) else plan.recipe.cluster.nodes


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _folders(plan: Plan) -> list[Path]:
    """What all nodes read and write: the run, and the cache where its model lies there."""
    from verlbox.stages.download import cache_folder

    in_cache = plan.recipe.model.source not in ("local", "bundled")
    return [plan.run.path, *([cache_folder().resolve()] if in_cache else [])]


def _files(plan: Plan) -> list[Path]:
    """What of verlbox is loaded inside verl's workers, and the configuration of a model that lies outside the cache."""
    package = ROOT / "verlbox"
    code = [package / "__init__.py", *package.glob("rewards/*.py"), *package.glob("platforms/*.py")]
    own = plan.recipe.model.path if plan.recipe.model.source == "local" else None
    return sorted(code) + ([Path(own) / "config.json"] if own else [])


def _probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a probe in a process of its own; Ray's own words when it does not end well."""
    command = [sys.executable, "-m", "verlbox.cluster.probe"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS_IN_ALL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": ["TimeoutError", f"it did not answer in {SECONDS_IN_ALL:.0f} s"]}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": ["RuntimeError", said[-1]]}
    if "error" in answer and "InvalidAuthToken" in done.stderr:  # Ray logs it, and raises something vaguer
        answer["error"][0] = "AuthenticationError"
    return answer


def judge(plan: Plan, address: str, answer: Mapping[str, Any]) -> list[Finding]:
    """The findings about what a probe saw of the cluster."""
    if "error" in answer:
        return [_refusal(address, *answer["error"])]
    nodes = answer["nodes"]
    files = {str(file): _hash(file) for file in _files(plan)}
    return [*_capacity(plan, nodes), *(f for node in nodes for f in _node(node, nodes[0], files))]


def _hash(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def _refusal(address: str, kind: str, text: str) -> Finding:
    said = " ".join(text.split())
    if "ersion mismatch" in said:
        return DIFFERS.finding(
            f"the Ray cluster at {address} runs other versions: {said}",
            why="Ray passes Python objects between nodes, which only equal versions understand.",
            fix="Use one image, or environments from one file of pins, on all nodes and here.",
        )
    if kind == "AuthenticationError" or "AuthToken" in said:
        return REFUSED.finding(
            f"the Ray cluster at {address} wants a token",
            why="It was started with Ray's token authentication.",
            fix="Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as on the cluster's nodes.",
        )
    if kind == "ConnectionError" and address == "auto":
        return _unreachable(address, "none runs on this machine")
    return NOT_A_NODE.finding(
        f"the Ray cluster at {address} cannot be joined from here: {said[:300]}",
        why="verl's driver has to run on a node of the cluster.",
        fix=f"Run it on a node (`ray start --address={address}` makes this machine one), or `entrypoint.py submit`.",
    )


def _fits(has: Mapping[str, float], needed: Mapping[str, int]) -> bool:
    return all(has.get(name, 0) >= amount for name, amount in needed.items())


def _capacity(plan: Plan, nodes: Sequence[Mapping[str, Any]]) -> list[Finding]:
    stack, devices, wanted = STACKS[plan.recipe.stack], _devices(plan), _nodes(plan)
    needed = cluster.needed(stack, devices)
    options = shlex.join(cluster.node_options(stack.platform, devices))
    what = ", ".join(f"{amount} {name}" for name, amount in needed.items())
    able = [node for node in nodes if _fits(node["has"], needed)]
    free = [node for node in nodes if _fits(node["free"], needed)]

    def listed(key: str) -> str:
        return "; ".join(f"{n['name']}: {', '.join(f'{n[key].get(r, 0):g} {r}' for r in needed)}" for n in nodes)

    if len(able) < wanted:
        return [
            TOO_SMALL.finding(
                f"{wanted} nodes with {what} each are wanted, and {len(able)} of the cluster's {len(nodes)} have them"
                f" ({listed('has')})",
                why="verl would stop, or wait for ever for the others.",
                fix=f"Add nodes (`ray start --address=... {options}`), or lower cluster.nodes or train.devices.",
            )
        ]
    if len(free) < wanted:
        return [
            BUSY.finding(
                f"{wanted} nodes with {what} each are wanted, and {len(free)} have them free ({listed('free')})",
                why="Another job of the cluster holds them.",
                fix="Wait for it, or stop it: `ray job list`, `ray list actors`, `ray status`.",
            )
        ]
    return []


def _node(node: Mapping[str, Any], first: Mapping[str, Any], files: Mapping[str, str | None]) -> list[Finding]:
    """What is wrong with one node, whether or not its devices would be used."""
    name = node["name"]
    if "silent" in node:
        return [
            SILENT.finding(
                f"node {name}: {node['silent']}",
                why="Ray lists it as alive, but nothing can be started there.",
                fix="Look at its machine and at Ray's logs on it; `ray stop` there takes it out of the cluster.",
            )
        ]
    found = []
    expected = first.get("versions", node["versions"])
    if node["versions"] != expected:
        differing = sorted({*node["versions"], *expected})
        pairs = [(key, node["versions"].get(key, "none"), expected.get(key, "none")) for key in differing]
        said = ", ".join(f"{key} {there} (elsewhere {other})" for key, there, other in pairs if there != other)
        found.append(
            DIFFERS.finding(
                f"node {name} has {said}",
                why="One training job would run on two sets of software.",
                fix="Use one image, or environments from one file of pins, on all nodes.",
            )
        )
    for folder, reason in sorted(node["trouble"].items()):
        found.append(
            NOT_SHARED.finding(
                f"node {name} does not share {folder}: {reason}",
                why="Every node reads the data and the model, and writes its part of each checkpoint.",
                fix="Put runs and cache (--runs, VERLBOX_RUNS, VERLBOX_CACHE) on a file system that all nodes mount at"
                " the same path, writable by the user that Ray runs as.",
            )
        )
    other = [file for file, known in files.items() if node["hashes"].get(file) != known]
    if other:
        missing = sum(node["hashes"].get(file) is None for file in other)
        found.append(
            NOT_SHARED.finding(
                f"node {name} has {len(other)} of {len(files)} files otherwise than this machine"
                f" ({missing} are missing), first {other[0]}",
                why="verl's workers load the reward function and the platform's code from there.",
                fix="Have the same verlbox, and the model's folder, at the same path on all nodes: one image, or a"
                " shared file system.",
            )
        )
    return found
