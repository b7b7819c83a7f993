"""Reason codes: how metrics carry them and when they fail a run."""

from __future__ import annotations

from pathlib import Path

from verlbox.rewards import reasons


def test_shares_are_read_from_validation_metrics_whatever_the_data_source_is_called() -> None:
    metrics = {
        "val-aux/DigitalLearningGmbH/MATH-lighteval/reason_ok/mean@1": 0.25,
        "val-aux/DigitalLearningGmbH/MATH-lighteval/reason_timeout/mean@1": 0.75,
        "val-aux/openai/gsm8k/reason_ok/mean@4": 1.0,
        "val-aux/openai/gsm8k/reason_ok/best@4/mean": 1.0,
        "val-core/openai/gsm8k/acc/mean@4": 1.0,
    }
    assert reasons.reason_shares(metrics) == {
        "DigitalLearningGmbH/MATH-lighteval": {"ok": 0.25, "timeout": 0.75},
        "openai/gsm8k": {"ok": 1.0},
    }


def test_timeouts_and_crashes_above_the_share_are_an_error() -> None:
    assert reasons.ungraded_finding({"ok": 98, "timeout": 1, "crash": 1}, 0.02) is None
    finding = reasons.ungraded_finding({"ok": 97, "timeout": 2, "crash": 1}, 0.02)
    assert finding is not None and finding.severity == "error"
    assert "3.00%" in finding.what and "timeout 2.00%" in finding.what
    assert reasons.ungraded_finding({"wrong": 100, "no_answer": 50}, 0.0) is None
    assert reasons.ungraded_finding({}, 0.0) is None


def test_a_line_cut_off_by_a_killed_worker_does_not_spoil_the_tally(tmp_path: Path) -> None:
    log = tmp_path / "reasons.jsonl"
    reasons.append_tally(log, ["ok", "ok", "crash"])
    with log.open("ab") as out:
        out.write(b'{"ok": 5, "wro\n[1]\n\xff\n{"other": 3, "timeout": "x"}\n')
    reasons.append_tally(log, ["wrong"])
    assert reasons.read_tally(log) == {"ok": 2, "crash": 1, "wrong": 1}
