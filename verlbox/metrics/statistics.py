"""The few statistics that a verdict on a training run rests on, each with the source of its formula.

Plain sequences in, frozen records out. scipy is imported only where a distribution is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

SIGNIFICANT = 0.05  # the level below which the report calls a difference significant


@dataclass(frozen=True)
class Mean:
    """Mean of n values and its standard error (NaN for n < 2)."""

    n: int
    mean: float
    standard_error: float


def mean(values: Sequence[float]) -> Mean:
    """Mean and standard error s / sqrt(n), s the sample standard deviation with n - 1.

    Source: any textbook, e.g. Altman and Bland, "Standard deviations and standard errors", BMJ 331 (2005) 903.
    """
    n = len(values)
    if n == 0:
        return Mean(0, math.nan, math.nan)
    centre = math.fsum(values) / n
    if n == 1:
        return Mean(1, centre, math.nan)
    variance = math.fsum((v - centre) ** 2 for v in values) / (n - 1)
    return Mean(n, centre, math.sqrt(variance / n))


@dataclass(frozen=True)
class Trend:
    """A straight line through n points. `slope` is per step; `p` is two-sided, for a slope of zero.

    Neighbouring steps of a training run are alike, which makes the plain test too sure of itself; `t_adjusted` and
    `p_adjusted` count fewer independent points where residuals are positively correlated (`autocorrelation`, lag 1).
    """

    n: int
    slope: float
    intercept: float
    standard_error: float
    t: float
    p: float
    autocorrelation: float
    t_adjusted: float
    p_adjusted: float


def trend(steps: Sequence[float], values: Sequence[float]) -> Trend | None:
    """Least-squares slope of values over steps, with t = slope / SE(slope) on n - 2 degrees of freedom; None for
    fewer than three points, for equal steps, or for a perfect or constant fit (no residual to test against).

    Sources: Draper and Smith, Applied Regression Analysis (1998), section 1.4 (test of a slope). Effective sample
    size n (1 - r1) / (1 + r1) for lag-1 autocorrelation r1 of the residuals: Santer et al., J. Geophys. Res. 105
    (2000) 7337, eq. 6; used for the standard error and the degrees of freedom when r1 > 0.
    """
    n = len(values)
    if n < 3:
        return None
    x0, y0 = math.fsum(steps) / n, math.fsum(values) / n
    sxx = math.fsum((x - x0) ** 2 for x in steps)
    syy = math.fsum((y - y0) ** 2 for y in values)
    if sxx == 0:
        return None
    slope = math.fsum((x - x0) * (y - y0) for x, y in zip(steps, values, strict=True)) / sxx
    intercept = y0 - slope * x0
    residuals = [y - intercept - slope * x for x, y in zip(steps, values, strict=True)]
    rss = math.fsum(r * r for r in residuals)
    if rss <= 1e-24 * max(syy, 1e-300):
        return None
    error = math.sqrt(rss / (n - 2) / sxx)
    r1 = math.fsum(a * b for a, b in itertools.pairwise(residuals)) / rss
    effective = n if r1 <= 0 else max(n * (1 - r1) / (1 + r1), 2.0)
    t = slope / error
    if effective <= 2:
        t_adjusted, p_adjusted = 0.0, 1.0
    else:
        t_adjusted = t * math.sqrt((effective - 2) / (n - 2))
        p_adjusted = _two_sided_t(t_adjusted, effective - 2)
    return Trend(n, slope, intercept, error, t, _two_sided_t(t, n - 2), r1, t_adjusted, p_adjusted)


def _two_sided_t(t: float, degrees: float) -> float:
    from scipy.special import stdtr

    return float(2 * stdtr(degrees, -abs(t)))


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's r of two series of equal length; NaN when one is constant or there are fewer than three points."""
    n = len(a)
    if n < 3:
        return math.nan
    a0, b0 = math.fsum(a) / n, math.fsum(b) / n
    saa = math.fsum((x - a0) ** 2 for x in a)
    sbb = math.fsum((y - b0) ** 2 for y in b)
    if saa == 0 or sbb == 0:
        return math.nan
    return math.fsum((x - a0) * (y - b0) for x, y in zip(a, b, strict=True)) / math.sqrt(saa * sbb)


