"""Acceptance: what a recipe demands of its result, as data, and the verdict on a run.

A line takes one number from the run (a metric and a reducer, or a value of the evaluation) and holds it against a
bound. A missing or non-finite number fails its line. One line is built in and cannot be turned off: the run learned,
that is, it was given rewards other than zero and its gradients moved the weights.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

from verlbox.findings import EXIT_ACCEPTANCE, EXIT_OK, Finding, FindingsError, register
from verlbox.metrics.read import Metrics, Series, is_number
from verlbox.metrics.statistics import trend

NOT_ACCEPTED = register("acceptance-failed", "error", "The run does not meet a line of its acceptance.")
NEARLY = register("acceptance-warning", "warning", "The run misses a line of its acceptance that only warns.")
UNKNOWN_REFERENCE = register(
    "acceptance-unknown-reference", "error", "A recipe names a reference run that has no band for this value."
)

Reducer = Literal["last", "first", "mean", "median", "min", "max", "slope", "last_k_mean"]
Operator = Literal[">=", ">", "<=", "<", "==", "within"]
Status = Literal["pass", "warn", "fail"]
Severity = Literal["fail", "warn"]

REDUCERS: tuple[Reducer, ...] = get_args(Reducer)
OPERATORS: tuple[Operator, ...] = get_args(Operator)
EVALUATION = "evaluation."

SCORE = ("critic/score/mean", "critic/score/max")
GRADIENT = ("actor/grad_norm",)


@dataclass(frozen=True)
class Band:
    """Values from `low` to `high`, both allowed, and the reference run they are taken from (or empty)."""

    low: float
    high: float
    reference: str = ""


@dataclass(frozen=True)
class Line:
    """One demand. `metric` is verl's name, or `evaluation.greedy.gain` and the like from evaluation/summary.json.

    `window` is the number of last points that the reducer sees (all when None; `last_k_mean` needs it). `bound` is a
    number, a Band for `within`, or the name of a reference run whose band is looked up.
    """

    metric: str
    operator: Operator
    bound: float | Band | str
    reducer: Reducer = "last"
    window: int | None = None
    severity: Severity = "fail"


@dataclass(frozen=True)
class Result:
    """The verdict on one line. `value` is None when there was none; `reason` says why in that case.

    `reason` is "" (the comparison decided), "missing", "not-finite", "too-few" (fewer points than the window of
    last_k_mean), or, for the built-in line, "learned", "no-steps", "scores-zero", "gradients-zero".
    """

    line: Line
    status: Status
    value: float | None
    bound: float | Band
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """pass, warn or fail: the worst of the lines. The built-in line, metric `learned`, comes first."""

    overall: Status
    results: tuple[Result, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_ACCEPTANCE if self.overall == "fail" else EXIT_OK


BUILT_IN = Line("learned", ">", 0.0)
BANDS = Path(__file__).parents[2] / "recipes" / "reference" / "bands.csv"


def line(
    metric: str,
    operator: Operator,
    bound: float | str | Sequence[float],
    *,
    reducer: Reducer = "last",
    window: int | None = None,
    severity: Severity = "fail",
) -> Line:
    """A line as recipes spell it: the bound is a number, two numbers for `within`, or the name of a reference run.

    Raises ValueError for an unknown reducer or operator, for a bound that does not suit the operator, and for
    `last_k_mean` without a window.
    """
    if reducer not in REDUCERS:
        raise ValueError(f"unknown reducer {reducer!r}; there are {', '.join(REDUCERS)}")
    if operator not in OPERATORS:
        raise ValueError(f"unknown operator {operator!r}; there are {', '.join(OPERATORS)}")
    if reducer == "last_k_mean" and window is None:
        raise ValueError("last_k_mean needs a window: the number of last points to take the mean of")
    if isinstance(bound, str):
        limit: float | Band | str = bound
    elif isinstance(bound, Sequence):
        ends = [float(end) for end in bound]
        if len(ends) != 2 or ends[0] > ends[1]:
            raise ValueError(f"a band is two numbers, the lower first, not {ends}")
        limit = Band(ends[0], ends[1])
    else:
        limit = float(bound)
    if (operator == "within") != isinstance(limit, Band | str):
        raise ValueError(f"`within` takes a band and every other operator a number; got {operator!r} with {bound!r}")
    return Line(metric, operator, limit, reducer, window, severity)


def reduce(points: Series, reducer: Reducer, window: int | None = None) -> float:
    """One number of a series' last `window` points (all when None). NaN when there are no points, when one of
    them is not finite, or when `slope` (per step, least squares) is undefined. Raises ValueError for an unknown
    reducer, or for `last_k_mean` without a window."""
    if reducer == "last_k_mean" and window is None:
        raise ValueError("last_k_mean needs a window: the number of last points to take the mean of")
    start = 0 if window is None else max(0, len(points) - window)
    steps, values = list(points.steps[start:]), list(points.values[start:])
    if reducer == "last":
        values = values[-1:]
    elif reducer == "first":
        values = values[:1]
    if not values or not all(map(is_number, values)):
        return math.nan
    match reducer:
        case "last" | "first":
            return values[0]
        case "mean" | "last_k_mean":
            return math.fsum(values) / len(values)
        case "median":
            return median(values)
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "slope":
            if len(values) > 1 and len(set(values)) == 1:
                return 0.0
            line = trend(steps, values)
            if line is not None:
                return line.slope
            if len(values) == 2 or len(values) > 2:
                return (values[-1] - values[0]) / (steps[-1] - steps[0])
            return math.nan
    raise ValueError(f"unknown reducer {reducer!r}; there are {', '.join(REDUCERS)}")


def _value(line: Line, metrics: Metrics, evaluation: Mapping[str, Any] | None) -> tuple[float | None, str]:
    """The number a line is about, and why there is none."""
    if line.metric.startswith(EVALUATION):
        found: Any = evaluation
        for key in line.metric[len(EVALUATION) :].split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            found = found.get("accuracy")
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None, "missing"
        value = float(found)
    else:
        points = metrics.series.get(line.metric)
        if points is None or not len(points):
            return None, "missing"
        if line.reducer == "last_k_mean" and len(points) < (line.window or 1):
            return None, "too-few"
        value = reduce(points, line.reducer, line.window)
    return (value, "") if math.isfinite(value) else (None, "not-finite")


def _holds(value: float, operator: Operator, bound: float | Band) -> bool:
    if isinstance(bound, Band):
        return bound.low <= value <= bound.high
    match operator:
        case ">=":
            return value >= bound
        case ">":
            return value > bound
        case "<=":
            return value <= bound
        case "<":
            return value < bound
        case "==":
            return math.isclose(value, bound, rel_tol=1e-9, abs_tol=1e-12)
    raise ValueError(f"operator {operator!r} with the bound {bound!r}; there are {', '.join(OPERATORS)}")


def learned(metrics: Metrics) -> Result:
    """The built-in line. A run whose scores are all 0, or whose gradients are all 0, has not learned, whatever
    verl's exit code; nor has one that recorded neither."""

    def alive(names: Sequence[str]) -> bool | None:
        known = [metrics.series[name] for name in names if name in metrics.series]
        if not known:
            return None
        return any(is_number(v) and v != 0 for points in known for v in points.values)

    if not metrics.steps():
        return Result(BUILT_IN, "fail", None, 0.0, "no-steps")
    scored, moved = alive(SCORE), alive(GRADIENT)
    if scored is None or moved is None:
        return Result(BUILT_IN, "fail", None, 0.0, "missing")
    if not scored:
        return Result(BUILT_IN, "fail", 0.0, 0.0, "scores-zero")
    if not moved:
        return Result(BUILT_IN, "fail", 0.0, 0.0, "gradients-zero")
    return Result(BUILT_IN, "pass", 1.0, 0.0, "learned")


