"""The pipeline: preflight, then each stage in order, skipping what is done and unchanged.

Nothing is created before the recipe, the plan and this machine have passed. Then, for each stage: inputs, fingerprint,
marker valid? skip; otherwise run, hash the outputs, write the marker last.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from types import ModuleType
from typing import Any

from verlbox import checkpoints, findings, manifest, plan, preflight, process, recipe
from verlbox.console import Console, duration
from verlbox.findings import EXIT_ACCEPTANCE, EXIT_OK, EXIT_STAGE, EXIT_USAGE, Finding, FindingsError
from verlbox.recipe import Loaded
from verlbox.run import UPSTREAM, Change, Marker, Run, changes, digest, write_atomic
from verlbox.stages import Context, StageError, download, evaluate, merge, preprocess, report, train

DRIFT = findings.register("run-drift", "error", "The recipe or the data differ from what the run was made with so far.")
DISK_FULL = findings.register("disk-full", "error", "The disk is full, or a quota is used up.")
NOTHING_LEFT = findings.register(
    "train-nothing-left", "error", "Training is to go on under changed settings, but no step is left to train."
)
EARLIER_STAGE = findings.register("stage-order", "error", "A stage was asked for, but one before it is not done.")

STAGES: tuple[ModuleType, ...] = (download, preprocess, train, merge, evaluate, report)
NAMES: tuple[str, ...] = tuple(stage.NAME for stage in STAGES)


@dataclass(frozen=True)
class Options:
    """What the command line asks of a run beyond its recipe."""

    first: str | None = None
    last: str | None = None
    accepted: Sequence[str] = ()
    offline: bool = False


def run(loaded: Loaded, run: Run, options: Options, console: Console) -> int:
    """Runs a recipe in a run directory and returns the exit code.

    Raises FindingsError when the run must not start (nothing is created then), and Interrupted after an orderly stop.
    """
    made = make_plan(loaded, run, lint=not _trained(loaded, run, options))
    problems = [*preflight.check(loaded, made), *_gap(run, options)]
    problems = [finding for finding in problems if finding.severity != "note"]  # `plan` shows those too
    if findings.has_errors(problems):
        raise FindingsError(problems, preflight.exit_code(problems))
    findings.show(problems)
    with process.interruptible(), run.locked():
        _refuse_drift(loaded, run, options)
        leftovers = process.end_tagged(run.tag)
        if leftovers:
            console.line(f"ended {leftovers} processes that a killed attempt had left")
        run.logs.mkdir(exist_ok=True)
        resolved = recipe.resolved(loaded.recipe)
        if _read(run, "recipe.resolved.yaml") != resolved:
            write_atomic(run.path / "recipe.resolved.yaml", resolved)
        return _run_stages(loaded, run, options, console, problems)


def _read(run: Run, name: str) -> str | None:
    try:
        return (run.path / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _gap(run: Run, options: Options) -> list[Finding]:
    """An error when --from names a stage whose predecessors are not done."""
    before = NAMES[: NAMES.index(options.first)] if options.first else ()
    for name in before:
        marker = run.marker(name)
        if marker is None or marker.state != "done":
            finding = EARLIER_STAGE.finding(
                f"--from {options.first}, but {name} is not done",
                why="Each stage works on what the stages before it made.",
                fix=f"Leave out --from, or use --from {name}.",
            )
            return [finding]
    return []


def make_plan(loaded: Loaded, run: Run, *, lint: bool = True) -> plan.Plan:
    """The plan of a run as far as it has come: exact once preprocess is done, from what is known before.

    Without `lint` its findings are those of the data only: asking the installed verl takes most of a second.
    """
    marker = run.marker(preprocess.NAME)
    valid = marker is not None and marker.state == "done" and not _changes_of(loaded, run, preprocess)
    made = _plan(loaded, run, {preprocess.NAME: marker.details} if marker is not None and valid else {})
    found = preflight.lint(made, loaded.places) if lint else []
    return replace(made, findings=(*made.findings, *found))


def _trained(loaded: Loaded, run: Run, options: Options) -> bool:
    """Whether training is done with these very settings and stays so: there is nothing left to warn of."""
    marker = run.marker(train.NAME)
    again = options.first is not None and NAMES.index(options.first) <= NAMES.index(train.NAME)
    return marker is not None and marker.state == "done" and not again and not _changes_of(loaded, run, train)


def _plan(loaded: Loaded, run: Run, details: Mapping[str, Mapping[str, Any]]) -> plan.Plan:
    prepared = details.get(preprocess.NAME)
    if prepared is None:
        return plan.make(loaded, run, preflight.count_rows(loaded.recipe), None)
    rows = plan.Rows(prepared["train"]["kept"], prepared["test"]["kept"], "after filtering")
    return plan.make(loaded, run, rows, prepared["max_prompt_length"])


def _lint_again(made: plan.Plan, loaded: Loaded, told: Sequence[Finding]) -> None:
    """Shows the warnings that the exact numbers of rows and tokens add to those `told` before the data were there.

    Raises FindingsError when they show an error: training must not start.
    """
    known = {(finding.code, finding.what) for finding in told}
    found = [f for f in preflight.lint(made, loaded.places) if f.severity != "note" and (f.code, f.what) not in known]
    if findings.has_errors(found):
        raise FindingsError(found, EXIT_USAGE)
    findings.show(found)


def _changes_of(loaded: Loaded, run: Run, stage: ModuleType) -> list[Change]:
    marker = run.marker(stage.NAME)
    if marker is None:
        return []
    return changes(marker, stage.inputs(loaded.recipe, run))


def _refuse_drift(loaded: Loaded, run: Run, options: Options) -> None:
    """Raises FindingsError when a stage that is done, or training that has begun, was made with other inputs."""
    found: dict[str, Change] = {}
    for stage in STAGES:
        marker = run.marker(stage.NAME)
        if marker is None:
            continue
        if marker.state != "done" and not (stage is train and checkpoints.folders(run.checkpoints)):
            continue  # it left nothing that could be mixed with
        anew = options.first is not None and NAMES.index(stage.NAME) >= NAMES.index(options.first)
        if anew and (stage is not train or marker.state == "done"):
            continue  # nothing of it is used
        for change in _changes_of(loaded, run, stage):
            found.setdefault(change.key, change)
    accepted = [key for key in found if any(key == a or key.startswith(f"{a}.") for a in options.accepted)]
    refused = [found[key] for key in found if key not in accepted]
    if refused:
        listed = "; ".join(f"{c.key}: {_shown(c.before)} -> {_shown(c.after)}" for c in refused)
        flags = " ".join(f"--accept-drift {c.key}" for c in refused)
        raise FindingsError(
            DRIFT.finding(
                f"{run.path} was made with other inputs: {listed}",
                why="One run would mix results of two recipes, and its report would be about neither.",
                fix=f"Give this one a new name (--name {run.name}-2), or go on with the same run: {flags}",
                where=str(run.path),
            ),
            EXIT_USAGE,
        )
    trained_on = [key for key in accepted if found[key].stage in (download.NAME, preprocess.NAME, train.NAME)]
    if trained_on and options.first is None:
        _refuse_nothing_left(loaded, run, trained_on)


def _refuse_nothing_left(loaded: Loaded, run: Run, accepted: Sequence[str]) -> None:
    """Raises FindingsError when drift was accepted for a training that has no step left to show it in."""
    marker = run.marker(train.NAME)
    steps = make_plan(loaded, run, lint=False).steps
    if marker is None or marker.state != "done" or steps is None or steps.total > marker.details["steps"]:
        return
    raise FindingsError(
        NOTHING_LEFT.finding(
            f"training is done ({marker.details['steps']} steps); {', '.join(accepted)} could change nothing in it",
            why="The report would describe settings that were never trained with.",
            fix=f"Train longer (train.steps or train.epochs), train anew (--from train), or --name {run.name}-2.",
            where=str(run.path),
        ),
        EXIT_USAGE,
    )


def _shown(value: object, limit: int = 70) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _run_stages(loaded: Loaded, run: Run, options: Options, console: Console, told: Sequence[Finding]) -> int:
    first = NAMES.index(options.first) if options.first else len(NAMES)
    last = NAMES.index(options.last) if options.last else len(NAMES) - 1
    details: dict[str, Mapping[str, Any]] = {}
    upstream: dict[str, str] = {}
    attempts: list[dict[str, Any]] | None = None
    for position, stage in enumerate(STAGES[: last + 1]):
        name = NAMES[position]
        process.raise_if_interrupted()
        made = _plan(loaded, run, details)
        marker = run.marker(name)
        inputs = {**stage.inputs(loaded.recipe, run), **upstream}
        done = marker is not None and marker.state == "done" and run.intact(marker)
        unchanged = done and marker is not None and dict(marker.inputs) == json.loads(json.dumps(inputs))
        if marker is not None and unchanged and position < first:
            console.line(f"{name}: done ({marker.finished})")
        else:
            if attempts is None:
                attempts = [*manifest.read(run).get("attempts", []), _attempt(options)]
            if stage is train:
                _lint_again(made, loaded, told)
            if position >= first:
                _set_aside_results(stage, run, made)
            context = Context(made, options.offline, console, details)
            marker = _run_stage(stage, context, inputs, attempts)
        details[name] = marker.details
        upstream[f"{UPSTREAM}{name}"] = digest(marker.outputs)
    verdict = details.get("report", {}).get("verdict")
    return EXIT_ACCEPTANCE if verdict == "fail" else EXIT_OK


def _set_aside_results(stage: ModuleType, run: Run, made: plan.Plan) -> None:
    """--from train trains anew: earlier checkpoints are kept, but out of the way, or verl would resume from them."""
    marker = run.marker(train.NAME)
    if stage is train and marker is not None and marker.state == "done":
        train.set_checkpoints_aside(made)


def _attempt(options: Options) -> dict[str, Any]:
    return {
        "started": manifest.now(),
        "host": socket.gethostname(),
        "from": options.first,
        "until": options.last,
        "accepted_drift": list(options.accepted),
    }


def _run_stage(
    stage: ModuleType, context: Context, inputs: Mapping[str, Any], attempts: list[dict[str, Any]]
) -> Marker:
    """Runs one stage and leaves its marker, whatever happens. Raises what the stage raised, as findings."""
    run, name = context.run, stage.NAME
    context.console.line(f"{name} ...")
    started = time.monotonic()
    versions = _versions()
    known = run.marker(name)

    def mark(**content: Any) -> Marker:
        seconds = round(time.monotonic() - started, 3)
        marker = Marker(name, inputs=inputs, versions=versions, seconds=seconds, finished=manifest.now(), **content)
        run.write_marker(marker)
        manifest.write(run, context.plan, NAMES, attempts)
        return marker

    kept: list[dict[str, str]] = []

    def keep(found: Sequence[Finding]) -> None:
        kept[:] = [asdict(finding) for finding in found]
        with contextlib.suppress(OSError):  # a full disk must not end a training that still goes on
            mark(state="running", findings=kept)

    with _disk_full_as_finding(run):
        mark(state="running")
        try:
            outputs = stage.run(replace(context, keep=keep))
            records = run.records(outputs.files, known.outputs if known else None)
            marker = mark(
                state="done",
                outputs=records,
                details=outputs.details,
                findings=[asdict(finding) for finding in outputs.findings],
            )
        except process.Interrupted as stop:
            mark(state="interrupted", details={"signal": stop.signum}, findings=kept)
            raise
        except FindingsError as error:
            details = error.details if isinstance(error, StageError) else {}
            mark(state="failed", details=details, findings=[asdict(finding) for finding in error.findings])
            error.exit_code = EXIT_STAGE
            raise
        except OSError as error:
            with contextlib.suppress(OSError):
                mark(state="failed", details={"error": str(error)})
            raise
    findings.show(outputs.findings)
    context.console.line(f"{name}: done in {duration(marker.seconds)}")
    return marker


def _versions() -> dict[str, str]:
    names = ("verl", "ray", "torch", "transformers")
    result = {"verlbox": manifest.source()["version"]}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            result[name] = metadata.version(name)
    return result


@contextlib.contextmanager
def _disk_full_as_finding(run: Run) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = os.statvfs(run.path)
        raise FindingsError(disk_full(run, free.f_bavail * free.f_frsize, error.filename), EXIT_STAGE) from error


def disk_full(run: Run, free: int, file: object = None) -> Finding:
    return DISK_FULL.finding(
        f"no space left for {file or run.path} ({free:,} bytes free)",
        why="What was being written does not count as done; what was done before is kept.",
        fix="Free some space and run the same command again: it goes on from here.",
        where=str(run.path),
    )


def stored_recipe(run: Run) -> Loaded:
    """The recipe that a run was last made with; the run may have come from another machine, without what it read."""
    return recipe.load(run.path / "recipe.resolved.yaml", files_here=False)
