"""The charts of a report, in the groups that verl users know: policy health, reward, stability, efficiency."""

from __future__ import annotations

from collections.abc import Iterable

from verlbox.metrics import statistics
from verlbox.metrics.read import Metrics
from verlbox.report import readings
from verlbox.report.facts import RunFacts
from verlbox.report.model import Chart, Curve, Inline, Text, number, text

CHART_GROUPS = ("policy_health", "reward_metrics", "stability_metrics", "efficiency_metrics")


def _curve(metrics: Metrics, label: Inline, *names: str, factor: int = 1) -> Curve | None:
    points = metrics.get(*names)
    if points is None or not len(points.finite()):
        return None
    return Curve(label, readings.scaled(points, factor) if factor != 1 else points)


def _chart(identity: str, curves: Iterable[Curve | None], note: Text | None = None, **values: Inline) -> Chart | None:
    there = tuple(curve for curve in curves if curve is not None)
    return Chart(identity, text(f"chart.{identity}", **values), there, note) if there else None


def charts(facts: RunFacts, metrics: Metrics) -> dict[str, tuple[Chart, ...]]:
    """All charts by group, in the groups that verl users know; the four PNG files hold the same."""
    prompts = readings.prompts_of(facts, metrics)
    validation = []
    for source, (name, recorded) in readings.by_source(metrics).items():
        points, n = recorded.finite(), prompts[source]
        if not len(points):
            continue
        errors: tuple[float, ...] = ()
        if n and all(0 <= v <= 1 for v in points.values):
            errors = tuple(statistics.proportion_standard_error(v, n) for v in points.values)
        validation.append(Curve(name, points, errors, marks=True))
    kl, pg = factor("actor/kl_loss", facts), factor("actor/pg_loss", facts)
    vf = factor("critic/vf_loss", facts)
    memory = [
        _curve(metrics, text(f"curve.{key}"), f"perf/max_memory_{key}_gb", f"actor/perf/max_memory_{key}_gb")
        for key in ("allocated", "reserved")
    ]
    groups: dict[str, list[Chart | None]] = {
        "policy_health": [
            _chart("entropy", [_curve(metrics, text("curve.entropy"), *readings.ENTROPY)]),
            _chart("kl-loss", [_curve(metrics, text("curve.kl"), *readings.KL_LOSS, factor=kl)], _times(kl)),
            _chart("kl-reward", [_curve(metrics, text("curve.kl"), *readings.KL_REWARD)]),
            _chart("policy-loss", [_curve(metrics, text("curve.policy-loss"), "actor/pg_loss", factor=pg)], _times(pg)),
            _chart("value-loss", [_curve(metrics, text("curve.value-loss"), "critic/vf_loss", factor=vf)], _times(vf)),
            _chart("explained", [_curve(metrics, text("curve.explained"), "critic/vf_explained_var")]),
        ],
        "reward_metrics": [
            _chart("score", [_curve(metrics, text("curve.score"), *readings.SCORE)]),
            _chart("validation", validation, _band(prompts.values())),
            _chart(
                "reasons",
                [
                    Curve(code, points, marks=True)
                    for code, points in readings.reason_series(metrics).items()
                    if any(points.finite().values)
                ],
            ),
        ],
        "stability_metrics": [
            _chart(
                "gradient",
                [
                    _curve(metrics, text("curve.actor"), "actor/grad_norm"),
                    _curve(metrics, text("curve.critic"), "critic/grad_norm"),
                ],
            ),
            _chart(
                "clipped-ratio",
                [_curve(metrics, text("curve.clipfrac"), "actor/pg_clipfrac")],
                text("chart.clip-trivial") if readings.clipping(facts, metrics) else None,
            ),
            _chart("response-length", [_curve(metrics, text("curve.mean-length"), "response_length/mean")]),
            _chart(
                "cut-answers",
                [
                    _curve(metrics, text("curve.response-cut"), "response_length/clip_ratio"),
                    _curve(metrics, text("curve.aborted"), "response/aborted_ratio"),
                ],
            ),
        ],
        "efficiency_metrics": [
            _chart("step-time", [_curve(metrics, text("curve.step-time"), *readings.STEP_TIME)]),
            _chart("throughput", [_curve(metrics, text("curve.throughput"), "perf/throughput")]),
            _chart(
                "mfu",
                [
                    _curve(metrics, text("curve.actor"), "perf/mfu/actor"),
                    _curve(metrics, text("curve.critic"), "perf/mfu/critic"),
                ],
            ),
            _chart("memory", [c for c in memory if c is not None and any(c.points.values)]),
        ],
    }
    return {group: tuple(c for c in found if c is not None) for group, found in groups.items()}


def _band(prompts: Iterable[int | None]) -> Text | None:
    """What the error bars are, where there are any."""
    known = [number(float(n)) for n in prompts if n]
    return text("chart.band", n=", ".join(known)) if known else None


def factor(name: str, facts: RunFacts) -> int:
    scale = readings.rescaling(name, facts)
    return scale.factor if scale is not None and scale.factor is not None else 1


def _times(factor: int) -> Text | None:
    return text("chart.rescaled", factor=str(factor)) if factor != 1 else None