def judge(
    lines: Iterable[Line],
    metrics: Metrics,
    evaluation: Mapping[str, Any] | None = None,
    bands: Mapping[BandKey, Band] | None = None,
) -> Verdict:
    """Holds a run against its acceptance.

    `evaluation` is the content of evaluation/summary.json; `bands` is what load_bands gives, needed when a line names
    a reference run. Raises FindingsError for a reference run without such a band.
    """
    results = [learned(metrics)]
    problems: list[Finding] = []
    for line in lines:
        bound = line.bound
        if isinstance(bound, str):
            found = (bands or {}).get((bound, line.metric, line.reducer, line.window))
            if found is None:
                problems.append(_unknown_reference(line, bands or {}))
                continue
            bound = found
        value, reason = _value(line, metrics, evaluation)
        met = value is not None and _holds(value, line.operator, bound)
        results.append(Result(line, "pass" if met else line.severity, value, bound, reason))
    if problems:
        raise FindingsError(problems)
    statuses = {result.status for result in results}
    overall: Status = "fail" if "fail" in statuses else "warn" if "warn" in statuses else "pass"
    return Verdict(overall, tuple(results))


# --- bands of reference runs -----------------------------------------------------------------------------------

BandKey = tuple[str, str, str, int | None]  # reference run, metric, reducer, window


