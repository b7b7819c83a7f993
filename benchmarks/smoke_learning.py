"""Whether a smoke recipe learns, for several seeds: accuracy before and after on every held-out problem, time, memory.

usage: python benchmarks/smoke_learning.py [--recipe smoke] [--seeds 1 2 3] [--runs FOLDER]

Each seed is one run of the recipe with real verl (about three minutes on two quiet cores). Exit code 1 when a run fails
its acceptance. Memory is the largest sum of the resident sets of all processes of the run, sampled once a second
(pages that processes share count once for each).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from verlbox import process  # noqa: E402 - found through the line above

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Resident bytes of a process, 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def run(recipe: str, seed: int, runs: Path) -> dict[str, Any]:
    """One run of the recipe: exit code, seconds, peak memory in bytes, evaluation summary, stage seconds."""
    folder = runs / f"{recipe}-seed{seed}"
    command = [sys.executable, str(ROOT / "entrypoint.py"), "run", recipe, "--runs", str(runs), "--name", folder.name]
    peak = 0
    ended = threading.Event()

    def watch(pid: int) -> None:
        nonlocal peak
        while not ended.wait(1.0):
            peak = max(peak, sum(map(resident, [pid, *process.tagged(str(folder))])))

    started = time.monotonic()
    child = subprocess.Popen([*command, f"train.seed={seed}"])
    watcher = threading.Thread(target=watch, args=(child.pid,))
    watcher.start()
    code = child.wait()
    seconds = time.monotonic() - started
    ended.set()
    watcher.join()
    stages = {p.stem: json.loads(p.read_text())["seconds"] for p in (folder / "stages").glob("*.json")}
    summary = folder / "evaluation" / "summary.json"
    return {
        "seed": seed,
        "code": code,
        "seconds": seconds,
        "peak": peak,
        "stages": stages,
        "summary": json.loads(summary.read_text()) if summary.exists() else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="smoke")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runs", type=Path)
    arguments = parser.parse_args()
    runs = (arguments.runs or Path(tempfile.mkdtemp(prefix="smoke-"))).resolve()
    runs.mkdir(parents=True, exist_ok=True)
    results = [run(arguments.recipe, seed, runs) for seed in arguments.seeds]
    print(f"\n{arguments.recipe}: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    for result in results:
        line = (
            f"seed {result['seed']}: exit {result['code']}, {result['seconds']:.0f} s, {result['peak'] / 2**30:.1f} GiB"
        )
        for kind in ("greedy", "sampled"):
            part = (result["summary"] or {}).get(kind)
            if part:
                before, after = (f"{part[m]['accuracy']:.3f}" for m in ("base", "trained"))
                line += f", {kind} {before} -> {after} ({part['gain']:+.3f} ± {part['standard_error']:.3f})"
        print(line)
        print("  seconds by stage: " + ", ".join(f"{name} {s:.0f}" for name, s in result["stages"].items()))
    return int(any(result["code"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
