"""Acceptance holds a run against its recipe's demands; a run that learned nothing fails whatever they are."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from verlbox.findings import FindingsError
from verlbox.metrics import acceptance
from verlbox.metrics.acceptance import Band, judge, line, load_bands, reduce
from verlbox.metrics.read import Metrics, read, series


def run(**columns: list[float]) -> Metrics:
    """A run whose metrics (`__` for `/`) were recorded at steps 1, 2, ..."""
    named = {name.replace("__", "/"): series(enumerate(values, 1)) for name, values in columns.items()}
    named.setdefault("critic/score/mean", series([(1, 0.2), (2, 0.4)]))
    named.setdefault("actor/grad_norm", series([(1, 0.3), (2, 0.5)]))
    return Metrics(named, "log")


POINTS = series([(1, 1.0), (2, 4.0), (3, 2.0), (5, 9.0)])


@pytest.mark.parametrize(
    ("reducer", "window", "expected"),
    [
        ("last", None, 9.0),
        ("first", None, 1.0),
        ("first", 2, 2.0),
        ("mean", None, 4.0),
        ("median", None, 3.0),
        ("min", None, 1.0),
        ("max", 2, 9.0),
        ("last_k_mean", 2, 5.5),
        ("last_k_mean", 3, 5.0),
        ("slope", None, 16 / 8.75),
        ("slope", 2, 3.5),
    ],
)
def test_reducers(reducer: acceptance.Reducer, window: int | None, expected: float) -> None:
    assert reduce(POINTS, reducer, window) == pytest.approx(expected)


def test_slope_of_a_constant_is_zero_and_of_one_point_undefined() -> None:
    assert reduce(series([(1, 0.1), (2, 0.1), (3, 0.1)]), "slope") == 0
    assert math.isnan(reduce(series([(1, 0.1)]), "slope"))
    assert reduce(series([(1, 1.0), (2, 2.0), (3, 3.0)]), "slope") == pytest.approx(1)


@pytest.mark.parametrize(
    ("operator", "bound", "met"),
    [
        (">=", 0.5, True),
        (">", 0.5, False),
        ("<=", 0.5, True),
        ("<", 0.5, False),
        ("==", 0.5, True),
        ("within", [0.5, 0.6], True),
        ("within", [0.51, 0.6], False),
    ],
)
def test_operators(operator: acceptance.Operator, bound: float | list[float], met: bool) -> None:
    verdict = judge([line("x", operator, bound)], run(x=[0.1, 0.5]))
    assert (verdict.overall == "pass") is met
    assert verdict.exit_code == (0 if met else 5)


def test_the_worst_line_decides() -> None:
    lines = [line("x", ">", 0, severity="warn"), line("x", ">", 1, severity="warn")]
    assert judge(lines, run(x=[0.5])).overall == "warn"
    assert judge(lines, run(x=[0.5])).exit_code == 0
    assert judge([*lines, line("x", ">", 1)], run(x=[0.5])).overall == "fail"


@pytest.mark.parametrize("values", [[math.nan], [0.5, math.nan], [math.inf]])
def test_a_value_that_is_not_finite_fails(values: list[float]) -> None:
    result = judge([line("x", "<", 1e9)], run(x=values)).results[1]
    assert (result.status, result.reason) == ("fail", "not-finite")


def test_a_metric_that_is_missing_fails() -> None:
    result = judge([line("y", "<", 1e9)], run()).results[1]
    assert (result.status, result.reason, result.value) == ("fail", "missing", None)


def test_a_mean_of_the_last_five_needs_five() -> None:
    five = line("x", ">", 0, reducer="last_k_mean", window=5)
    assert judge([five], run(x=[1.0] * 5)).overall == "pass"
    assert judge([five], run(x=[1.0] * 4)).results[1].reason == "too-few"


def test_values_of_the_evaluation() -> None:
    evaluation = {"greedy": {"gain": 0.2, "trained": {"accuracy": 0.8, "n": 200}}, "sampled": {"gain": math.nan}}
    lines = [
        line("evaluation.greedy.gain", ">=", 0.15),
        line("evaluation.greedy.trained", ">=", 0.75),
        line("evaluation.greedy.trained.accuracy", ">=", 0.75),
    ]
    assert judge(lines, run(), evaluation).overall == "pass"
    for metric, reason in (("evaluation.sampled.gain", "not-finite"), ("evaluation.none.gain", "missing")):
        assert judge([line(metric, ">=", 0)], run(), evaluation).results[1].reason == reason
    assert judge(lines, run(), None).overall == "fail"


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        (run(critic__score__mean=[0.0, 0.0]), "scores-zero"),
        (run(actor__grad_norm=[0.0, 0.0, 0.0]), "gradients-zero"),
        (run(actor__grad_norm=[math.nan, 0.0]), "gradients-zero"),
        (Metrics({}, "log"), "no-steps"),
        (Metrics({"critic/score/mean": series([(1, 0.5)])}, "log"), "missing"),
    ],
)
def test_a_run_that_does_not_learn_fails_without_any_line(metrics: Metrics, reason: str) -> None:
    verdict = judge([], metrics)
    assert (verdict.overall, verdict.exit_code, verdict.results[0].reason) == ("fail", 5, reason)
    assert acceptance.findings(verdict)[0].code == "acceptance-failed"


def test_a_run_with_rewards_and_gradients_learned() -> None:
    assert judge([], run()).overall == "pass"


def test_bands_of_reference_runs_hold_their_own_logs(shared: Path) -> None:
    bands = load_bands()
    for reference, file in (
        ("gsm8k-ppo-p512-r256", "Qwen2.5-0.5B-bsz256_2-prompt512-resp256-0.538.log"),
        ("gsm8k-ppo-p1024-r512", "Qwen2.5-0.5B-bsz256_2-prompt1024-resp512-0.567.log"),
    ):
        metrics = read(shared / "data" / "verl_logs" / file)
        name = "val-core/openai/gsm8k/reward/mean@1"  # today's name of the curve
        renamed = Metrics({**metrics.series, name: metrics.series["val/test_score/openai/gsm8k"]}, "log")
        demand = line(name, "within", reference, reducer="last_k_mean", window=5)
        result = judge([demand], renamed, bands=bands).results[1]
        assert result.status == "pass"
        assert isinstance(result.bound, Band)
        assert reference in acceptance.describe(result.line, result.bound)


def test_an_unknown_reference_run_is_a_finding_that_names_the_known() -> None:
    with pytest.raises(FindingsError) as caught:
        judge([line("x", "within", "nobody")], run(x=[1.0]), bands=load_bands())
    assert caught.value.findings[0].code == "acceptance-unknown-reference"
    assert "gsm8k-ppo-p512-r256" in caught.value.findings[0].fix


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operator": "~", "bound": 1.0}, "unknown operator"),
        ({"operator": ">=", "bound": [1.0, 2.0]}, "takes a band"),
        ({"operator": "within", "bound": 1.0}, "takes a band"),
        ({"operator": "within", "bound": [2.0, 1.0]}, "lower first"),
        ({"operator": ">=", "bound": 1.0, "reducer": "mode"}, "unknown reducer"),
        ({"operator": ">=", "bound": 1.0, "reducer": "last_k_mean"}, "needs a window"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        line("x", **arguments)  # type: ignore[arg-type]
