"""Train: verl itself as a child process, from its last complete checkpoint, until its last step.

Exit code 0 proves nothing about training, so the stage counts as done only when the checkpoint of the last planned
step is there, complete. A training run that had reached it before (the marker was lost in a crash) is not started
again: verl would run one step more.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import verlbox
from verlbox import checkpoints, cluster, findings, hydra_overrides, ladder, process
from verlbox.cluster import check
from verlbox.console import Console
from verlbox.findings import Finding
from verlbox.metrics.read import parse_line
from verlbox.plan import Plan, Steps, reason_log, verl_command
from verlbox.recipe import Recipe, flat
from verlbox.rewards import reasons
from verlbox.run import Run, set_aside, write_json
from verlbox.stacks import STACKS
from verlbox.stages import Context, Outputs, StageError, command_failed
from verlbox.status import step_text

if TYPE_CHECKING:
    from verlbox.diagnosis.matcher import Diagnosis

CHECKPOINT_SET_ASIDE = findings.register(
    "checkpoint-set-aside", "note", "A checkpoint that was being written when the run died was moved out of the way."
)
STOPPED_EARLY = findings.register(
    "train-stopped-early", "error", "verl ended without an error, but before its last step or without its checkpoint."
)
NO_CHECKPOINTS = findings.register(
    "train-without-checkpoints", "error", "The settings make verl write no checkpoint, so there would be no model."
)
STEPPED_DOWN = findings.register(
    "train-stepped-down", "warning", "A device ran out of memory; training went on with settings that need less."
)
RETRIED = findings.register("ray-start-retried", "note", "Ray did not start in time and was started once more.")

NAME = "train"
LONGEST_RAY_PARENT = 24  # characters; Ray adds about 80 to it in its socket paths
RAY_START_FAILED = (
    "The current node timed out during startup",
    "Failed to start the GCS",
    "Timed out waiting for file",
)
# Causes that a lost node shows itself by in the logs of the others; the kernel's memory killer can end a node's Ray.
LOOK_LIKE_A_LOST_NODE = {
    "log-ray-node-died",
    "log-ray-no-cluster",
    "log-ray-start-failed",
    "log-hccl-link-down",
    "log-host-memory-kernel",
    "log-hub-unreachable",
}


def inputs(recipe: Recipe, run: Run) -> dict[str, Any]:
    """Every setting that training depends on, and the software that gives it its meaning."""
    # Checkpoints are shards of one world size, so nodes count; where the cluster is does not.
    settings = {"train": recipe.train, "reward": recipe.reward}
    stack = STACKS[recipe.stack]
    return {
        "stack": stack.name,
        "verl": stack.verl,
        "verlbox": verlbox.__version__,
        "overrides": recipe.overrides,
        "cluster.nodes": recipe.cluster.nodes,
        **{key: value for name, section in settings.items() for key, value in flat(section, name).items()},
    }


def run(context: Context) -> Outputs:
    run, plan = context.run, context.plan
    assert plan.steps is not None, "preprocess has run, so the rows are known"
    folder, total = checkpoint_folder(plan), plan.steps.total
    _refuse_no_checkpoints(plan)
    mended = _repair(plan)
    notes = [
        CHECKPOINT_SET_ASIDE.finding(
            f"incomplete checkpoint moved to {moved}",
            why="verl would have died on it, or resumed from it wrongly.",
            fix="Nothing to do; remove the folder when you do not need it.",
        )
        for moved in mended.set_aside
    ]
    log = run.logs / "train.log"
    seconds = 0.0
    if mended.step >= total:
        context.console.line(f"training had reached step {mended.step} of {total} already")
    else:
        if mended.step:
            context.console.line(f"resuming after step {mended.step} of {total}")
        nodes = _nodes(plan)
        started = time.monotonic()
        try:
            notes += _train(context, plan.steps, mended.step, log)
        except StageError as error:
            lost = _lost_nodes(plan, nodes, error.findings)
            raise StageError([*lost, *error.findings], error.details) from error
        seconds = time.monotonic() - started
    reached = _repair(plan)
    if reached.step < total:
        raise StageError(
            STOPPED_EARLY.finding(
                f"the last complete checkpoint is of step {reached.step}, not {total}",
                why="verl's exit code was 0, which proves nothing; there is no trained model.",
                fix=f"Read {log}; run the same command again to go on.",
                where=str(log),
            ),
            {"exit_code": 0, "log": str(log)},
        )
    ungraded = _ungraded(context)
    if ungraded is not None:
        raise StageError(ungraded, {"exit_code": 0, "log": str(log)})
    last = folder / f"global_step_{total}"
    details = {
        "steps": total,
        "resumed_from": mended.step,
        "checkpoint": str(last),
        "train_seconds": seconds,
        "exit_code": 0,
        "log": str(log),
    }
    return Outputs([last], details, notes)


def _nodes(plan: Plan) -> dict[str, str]:
    """The nodes of the cluster that training joins (id -> name), none when Ray is verl's own.

    Raises StageError when the cluster cannot carry the plan, or not any more: what came before can have taken hours.
    """
    joined = cluster.address(plan.recipe)
    if joined is None:
        return {}
    problems, nodes = check.look(plan, joined)
    if problems:
        raise StageError(problems)
    return nodes


def _lost_nodes(plan: Plan, before: Mapping[str, str], found: Sequence[Finding]) -> list[Finding]:
    """What became of the nodes, where the failure as it was `found` can come from a lost one: the cluster takes 5 to
    150 s to answer. A log with the cause of the failure, and not just with its effects, has answered already.
    """
    from verlbox.diagnosis.catalogue import load

    joined = cluster.address(plan.recipe)
    causes = {
        entry.code.name for entry in load() if entry.severity == "fatal" and entry.role == "cause" and not entry.lasting
    }
    if joined is None or any(finding.code in causes - LOOK_LIKE_A_LOST_NODE for finding in found):
        return []
    return check.lost(plan, joined, before)


def _ungraded(context: Context) -> Finding | None:
    """The error when the grader failed on too many answers for the rewards to mean anything."""
    log = reason_log(context.run)
    if not log.exists():
        return None
    return reasons.ungraded_finding(reasons.read_tally(log), context.recipe.reward.max_failed_share, str(log))


def checkpoint_folder(plan: Plan) -> Path:
    return plan.run.path / str(plan.effective["trainer.default_local_dir"])


def set_checkpoints_aside(plan: Plan) -> None:
    """Moves the checkpoints of a finished training out of verl's way, so that it begins anew; nothing is deleted."""
    folder = checkpoint_folder(plan)
    if folder.exists():
        set_aside(folder, plan.run.path / "earlier")


