"""manifest.json: what a run was made of, so that it can be repeated and trusted. No secret is ever read for it."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import verlbox
from verlbox import pins
from verlbox.findings import FindingsError
from verlbox.plan import ROOT, Plan, verl_command
from verlbox.run import RUN_UNREADABLE, Run, write_json
from verlbox.stacks import STACKS

SCHEMA = 1
REVISION_VARIABLE = "VERLBOX_REVISION"  # an image has no .git: the commit that it was built from, perhaps with -dirty
KEYS = frozenset({"recipe", "stack", "verl", "steps", "verlbox", "hardware", "packages", "attempts"})


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def package_versions() -> dict[str, str]:
    """Every installed package and its version; of two with one name, the one that is imported."""
    return dict(sorted(((name, version) for name, version, _ in pins.described()), key=lambda item: item[0].lower()))


def source(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """verlbox's own version: number, git commit and whether the checkout has changes.

    Without git, as in an image, VERLBOX_REVISION says it; where that is absent too, both are null.
    """
    result: dict[str, Any] = {"version": verlbox.__version__, "commit": None, "dirty": None}
    if (root / ".git").exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            result["commit"] = _git(root, "rev-parse", "HEAD")
            result["dirty"] = bool(_git(root, "status", "--porcelain"))
    elif built := re.fullmatch(r"([0-9a-f]{7,64})(-dirty)?", environment.get(REVISION_VARIABLE, "")):
        result["commit"], result["dirty"] = built[1], built[2] is not None
    return result


def revision() -> str | None:
    """The commit of these sources, with -dirty where they have changes; None when it is not known."""
    own = source()
    return f"{own['commit']}-dirty" if own["commit"] and own["dirty"] else own["commit"]


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


@cache
def accelerators(kind: str) -> tuple[dict[str, Any], ...]:
    """Name and memory of each NPU or GPU, as the vendor's tool lists them; none where it is absent or fails."""
    from verlbox.doctor import ascend, nvidia
    from verlbox.doctor.machine import run_program

    if kind == "cuda":
        said = run_program(["nvidia-smi", f"--query-gpu={nvidia.QUERY}", "--format=csv,noheader,nounits"], 5.0)
        cards: list[nvidia.Card] | list[ascend.Card] = nvidia.cards(said.out if said else "")
    elif kind == "npu":
        said = run_program(["npu-smi", "info"], 5.0)
        cards = ascend.cards(said.out if said else "")
    else:
        return ()
    return tuple({"name": card.name, "memory_bytes": card.total * 2**20} for card in cards)


def hardware(kind: str) -> dict[str, Any]:
    """Accelerators of a platform, processor, cores this process may use, memory, operating system."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "accelerators": list(accelerators(kind)),
        "machine": platform.machine(),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk_free_bytes": shutil.disk_usage("/").free,
        "system": platform.platform(),
        "python": sys.version.split()[0],
    }


def write(run: Run, plan: Plan, stages: tuple[str, ...], attempts: list[dict[str, Any]]) -> None:
    """Writes the manifest from the plan and the markers that are there."""
    markers = {name: marker for name in stages if (marker := run.marker(name)) is not None}
    stack = STACKS[plan.recipe.stack]
    download = markers["download"].details if "download" in markers else {}
    preprocess = markers["preprocess"].details if "preprocess" in markers else {}
    write_json(
        run.path / "manifest.json",
        {
            "schema": SCHEMA,
            "run": run.name,
            "recipe": plan.recipe.model_dump(mode="json"),
            "stack": {"name": stack.name, "platform": stack.platform, "verl": stack.verl},
            "verl": {
                "command": verl_command(plan.settings, plan.recipe.overrides),
                "environment": dict(plan.environment),
                "settings": dict(plan.effective),
                "user_overrides": list(plan.recipe.overrides),
            },
            "steps": None if plan.steps is None else asdict(plan.steps),
            "seeds": {"train.seed": plan.recipe.train.seed},
            "verlbox": source(),
            "hardware": hardware(stack.platform),
            "packages": package_versions(),
            "model": download.get("model"),
            "dataset": {"source": download.get("dataset"), "prepared": preprocess},
            "sha256": {
                name: known.sha256
                for stage in ("preprocess", "merge")
                if stage in markers
                for name, known in markers[stage].outputs.items()
            },
            "attempts": attempts,
            "stages": {
                name: {"state": m.state, "seconds": m.seconds, "finished": m.finished} for name, m in markers.items()
            },
        },
    )


def read(run: Run) -> dict[str, Any]:
    """The manifest of a run, empty when there is none yet. Raises FindingsError when it is damaged."""
    path = run.path / "manifest.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA or not found.keys() >= KEYS:
            raise ValueError("not a manifest that this version of verlbox writes")
        return found
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FindingsError(
            RUN_UNREADABLE.finding(
                f"{path} is damaged ({error})",
                why="It says what the run was made of.",
                fix=f"Remove {path} and run the same command again; it is written anew.",
            )
        ) from error
