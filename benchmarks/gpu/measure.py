"""Runs recipes with verlbox itself on a GPU machine, and measures them: one experiment after the other.

    VBX=/tmp/vbx $VBX/venv/bin/python benchmarks/gpu/measure.py [--gpus 0] [--out FOLDER] article tuned ...

Each experiment of experiments.yaml is `entrypoint.py run` with its overrides, all stages. Printed, and kept in
OUT/NAME.json: seconds from the command to verl's first step and where they went, then over the steps after the first
the median step (checkpoints taken off), tokens a second, and each phase. OUT/NAME.tar.gz holds report, metrics,
manifest, plan and log.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from verlbox.metrics.read import parse_line, plain  # noqa: E402

# The first appearance of each marks a stage of the start (verl 0.9.1's log, vllm 0.24.0's).
MARKS: Mapping[str, str] = {
    "verl started": "ray init kwargs",
    "task runner": "TaskRunner",
    "dataset": "dataset len",
    "workers up": "actor and ref model engine initialized",
    "vllm started": "Initializing a V1 LLM engine",
    "vllm loaded": "Model loading took",
    "vllm graphs": "Graph capturing finished",
    "ready to fit": "ready to fit",
    "training": "Training Progress",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+")
    parser.add_argument(
        "--gpus", default=os.environ.get("CUDA_VISIBLE_DEVICES", "0"), help="numbers, as CUDA reads them"
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "results")))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further override")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="end a run in order after so long, and keep it")
    parser.add_argument("--suffix", default="", help="appended to the names of runs and results")
    arguments = parser.parse_args()
    data = yaml.safe_load((Path(__file__).parent / "experiments.yaml").read_text(encoding="utf-8"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    worst = 0
    for name in arguments.experiments:
        entry = data["experiments"][name]
        common = [] if entry.get("real") else data["common"]
        brief = ["trainer.save_freq=-1"] if entry.get("brief") else []
        wanted = [*common, *brief, *entry["set"], *entry.get("more", []), *arguments.set]
        words = [*map(os.path.expandvars, wanted), *(["--until", "train"] if brief else [])]
        run = f"{name}{arguments.suffix}"
        attempts = {run: None}
        if "kill_after_step" in entry:
            attempts = {f"{run}-killed": entry["kill_after_step"], f"{run}-resumed": None}
        for attempt, kill in attempts.items():
            probe = entry.get("probe", False)
            result = measure(run, entry["recipe"], words, arguments.gpus, probe, kill, arguments.limit)
            (arguments.out / f"{attempt}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
            print(summary(attempt, result), flush=True)
            worst = max(worst, result["exit_code"])
        keep(runs() / run, arguments.out / f"{run}.tar.gz")
    return worst


def runs() -> Path:
    return Path(os.environ.get("VBX", "/tmp/vbx")) / "runs"


def measure(
    name: str,
    recipe: str,
    words: list[str],
    gpus: str,
    probe: bool,
    kill_after: int | None,
    limit: float | None,
) -> dict[str, Any]:
    """One experiment: exit code, times of the start, and medians over the steps after the first.

    `words` are overrides and options of `run`. `kill_after` ends verlbox with SIGKILL once that step is logged, `limit`
    with SIGTERM after so many seconds; the same call without them goes on with the run.
    """
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": gpus,
        "VERLBOX_CACHE": str(runs().parent / "cache"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    if probe:
        environment["VERL_USE_EXTERNAL_MODULES"] = "benchmarks.gpu.probe"
    command = [
        sys.executable,
        str(ROOT / "entrypoint.py"),
        "run",
        recipe,
        *words,
        "--name",
        name,
        "--runs",
        str(runs()),
    ]
    log = runs() / name / "logs" / "train.log"
    begin = log.stat().st_size if log.exists() else 0  # a run that goes on
    lines: list[tuple[float, str]] = []
    memory: list[tuple[float, int]] = []
    started = time.monotonic()
    output = runs().parent / f"{name}.output"
    with (
        output.open("wb") as said,
        subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT) as child,
    ):
        ended = threading.Event()
        watchers = [
            threading.Thread(target=follow, args=(log, begin, started, lines, ended)),
            threading.Thread(target=sample_memory, args=(gpus, started, memory, ended)),
        ]
        for watcher in watchers:
            watcher.start()
        while child.poll() is None:
            if kill_after is not None and any(f"step:{kill_after} - " in line for _, line in list(lines)):
                child.kill()
            if limit is not None and time.monotonic() - started > limit:
                child.terminate()
                limit = None
            time.sleep(0.2)
        ended.set()
        for watcher in watchers:
            watcher.join()
    steps = {}
    for seconds, line in lines:
        if "step:" in line and (parsed := parse_line(line)) is not None and parsed[0] > 0:
            steps[parsed[0]] = (seconds, parsed[1])
    later = [without_checkpoint(metrics) for step, (_, metrics) in sorted(steps.items()) if step > min(steps)]
    names = {key for metrics in later for key in metrics if key.startswith(("timing_s/", "perf/", "actor/", "critic/"))}
    return {
        "name": name,
        "recipe": recipe,
        "arguments": words,
        "gpus": gpus,
        "exit_code": child.returncode,
        "wall_seconds": round(time.monotonic() - started, 1),
        "start": marks(lines),
        "first_step_ended": round(min((seconds for seconds, _ in steps.values()), default=0.0), 1),
        "first_step": steps[min(steps)][1] if steps else {},
        "steps": len(steps),
        "step_seconds": [round(metrics.get("timing_s/step", 0.0), 3) for metrics in later],
        "median": {key: statistics.median([m[key] for m in later if key in m]) for key in sorted(names)},
        "device_memory_mib": max((used for _, used in memory), default=0),
        "memory": [json.loads(plain(line).partition("vbx-memory ")[2]) for _, line in lines if "vbx-memory {" in line],
        "timed_log": [f"{seconds:.2f} {line}" for seconds, line in lines],
        "output": output.read_text(encoding="utf-8", errors="replace")[-6000:],
    }


def without_checkpoint(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics as if it had written no checkpoint: seconds of the step, and tokens a second on each device."""
    whole = metrics.get("timing_s/step", 0.0)
    step = whole - metrics.get("timing_s/save_checkpoint", 0.0)
    if not step:
        return dict(metrics)
    rate = metrics.get("perf/throughput", 0.0) * whole / step
    return {**metrics, "timing_s/step": step, "perf/time_per_step": step, "perf/throughput": rate}


