"""Health of a training run, step by step."""

from __future__ import annotations

import math

import pytest

from verlbox.diagnosis.health import Bounds, Health, read_metrics

SOUND = {
    "actor/grad_norm": 0.4,
    "actor/entropy": 0.3,
    "actor/kl_loss": 0.001,
    "actor/pg_loss": -0.01,
    "critic/score/mean": 0.3,
    "critic/score/max": 1.0,
    "critic/score/min": 0.0,
    "critic/advantages/max": 1.5,
    "critic/advantages/min": -1.5,
    "response_length/clip_ratio": 0.1,
}
ZERO = {
    **SOUND,
    "critic/score/mean": 0.0,
    "critic/score/max": 0.0,
    "critic/advantages/max": 0.0,
    "critic/advantages/min": 0.0,
}


def steps(health: Health, metrics: dict[str, float], count: int, first: int = 1) -> list[str]:
    return [f.code for step in range(first, first + count) for f in health.feed(step, metrics)]


def test_a_sound_run_is_silent() -> None:
    health = Health()
    assert steps(health, SOUND, 50) == []
    assert health.finish() == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"critic/score/mean": 0.0, "critic/score/max": 0.0}, "health-zero-reward"),
        ({"critic/advantages/max": 0.0, "critic/advantages/min": 0.0}, "health-no-signal"),
        ({"actor/grad_norm": 0.0}, "health-zero-gradient"),
        ({"actor/entropy": 0.001}, "health-entropy"),
        ({"actor/kl_loss": 15.0}, "health-kl"),
        ({"critic/kl": 30.0}, "health-kl"),
        ({"response_length/clip_ratio": 0.93}, "health-length-clip"),
    ],
)
def test_a_state_is_reported_once_and_only_when_it_lasts(change: dict[str, float], code: str) -> None:
    health = Health(Bounds(patience=4))
    sick = {**SOUND, **change}
    assert steps(health, sick, 3) == []
    assert steps(health, SOUND, 1, 4) == []  # it passed
    assert steps(health, sick, 20, 5) == [code]
    assert health.finish() == []


def test_one_skipped_update_is_a_warning_and_a_run_of_them_an_error() -> None:
    health = Health()
    skipped = {**SOUND, "actor/grad_norm": math.nan}
    assert [f.severity for f in health.feed(1, skipped)] == ["warning"]
    assert health.feed(2, SOUND) == []
    assert steps(health, skipped, 2, 3) == []
    assert [(f.code, f.severity) for f in health.feed(5, skipped)] == [("health-nan-weights", "error")]


def test_nan_losses_with_nonsense_answers_are_lost_weights_at_once() -> None:
    lost = {**SOUND, "actor/pg_loss": math.nan, "response_length/clip_ratio": 1.0, "critic/score/max": 0.0}
    assert steps(Health(), lost, 1) == ["health-nan-weights"]


def test_answers_cut_off_are_the_cause_of_a_zero_reward() -> None:
    health = Health()
    cut = {**ZERO, "response_length/clip_ratio": 0.97}
    assert steps(health, cut, 20) == ["health-answers-cut", "health-length-clip"][:1]


def test_what_held_in_every_step_of_a_short_run_is_said_at_its_end() -> None:
    health = Health()
    assert steps(health, ZERO, 2) == []
    assert [f.code for f in health.finish()] == ["health-zero-reward"]


def test_a_short_smoke_run_at_its_length_limit_is_sound() -> None:
    health = Health()
    assert steps(health, {**SOUND, "response_length/clip_ratio": 1.0}, 6) == []
    assert health.finish() == []


def test_an_exploding_gradient_is_said_at_once() -> None:
    assert steps(Health(), {**SOUND, "actor/grad_norm": 4321.0}, 1) == ["health-gradient"]


def test_ungraded_validation_answers_are_an_error_above_the_bound() -> None:
    reasons = {"ok": 0.5, "wrong": 0.47, "timeout": 0.03}
    metrics = {f"val-aux/openai/gsm8k/reason_{name}/mean@1": share for name, share in reasons.items()}
    assert [f.code for f in Health().feed(10, metrics)] == ["reward-ungraded"]
    assert Health(Bounds(ungraded=0.05)).feed(10, metrics) == []


def test_metrics_are_read_in_both_spellings() -> None:
    verl = "step:5 - actor/grad_norm:nan - actor/kl_loss:inf - critic/score/mean:np.float64(0.26) - timing_s/step:1.0"
    tutorial = "step: 287, actor/pg_loss: -0.008, critic/score/mean: 0.676, timing_s/step: 52.303"
    step, values = read_metrics(verl) or (0, {})
    assert step == 5 and math.isnan(values.pop("actor/grad_norm"))
    assert values == {"actor/kl_loss": math.inf, "critic/score/mean": 0.26}
    assert read_metrics(tutorial) == (287, {"actor/pg_loss": -0.008, "critic/score/mean": 0.676})
    assert read_metrics("global_step:5 reached") is None
