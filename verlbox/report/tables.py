"""The report's tables as files: every value, the summary, and report.json."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verlbox import __version__
from verlbox.metrics.acceptance import BUILT_IN, describe
from verlbox.metrics.read import Metrics
from verlbox.report import readings
from verlbox.report.model import Report, Summary

JSON_FORMAT = 2  # raised when a key of report.json changes its meaning or goes


def write_metrics(file: Path, metrics: Metrics) -> None:
    """A row a step, a column a metric, all digits; empty where nothing was recorded, `nan` and `inf` where that was."""
    names = sorted(metrics.series)
    steps = metrics.all_steps()
    columns: list[Iterable[str]] = [map(str, steps)]
    for name in names:
        points = metrics.series[name]
        if len(points) == len(steps):
            columns.append(map(repr, points.values))
            continue
        known = dict(zip(points.steps, map(repr, points.values), strict=True))
        columns.append([known.get(step, "") for step in steps])
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerow(["step", *names])
        stream.writelines(",".join(row) + "\n" for row in zip(*columns, strict=True))


def write_summary(file: Path, summary: Sequence[Summary]) -> None:
    """Columns as in the published run: metric, first_step, first, last_step, last, min, max, mean."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["metric", "first_step", "first", "last_step", "last", "min", "max", "mean"])
        for row in summary:
            numbers = (row.first, row.last, row.minimum, row.maximum, row.mean)
            first, last, low, high, mean = (repr(value) for value in numbers)
            writer.writerow([row.metric, row.first_step, first, row.last_step, last, low, high, mean])


def _finite(value: Any) -> Any:
    """The same with NaN and infinities as null: JSON has no word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    return str(value)


def as_json(report: Report) -> dict[str, Any]:
    """The content of report.json; docs/report.md describes it."""
    facts = report.facts
    spent = readings.step_time(report.metrics)
    scales = {
        name: asdict(scale)
        for name in ("actor/pg_loss", "actor/kl_loss", "critic/vf_loss")
        if name in report.metrics.series and (scale := readings.rescaling(name, facts)) is not None
    }
    content = {
        "format": JSON_FORMAT,
        "verlbox": __version__,
        "name": report.title,
        "platform": facts.platform,
        "source": {"kind": report.metrics.kind, "files": [file.name for file in report.metrics.files]},
        "steps": {
            "count": len(report.metrics.steps()),
            "first": report.first_step,
            "last": report.last_step,
            "planned": facts.planned_steps,
        },
        "verdict": {
            "overall": report.verdict.overall,
            "lines": [
                {
                    "demand": describe(result.line, result.bound),
                    "metric": result.line.metric,
                    "reducer": None if result.line == BUILT_IN else result.line.reducer,
                    "severity": result.line.severity,
                    "status": result.status,
                    "value": result.value,
                    "reason": result.reason,
                }
                for result in report.verdict.results
            ],
        },
        "metrics": {
            row.metric: {
                "first_step": row.first_step,
                "first": row.first,
                "last_step": row.last_step,
                "last": row.last,
                "min": row.minimum,
                "max": row.maximum,
                "mean": row.mean,
                "count": row.count,
                "not_finite": row.not_finite,
            }
            for row in report.summary
        },
        "validation": [asdict(change) for change in readings.changes(facts, report.metrics)],
        "evaluation": facts.evaluation,
        "losses_multiplied_by": scales,
        "step_time": None if spent is None else asdict(spent),
        "data": [asdict(flow) for flow in facts.data],
        "findings": [asdict(finding) for finding in report.findings],
        "settings": facts.verl_overrides,
        "versions": facts.versions,
        "hardware": None if facts.hardware is None else asdict(facts.hardware),
        "durations": facts.durations,
        "command": facts.command,
        "commit": facts.commit,
        "files": [asdict(file) for file in facts.files],
    }
    cleaned: dict[str, Any] = _finite(content)
    return cleaned


def write_json(file: Path, report: Report) -> None:
    file.write_text(json.dumps(as_json(report), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
