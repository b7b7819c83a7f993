"""Validation: whether it happens, on how many rows, on which, and what its numbers can carry.

Source: verl 0.6.1, trainer/ppo/ray_trainer.py fit() and _validate(), utils/dataset/rl_dataset.py (max_samples),
workers/rollout/vllm_rollout/vllm_rollout_spmd.py generate_sequences(), utils/config.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from verlbox.findings import Finding, register
from verlbox.lints.places import place
from verlbox.lints.settings import ROLLOUT, Settings
from verlbox.lints.steps import count

TEST_FREQ, BEFORE, VAL_MAX = "trainer.test_freq", "trainer.val_before_train", "data.val_max_samples"
VAL = f"{ROLLOUT}.val_kwargs"

NEVER = register("no-validation", "warning", "No step is validated.")
FEW_ROWS = register("validation-too-small", "warning", "Too few validation rows for a claim about the score.")
MORE_ROWS = register("validation-error", "note", "The standard error of the validation score.")
UNSEEDED = register("subset-unseeded", "warning", "A random subset of rows is drawn anew at each start.")
LONG_FIRST = register("long-first-validation", "warning", "A long silent validation comes before the first step.")
GREEDY_SAMPLING = register("validation-temperature", "error", "Validation samples while the training temperature is 0.")
SAME_FILE = register("validates-on-training-data", "warning", "The training file is used as validation file.")
REPEATS = register(
    "validation-repeats-greedy", "warning", "Several greedy validation answers of a prompt are identical."
)
IGNORED = register(
    "validation-sampling-ignored", "warning", "Validation sampling settings do nothing without do_sample."
)
ONLY = register("val-only-ignored", "warning", "val_only does nothing without val_before_train.")
ONLY_LAST = register("validation-at-last-step-only", "note", "Only the last step is validated.")


def standard_error(rows: int, rate: float = 0.5) -> float:
    """Standard error of a mean of 0/1 scores: sqrt(p (1 - p) / n); p = 0.5 is the widest."""
    return math.sqrt(rate * (1 - rate) / rows)


def steps_are_validated(s: Settings) -> Iterator[Finding]:
    frequency = s.integer(TEST_FREQ)
    if frequency is None or not s.known(TEST_FREQ):
        return
    if frequency <= 0:
        yield NEVER.finding(
            f"{TEST_FREQ}={frequency}: no step is validated, not even the last",
            why=f"{place(s, 'fit')}: test_freq > 0 is asked first (-1 is the default); it ends with 'Final validation"
            " metrics: None'.",
            fix=f"{TEST_FREQ}=10",
        )
        return
    executed = count(s).executed
    if executed and frequency > executed:
        yield ONLY_LAST.finding(
            f"{TEST_FREQ}={frequency} and the run has {executed} steps: only the last one is validated",
            why=f"{place(s, 'fit')}: is_last_step or a multiple of test_freq.",
            fix=f"{TEST_FREQ}={max(1, executed // 3)} for a curve",
        )


def _claim(s: Settings) -> tuple[float, float] | None:
    numbers = [float(x) for x in re.findall(r"\d*\.\d+", s.facts.reported or "")]
    return (numbers[0], numbers[1]) if len(numbers) >= 2 and all(0 <= x <= 1 for x in numbers[:2]) else None


def subset_carries_the_claim(s: Settings) -> Iterator[Finding]:
    limit, rows = s.integer(VAL_MAX), s.facts.val_rows
    drawn = limit if limit is not None and limit > 0 and s.known(VAL_MAX) else None
    used = min(x for x in (drawn, rows) if x is not None) if (drawn is not None or rows) else None
    if used is None or used <= 0:
        return
    error, claim = standard_error(used), _claim(s)
    text = f"the standard error of a 0/1 score on {used} rows is up to {error:.3f}"
    if claim:
        first, last = claim
        difference = math.sqrt(first * (1 - first) / used + last * (1 - last) / used)
        if abs(last - first) < 2 * difference:
            yield FEW_ROWS.finding(
                f"{first:.3f} -> {last:.3f} on {used} rows is {abs(last - first) / difference:.1f} standard errors",
                why=f"{text}, and {difference:.3f} for a difference of two: chance alone does this.",
                fix=f"{VAL_MAX}=-1, or report the number of rows and an interval",
            )
    elif used < 100:
        yield FEW_ROWS.finding(
            f"{used} validation rows: {text}",
            why=f"Two points must differ by {2.8 * error:.2f} before it means anything (95%).",
            fix=f"{VAL_MAX}=-1, or report the number of rows and an interval",
        )
    else:
        yield MORE_ROWS.finding(f"{used} validation rows: {text}", why="", fix="")
    seed_free = s.get("data.seed") is None and s.flag("data.shuffle") and s.known("data.seed")
    if drawn is not None and seed_free and not (rows is not None and drawn >= rows):
        yield UNSEEDED.finding(
            f"{drawn} validation rows are drawn anew at each start (data.seed is null)",
            why="rl_dataset.py: default_rng() without a seed; scores of two runs, or before and after a resume, are"
            " of other rows.",
            fix="data.seed=1",
        )


def training_subset_is_seeded(s: Settings) -> Iterator[Finding]:
    limit, rows = s.integer("data.train_max_samples"), s.facts.train_rows_after_filter
    drawn = limit is not None and limit > 0 and s.known("data.train_max_samples") and not (rows and limit >= rows)
    if drawn and s.flag("data.shuffle") and s.get("data.seed") is None and s.known("data.seed"):
        yield UNSEEDED.finding(
            f"{limit} training rows are drawn anew at each start (data.seed is null)",
            why="rl_dataset.py: default_rng() without a seed; a resumed run goes on with other rows.",
            fix="data.seed=1",
        )


def first_validation_is_short(s: Settings) -> Iterator[Finding]:
    rows, limit = s.facts.val_rows, s.integer(VAL_MAX)
    world = s.world_size()
    if not (s.flag(BEFORE) and s.known(BEFORE) and rows and world):
        return
    used = min(rows, limit) if limit and limit > 0 else rows
    if used / world >= 2000:
        yield LONG_FIRST.finding(
            f"{used} validation rows are generated before step 1, on {world} device{'s' if world > 1 else ''}",
            why=f"{place(s, 'loader')} makes one batch of all of them (val_batch_size = the whole set): a long silent"
            " phase, which ended the published NPU run. val_before_train is on by default.",
            fix=f"{BEFORE}=False, or {VAL_MAX} with a data.seed for a trial",
        )


def val_only_is_read(s: Settings) -> Iterator[Finding]:
    if s.given("trainer.val_only") and s.flag("trainer.val_only") and s.get(BEFORE) is False:
        yield ONLY.finding(
            f"trainer.val_only=True with {BEFORE}=False trains the whole run",
            why=f"{place(s, 'fit')} looks at val_only only after the validation before training.",
            fix=f"{BEFORE}=True",
        )


def validation_sampling_is_as_meant(s: Settings) -> Iterator[Finding]:
    temperature = s.number(f"{ROLLOUT}.temperature")
    samples, key = s.flag(f"{VAL}.do_sample"), f"{VAL}.do_sample"
    repeats = s.integer(f"{VAL}.n") or 1
    if samples and s.given(f"{ROLLOUT}.temperature") and temperature is not None and temperature <= 0:
        yield GREEDY_SAMPLING.finding(
            f"{key}=True with {ROLLOUT}.temperature={temperature:g}",
            why="utils/config.py: 'validation gen temperature should be greater than 0 when enabling do_sample'; it"
            " looks at the"
            " training temperature, not at val_kwargs.temperature.",
            fix=f"{ROLLOUT}.temperature=1.0",
        )
    val_temperature = s.number(f"{VAL}.temperature")
    if samples and s.given(key) and val_temperature == 0:
        if s.known(f"{VAL}.temperature"):
            yield IGNORED.finding(
                f"{key}=True with {VAL}.temperature=0 is greedy",
                why=f"{place(s, 'sampling')} passes val_kwargs.temperature, whose default is 0.",
                fix=f"{VAL}.temperature=1.0",
            )
    elif s.is_old and not samples and s.given(f"{VAL}.temperature") and (val_temperature or 0) > 0:
        yield IGNORED.finding(
            f"{VAL}.temperature={val_temperature:g} does nothing: {key} is off",
            why="vllm_rollout_spmd.py generates greedily unless do_sample is on.",
            fix=f"{key}=True",
        )
    # 0.9.1 goes by the temperature alone (agent_loop_tq.py generate_sequences()).
    greedy = (s.is_old and not samples) or val_temperature == 0
    if repeats > 1 and s.given(f"{VAL}.n") and greedy and (s.known(key) or not samples):
        yield REPEATS.finding(
            f"{VAL}.n={repeats} greedy answers of each prompt are identical",
            why=f"{'Without do_sample (or at temperature 0)' if s.is_old else 'At temperature 0'} they cost their time"
            " and add no information; maj@k and best@k equal mean@1.",
            fix=f"{f'{key}=True ' if s.is_old else ''}{VAL}.temperature=1.0, or {VAL}.n=1",
        )


def files_are_different(s: Settings) -> Iterator[Finding]:
    if not (s.given("data.train_files") and s.given("data.val_files")):
        return
    train, val = (set(map(str, s.items(f"data.{part}_files"))) for part in ("train", "val"))
    both = sorted(train & val)
    if both:
        yield SAME_FILE.finding(
            f"{', '.join(both)} is both training and validation file",
            why="Scores on rows that were trained on say nothing about generalisation.",
            fix="data.val_files=.../test.parquet",
        )


LINTS = (
    steps_are_validated,
    subset_carries_the_claim,
    training_subset_is_seeded,
    first_validation_is_short,
    val_only_is_read,
    validation_sampling_is_as_meant,
    files_are_different,
)