def _expected(plan: Plan) -> checkpoints.Roles:
    """verl's role folders, and what each of them must hold; the defaults are verl's (config/actor/actor.yaml)."""
    keys = {"actor": "actor_rollout_ref.actor.checkpoint.save_contents"}
    if plan.effective.get("algorithm.adv_estimator", "gae") == "gae":
        keys["critic"] = "critic.checkpoint.save_contents"
    roles: dict[str, list[str]] = {}
    for role, key in keys.items():
        contents = plan.effective.get(key) or ["model", "optimizer", "extra"]
        assert isinstance(contents, list)
        roles[role] = contents
    return roles


def _repair(plan: Plan) -> checkpoints.Repair:
    folder = checkpoint_folder(plan)
    return checkpoints.repair(folder, _expected(plan), folder.with_name(f"{folder.name}.incomplete"))


def _refuse_no_checkpoints(plan: Plan) -> None:
    frequency = plan.effective.get("trainer.save_freq", -1)
    if not isinstance(frequency, int) or frequency <= 0:
        raise StageError(
            NO_CHECKPOINTS.finding(
                f"trainer.save_freq = {frequency}",
                why="verl 0.6.1 writes no checkpoint at all then, not even at the last step (ray_trainer.py, fit).",
                fix="Set trainer.save_freq to a positive number; the last step is always saved then.",
            )
        )


@dataclass(frozen=True)
class Attempt:
    """How one start of verl ended: exit code, what its log says, whether a step was made, whether Ray came up."""

    code: int
    diagnosis: Diagnosis
    made_a_step: bool
    ray_started: bool


def _train(context: Context, steps: Steps, done: int, log: Path) -> list[Finding]:
    """Runs verl until it ends well, and returns what its log had to say. Raises StageError when it does not.

    Two failures are met by another start: Ray gives its own processes 30 s, which a loaded machine can exceed (tried
    once more), and a device that ran out of memory, where the recipe asks for it (`train.on_oom`).
    """
    notes: list[Finding] = []
    rungs = _rungs_taken(context.run)
    retried = False
    while True:
        attempt = _attempt(context, steps, done, log, rungs, notes)
        if attempt.code == 0:
            return [*notes, *attempt.diagnosis.findings]
        if not (retried or attempt.made_a_step or attempt.ray_started):
            context.console.line("Ray did not start in time; trying once more")
            notes.append(RETRIED.finding("Ray was started twice", why="Its first start took over 30 s.", fix=""))
            retried = True
            continue
        rung = _next_rung(context, rungs) if attempt.diagnosis.failure == "device-oom" else None
        if rung is None:
            failed = command_failed("verl", attempt.code, log)
            details = {**failed.details, "failure": attempt.diagnosis.failure, "step_downs": rungs}
            raise StageError([*attempt.diagnosis.findings, *notes, *failed.findings], details)
        rungs.append(rung)
        write_json(_rung_file(context.run), rungs)
        notes.append(_stepped_down(rung, len(rungs)))
        context.console.line(findings.to_text(notes[-1:]))
        done = _repair(context.plan).step


