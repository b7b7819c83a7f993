"""Looks at a Ray cluster from a process of its own, since connecting to one leaves threads behind.

    python -m verlbox.cluster.probe < request.json

The request: `address`, `needed` (resource -> amount on a node), `nodes` (how many), `folders` (that every node has to
see and write), `files` (to be alike on every node), `patience` (seconds until what others hold has to be free).
The answer is the last line of standard output, as JSON: `error` (class and text) when the cluster cannot be joined,
else `nodes`, each with its id and name, what it has and has free, and what it sees. A machine that is gone can be in
Ray's list for half a minute; it is not in the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SECONDS_TO_ANSWER = 60.0  # a node starts a Python process to answer; 5 s where nothing else is at work


def look(folders: list[str], token: str, node: str, files: list[str]) -> dict[str, Any]:
    """What one node sees: versions, hashes of files, whether it finds the driver's token and can answer beside it."""
    import hashlib
    import platform
    from importlib import metadata

    versions = {"python": platform.python_version()}
    for name in ("ray", "verl", "torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    trouble: dict[str, str] = {}
    for folder in folders:
        try:
            if Path(folder, f".verlbox-{token}").read_text() != token:
                trouble[folder] = "another folder of the same name"
            Path(folder, f".verlbox-{token}.{node}").write_text(token)
        except OSError as error:
            trouble[folder] = error.strerror or str(error)
    hashes: dict[str, str | None] = {}
    for file in files:
        try:
            hashes[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError:
            hashes[file] = None
    return {"versions": versions, "trouble": trouble, "hashes": hashes}


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Joins the cluster, asks every node, and leaves it again."""
    import ray

    try:
        ray.init(address=request["address"], logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # whatever Ray says of it is the answer
        return {"error": [type(error).__name__, str(error)]}
    try:
        return {"nodes": _answers(request)}
    finally:
        ray.shutdown()


def _enough(nodes: Iterable[Mapping[str, float]], request: dict[str, Any]) -> bool:
    fit = [node for node in nodes if all(node.get(r, 0) >= n for r, n in request["needed"].items())]
    wanted: int = request["nodes"]
    return len(fit) >= wanted


def _free() -> dict[str, dict[str, float]]:
    from ray._private.state import available_resources_per_node

    free: dict[str, dict[str, float]] = available_resources_per_node()
    return free


def _answers(request: dict[str, Any]) -> list[dict[str, Any]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = _alive()
    deadline = time.monotonic() + request["patience"]
    if _enough([node["Resources"] for node in nodes], request):
        while not _enough(_free().values(), request) and time.monotonic() < deadline:
            time.sleep(0.5)
    token = secrets.token_hex(8)
    ask = ray.remote(num_cpus=0, max_retries=0)(look)
    with contextlib.ExitStack() as cleanup:
        for folder in request["folders"]:
            with contextlib.suppress(OSError):  # the nodes will say that they do not find it
                Path(folder, f".verlbox-{token}").write_text(token)
            cleanup.callback(_remove, folder, token)
        asked = []
        for node in nodes:
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            words = (request["folders"], token, node["NodeID"], request["files"])
            asked.append(ask.options(scheduling_strategy=here).remote(*words))
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=SECONDS_TO_ANSWER)
        free, alive = _free(), {node["NodeID"] for node in _alive()}
        found = []
        for node, answer in zip(nodes, asked, strict=True):
            if answer not in ready and node["NodeID"] not in alive:
                continue
            silent: dict[str, Any] = {"silent": f"no answer in {SECONDS_TO_ANSWER:.0f} s"}
            seen = _answer(answer) if answer in ready else silent
            if seen is None:
                continue
            for folder in request["folders"]:
                if "trouble" in seen and not Path(folder, f".verlbox-{token}.{node['NodeID']}").exists():
                    seen["trouble"].setdefault(folder, "what the node writes there does not arrive here")
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            found.append(
                {
                    "id": node["NodeID"],
                    "name": name,
                    "has": node["Resources"],
                    "free": free.get(node["NodeID"], {}),
                    **seen,
                }
            )
        return found


def _alive() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _answer(reference: Any) -> dict[str, Any] | None:
    """What a node said; None when it is gone."""
    import ray

    try:
        seen: dict[str, Any] = ray.get(reference)
        return seen
    except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
        return None
    except ray.exceptions.RayError as error:
        return {"silent": str(error).strip().splitlines()[-1]}


def _remove(folder: str, token: str) -> None:
    for path in Path(folder).glob(f".verlbox-{token}*"):
        with contextlib.suppress(OSError):
            path.unlink()


if __name__ == "__main__":
    answer = probe(json.load(sys.stdin))
    print(json.dumps(answer), flush=True)
    os._exit(0)  # Ray's threads would keep the process for seconds
