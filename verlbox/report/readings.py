"""Reads verl's numbers for what they are: which are scaled, which are constant by construction, what they add up to.

Facts about verl are stated with the file of verl v0.6.1 that they were read from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from verlbox.metrics.read import Metrics, Series, is_validation, series
from verlbox.metrics.statistics import (
    Difference,
    Fisher,
    difference_of_proportions,
    fisher,
    mean,
    proportion_standard_error,
)
from verlbox.report.facts import DataFlow, RunFacts

ACTOR = "actor_rollout_ref.actor."
CRITIC = "critic."

# Names that verl has used for the same thing, newest first.
SCORE = ("critic/score/mean",)
ENTROPY = ("actor/entropy", "actor/entropy_loss")
KL_LOSS = ("actor/kl_loss",)
KL_REWARD = ("actor/reward_kl_penalty", "critic/kl")
STEP_TIME = ("perf/time_per_step", "timing_s/step")


def _integer(settings: Mapping[str, Any], key: str) -> int | None:
    value = settings.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(settings: Mapping[str, Any], key: str) -> bool:
    return settings.get(key) is True or str(settings.get(key)).lower() == "true"


# --- losses divided by gradient accumulation -------------------------------------------------------------------


@dataclass(frozen=True)
class Rescaling:
    """What a logged loss must be multiplied with. `factor` is None when it cannot be known; `why` is then one of
    "dynamic-batches" or "settings-unknown"."""

    factor: int | None
    why: str = ""


def rescaling(name: str, facts: RunFacts) -> Rescaling | None:
    """The factor for actor/pg_loss, actor/kl_loss and critic/vf_loss; None where verl logs the loss undivided.

    Source: verl v0.6.0 and v0.6.1, workers/actor/dp_actor.py and workers/critic/dp_critic.py (update_policy,
    update_critic): each micro-batch's loss is logged times 1 / gradient_accumulation, then the micro-batches are
    averaged. gradient_accumulation = ppo_mini_batch_size * rollout.n / (devices / sequence parallel size), divided by
    ppo_micro_batch_size_per_gpu (workers/fsdp_workers.py, "normalize config"). With dynamic batches the divisor is
    the number of micro-batches, which is not logged. v0.4, v0.5, v0.9 and Megatron workers log the loss as it is.
    """
    if name not in ("actor/pg_loss", "actor/kl_loss", "critic/vf_loss"):
        return None
    settings = facts.verl_overrides
    if not str(facts.versions.get("verl", "")).startswith("0.6."):
        return None
    prefix = CRITIC if name.startswith("critic/") else ACTOR
    if settings.get(prefix + "strategy", "fsdp") == "megatron":
        return None
    if _flag(settings, prefix + "use_dynamic_bsz") or (
        prefix == CRITIC and prefix + "use_dynamic_bsz" not in settings and _flag(settings, ACTOR + "use_dynamic_bsz")
    ):
        return Rescaling(None, "dynamic-batches")
    devices = (_integer(settings, "trainer.n_gpus_per_node") or 8) * (_integer(settings, "trainer.nnodes") or 1)
    mini = _integer(settings, prefix + "ppo_mini_batch_size") or _integer(settings, ACTOR + "ppo_mini_batch_size")
    micro = _integer(settings, prefix + "ppo_micro_batch_size_per_gpu")
    if micro is None and (total := _integer(settings, prefix + "ppo_micro_batch_size")) is not None:
        micro = max(1, total // devices)
    if micro is None:
        return Rescaling(None, "settings-unknown")
    samples = (mini or 256) * (_integer(settings, "actor_rollout_ref.rollout.n") or 1)
    parallel = _integer(settings, prefix + "ulysses_sequence_parallel_size") or 1
    return Rescaling(max(1, samples // max(1, devices // parallel) // micro))


def scaled(points: Series, factor: int) -> Series:
    """The series with every value multiplied."""
    return series(zip(points.steps, (v * factor for v in points.values), strict=True))


# --- clipping --------------------------------------------------------------------------------------------------


def clipping(facts: RunFacts, metrics: Metrics) -> str:
    """What actor/pg_clipfrac says: "by-construction" when a batch is one update, so that old and new policy are the
    same and nothing can be clipped; "all-zero" when the settings are unknown but no value differs from 0; else "".

    Source: verl v0.6.1 workers/actor/dp_actor.py: with one mini-batch and one epoch, old_log_prob is the policy's own.
    """
    settings = facts.verl_overrides
    batch = _integer(settings, "data.train_batch_size")
    mini = _integer(settings, ACTOR + "ppo_mini_batch_size")
    if batch is not None and mini is not None:
        return "by-construction" if mini >= batch and (_integer(settings, ACTOR + "ppo_epochs") or 1) == 1 else ""
    points = metrics.get("actor/pg_clipfrac")
    return "all-zero" if points is not None and len(points) and not any(points.values) else ""


def is_group_of_one(facts: RunFacts) -> bool:
    """GRPO with one answer a prompt: verl takes the mean of such a group as 0 and its deviation as 1
    (v0.6.1 trainer/ppo/core_algos.py, compute_grpo_outcome_advantage), so the advantage is the reward itself."""
    settings = facts.verl_overrides
    return (
        settings.get("algorithm.adv_estimator") == "grpo"
        and (_integer(settings, "actor_rollout_ref.rollout.n") or 1) == 1
    )


# --- validation ------------------------------------------------------------------------------------------------


def validations(metrics: Metrics) -> dict[str, Series]:
    """The main validation curve of each data source, by metric name: the mean over answers of verl's core value.

    verl of 2024 called it test_score/<source> before training and val/test_score/<source> after: one curve.
    """
    core: dict[str, Series] = {}
    for name, points in sorted(metrics.series.items()):
        if name.startswith("val-core/") and "/mean@" in name:
            core[name] = points
        elif name.startswith(("test_score/", "val/test_score/")):
            later = "val/" + name.removeprefix("val/")
            both = {**_by_step(core.get(later)), **_by_step(points)}
            core[later] = series(sorted(both.items()))
    if core:
        return core
    return {n: p for n, p in sorted(metrics.series.items()) if n.startswith("val-core/")}


def by_source(metrics: Metrics) -> dict[str, tuple[str, Series]]:
    """Data source -> name and curve of its main validation. verl's versions name that differently, the source alike."""
    found: dict[str, tuple[str, Series]] = {}
    for name, points in validations(metrics).items():
        if name.startswith("val-core/"):
            source = "/".join(name.split("/")[1:-2])
        else:
            source = name.removeprefix("val/test_score/")
        found.setdefault(source, (name, points))
    return found


