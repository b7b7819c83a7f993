"""How far a run has come, read from its markers and its log; safe while the run is going on."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

from verlbox.console import duration
from verlbox.metrics.read import parse_line
from verlbox.run import Run

STAGES = ("download", "preprocess", "train", "merge", "evaluate", "report")


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
        "verdict": report.details.get("verdict") if report else None,
    }


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


def as_text(found: dict[str, Any]) -> str:
    lines = [f"{found['run']} ({'a process is at work' if found['working'] else 'no process is at work'})"]
    for name, stage in found["stages"].items():
        seconds = f"  {duration(stage['seconds'])}" if stage.get("seconds") else ""
        lines.append(f"  {name:11}{stage['state']}{seconds}")
        lines += [f"    {f['severity']}[{f['code']}] {f['what']}" for f in stage.get("findings", [])]
    if found["last_step"]:
        step, metrics = found["last_step"]["step"], found["last_step"]["metrics"]
        score = metrics.get("critic/score/mean")
        lines.append(f"  last step {step}" + (f", reward {score:.3f}" if score is not None else ""))
    if found["verdict"]:
        lines.append(f"  verdict {found['verdict']}")
    return "\n".join(lines)