def load_bands(file: Path = BANDS) -> dict[BandKey, Band]:
    """The bands of recipes/reference/bands.csv (columns reference, metric, reducer, window, low, high, source)."""
    bands: dict[BandKey, Band] = {}
    with file.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            window = int(row["window"]) if row["window"] else None
            key = (row["reference"], row["metric"], row["reducer"], window)
            bands[key] = Band(float(row["low"]), float(row["high"]), row["reference"])
    return bands


def _unknown_reference(line: Line, bands: Mapping[BandKey, Band]) -> Finding:
    window = f", window {line.window}" if line.window else ""
    known = sorted({f"{run}: {reducer} of {metric}" for run, metric, reducer, _ in bands})
    return UNKNOWN_REFERENCE.finding(
        f"There is no band for the {line.reducer} of {line.metric}{window} in reference run {line.bound!r}.",
        why="The acceptance line has no bound to hold the run against.",
        fix=f"Use one of: {'; '.join(known) or 'none is known'}. Or give the bound as numbers.",
    )


# --- words -----------------------------------------------------------------------------------------------------

_REASONS = {
    "missing": "it was not recorded",
    "not-finite": "it is NaN or infinite",
    "too-few": "it has fewer points than the window",
    "no-steps": "no training step was recorded",
    "scores-zero": "every score was 0",
    "gradients-zero": "every gradient was 0",
}


def describe(line: Line, bound: float | Band | str | None = None) -> str:
    """A line as text, `last_k_mean(5) of val-core/... within 0.48 .. 0.56`."""
    bound = line.bound if bound is None else bound
    if line is BUILT_IN:
        return "the run learned (scores and gradients other than 0)"
    window = f"({line.window})" if line.window else ""
    of = line.metric if line.metric.startswith(EVALUATION) else f"{line.reducer}{window} of {line.metric}"
    if isinstance(bound, Band):
        reference = f" ({bound.reference})" if bound.reference else ""
        return f"{of} within {bound.low:g} .. {bound.high:g}{reference}"
    return f"{of} {line.operator} {bound if isinstance(bound, str) else format(bound, 'g')}"


def findings(verdict: Verdict) -> list[Finding]:
    """What is not met, for the run's list of findings."""
    found: list[Finding] = []
    for result in verdict.results:
        if result.status == "pass":
            continue
        code = NOT_ACCEPTED if result.status == "fail" else NEARLY
        got = _REASONS.get(result.reason) or f"the value is {result.value:.6g}"
        found.append(
            code.finding(
                f"Not met: {describe(result.line, result.bound)}; {got}.",
                why="verl exits with 0 even when nothing was learned; the acceptance decides."
                if result.line is BUILT_IN
                else "The recipe asks for it.",
                fix="Look at the reward and at the answers of the run."
                if result.line is BUILT_IN
                else "Read the report; change the recipe only with a reason that you can state.",
            )
        )
    return found
