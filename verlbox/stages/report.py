"""Report: what the run showed, as files for people and programs, and the acceptance verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlbox import manifest, recipe
from verlbox.findings import Finding
from verlbox.metrics import acceptance
from verlbox.plan import PLATFORMS, reason_log
from verlbox.recipe import Criterion, Recipe, flat
from verlbox.rewards import reasons
from verlbox.run import STAGES, Marker, Run, replacing
from verlbox.stages import Context, Outputs

if TYPE_CHECKING:
    from verlbox.report.facts import DataFlow, Hardware, RunFacts

NAME = "report"
EARLIER = STAGES[: STAGES.index(NAME)]


def inputs(recipe: Recipe, run: Run) -> dict[str, Any]:
    settings = {**flat(recipe.report, "report"), "reward.max_failed_share": recipe.reward.max_failed_share}
    return {**settings, "acceptance": [criterion.model_dump() for criterion in recipe.acceptance]}


def run(context: Context) -> Outputs:
    from verlbox import report
    from verlbox.metrics.read import read
    from verlbox.report.build import build

    run, settings = context.run, context.recipe.report
    built = build(facts_of_run(run), read(run.path))
    with replacing(run.report) as folder:
        report.write_report(built, folder, settings.language, settings.formats)
    verdict = built.verdict
    context.console.line(f"verdict: {verdict.overall}")
    for result in verdict.results:
        value = "no value" if result.value is None else f"{result.value:.4g}"
        context.console.line(f"  {result.status:5}{acceptance.describe(result.line, result.bound)}: {value}")
    context.console.line(f"report: {run.report / 'report.md'}")
    details = {"verdict": verdict.overall, "results": [asdict(result) for result in verdict.results]}
    return Outputs([run.report], details, acceptance.findings(verdict))


def criterion_line(criterion: Criterion) -> acceptance.Line:
    """A line of acceptance as a recipe writes it. Raises ValueError when its parts do not fit together."""
    return acceptance.line(
        criterion.metric,
        criterion.operator,
        criterion.bound,
        reducer=criterion.reducer,
        window=criterion.window,
        severity=criterion.severity,
    )


def is_run(path: Path) -> bool:
    return (path / "manifest.json").is_file() and (path / "recipe.resolved.yaml").is_file()


def facts_of_path(path: Path) -> RunFacts:
    return facts_of_run(Run(path.resolve()))


def facts_of_run(run: Run) -> RunFacts:
    """What a run's manifest, markers and evaluation say of it, for its report. Raises FindingsError when damaged."""
    from verlbox.report.facts import FileFact, RunFacts

    made = manifest.read(run)
    kept = recipe.load(run.path / "recipe.resolved.yaml", files_here=False).recipe  # a run may have been moved here
    markers = {name: marker for name in EARLIER if (marker := run.marker(name)) is not None}
    platform = made["stack"]["platform"]
    steps = made["steps"] or {}
    evaluated = markers["evaluate"].details if "evaluate" in markers else {}
    tally = dict(reasons.read_tally(reason_log(run))) if reason_log(run).exists() else {}
    return RunFacts(
        name=run.name,
        description=kept.description,
        platform=platform,
        rollout=PLATFORMS[kept.stack].ROLLOUT,
        recipe=made["recipe"],
        verl_overrides=made["verl"]["settings"],
        versions={"verlbox": made["verlbox"]["version"], **made["packages"]},
        hardware=_hardware(made["hardware"], platform, kept.train.devices),
        data=_data_flow(run, markers.get("preprocess"), steps, made["verl"]["settings"]),
        evaluation=evaluated.get("summary"),
        training_reasons=tally,
        findings=tuple(Finding(**finding) for m in markers.values() for finding in m.findings),  # type: ignore[arg-type]
        acceptance=tuple(criterion_line(criterion) for criterion in kept.acceptance),
        files=tuple(
            FileFact(name, known.sha256, known.size)
            for stage in ("preprocess", "merge", "evaluate")
            if stage in markers
            for name, known in markers[stage].outputs.items()
        ),
        durations={name: marker.seconds for name, marker in markers.items()},
        planned_steps=steps.get("total"),
        command=f"python entrypoint.py run {run.path / 'recipe.resolved.yaml'} --name {run.name}-again",
        commit=_commit(made["verlbox"]),
    )


def _commit(source: Mapping[str, Any]) -> str:
    return f"{source['commit']}{' (with changes)' if source['dirty'] else ''}" if source["commit"] else ""


def _hardware(known: Mapping[str, Any], platform: str, devices: int) -> Hardware:
    """The accelerators that trained; the processor where there are none, or where the vendor's tool named none."""
    from verlbox.report.facts import Hardware

    gib, system = 2**30, known["system"]
    processor = f"{known['processor']}, {known['memory_bytes'] / gib:.0f} GiB, {system}"
    found = known.get("accelerators") or []
    if found:
        memory = round(found[0]["memory_bytes"] / gib, 1) or None
        return Hardware(found[0]["name"], devices, memory, processor, known["cores"])
    if platform != "cpu":
        return Hardware(platform, devices, None, processor, known["cores"])
    return Hardware(known["processor"], devices, round(known["memory_bytes"] / gib, 1), system, known["cores"])


def _sources(file: Path) -> dict[str, int]:
    """Rows of a prepared split by data source; empty when the file is gone."""
    if not file.is_file():
        return {}
    import pyarrow.parquet

    column = pyarrow.parquet.read_table(file, columns=["data_source"]).column("data_source")
    return {entry["values"]: entry["counts"] for entry in column.value_counts().to_pylist()}


def _data_flow(
    run: Run, marker: Marker | None, steps: Mapping[str, int], settings: Mapping[str, Any]
) -> tuple[DataFlow, ...]:
    from verlbox.report.facts import DataFlow

    if marker is None or marker.state != "done":
        return ()
    used = steps["per_epoch"] * settings["data.train_batch_size"] if steps else None
    return tuple(
        DataFlow(
            split,
            read=counts["read"],
            kept=counts["kept"],
            bad={key.removeprefix("bad: "): n for key, n in counts.items() if key.startswith("bad: ")},
            too_long=counts["too_long"],
            used_per_epoch=used if split == "train" else None,
            sources=_sources(run.data / f"{split}.parquet"),
        )
        for split in ("train", "test")
        for counts in [marker.details[split]]
    )