def _by_step(points: Series | None) -> dict[int, float]:
    return {} if points is None else dict(zip(points.steps, points.values, strict=True))


def held_out(facts: RunFacts) -> DataFlow | None:
    """The split that validation takes its prompts from."""
    return next((flow for flow in facts.data if flow.split in ("test", "validation", "val")), None)


def validation_rows(facts: RunFacts) -> int | None:
    """How many prompts a validation graded: the data's rows, or verl's data.val_max_samples when that is fewer."""
    flow = held_out(facts)
    rows = None if flow is None else flow.kept if flow.graded is None else flow.graded
    limit = _integer(facts.verl_overrides, "data.val_max_samples")
    if limit is not None and limit > 0:
        return limit if rows is None else min(rows, limit)
    return rows


def prompts_of(facts: RunFacts, metrics: Metrics) -> dict[str, int | None]:
    """Data source -> the number of its prompts in a validation; None when several sources share the rows and the part
    of each is not known, as when only some of the rows are drawn."""
    sources = list(by_source(metrics))
    rows, flow = validation_rows(facts), held_out(facts)
    if len(sources) == 1:
        return {sources[0]: rows}
    whole = flow is not None and rows == flow.kept
    return {source: flow.sources.get(source) if flow is not None and whole else None for source in sources}


def changes(facts: RunFacts, metrics: Metrics) -> list[Change]:
    """The change of every validation curve that has a finite value."""
    prompts = prompts_of(facts, metrics)
    found = (change(name, points, prompts[source]) for source, (name, points) in by_source(metrics).items())
    return [one for one in found if one is not None]


@dataclass(frozen=True)
class Change:
    """First against last value of a validation of n prompts (None when unknown).

    `graded` is True when the values are not counts over n, so that the reward is not just right or wrong; counts for
    Fisher's test are then rounded and standard errors are upper bounds. `outside` says the values leave [0, 1].
    `interval` is that of last - first, from the same counts.
    """

    name: str
    first_step: int
    first: float
    last_step: int
    last: float
    points: int
    n: int | None
    graded: bool
    outside: bool
    first_error: float | None
    last_error: float | None
    test: Fisher | None
    interval: Difference | None

    @property
    def gain(self) -> float:
        return self.last - self.first