def marks(lines: list[tuple[float, str]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for seconds, line in lines:
        for name, sign in MARKS.items():
            if name not in found and sign in line:
                found[name] = round(seconds, 1)
    return found


def follow(log: Path, begin: int, started: float, lines: list[tuple[float, str]], ended: threading.Event) -> None:
    """Collects the log's lines with the second at which each appeared."""
    rest = b""
    while True:
        last = ended.is_set()
        if log.exists():
            with log.open("rb") as stream:
                stream.seek(begin)
                block = stream.read()
            begin += len(block)
            *whole, rest = (rest + block).split(b"\n")
            now = time.monotonic() - started
            lines += [(now, line.decode("utf-8", "replace")) for line in whole]
        if last:
            return
        time.sleep(0.1)


def sample_memory(gpus: str, started: float, samples: list[tuple[float, int]], ended: threading.Event) -> None:
    """Memory in use on the GPUs, MiB, the largest of them, five times a second, as the vendor's tool sees it."""
    query = ["nvidia-smi", f"--id={gpus}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    while not ended.is_set():
        said = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
        if said:
            samples.append((time.monotonic() - started, max(map(int, said))))
        ended.wait(0.2)


def keep(run: Path, archive: Path) -> None:
    """What is worth carrying home of a run: no checkpoints, no weights."""
    with tarfile.open(archive, "w:gz") as target:
        for pattern in (
            "*.json",
            "*.yaml",
            "report*",
            "metrics*",
            "*.png",
            "logs/train.log",
            "logs/reward_reasons.jsonl",
        ):
            for path in run.glob(pattern):
                target.add(path, f"{run.name}/{path.relative_to(run)}")
        if (run / "report").is_dir():
            target.add(run / "report", f"{run.name}/report")


def summary(name: str, result: Mapping[str, Any]) -> str:
    median = result["median"]
    timings = {key[9:]: round(value, 2) for key, value in median.items() if key.startswith("timing_s/")}
    step = timings.pop("step", 0.0)
    beside = ("testing", "save_checkpoint")
    named = sum(seconds for phase, seconds in timings.items() if "/" not in phase and phase not in beside)
    return (
        f"== {name}: exit {result['exit_code']}, {result['wall_seconds']} s in all, start {result['start']},"
        f" first step ended at {result['first_step_ended']} s\n"
        f"   steps {result['step_seconds']}; median {step} s, {median.get('perf/throughput', 0):,.0f} tokens/s a GPU,"
        f" phases {timings}, unnamed {step - named:.2f} s, device {result['device_memory_mib']} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
