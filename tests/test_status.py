from __future__ import annotations

import io
import json
from pathlib import Path

from verlbox import pipeline, status
from verlbox.console import Console
from verlbox.run import STAGES, Marker, Run, write_json

FINDING = {"severity": "warning", "code": "health-kl", "what": "far away", "why": "", "fix": "", "where": ""}


def at_work(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.write_marker(Marker("download", "done", {}, seconds=2.0))
    run.write_marker(Marker("train", "running", {}, findings=[FINDING]))
    run.logs.mkdir()
    metrics = "critic/score/mean:0.5 - timing_s/step:3.0"
    (run.logs / "train.log").write_text(f"noise\nstep:4 - {metrics}\nstep:5 - {metrics}\n(pid=1) step:x")
    write_json(run.path / "manifest.json", {"steps": {"total": 8}})
    return run


def test_a_stage_is_running_only_while_a_process_holds_the_run(tmp_path: Path) -> None:
    run = at_work(tmp_path)
    with run.locked():
        assert status.of(run)["stages"]["train"]["state"] == "running"
        assert status.of(run)["working"] is True
    found = status.of(run)
    assert found["stages"]["train"]["state"] == "stopped"
    assert found["last_step"]["step"] == 5
    assert json.loads(json.dumps(found)) == found


def test_following_a_run_that_nobody_works_on_shows_its_state_and_ends(tmp_path: Path) -> None:
    stream = io.StringIO()
    status.follow(at_work(tmp_path), Console(stream))
    shown = stream.getvalue()
    assert "train: warning[health-kl] far away" in shown
    assert "step 5/8 | reward 0.500 | 3.0 s/step | ETA 9.0 s" in shown
    assert "no process is at work" in shown


def test_the_stages_are_those_that_the_pipeline_runs() -> None:
    assert pipeline.NAMES == STAGES


def test_an_empty_run_has_not_started(tmp_path: Path) -> None:
    found = status.of(Run(tmp_path))
    assert {stage["state"] for stage in found["stages"].values()} == {"not started"}
    assert found["last_step"] is None