def change(name: str, points: Series, n: int | None) -> Change | None:
    """The change of a validation between its first and last finite value; None when there is no finite value."""
    finite = points.finite()
    if not len(finite):
        return None
    first, last = finite.values[0], finite.values[-1]
    outside = not all(0 <= v <= 1 for v in finite.values)
    whole = n is not None and _are_counts(finite.values, n)
    usable = n is not None and n > 0 and not outside
    test = interval = None
    first_error = last_error = None
    if usable and n is not None:
        first_error = proportion_standard_error(first, n)
        last_error = proportion_standard_error(last, n)
        if len(finite) > 1:
            counts = round(first * n), n, round(last * n), n
            test, interval = fisher(*counts), difference_of_proportions(*counts)
    return Change(
        name,
        finite.steps[0],
        first,
        finite.steps[-1],
        last,
        len(finite),
        n,
        not whole,
        outside,
        first_error,
        last_error,
        test,
        interval,
    )


def _are_counts(values: Sequence[float], n: int) -> bool:
    """Whether the values can be counts over n, given the decimals that they were printed with (logs before verl 0.6
    print three) and the precision of event files (about seven digits)."""
    decimals = next((d for d in range(7) if all(abs(v - round(v, d)) < 1e-9 for v in values)), None)
    slack = 0.02 + (0.0 if decimals is None else 0.5 * 10.0**-decimals * n)
    return all(abs(v * n - round(v * n)) <= slack for v in values)


# --- time ------------------------------------------------------------------------------------------------------

