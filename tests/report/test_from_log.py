"""A bare log tells its own configuration, rows and plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from verlbox.report.from_log import facts_of_log
from verlbox.report.readings import validation_rows

EXPECTED = {  # train batch, mini-batch, planned steps, rows of each split before and after verl's filter
    "verl_logs/Qwen2.5-0.5B-bsz256_2-prompt512-resp256-0.538.log": (256, 64, None, [(7473, 7473), (1319, 1319)]),
    "verl_logs/gpg_qwen2-7b_math.log": (1024, 256, 210, [(14973, 14966), (6319, 6317)]),
    "verl_logs/play-verl_verl_grpo_qwen2.5b_8gpu.log": (256, 64, 435, [(7473, 7473), (1319, 1319)]),
    "verl_cpu_runs/grpo_061/console_full.log": (8, 8, 6, [(64, 64), (8, 8)]),
    "verl_cpu_runs/grpo_091/console_full.log": (8, 8, 6, [(64, 64), (8, 8)]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_settings_rows_and_plan_are_read(shared: Path, name: str) -> None:
    batch, mini, planned, rows = EXPECTED[name]
    facts = facts_of_log(shared / "data" / name)
    assert facts.verl_overrides["data.train_batch_size"] == batch
    assert facts.verl_overrides["actor_rollout_ref.actor.ppo_mini_batch_size"] == mini
    assert facts.planned_steps == planned
    assert [(flow.read, flow.kept) for flow in facts.data] == rows
    # verl of 2024 graded whole batches of validation only: one of 1,312 here; the others, all rows.
    assert validation_rows(facts) == (1312 if "prompt512" in name else rows[1][1])


def test_a_log_whose_configuration_was_edited_still_tells_its_rows(shared: Path) -> None:
    facts = facts_of_log(shared / "data" / "verl_logs" / "gemma-2-2b-it-ppo-bsz512_4-prompt1024-resp-512-0.640.log")
    assert facts.verl_overrides == {}
    assert [(flow.read, flow.kept) for flow in facts.data] == [(7473, 7473), (1319, 1319)]


def test_batches_times_rows_are_used_in_an_epoch(shared: Path) -> None:
    facts = facts_of_log(shared / "data" / "verl_logs" / "gpg_qwen2-7b_math.log")
    assert facts.data[0].used_per_epoch == 14 * 1024
    assert facts.data[0].too_long == 7


@pytest.mark.parametrize("content", [b"", b"{'actor_rollout_ref': {'actor'", b"\xff\x00\n(main pid=1) {'a': 1}\n"])
def test_a_log_without_a_configuration_has_no_settings(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "run.log"
    file.write_bytes(content)
    assert facts_of_log(file).verl_overrides == {}
