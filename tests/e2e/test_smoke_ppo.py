"""PPO with a critic, as shipped: it learns too, and the critic is trained, saved and resumed with the actor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Ended, nothing_left, verlbox

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def ppo(runs: Path) -> Ended:
    return verlbox(runs, "run", "smoke-ppo")


def test_it_learns_and_leaves_no_process(ppo: Ended, runs: Path) -> None:
    assert ppo.code == 0, ppo.output
    summary = json.loads((runs / "smoke-ppo" / "evaluation" / "summary.json").read_text())
    assert summary["greedy"]["gain"] >= 0.15
    assert summary["sampled"]["gain"] >= 0.08
    assert nothing_left(runs / "smoke-ppo")


def test_the_critic_is_in_the_checkpoint_and_in_the_report(ppo: Ended, runs: Path) -> None:
    checkpoint = runs / "smoke-ppo" / "checkpoints" / "global_step_16"
    assert list((checkpoint / "critic").glob("model_world_size_1_rank_0.pt"))
    report = json.loads((runs / "smoke-ppo" / "report" / "report.json").read_text())
    assert "critic/vf_loss" in report["metrics"]
    assert "critic/grad_norm" in report["metrics"]