def _attempt(
    context: Context, steps: Steps, done: int, log: Path, rungs: list[dict[str, Any]], notes: Sequence[Finding]
) -> Attempt:
    from verlbox.diagnosis.health import Bounds
    from verlbox.diagnosis.matcher import Watcher

    plan, run = context.plan, context.run
    changed = [hydra_overrides.format_override(key, value) for rung in rungs for key, value in rung.items()]
    command = verl_command(plan.settings, [*plan.recipe.overrides, *changed])
    progress = Progress(context.console, steps.total, done)
    bounds = replace(Bounds(), **plan.recipe.health)  # type: ignore[arg-type]
    watcher = Watcher(platform=STACKS[plan.recipe.stack].platform, bounds=bounds)

    kept: list[Finding] = list(notes)
    if kept:
        context.keep(kept)

    def on_line(line: str) -> None:
        step = progress.step
        progress.feed(line)
        new = watcher.feed(line)
        ungraded = _ungraded(context) if progress.step > step else None
        if ungraded and ungraded.code not in {finding.code for finding in kept}:
            new.append(ungraded)
        for finding in new:
            context.console.line(findings.to_text([finding]))
        if new or (kept and progress.step > step):  # a further step can excuse what was found before
            standing = [*notes, *watcher.standing(), *([ungraded] if ungraded else [])]
            if standing != kept:
                kept[:] = standing
                context.keep(kept)

    run.tensorboard.mkdir(parents=True, exist_ok=True)
    joined = cluster.address(plan.recipe)
    started = "Ray and verl" if joined is None else f"verl on the Ray cluster {joined}"
    context.console.line(f"starting {started} (half a minute or more) ...")
    begin = log.stat().st_size if log.exists() else 0
    with ray_folder(run) as (ray_tmp, keep_logs):
        environment = child_environment(plan)
        if joined is None:  # Ray finds the cluster of this machine by the folder that it was started with
            environment["RAY_TMPDIR"] = str(ray_tmp)
        code = process.run(command, log=log, tag=run.tag, environment=environment, cwd=run.path, on_line=on_line)
        if code != 0:
            keep_logs()
    return Attempt(code, watcher.finish(code), progress.step > done, not _ray_did_not_start(log, begin))


def _ray_did_not_start(log: Path, begin: int) -> bool:
    with log.open("rb") as stream:
        stream.seek(begin)
        text = stream.read().decode("utf-8", "replace")
    return any(sign in text for sign in RAY_START_FAILED)


def _rung_file(run: Run) -> Path:
    return run.path / "step_downs.json"


def _rungs_taken(run: Run) -> list[dict[str, Any]]:
    """The rungs that earlier attempts have taken: what did not fit then does not fit now."""
    try:
        rungs: list[dict[str, Any]] = json.loads(_rung_file(run).read_text(encoding="utf-8"))
        return rungs
    except FileNotFoundError:
        return []


def _next_rung(context: Context, rungs: list[dict[str, Any]]) -> dict[str, Any] | None:
    settings = context.recipe.train
    if settings.on_oom != "step_down" or len(rungs) >= settings.on_oom_times:
        return None
    effective = dict(context.plan.effective)
    for rung in rungs:
        effective.update({key.lstrip("+"): value for key, value in rung.items()})
    critic = "critic.fsdp" if STACKS[context.recipe.stack].verl == "0.9.1" else "critic.model.fsdp_config"
    return ladder.next_rung(effective, critic)


def _stepped_down(rung: Mapping[str, Any], number: int) -> Finding:
    changed = ", ".join(f"{key}={value}" for key, value in rung.items())
    return STEPPED_DOWN.finding(
        f"rung {number}: {changed}",
        why="A device ran out of memory. Only the execution changes, not the algorithm.",
        fix="Put these settings into the recipe to start with them.",
    )


def child_environment(plan: Plan) -> dict[str, str]:
    """This process's environment with verlbox's additions; PYTHONPATH is added to, not replaced."""
    environment = {**os.environ, **plan.environment}
    if os.environ.get("PYTHONPATH"):
        environment["PYTHONPATH"] = f"{plan.environment['PYTHONPATH']}:{os.environ['PYTHONPATH']}"
    return environment


@contextlib.contextmanager
def ray_folder(run: Run) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A short-lived folder for Ray's session, since Ray's socket paths must stay below 108 bytes.

    Comes with a function that keeps Ray's own logs in the run, for when they are worth reading.
    """
    parent = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="vbx-", dir=parent if len(parent) <= LONGEST_RAY_PARENT else "/tmp"))

    def keep_logs() -> None:
        for logs in folder.glob("ray/session_2*/logs"):
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(logs, run.logs / "ray" / logs.parent.name, dirs_exist_ok=True)

    try:
        yield folder, keep_logs
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Progress:
    """One line of progress a step, made from verl's own metrics line."""

    console: Console
    total: int
    step: int
    started: float = field(default_factory=time.monotonic)
    seconds: list[float] = field(default_factory=list)

    def feed(self, line: str) -> None:
        parsed = parse_line(line) if "step:" in line else None
        if parsed is None or parsed[0] <= self.step:  # step 0 holds the validation before training
            return
        self.step, metrics = parsed
        self.seconds.append(metrics.get("timing_s/step", metrics.get("perf/time_per_step", 0.0)))
        self.console.progress(step_text(metrics, self.step, self.total, self.seconds[-5:]))
