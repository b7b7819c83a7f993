"""How long the light verbs take as whole processes, and that they import neither torch nor verl nor ray.

usage: python benchmarks/cli_startup.py [--runs N]

Prints, for each verb, the median and the slowest of N runs in seconds, and the ratio to starting Python alone. Exit
code 1 when the median of a verb is 0.5 s or more, or when it imports one of the heavy packages.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERBS = (["--help"], ["list"], ["plan", "smoke"], ["validate", "smoke"])
HEAVY = ("torch", "verl", "ray", "transformers")
BOUND = 0.5  # seconds


def seconds(command: list[str], cwd: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def heavy_imports(verb: list[str], cwd: str) -> list[str]:
    """The heavy packages that a verb imports, from Python's own import log."""
    command = [sys.executable, "-X", "importtime", str(ROOT / "entrypoint.py"), *verb]
    done = subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    return [name for name in HEAVY if name in imported]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    failed = False
    with tempfile.TemporaryDirectory() as cwd:
        bare = statistics.median(seconds([sys.executable, "-c", "pass"], cwd) for _ in range(runs))
        print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {runs} runs each")
        print(f"{'python -c pass':20} median {bare:.3f} s")
        for verb in VERBS:
            command = [sys.executable, str(ROOT / "entrypoint.py"), *verb]
            seconds(command, cwd)  # writes bytecode
            times = [seconds(command, cwd) for _ in range(runs)]
            median, heavy = statistics.median(times), heavy_imports(verb, cwd)
            failed |= median >= BOUND or bool(heavy)
            note = f"  imports {', '.join(heavy)}" if heavy else ""
            print(f"{' '.join(verb):20} median {median:.3f} s, slowest {max(times):.3f} s, {median / bare:.1f} x{note}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