def proportion_standard_error(proportion: float, n: int) -> float:
    """sqrt(p (1 - p) / n): the standard error of a proportion of n independent yes/no results.

    For a mean of scores that lie between 0 and 1 it is an upper bound, as their variance is at most p (1 - p)
    (Bhatia and Davis, Amer. Math. Monthly 107 (2000) 353). Raises ValueError for n < 1 or p outside [0, 1].
    """
    if n < 1 or not 0 <= proportion <= 1:
        raise ValueError(f"not a proportion of n results: {proportion} of {n}")
    return math.sqrt(proportion * (1 - proportion) / n)


def wilson(correct: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion. Source: Wilson, J. Amer. Statist. Assoc. 22 (1927) 209."""
    z = _normal_quantile(confidence)
    p = correct / n
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _normal_quantile(confidence: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(0.5 + confidence / 2)


@dataclass(frozen=True)
class Difference:
    """A difference with its standard error and confidence interval."""

    difference: float
    standard_error: float
    low: float
    high: float


def difference_of_proportions(
    correct_a: int, n_a: int, correct_b: int, n_b: int, confidence: float = 0.95
) -> Difference:
    """b - a for two independent proportions, with Newcombe's hybrid score interval.

    Source: Newcombe, Statistics in Medicine 17 (1998) 873, method 10. Raises ValueError for n < 1.
    """
    a, b = correct_a / n_a, correct_b / n_b
    error = math.hypot(proportion_standard_error(a, n_a), proportion_standard_error(b, n_b))
    low_a, high_a = wilson(correct_a, n_a, confidence)
    low_b, high_b = wilson(correct_b, n_b, confidence)
    return Difference(
        b - a, error, b - a - math.hypot(b - low_b, high_a - a), b - a + math.hypot(high_b - b, a - low_a)
    )


@dataclass(frozen=True)
class Fisher:
    """p-values of Fisher's exact test: for any difference, and for the second proportion being the larger."""

    two_sided: float
    greater: float


def fisher(correct_a: int, n_a: int, correct_b: int, n_b: int) -> Fisher:
    """Fisher's exact test of correct_a of n_a against correct_b of n_b, two independent samples.

    Source: Fisher, Statistical Methods for Research Workers (1934), section 21.02; the two-sided value sums all
    tables that are no more probable than the observed one (scipy.stats.fisher_exact).
    """
    from scipy.stats import fisher_exact

    table = [[correct_b, n_b - correct_b], [correct_a, n_a - correct_a]]
    return Fisher(
        float(fisher_exact(table, alternative="two-sided")[1]), float(fisher_exact(table, alternative="greater")[1])
    )


@dataclass(frozen=True)
class Accuracy:
    """`correct` of `n` answers right (`correct` is a mean count when answers were drawn several times)."""

    correct: float
    n: int
    accuracy: float
    standard_error: float


def accuracy(correct: Sequence[bool]) -> Accuracy:
    """Accuracy of one answer a prompt, with the standard error of a proportion. NaN when there is none."""
    n = len(correct)
    right = sum(map(bool, correct))
    if n == 0:
        return Accuracy(0, 0, math.nan, math.nan)
    return Accuracy(right, n, right / n, proportion_standard_error(right / n, n))


def clustered_accuracy(matrix: Sequence[Sequence[bool]]) -> Accuracy:
    """Accuracy of several answers a prompt, `matrix[prompt][draw]`; `n` counts prompts.

    Answers to one prompt are not independent, so the standard error is that of the mean over prompts: standard
    deviation of the prompts' own accuracies over sqrt(prompts). Source: Miller, "Adding Error Bars to Evals",
    arXiv:2411.00640 (2024), sections 2.2 and 3.1 (clusters of equal size). Raises ValueError for prompts with
    different numbers of draws, or none.
    """
    draws = {len(row) for row in matrix}
    if len(draws) > 1 or 0 in draws:
        raise ValueError("every prompt must have the same number of draws, at least one")
    means = [sum(map(bool, row)) / len(row) for row in matrix]
    found = mean(means)
    return Accuracy(math.fsum(means), found.n, found.mean, found.standard_error)


@dataclass(frozen=True)
class Gain:
    """How much better the trained model answers the same prompts than the base model, with a 95 % interval."""

    gain: float
    standard_error: float
    low: float
    high: float


def paired_gain(base: Sequence[Sequence[bool]], trained: Sequence[Sequence[bool]]) -> Gain:
    """Mean over prompts of (trained accuracy - base accuracy) on that prompt, `[prompt][draw]` each.

    Source: Miller, arXiv:2411.00640 (2024), section 4.2 (paired differences): the standard error is that of the mean
    of the per-prompt differences. Raises ValueError when the prompts are not the same number, or have no draws.
    """
    if len(base) != len(trained) or any(not row for row in (*base, *trained)):
        raise ValueError("both models must have answered the same prompts at least once")
    differences = [
        sum(map(bool, after)) / len(after) - sum(map(bool, before)) / len(before)
        for before, after in zip(base, trained, strict=True)
    ]
    found = mean(differences)
    half = _normal_quantile(0.95) * found.standard_error
    return Gain(found.mean, found.standard_error, found.mean - half, found.mean + half)


@dataclass(frozen=True)
class McNemar:
    """Prompts that only the base or only the trained model answered right, and the two-sided exact p-value."""

    base_only: int
    trained_only: int
    p: float


def mcnemar(base: Sequence[bool], trained: Sequence[bool]) -> McNemar:
    """McNemar's exact test on paired answers: of the prompts whose result changed, half would improve by chance.

    Source: McNemar, Psychometrika 12 (1947) 153; exact binomial form in Agresti, Categorical Data Analysis (2013),
    section 11.1.2. p = min(1, 2 P(X <= min(b, c))) with X binomial (b + c, 1/2). Raises ValueError when the two
    sequences differ in length.
    """
    if len(base) != len(trained):
        raise ValueError("both models must have answered the same prompts")
    base_only = sum(bool(b) and not t for b, t in zip(base, trained, strict=True))
    trained_only = sum(bool(t) and not b for b, t in zip(base, trained, strict=True))
    changed = base_only + trained_only
    if changed == 0:
        return McNemar(0, 0, 1.0)
    from scipy.special import bdtr

    return McNemar(base_only, trained_only, min(1.0, float(2 * bdtr(min(base_only, trained_only), changed, 0.5))))


def paired(differences: Sequence[float]) -> float | None:
    """Two-sided p-value of a mean difference of 0 over paired steps, with the standard error enlarged for positive
    lag-1 autocorrelation as in `trend` (Santer et al. 2000); None for fewer than three pairs or equal differences."""
    found = mean(differences)
    if found.n < 3 or found.standard_error <= 1e-12 * abs(found.mean):  # equal but for rounding
        return None
    residuals = [d - found.mean for d in differences]
    r1 = math.fsum(a * b for a, b in itertools.pairwise(residuals)) / math.fsum(r * r for r in residuals)
    effective = found.n if r1 <= 0 else found.n * (1 - r1) / (1 + r1)
    if effective <= 1.5:
        return 1.0
    t = found.mean / found.standard_error * math.sqrt((effective - 1) / (found.n - 1))
    return _two_sided_t(t, effective - 1)


def two_sided_normal(z: float) -> float:
    """P(|Z| >= |z|) of a standard normal: erfc(|z| / sqrt(2))."""
    return math.erfc(abs(z) / math.sqrt(2))
