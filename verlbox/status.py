"""How far a run has come, read from its markers and its log; safe while the run is going on."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verlbox.console import Console, duration
from verlbox.metrics.read import parse_line
from verlbox.run import STAGES, Run

SHOWN = (  # what a step's line shows: label, verl's metric, format
    ("reward", "critic/score/mean", ".3f"),
    ("length", "response_length/mean", ".1f"),
    ("tokens/s", "perf/throughput", ",.0f"),
)


def of(run: Run) -> dict[str, Any]:
    """State of each stage, whether a process is at work, and the last step that verl reported."""
    stages: dict[str, Any] = {}
    for name in STAGES:
        marker = run.marker(name)
        if marker is None:
            stages[name] = {"state": "not started"}
            continue
        stages[name] = {"state": marker.state, "seconds": marker.seconds, "finished": marker.finished}
        if marker.findings:
            stages[name]["findings"] = marker.findings
    working = is_locked(run)
    if not working:
        for stage in stages.values():
            stage["state"] = "stopped" if stage["state"] == "running" else stage["state"]
    report = run.marker("report")
    return {
        "run": str(run.path),
        "working": working,
        "stages": stages,
        "last_step": last_step(run.logs / "train.log"),
        "steps": planned_steps(run),
        "verdict": report.details.get("verdict") if report else None,
    }


def planned_steps(run: Run) -> int | None:
    """The number of steps that the run is to reach, from its manifest."""
    try:
        steps = json.loads((run.path / "manifest.json").read_text(encoding="utf-8"))["steps"]
        return int(steps["total"]) if steps else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_locked(run: Run) -> bool:
    """Whether a process holds the run at this moment."""
    try:
        with (run.path / ".lock").open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def last_step(log: Path, window: int = 1 << 20) -> dict[str, Any] | None:
    """The last metrics line in the last `window` bytes of verl's log."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - window))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        if "step:" in line and (parsed := parse_line(line)):
            return {"step": parsed[0], "metrics": parsed[1]}
    return None


def follow(run: Run, console: Console, interval: float = 1.0) -> None:
    """Shows each new step and each new finding until no process is at work, then the whole status."""
    shown: set[tuple[str, str]] = set()
    step = -1
    while True:
        found = of(run)
        for name, stage in found["stages"].items():
            for finding in stage.get("findings", []):
                key = (name, f"{finding['severity']}[{finding['code']}] {finding['what']}")
                if key not in shown:
                    shown.add(key)
                    console.line(f"{name}: {key[1]}")
        last = found["last_step"]
        if last and last["step"] != step:
            step = last["step"]
            console.progress(step_text(last["metrics"], step, found["steps"]))
        if not found["working"]:
            console.line(as_text(found))
            return
        time.sleep(interval)


def step_text(metrics: Mapping[str, float], step: int, total: int | None, seconds: Sequence[float] = ()) -> str:
    """One step of training on one line; `seconds` of the last steps smooth the estimate of the time that is left."""
    own = metrics.get("timing_s/step", metrics.get("perf/time_per_step", 0.0))
    recent = list(seconds) or [own]
    parts = [f"step {step}/{total}" if total else f"step {step}"]
    parts += [f"{label} {metrics[key]:{form}}" for label, key, form in SHOWN if key in metrics]
    parts.append(f"{duration(own)}/step")
    if total:
        parts.append(f"ETA {duration((total - step) * sum(recent) / len(recent))}")
    return " | ".join(parts)


def as_text(found: dict[str, Any]) -> str:
    lines = [f"{found['run']} ({'a process is at work' if found['working'] else 'no process is at work'})"]
    for name, stage in found["stages"].items():
        seconds = f"  {duration(stage['seconds'])}" if stage.get("seconds") else ""
        lines.append(f"  {name:11}{stage['state']}{seconds}")
        lines += [f"    {f['severity']}[{f['code']}] {f['what']}" for f in stage.get("findings", [])]
    if found["last_step"]:
        last = found["last_step"]
        lines.append(f"  {step_text(last['metrics'], last['step'], found['steps'])}")
    if found["verdict"]:
        lines.append(f"  verdict {found['verdict']}")
    return "\n".join(lines)