# verl's timers inside of a step that do not lie within each other: v0.6.1 trainer/ppo/ray_trainer.py, fit; v0.9.1
# trainer/ppo/v1/trainer_base.py, fit and _step_once, and trainer_sync.py, on_step_end.
PHASES = (
    *("gen", "gen_max", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"),
    "update_weights",
)
# Timers that some versions have inside of the step and others after it.
BESIDE = ("testing", "save_checkpoint", "dump_rollout_generations")


@dataclass(frozen=True)
class Phase:
    """Mean seconds a step in one phase, and its share of the step."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True)
class StepTime:
    """Where a step's time goes, over `steps` steps. `phases` sum to `seconds`, the last being "rest".

    `first` is the time of the first step, which starts processes and compiles kernels, where it is left out: of three
    steps and more. `resumed` are the times of the first steps after a resume, left out for the same reasons where two
    others are there. `beside` are validation, checkpoints and dumps: mean seconds when they happen and how often; those
    in `inside` verl counted into the step, so that they are phases of their own too.
    """

    steps: int
    seconds: float
    phases: tuple[Phase, ...]
    beside: tuple[tuple[str, float, int], ...]
    inside: tuple[str, ...]
    first: float | None
    resumed: tuple[float, ...] = ()


def step_time(metrics: Metrics) -> StepTime | None:
    """The breakdown of verl's timing_s/* (timing/* in 2024); None when no step time was recorded."""
    prefix = "timing_s/" if any(name.startswith("timing_s/") for name in metrics.series) else "timing/"
    known: dict[str, dict[int, float]] = {}
    for name in (*PHASES, *BESIDE):
        points = metrics.get(prefix + name)
        if points is not None and len(finite := points.finite()):
            known[name] = _by_step(finite)
    whole = metrics.get(*STEP_TIME)
    if whole is not None and len(whole.finite()):
        totals = _by_step(whole.finite())
    else:
        totals = {}
        for name in PHASES:
            for step, value in known.get(name, {}).items():
                totals[step] = totals.get(step, 0.0) + value
    if not totals or not known:
        return None
    first = totals[min(totals)] if len(totals) >= 3 else None
    steps = sorted(totals) if first is None else sorted(totals)[1:]
    resumed = [step for step in steps if step in metrics.starts]
    if first is None or len(steps) - len(resumed) < 2:
        resumed = []
    steps = [step for step in steps if step not in resumed]
    inside = _inside({step: totals[step] for step in steps}, known)
    n = len(steps)
    seconds = math.fsum(totals[step] for step in steps) / n
    counted = (name for name in (*PHASES, *inside) if name in known)
    means = {name: math.fsum(known[name].get(step, 0.0) for step in steps) / n for name in counted}
    rest = seconds - math.fsum(means.values())
    phases = [Phase(name, value, value / seconds if seconds else 0.0) for name, value in means.items()]
    phases.sort(key=lambda phase: -phase.seconds)
    phases.append(Phase("rest", rest, rest / seconds if seconds else 0.0))
    beside = tuple(
        (name, math.fsum(known[name].values()) / len(known[name]), len(known[name])) for name in BESIDE if name in known
    )
    return StepTime(n, seconds, tuple(phases), beside, inside, first, tuple(totals[step] for step in resumed))


def _inside(totals: Mapping[int, float], known: Mapping[str, Mapping[int, float]]) -> tuple[str, ...]:
    """Those of BESIDE that the step's time includes, found from the numbers: what is left of a step beside its phases
    is most alike over all steps when exactly those are taken off, and it is not negative. verl 0.4 includes both
    validation and checkpoints, 0.6.1 neither, 0.9.1 checkpoints only. Where nothing tells, none is included."""
    phases = [known[name] for name in PHASES if name in known]
    left = {step: total - math.fsum(of.get(step, 0.0) for of in phases) for step, total in totals.items()}
    there = [name for name in BESIDE if known.get(name, {}).keys() & totals.keys()]
    best: tuple[str, ...] = ()
    least = math.inf
    for size in range(len(there) + 1):
        for chosen in itertools.combinations(there, size):
            taken = {name: known[name] for name in chosen}
            rests = [value - math.fsum(of.get(step, 0.0) for of in taken.values()) for step, value in left.items()]
            if chosen and any(rest < -0.02 * total for rest, total in zip(rests, totals.values(), strict=True)):
                continue
            middle = median(rests)
            spread = math.fsum(abs(rest - middle) for rest in rests)
            if spread < least * (1 - 1e-9):
                best, least = chosen, spread
    return best


@dataclass(frozen=True)
class Throughput:
    """Mean tokens per second and device over the steps, split by the mean lengths of prompt and response (None when
    a length was not recorded), and tokens per second of generation alone."""

    total: float
    prompt: float | None
    response: float | None
    generation: float | None


def throughput(metrics: Metrics) -> Throughput | None:
    """Source: verl v0.6.1 trainer/ppo/metric_utils.py: perf/throughput = (prompt + response tokens) / (step seconds
    x devices); timing_per_token_ms/gen = milliseconds of generation / response tokens."""
    points = metrics.get("perf/throughput")
    if points is None or not len(points.finite()):
        return None
    total = points.finite()
    prompts, responses = metrics.get("prompt_length/mean"), metrics.get("response_length/mean")
    prompt = response = None
    if prompts is not None and responses is not None:
        a, b = _by_step(prompts), _by_step(responses)
        shares = [
            (v, a[s] / (a[s] + b[s]))
            for s, v in zip(total.steps, total.values, strict=True)
            if s in a and s in b and a[s] + b[s] > 0
        ]
        if shares:
            prompt = mean([v * share for v, share in shares]).mean
            response = mean([v * (1 - share) for v, share in shares]).mean
    per_token = metrics.get("timing_per_token_ms/gen")
    generation = None
    if per_token is not None and (values := [v for v in per_token.finite().values if v > 0]):
        generation = 1000 / mean(values).mean
    return Throughput(mean(total.values).mean, prompt, response, generation)


# Peak of one device that verl divides by, in FLOP/s (dense, 16 bit): verl v0.6.1 utils/flops_counter.py,
# get_device_flops. The first name that occurs in the device's name counts.
PEAKS: tuple[tuple[str, float], ...] = (
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("MI300X", 1336e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("H200", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362.05e12),
    ("L40", 181.05e12),
    ("A40", 149.7e12),
    ("L20", 119.5e12),
    ("H20", 148e12),
    ("910B", 354e12),
    ("Ascend910", 354e12),
)
CPU_PEAK = 448e9  # a placeholder in verl, not a measurement


def peak(facts: RunFacts) -> tuple[str, float] | None:
    """Name and FLOP/s of the peak in perf/mfu/*; None when the device is unknown or not in verl's table."""
    if facts.platform == "cpu":
        return "CPU", CPU_PEAK
    if facts.hardware is None:
        return None
    return next((entry for entry in PEAKS if entry[0] in facts.hardware.device), None)


# --- reasons ---------------------------------------------------------------------------------------------------


def reason_series(metrics: Metrics) -> dict[str, Series]:
    """Reward reason codes -> share of the validation's answers over steps (metrics `.../reason_<code>/mean@n`)."""
    found: dict[str, Series] = {}
    for name, points in sorted(metrics.series.items()):
        for part in name.split("/"):
            if part.startswith("reason_") and ((is_validation(name) and "/mean@" in name) or not is_validation(name)):
                found.setdefault(part.removeprefix("reason_"), points)
    return found
