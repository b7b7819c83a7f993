"""Batch sizes: what divides what, and what verl does when it does not.

Source: verl 0.6.1, utils/config.py validate_config(), workers/config/{actor,critic}.py, workers/fsdp_workers.py
(normalisation in ActorRolloutRefWorker.__init__ and CriticWorker.__init__), workers/actor/dp_actor.py update_policy().
verl 0.9.1 fills a step up with padding rows to whole mini-batches (trainer/ppo/padding_utils.py) and wants every phase
to divide by its micro-batch (workers/engine/utils.py prepare_micro_batches(), workers/engine_workers.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from verlbox.findings import Finding, register
from verlbox.lints.places import place
from verlbox.lints.settings import ACTOR, REF, ROLLOUT, Settings
from verlbox.stacks import CRITIC_BUDGET_091, CRITIC_BY_TOKENS_091, CRITIC_TOKENS_091

BATCH, N = "data.train_batch_size", f"{ROLLOUT}.n"

NOT_POSITIVE = register("size-not-positive", "error", "A batch size, length or count is zero or negative.")
NOT_DIVISIBLE = register("batch-not-divisible", "error", "The rows of a step do not divide over the devices.")
MINI_TOO_BIG = register("mini-batch-too-big", "error", "The mini-batch is larger than the training batch.")
SHORT_MINI = register("mini-batch-short", "warning", "A mini-batch comes out short and is scaled as if it were full.")
MINI_VANISHES = register("mini-batch-vanishes", "error", "The mini-batch of one device is empty.")
MICRO_NOT_DIVISOR = register("micro-batch-not-divisor", "error", "The micro-batch does not divide the mini-batch.")
MICRO_TWICE = register("micro-batch-set-twice", "error", "Both the old and the new micro-batch option are set.")
MICRO_MISSING = register("micro-batch-missing", "error", "A micro-batch size that verl demands is not set.")
MICRO_TOO_SMALL = register("micro-batch-too-small", "error", "The global micro-batch is smaller than the devices.")
MICRO_OLD = register("micro-batch-deprecated", "note", "The global micro-batch option is deprecated.")
BUDGET = register("token-budget-too-small", "error", "The token budget of a micro-batch cannot hold one sequence.")
EMPTY_LOADER = register("train-loader-empty", "error", "There are fewer training rows than one batch needs.")
PADDED = register("batch-padded", "warning", "verl fills the rows of a step up with padding rows.")
DYNAMIC_DIFFERS = register(
    "dynamic-batch-differs", "error", "Dynamic batch sizes are on for one of update and log-prob only."
)
CRITIC_BUDGET = register("critic-batch-ignored", "warning", "The critic's batch settings are not read by this verl.")
GEN_BATCH = register("gen-batch-not-divisor", "error", "gen_batch_size does not divide train_batch_size.")
VAL_BATCH = register("val-batch-size-deprecated", "note", "data.val_batch_size is deprecated.")


@dataclass(frozen=True)
class _Role:
    """Where one trained model has its batch settings."""

    name: str
    section: str
    micro: str  # the deprecated global option
    micro_per_gpu: str
    sequence_parallel: str

    @property
    def mini(self) -> str:
        return f"{self.section}.ppo_mini_batch_size"

    @property
    def dynamic(self) -> str:
        return f"{self.section}.use_dynamic_bsz"


_ACTOR = _Role(
    "actor",
    ACTOR,
    f"{ACTOR}.ppo_micro_batch_size",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ACTOR}.ulysses_sequence_parallel_size",
)
_CRITIC = _Role(
    "critic",
    "critic",
    "critic.ppo_micro_batch_size",
    "critic.ppo_micro_batch_size_per_gpu",
    "critic.ulysses_sequence_parallel_size",
)


def _roles(s: Settings) -> list[_Role]:
    asks_critic = s.critic_is_used() and (s.known("algorithm.adv_estimator") or s.known("critic.enable"))
    touches_critic = s.critic_is_used() and any(map(s.given, (_CRITIC.mini, _CRITIC.micro, _CRITIC.micro_per_gpu)))
    return [_ACTOR, *([_CRITIC] if asks_critic or touches_critic else [])]


def _is_megatron(s: Settings) -> bool:
    return s.get(f"{ACTOR}.strategy") == "megatron"


def sizes_are_positive(s: Settings) -> Iterator[Finding]:
    names = (
        BATCH,
        N,
        _ACTOR.mini,
        _ACTOR.micro,
        _ACTOR.micro_per_gpu,
        _CRITIC.mini,
        _CRITIC.micro,
        _CRITIC.micro_per_gpu,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        f"{REF}.log_prob_micro_batch_size_per_gpu",
        f"{ACTOR}.ppo_epochs",
        "data.max_prompt_length",
        "data.max_response_length",
        "trainer.nnodes",
        "trainer.n_gpus_per_node",
        "trainer.total_epochs",
        f"{ROLLOUT}.tensor_model_parallel_size",
    )
    for name in names:
        value = s.get(name)
        if s.given(name) and isinstance(value, int) and not isinstance(value, bool) and value <= 0:
            yield NOT_POSITIVE.finding(
                f"{name} is {value}",
                why="verl counts rows, tokens, devices or passes with it.",
                fix=f"{name}=1 or more",
            )


def rows_divide_over_devices(s: Settings) -> Iterator[Finding]:
    batch, n, world = s.integer(BATCH), s.integer(N), s.world_size()
    if not (batch and n and world) or not s.known(BATCH, "trainer.n_gpus_per_node") or _is_megatron(s):
        return
    if batch * n % world and (s.is_old or not s.flag(_ACTOR.dynamic)):
        fits = next(size for size in range(batch, batch + world + 1) if size * n % world == 0)
        yield NOT_DIVISIBLE.finding(
            f"train_batch_size {batch} x rollout.n {n} = {batch * n} rows do not divide over {world} devices",
            why="utils/config.py validate_config(): real_train_batch_size must be divisible by the number of devices"
            + (
                "; with dynamic batch sizes the same fails later, when the batch is dealt out (protocol.py chunk())."
                if s.is_old
                else "."
            ),
            fix=f"{BATCH}={fits}",
        )


def mini_batch_fits(s: Settings) -> Iterator[Finding]:
    batch = s.integer(BATCH)
    for role in _roles(s):
        mini = s.integer(role.mini)
        known = s.known(BATCH) and (s.known(role.mini) or (role is _CRITIC and s.known(_ACTOR.mini)))
        if not (batch and mini and known) or mini <= batch:
            continue
        if s.flag(role.dynamic) and not s.is_old:
            continue  # padded up: rows_are_padded()
        if s.flag(role.dynamic):
            yield SHORT_MINI.finding(
                f"the only mini-batch of the {role.name} has {batch} prompts but is scaled as if it had {mini}",
                why="With use_dynamic_bsz verl skips its check, and dp_actor.py divides the loss by"
                " ppo_mini_batch_size: updates"
                f" are {batch / mini:.2g} times what you asked for.",
                fix=f"{role.mini}={batch}",
            )
        elif not (role is _CRITIC and not s.given(role.mini)):
            yield MINI_TOO_BIG.finding(
                f"train_batch_size ({batch}) is smaller than {role.name}.ppo_mini_batch_size ({mini})",
                why="workers/config: train_batch_size must be >= ppo_mini_batch_size (ValueError).",
                fix=f"{role.mini}={batch}",
            )


def mini_and_micro_batches_divide(s: Settings) -> Iterator[Finding]:
    world, n, batch = s.world_size(), s.integer(N), s.integer(BATCH)
    if _is_megatron(s) or not n:
        return
    for role in _roles(s):
        mini, micro = s.integer(role.mini), s.integer(role.micro_per_gpu)
        mini_known = s.known(role.mini) or (role is _CRITIC and s.known(_ACTOR.mini))
        if not (mini and mini > 0 and mini_known and world):
            continue
        ranks = max(1, world // max(1, s.integer(role.sequence_parallel) or 1))
        local = mini * n // ranks
        if not s.is_old and mini * n % ranks:
            yield NOT_DIVISIBLE.finding(
                f"{role.name}: mini-batch {mini} x n {n} = {mini * n} rows do not divide over {ranks} devices",
                why="engine_workers.py train_mini_batch() asserts mini_batch_size % data_parallel_size == 0 at the"
                " first update.",
                fix=f"{role.mini}={next(m for m in range(mini, mini + ranks + 1) if m * n % ranks == 0)}",
            )
            continue
        if local == 0:
            yield MINI_VANISHES.finding(
                f"{role.name}: mini-batch {mini} x n {n} over {ranks} devices leaves none for each",
                why="fsdp_workers.py multiplies ppo_mini_batch_size by rollout.n and divides it by the devices; 0 fails"
                " ('should be larger than 0 after normalization'), which validate_config does not see.",
                fix=f"{role.mini}={-(-ranks // n)} or more",
            )
            continue
        micro_counts = s.is_old or (role is _ACTOR and not s.flag(role.dynamic))
        if micro and micro > 0 and micro_counts and s.known(role.micro_per_gpu) and local % micro:
            divisor = max(d for d in range(1, min(micro, local) + 1) if local % d == 0)
            yield MICRO_NOT_DIVISOR.finding(
                f"{role.name}: {local} rows of a mini-batch on each device do not divide by the micro-batch {micro}",
                why=f"{'fsdp_workers.py' if s.is_old else 'engine/utils.py prepare_micro_batches()'}: {mini} x n {n} //"
                f" {ranks} devices = {local} must be divisible by ppo_micro_batch_size_per_gpu; "
                + ("the workers stop after they are started." if s.is_old else "the first update stops."),
                fix=f"{role.micro_per_gpu}={divisor}",
            )
        if s.is_old and batch and s.known(BATCH) and batch >= mini and batch * n % ranks == 0:
            rows = batch * n // ranks
            if rows % local:
                yield SHORT_MINI.finding(
                    f"{role.name}: {rows} rows on each device make {rows // local} mini-batches of {local} and one of"
                    f" {rows % local}",
                    why="dp_actor.py update_policy() splits by the mini-batch and scales each by the full size: the"
                    " short one makes a smaller update than it should.",
                    fix=f"choose {role.mini} as a divisor of {BATCH} ({batch})",
                )


def _rows_of_a_step(s: Settings) -> tuple[int, int, int] | None:
    """(rows of a step, rows with 0.9.1's padding, data-parallel ranks) where they are known; 0.9.1 only.

    Source: verl 0.9.1, trainer_base.py _get_required_batch_multiple(): the least common multiple of the ranks and of
    each trained model's mini-batch in rows.
    """
    batch, n, world = s.integer(BATCH), s.integer(N), s.world_size()
    if s.is_old or _is_megatron(s) or not (batch and n and world) or not s.known(BATCH, N):
        return None
    ranks = max(1, world // max(1, s.integer(_ACTOR.sequence_parallel) or 1))
    minis = [s.integer(role.mini) for role in _roles(s) if s.known(role.mini) or role is _CRITIC]
    multiple = math.lcm(ranks, *(mini * n for mini in minis if mini and mini > 0))
    return batch * n, -(-batch * n // multiple) * multiple, ranks


def rows_are_padded(s: Settings) -> Iterator[Finding]:
    rows = _rows_of_a_step(s)
    if rows is None or rows[0] == rows[1] or not s.known(_ACTOR.mini):
        return
    given, padded, _ = rows
    batch = s.integer(BATCH)
    if any((s.integer(role.mini) or 0) > (batch or 0) and not s.flag(role.dynamic) for role in _roles(s)):
        return  # verl refuses it: mini_batch_fits()
    minis = " and ".join(f"{role.mini}={s.integer(role.mini)}" for role in _roles(s))
    yield PADDED.finding(
        f"the {given} rows of a step are filled up with {padded - given} padding rows ({minis})",
        why="padding_utils.py upsample_batch_to_divisible_size(): every phase computes them (128 tokens each), and with"
        " a seq-mean loss the mini-batch that holds them makes a smaller update.",
        fix=f"choose ppo_mini_batch_size as a divisor of {BATCH} ({batch})",
    )


def log_prob_micro_batches_divide(s: Settings) -> Iterator[Finding]:
    rows = _rows_of_a_step(s)
    if rows is None:
        return
    _, padded, ranks = rows
    sections = [(ROLLOUT, _ACTOR.dynamic)]
    if s.reference_is_used():
        sections.append((REF, f"{REF}.log_prob_use_dynamic_bsz"))
    for section, dynamic in sections:
        key = f"{section}.log_prob_micro_batch_size_per_gpu"
        micro, local = s.integer(key), padded // ranks
        if micro and micro > 0 and not s.flag(dynamic) and s.known(key) and local % micro:
            divisor = max(d for d in range(1, min(micro, local) + 1) if local % d == 0)
            yield MICRO_NOT_DIVISOR.finding(
                f"{local} rows of a step on each device do not divide by {key}={micro}",
                why="engine/utils.py prepare_micro_batches() asserts it for log-probabilities too; the first step stops"
                " after its rollout (verl 0.9.1).",
                fix=f"{key}={divisor}",
            )


def phases_agree_on_dynamic_batches(s: Settings) -> Iterator[Finding]:
    key = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    if s.is_old or not s.known(key, _ACTOR.dynamic) or s.flag(key) == s.flag(_ACTOR.dynamic):
        return
    yield DYNAMIC_DIFFERS.finding(
        f"{_ACTOR.dynamic}={s.get(_ACTOR.dynamic)} and {key}={s.get(key)}",
        why="engine_workers.py init_model() asserts that they are equal (verl 0.9.1).",
        fix=f"remove {key}: it follows {_ACTOR.dynamic}",
    )


def critic_batch_settings_are_read(s: Settings) -> Iterator[Finding]:
    if s.is_old or not s.critic_is_used() or _is_megatron(s):
        return
    names = (_CRITIC.micro_per_gpu, _CRITIC.micro, "critic.forward_micro_batch_size_per_gpu", _CRITIC.dynamic)
    budgets = ("critic.ppo_max_token_len_per_gpu", "critic.forward_max_token_len_per_gpu")
    idle = [key for key in (*names, *budgets) if s.given(key) and not (key == _CRITIC.dynamic and s.flag(key))]
    if idle and not s.given(CRITIC_BUDGET_091) and s.get(CRITIC_BY_TOKENS_091) is not False:
        yield CRITIC_BUDGET.finding(
            f"{', '.join(idle)} {'does' if len(idle) == 1 else 'do'} nothing: the critic packs up to"
            f" {CRITIC_TOKENS_091:,} tokens into a micro-batch",
            why=f"trainer_base.py _setup() gives the critic's engine {CRITIC_BUDGET_091} only, and its use_dynamic_bsz"
            " stays on (verl 0.9.1).",
            fix=f"+{CRITIC_BUDGET_091}=16384 (tokens) where memory is short",
            severity="note",
        )


def generation_batches_divide(s: Settings) -> Iterator[Finding]:
    key = "data.gen_batch_size"
    size, batch = s.integer(key), s.integer(BATCH)
    if not s.is_old and s.given(key) and size and batch and s.known(BATCH) and batch % size:
        yield GEN_BATCH.finding(
            f"{key}={size} does not divide {BATCH}={batch}",
            why="trainer_base.py _next_train_batch(): num_prompts must be a positive multiple of gen_batch_size"
            " (ValueError at the first step).",
            fix=f"{key}={math.gcd(size, batch)}, or remove it",
        )


def global_micro_batch_is_big_enough(s: Settings) -> Iterator[Finding]:
    world = s.world_size()
    for role in _roles(s):
        micro, mini = s.integer(role.micro), s.integer(role.mini)
        if micro is None or micro <= 0 or not s.known(role.micro) or s.flag(role.dynamic):
            continue
        if s.is_old:
            yield MICRO_OLD.finding(
                f"{role.micro} is the old, global option",
                why="verl divides it by the number of devices.",
                fix=f"use {role.micro_per_gpu}",
            )
        elif role is _ACTOR and s.get(role.micro_per_gpu) is None:
            yield MICRO_MISSING.finding(
                f"{role.micro} is the old, global option, and {role.micro_per_gpu} is not set",
                why="engine_workers.py init_model() asserts that the one for each device is set (verl 0.9.1).",
                fix=f"{role.micro_per_gpu}={max(1, micro // world) if world else 8}, and remove the other",
            )
        if mini and s.known(role.mini) and mini % micro:
            yield MICRO_NOT_DIVISOR.finding(
                f"{role.name}: mini-batch {mini} does not divide by the global micro-batch {micro}",
                why="workers/config: ppo_mini_batch_size must be divisible by ppo_micro_batch_size (ValueError).",
                fix=f"use {role.micro_per_gpu}",
            )
        sequence_parallel = s.integer(role.sequence_parallel) or 1
        if world and micro * sequence_parallel < world:
            yield MICRO_TOO_SMALL.finding(
                f"{role.name}: global micro-batch {micro} is smaller than {world} devices",
                why="workers/config: ppo_micro_batch_size x ulysses_sequence_parallel_size must be >= n_gpus"
                " (ValueError).",
                fix=f"{role.micro_per_gpu}=1 instead",
            )
    for section in (ROLLOUT, REF) if s.is_old else ():
        micro = s.integer(f"{section}.log_prob_micro_batch_size")
        dynamic = s.flag(f"{section}.log_prob_use_dynamic_bsz")
        ranks = world // max(1, s.integer(_ACTOR.sequence_parallel) or 1) if world else None
        if micro and ranks and s.known(f"{section}.log_prob_micro_batch_size") and micro < ranks and not dynamic:
            yield MICRO_TOO_SMALL.finding(
                f"{section}.log_prob_micro_batch_size {micro} is smaller than {ranks} devices",
                why="fsdp_workers.py divides it by the devices: a micro-batch of 0 rows cannot be split.",
                fix=f"{section}.log_prob_micro_batch_size_per_gpu=1 instead",
            )


def micro_batches_are_set_once(s: Settings) -> Iterator[Finding]:
    pairs = [
        (role.name, role.micro, role.micro_per_gpu, role.dynamic, "workers/config/" + role.name + ".py __post_init__")
        for role in _roles(s)
    ]
    where = "utils/config.py check_mutually_exclusive()"
    # The old option name and the per-device one; the actor's use_dynamic_bsz decides for all three (validate_config).
    if s.reference_is_used():
        pairs.append(
            (
                "reference",
                f"{REF}.log_prob_micro_batch_size",
                f"{REF}.log_prob_micro_batch_size_per_gpu",
                _ACTOR.dynamic,
                where,
            )
        )
    pairs.append(
        (
            "rollout",
            f"{ROLLOUT}.log_prob_micro_batch_size",
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
            _ACTOR.dynamic,
            where,
        )
    )
    if s.flag("reward_model.enable") and s.is_old:
        pairs.append(
            (
                "reward model",
                "reward_model.micro_batch_size",
                "reward_model.micro_batch_size_per_gpu",
                "reward_model.use_dynamic_bsz",
                where,
            )
        )
    for name, old, new, dynamic, source in pairs:
        if s.flag(dynamic) or dynamic in s.uncertain:
            continue
        old_value, new_value = s.get(old), s.get(new)
        # The critic's per-device default follows the old option, so only a given one counts as the second.
        if old_value is not None and new_value is not None and s.given(old) and s.given(new):
            yield MICRO_TWICE.finding(
                f"both {old} and {new} are set",
                why=f"verl refuses both ({source}, ValueError).",
                fix=f"remove {old}",
            )
        elif old_value is None and new_value is None and s.known(new):
            yield MICRO_MISSING.finding(
                f"no micro-batch size for the {name}: set {new}",
                why=f"verl demands one unless use_dynamic_bsz is on ({source}).",
                fix=f"{new}=8, or {_ACTOR.dynamic}=True with token budgets",
            )


def log_prob_micro_batch_follows_dynamic(s: Settings) -> Iterator[Finding]:
    if not s.flag(_ACTOR.dynamic):
        return
    sections = [ROLLOUT, *([REF] if s.reference_is_used() else [])]
    for section in sections:
        switch, size = f"{section}.log_prob_use_dynamic_bsz", f"{section}.log_prob_micro_batch_size_per_gpu"
        old = f"{section}.log_prob_micro_batch_size"
        if s.given(switch) and s.get(switch) is False and s.get(size) is None and s.get(old) is None:
            yield MICRO_MISSING.finding(
                f"{switch} is off and {size} is not set",
                why="validate_config looks at the actor's use_dynamic_bsz only; the log-probabilities are then split"
                " by None (TypeError).",
                fix=f"{size}=8",
            )


def token_budgets_hold_a_sequence(s: Settings) -> Iterator[Finding]:
    prompt, response = s.integer("data.max_prompt_length"), s.integer("data.max_response_length")
    if not (prompt and response and s.known("data.max_prompt_length", "data.max_response_length")):
        return
    sequence_parallel = s.integer(_ACTOR.sequence_parallel) or 1
    budgets = [
        (f"{ACTOR}.ppo_max_token_len_per_gpu", _ACTOR.dynamic, sequence_parallel),
        (f"{ROLLOUT}.log_prob_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz", sequence_parallel),
    ]
    if s.reference_is_used():
        budgets.append((f"{REF}.log_prob_max_token_len_per_gpu", f"{REF}.log_prob_use_dynamic_bsz", sequence_parallel))
    if s.critic_is_used() and s.is_old:
        own = s.integer(_CRITIC.sequence_parallel) or 1
        budgets.append(("critic.ppo_max_token_len_per_gpu", _CRITIC.dynamic, own))
        budgets.append(("critic.forward_max_token_len_per_gpu", _CRITIC.dynamic, own))
    told: set[int] = set()
    for budget, dynamic, parallel in budgets:
        size = s.integer(budget)
        if not (s.flag(dynamic) and size) or size * parallel >= prompt + response or not s.known(dynamic, budget):
            continue
        if not s.given(budget) and size in told:
            continue  # a default that follows a budget already spoken of
        told.add(size)
        yield BUDGET.finding(
            f"{budget} = {size} cannot hold one sequence of {prompt} + {response} tokens",
            why="utils/seqlen_balancing.py rearrange_micro_batches() asserts max_token_len >= the longest sequence;"
            " the run stops"
            " at the first step that has one.",
            fix=f"{budget}={-(-(prompt + response) // parallel)} or more",
        )


def training_rows_fill_a_batch(s: Settings) -> Iterator[Finding]:
    batch = (s.integer("data.gen_batch_size") if s.is_old else None) or s.integer(BATCH)
    if not batch or not s.any_known(BATCH, "data.gen_batch_size"):
        return
    limit, rows = s.integer("data.train_max_samples"), s.facts.train_rows_after_filter
    known = [value for value in (limit if s.known("data.train_max_samples") else None, rows) if value is not None]
    available = min((value for value in known if value > 0), default=None)
    if rows == 0:
        available = 0
    if available is not None and available < batch:
        yield EMPTY_LOADER.finding(
            f"{available} training rows are fewer than one batch of {batch}",
            why=f"The loader drops the last, incomplete batch ({place(s, 'loader')}: drop_last=True): "
            + ("'Train dataloader is empty!'." if s.is_old else "ZeroDivisionError in fit(), for want of an epoch."),
            fix=f"{BATCH}={available}" if available else "give the run a training file with rows",
        )


def validation_batch_is_whole(s: Settings) -> Iterator[Finding]:
    if s.given("data.val_batch_size") and s.get("data.val_batch_size") is not None:
        yield VAL_BATCH.finding(
            "data.val_batch_size is deprecated",
            why="verl sends the whole validation set to the engine, which schedules its own memory (utils/config.py)."
            if s.is_old
            else "verl says so (utils/config.py) and still makes batches of it; the engine schedules its own memory.",
            fix="remove it",
        )


LINTS = (
    sizes_are_positive,
    rows_divide_over_devices,
    mini_batch_fits,
    mini_and_micro_batches_divide,
    global_micro_batch_is_big_enough,
    micro_batches_are_set_once,
    log_prob_micro_batch_follows_dynamic,
    rows_are_padded,
    log_prob_micro_batches_divide,
    phases_agree_on_dynamic_batches,
    critic_batch_settings_are_read,
    generation_batches_divide,
    token_budgets_hold_a_sequence,
    training_rows_fill_a_batch,
    validation_batch_is_whole,
)
