"""Statistics agree with worked examples from their sources and with scipy and numpy where those have the same test."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verlbox.metrics import statistics
from verlbox.metrics.read import read

ROOT = Path(__file__).parents[2]


def test_the_published_score_trend_is_significant() -> None:
    points = read(ROOT / "recipes" / "reference" / "npu-grpo-910b3.csv").series["critic/score/mean"]
    line = statistics.trend(points.steps, points.values)
    assert line is not None
    assert line.n == 28
    assert line.slope == pytest.approx(0.00187, abs=5e-6)
    assert line.t == pytest.approx(3.57, abs=0.005)
    assert line.p == pytest.approx(0.0014, abs=5e-5)
    assert line.p_adjusted < statistics.SIGNIFICANT


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=4, max_size=40))
def test_trend_agrees_with_scipy(values: list[float]) -> None:
    from scipy.stats import linregress

    steps = list(range(len(values)))
    line = statistics.trend(steps, values)
    if line is None:
        return
    reference = linregress(steps, values)
    assert line.slope == pytest.approx(reference.slope, rel=1e-6, abs=1e-9)
    if reference.stderr > 1e-6:
        assert line.standard_error == pytest.approx(reference.stderr, rel=1e-5)
        assert line.p == pytest.approx(reference.pvalue, rel=1e-4, abs=1e-9)


def test_autocorrelated_noise_is_not_taken_for_a_trend() -> None:
    rng = random.Random(3)
    plain = adjusted = 0
    for _ in range(200):
        value, walk = 0.0, []
        for _ in range(100):
            value = 0.8 * value + rng.gauss(0, 1)
            walk.append(value)
        line = statistics.trend(range(100), walk)
        assert line is not None
        plain += line.p < 0.05
        adjusted += line.p_adjusted < 0.05
    assert plain > 70, "the plain test is far too sure on such noise"
    assert adjusted < 30


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
def test_no_trend_where_there_is_nothing_to_test_against(values: list[float]) -> None:
    assert statistics.trend(range(len(values)), values) is None


def test_the_published_validation_gain_is_no_evidence() -> None:
    assert statistics.proportion_standard_error(0.355937, 32) == pytest.approx(0.0846, abs=1e-4)
    test = statistics.fisher(8, 32, 11, 32)
    assert test.two_sided == pytest.approx(0.585, abs=1e-3)
    assert test.greater == pytest.approx(0.292, abs=1e-3)


def test_standard_error_of_gsm8k_accuracy() -> None:
    assert statistics.proportion_standard_error(0.53, 1319) == pytest.approx(0.0137, abs=5e-5)


def test_newcombe_interval_of_his_example() -> None:
    # Newcombe (1998), table II, contrast a: 56/70 - 48/80, method 10: 0.0524 to 0.3339.
    found = statistics.difference_of_proportions(48, 80, 56, 70)
    assert found.difference == pytest.approx(0.2)
    assert found.low == pytest.approx(0.0524, abs=5e-5)
    assert found.high == pytest.approx(0.3339, abs=5e-5)


def test_mcnemar_exact() -> None:
    base = [True] * 10 + [False] * 15 + [True] * 50
    trained = [False] * 10 + [True] * 15 + [True] * 50
    found = statistics.mcnemar(base, trained)
    assert (found.base_only, found.trained_only) == (10, 15)
    tail = sum(math.comb(25, k) for k in range(11)) / 2**25
    assert found.p == pytest.approx(2 * tail)
    assert statistics.mcnemar([True], [True]).p == 1.0
    with pytest.raises(ValueError, match="same prompts"):
        statistics.mcnemar([True], [])


def test_accuracy_of_one_answer_a_prompt() -> None:
    found = statistics.accuracy([True, False, True, True])
    assert (found.correct, found.n, found.accuracy) == (3, 4, 0.75)
    assert found.standard_error == pytest.approx(math.sqrt(0.75 * 0.25 / 4))
    assert math.isnan(statistics.accuracy([]).accuracy)


def test_answers_to_one_prompt_do_not_count_as_independent() -> None:
    alike = [[True] * 4, [False] * 4] * 50
    found = statistics.clustered_accuracy(alike)
    assert (found.n, found.accuracy) == (100, 0.5)
    assert found.standard_error == pytest.approx(0.0503, abs=1e-4)  # as of 100 answers, not of 400
    with pytest.raises(ValueError, match="same number of draws"):
        statistics.clustered_accuracy([[True], [True, False]])


def test_paired_gain_uses_the_differences() -> None:
    base = [[True, False], [False, False], [True, True], [False, False]]
    trained = [[True, True], [True, False], [True, True], [False, False]]
    found = statistics.paired_gain(base, trained)
    assert found.gain == pytest.approx(0.25)
    assert found.standard_error == pytest.approx(math.sqrt((2 * 0.25**2 + 2 * 0.25**2) / 3 / 4))
    assert found.low < 0.25 < found.high


def test_paired_agrees_with_scipy_on_independent_differences() -> None:
    from scipy.stats import ttest_1samp

    differences = [0.3, -0.1, 0.4, -0.2, 0.5, 0.0]  # negative lag-1 correlation: no adjustment
    assert statistics.paired(differences) == pytest.approx(ttest_1samp(differences, 0).pvalue)
    assert statistics.paired([0.1, 0.1, 0.1]) is None
    assert statistics.two_sided_normal(1.959964) == pytest.approx(0.05, abs=1e-6)
