"""The algorithm: estimators without a baseline, KL settings that do nothing, words verl does not know, clipping.

Source: verl 0.6.1, trainer/ppo/core_algos.py, trainer/ppo/utils.py need_critic(), workers/actor/dp_actor.py,
workers/config/{actor,optimizer}.py, workers/fsdp_workers.py; 0.9.1: places.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from verlbox.findings import Finding, register
from verlbox.lints.places import place
from verlbox.lints.settings import ACTOR, MODEL, ROLLOUT, Settings, nearest
from verlbox.lints.steps import count

ESTIMATOR, N = "algorithm.adv_estimator", f"{ROLLOUT}.n"

GROUP_OF_ONE = register(
    "group-of-one", "error", "A group estimator (GRPO, RLOO, ...) with one response has no baseline."
)
GREEDY_GROUP = register("greedy-group", "error", "Greedy sampling makes all responses of a prompt identical.")
TEMPERATURE = register("temperature-not-positive", "error", "The training temperature is zero or negative.")
UNKNOWN_WORD = register("unknown-word", "error", "A setting has a value that verl does not know.")
NO_CRITIC = register("critic-missing", "error", "GAE needs a critic model and there is none.")
CRITIC_UNREAD = register("critic-settings-unread", "note", "Settings of a critic that this estimator does not have.")
IDLE_CRITIC = register("critic-not-needed", "warning", "A critic is trained although the estimator does not use it.")
DEFAULT_MODEL = register("model-path-default", "error", "The model path is verl's default, which exists nowhere.")
KL_IDLE = register("kl-setting-without-effect", "warning", "A KL setting does nothing with these switches.")
KL_ZERO = register("kl-coefficient-zero", "warning", "The reference model is computed for a KL coefficient of zero.")
KL_TWICE = register("kl-twice", "note", "KL is both in the reward and in the loss.")
CLIP_IDLE = register("clip-ratio-without-effect", "warning", "clip_ratio does nothing: the low and high ratios decide.")
CLIP_C = register("clip-ratio-c-too-small", "error", "clip_ratio_c must be greater than 1.")
ON_POLICY = register("clip-fraction-zero", "note", "One update a step: pg_clipfrac and ppo_kl are 0 by construction.")
SCALED_CURVES = register(
    "loss-curves-scaled", "note", "Logged pg_loss and kl_loss are divided by gradient accumulation."
)
WARMUP_LONG = register(
    "warmup-too-long", "warning", "Warm-up lasts as long as the run: the learning rate never arrives."
)
WARMUP_TWICE = register("warmup-set-twice", "warning", "lr_warmup_steps is set, so the ratio is ignored.")
WARMUP_NOTE = register(
    "warmup-from-zero", "note", "Warm-up starts at learning rate 0: the first update changes nothing."
)
LR_ZERO = register("learning-rate-zero", "warning", "The learning rate is zero.")
LR_NEGATIVE = register("learning-rate-negative", "error", "The learning rate is negative.")
LR_HIGH = register("learning-rate-high", "warning", "The learning rate is far above what policies survive.")
SAMPLING_RANGE = register("sampling-out-of-range", "error", "A sampling setting has a value that engines refuse.")
CRITIC_WARMUP = register(
    "critic-warmup-too-long", "error", "The actor is never updated: critic warm-up outlasts the run."
)
BF16_MASTER = register("bf16-master-weights", "warning", "The optimizer works on bf16 weights and loses small updates.")
DTYPE_IDLE = register("dtype-without-effect", "warning", "The dtype of the FSDP section is not read by this verl.")
NONFINITE = register("gradient-not-finite", "warning", "verl skips updates with non-finite gradients and goes on.")

ESTIMATORS = [
    "gae",
    "grpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "opo",
    "grpo_passk",
    "gpg",
    "rloo_vectorized",
    "grpo_vectorized",
]
_LOSS_MODES = ["vanilla", "gspo", "gpg", "clip_cov", "kl_cov", "geo_mean"]
# What a group of one becomes, by estimator (core_algos.py): the advantage of its only response.
_GROUPS_OF_ONE = {
    "grpo": "the group has mean 0 and standard deviation 1, so the advantage is the raw reward",
    "grpo_vectorized": "the group falls back to mean 0 and standard deviation 1, so the advantage is the raw reward",
    "rloo": "there is nothing to leave out, so the advantage is the raw reward",
    "rloo_vectorized": "the advantage is multiplied by (n > 1), so it is always 0 and nothing is learnt",
    "grpo_passk": "verl stops: 'Pass@k requires at least 2 samples per group'",
    "opo": "the baseline is 0, so the advantage is the raw reward",
    "gpg": "the mean is 0, so the advantage is the raw reward",
    "gdpo": "the group falls back to mean 0 and standard deviation 1, so the advantage is the raw reward",
    "reinforce_plus_plus_baseline": "the baseline is 0; what is left is plain whitening over the batch",
}
_KL_ESTIMATES = [
    "kl",
    "k1",
    "abs",
    "mse",
    "k2",
    "low_var_kl",
    "k3",
    "kl+",
    "k1+",
    "abs+",
    "mse+",
    "k2+",
    "low_var_kl+",
    "k3+",
]


def words(s: Settings) -> dict[str, list[str]]:
    """Settings with a closed list of words -> the words verl accepts in this release."""
    schedulers = ["constant", "cosine"]
    aggregation = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
    aggregation += [] if s.is_old else ["token-sum"]
    newer = [] if s.is_old else ["gdpo", "optimal_token_baseline", "tir_optimal_token_baseline"]
    modes = ["rollout_correction"] if s.is_old else ["dppo_tv", "dppo_kl", "sapo", "dro", "cispo", "bypass_mode"]
    strategies = ["fsdp", "fsdp2", "megatron"] if s.is_old else ["fsdp", "fsdp2", "megatron", "veomni", "torchtitan"]
    table = {
        ESTIMATOR: [*ESTIMATORS, *newer],
        f"{ACTOR}.loss_agg_mode": aggregation,
        "critic.loss_agg_mode": aggregation,
        f"{ACTOR}.policy_loss.loss_mode": [*_LOSS_MODES, *modes],
        f"{ACTOR}.strategy": strategies,
        "critic.strategy": strategies,
        f"{ACTOR}.optim.lr_scheduler_type": schedulers,
        "critic.optim.lr_scheduler_type": schedulers,
        f"{ACTOR}.optim.warmup_style": schedulers,
        "critic.optim.warmup_style": schedulers,
        "algorithm.kl_ctrl.type": ["fixed", "adaptive"],
        "algorithm.kl_penalty": _KL_ESTIMATES,
        f"{ACTOR}.kl_loss_type": _KL_ESTIMATES,
        "algorithm.pf_ppo.reweight_method": ["pow", "max_min", "max_random"],
        "trainer.resume_mode": ["auto", "disable", "resume_path"],
        "trainer.device": ["cuda", "npu", "cpu"],
        f"{ROLLOUT}.dtype": ["auto", "bfloat16", "float16", "half", "float", "float32"],
        f"{ACTOR}.fsdp_config.dtype": ["bfloat16", "float16", "bf16", "fp16", "float32", "fp32", "half", "float"],
    }
    if s.is_old:
        table["data.truncation"] = ["error", "left", "right", "middle"]  # 0.9.1 does not ask for it
        table["trainer.use_legacy_worker_impl"] = ["auto", "enable", "disable"]
        table["reward_model.reward_manager"] = ["naive", "prime", "batch", "dapo"]
        table[f"{ROLLOUT}.trace.backend"] = ["weave", "mlflow"]
        table["global_profiler.tool"] = ["nsys", "npu", "torch", "torch_memory"]
    return table


_WHEN = {
    ESTIMATOR: "it passes validate_config (and drops the critic) and fails at the first step: core_algos.py"
    " get_adv_estimator_fn()",
    f"{ACTOR}.loss_agg_mode": "workers/config/actor.py refuses it",
    f"{ACTOR}.policy_loss.loss_mode": "core_algos.py get_policy_loss_fn() raises at the first update",
    "algorithm.kl_penalty": "core_algos.py kl_penalty_forward() raises NotImplementedError at the first step",
    f"{ACTOR}.kl_loss_type": "core_algos.py kl_penalty_forward() raises NotImplementedError at the first update",
    "trainer.resume_mode": "_load_checkpoint() then has no folder to resume from, and fails",
    "trainer.device": "single_controller/ray/base.py makes it the name of a Ray resource that nobody offers: it"
    " waits for ever",
    "data.truncation": "torch_functional.postprocess_data() asserts it in a data-loader worker",
}


def values_are_words_verl_knows(s: Settings) -> Iterator[Finding]:
    for key, accepted in words(s).items():
        value = s.get(key)
        if not s.given(key) or value is None or value in accepted:
            continue
        if key == f"{ACTOR}.policy_loss.loss_mode" and s.prefixes.get(key) == "++":
            continue
        guess = nearest(str(value), accepted)
        yield UNKNOWN_WORD.finding(
            f"{key}={value}: verl {s.keys.version} does not know this value",
            why=f"Known are {', '.join(accepted)}; {_WHEN.get(key, 'verl fails when it comes to use it')}.",
            fix=f"{key}={guess}" if guess else f"choose one of {', '.join(accepted)}",
        )


def groups_have_a_baseline(s: Settings) -> Iterator[Finding]:
    estimator = s.text(ESTIMATOR) or ""
    if estimator not in _GROUPS_OF_ONE or s.integer(N) != 1 or not s.known(ESTIMATOR, N):
        return
    allowed = s.facts.allow_degenerate_group or estimator == "reinforce_plus_plus_baseline"
    yield GROUP_OF_ONE.finding(
        f"{estimator} with rollout.n=1: the group has one member and no baseline",
        why=f"core_algos.py: {_GROUPS_OF_ONE[estimator]}. This is REINFORCE without a baseline, not"
        f" {estimator.upper()}.",
        fix=f"{N}=8 (with a smaller {'data.train_batch_size'} for the same cost), or say that it is meant",
        severity="warning" if allowed and estimator != "grpo_passk" else None,
    )


def sampling_explores(s: Settings) -> Iterator[Finding]:
    key = f"{ROLLOUT}.temperature"
    temperature, n = s.number(key), s.integer(N)
    group = (s.text(ESTIMATOR) or "") in _GROUPS_OF_ONE and bool(n and n > 1) and s.known(ESTIMATOR, N)
    if s.given(key) and temperature is not None and temperature <= 0:
        if group:
            yield GREEDY_GROUP.finding(
                f"temperature {temperature:g} makes the {n} responses of a prompt identical",
                why="Their rewards are equal, so every advantage is 0; besides, the actor divides the logits by the"
                " temperature. validate_config accepts it.",
                fix=f"{key}=1.0",
            )
        else:
            yield TEMPERATURE.finding(
                f"{key} is {temperature:g}",
                why="dp_actor.py divides the logits by it (logits.div_(temperature)): log-probabilities become NaN."
                if s.is_old
                else "engine/fsdp/transformer_impl.py divides the logits by max(temperature, 1e-8): every"
                " log-probability becomes 0 or minus infinity.",
                fix=f"{key}=1.0",
            )
    elif group and s.given(f"{ROLLOUT}.top_k") and s.get(f"{ROLLOUT}.top_k") == 1:
        yield GREEDY_GROUP.finding(
            f"top_k=1 makes the {n} responses of a prompt identical",
            why="Their rewards are equal, so every advantage is 0.",
            fix=f"{ROLLOUT}.top_k=-1",
        )


def sampling_is_in_range(s: Settings) -> Iterator[Finding]:
    """Source: vLLM 0.11.0, sampling_params.py _verify_args(): top_p in (0, 1], top_k 0, -1 or at least 1."""
    for section in (ROLLOUT, f"{ROLLOUT}.val_kwargs"):
        top_p, top_k = s.number(f"{section}.top_p"), s.integer(f"{section}.top_k")
        wrong = {}
        if s.given(f"{section}.top_p") and top_p is not None and not 0 < top_p <= 1:
            wrong[f"{section}.top_p"] = (top_p, "1.0")
        if s.given(f"{section}.top_k") and top_k is not None and top_k < -1:
            wrong[f"{section}.top_k"] = (top_k, "-1")
        for key, (value, right) in wrong.items():
            yield SAMPLING_RANGE.finding(
                f"{key} is {value:g}",
                why="verl does not check it; the engine refuses the first request (top_p in (0, 1], top_k -1 or more).",
                fix=f"{key}={right}",
            )


_DEFAULT_PATH = "~/models/deepseek-llm-7b-chat"


def models_are_named(s: Settings) -> Iterator[Finding]:
    path = f"{MODEL}.path"
    if s.known(path) and s.get(path) in (None, "", _DEFAULT_PATH):
        yield DEFAULT_MODEL.finding(
            f"{path} is not set",
            why=f"verl's default is {_DEFAULT_PATH}, its authors' folder.",
            fix=f"{path}=/path/to/model",
        )
    if s.get(ESTIMATOR) != "gae" or not s.known(ESTIMATOR):
        unread = sorted(
            key for key in s.explicit if key.startswith(("critic.optim.", "critic.ppo_", "critic.cliprange"))
        )
        if unread and s.known(ESTIMATOR) and s.get(ESTIMATOR) is not None and not s.flag("critic.enable"):
            more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
            yield CRITIC_UNREAD.finding(
                f"{unread[0]}{more} {'do' if more else 'does'} nothing with {s.get(ESTIMATOR)}",
                why="There is no critic: only GAE reads its values (trainer/ppo/utils.py need_critic()).",
                fix="nothing, or remove them",
            )
        if s.flag("critic.enable") and s.given("critic.enable") and s.known(ESTIMATOR):
            yield IDLE_CRITIC.finding(
                f"critic.enable=True with {s.get(ESTIMATOR)}",
                why="Only GAE reads the values: the critic costs memory and time for nothing.",
                fix="remove critic.enable",
            )
        return
    if s.get("critic.enable") is False:
        yield NO_CRITIC.finding(
            "GAE with critic.enable=False",
            why="compute_gae_advantage_return() needs the critic's values; the first step fails.",
            fix="remove critic.enable, or choose an estimator without a critic",
        )
    elif s.known("critic.model.path") and s.get("critic.model.path") in (None, "", _DEFAULT_PATH):
        yield NO_CRITIC.finding(
            "GAE needs a critic model and critic.model.path is not set",
            why=f"verl's default is {_DEFAULT_PATH}, its authors' folder (config/critic/critic.yaml).",
            fix="critic.model.path=${actor_rollout_ref.model.path}",
        )


def kl_settings_do_something(s: Settings) -> Iterator[Finding]:
    in_loss, in_reward = f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"
    if not s.flag(in_loss):
        for key in (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"):
            if s.given(key):
                yield KL_IDLE.finding(
                    f"{key} does nothing: {in_loss} is off",
                    why=f"{place(s, 'loss')} adds the KL term only with use_kl_loss.",
                    fix=f"{in_loss}=True, or remove it",
                )
    if not s.flag(in_reward):
        idle = [key for key in s.explicit if key.startswith("algorithm.kl_ctrl.") or key == "algorithm.kl_penalty"]
        for key in idle:
            yield KL_IDLE.finding(
                f"{key} does nothing: {in_reward} is off",
                why=f"{place(s, 'kl in reward')} applies the penalty only with use_kl_in_reward (off by default since"
                " verl 0.3).",
                fix=f"{in_reward}=True, or remove it",
            )
    for switch, coefficient in ((in_loss, f"{ACTOR}.kl_loss_coef"), (in_reward, "algorithm.kl_ctrl.kl_coef")):
        if s.flag(switch) and s.number(coefficient) == 0:
            yield KL_ZERO.finding(
                f"{switch} is on and {coefficient} is 0",
                why="The reference model is loaded and run at every step, and its result multiplied by 0.",
                fix=f"{switch}=False, or a coefficient such as 0.001",
            )
    if s.flag(in_loss) and s.flag(in_reward):
        yield KL_TWICE.finding(
            "KL to the reference is both in the reward and in the loss",
            why="verl allows it and prints a notice (utils/config.py).",
            fix="keep one of use_kl_loss and use_kl_in_reward, unless both are meant",
        )
    horizon = s.number("algorithm.kl_ctrl.horizon")
    if s.flag(in_reward) and s.get("algorithm.kl_ctrl.type") == "adaptive" and horizon is not None and horizon <= 0:
        yield UNKNOWN_WORD.finding(
            f"algorithm.kl_ctrl.horizon is {horizon:g}",
            why="core_algos.py get_kl_controller() asserts horizon > 0.",
            fix="algorithm.kl_ctrl.horizon=10000",
        )


def clipping_is_as_meant(s: Settings) -> Iterator[Finding]:
    ratio, low, high = (s.get(f"{ACTOR}.{name}") for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"))
    if s.given(f"{ACTOR}.clip_ratio") and low is not None and high is not None and ratio not in (low, high):
        yield CLIP_IDLE.finding(
            f"{ACTOR}.clip_ratio={ratio} does nothing: clip_ratio_low={low} and clip_ratio_high={high} decide",
            why="core_algos.py falls back to clip_ratio only where the other two are null, and their default is 0.2.",
            fix=f"{ACTOR}.clip_ratio_low={ratio} {ACTOR}.clip_ratio_high={ratio}",
        )
    clip_c = s.number(f"{ACTOR}.clip_ratio_c")
    if s.given(f"{ACTOR}.clip_ratio_c") and clip_c is not None and clip_c <= 1:
        yield CLIP_C.finding(
            f"{ACTOR}.clip_ratio_c is {clip_c:g}",
            why="core_algos.py asserts clip_ratio_c > 1.0 at the first update.",
            fix=f"{ACTOR}.clip_ratio_c=3.0",
        )


def curves_are_read_rightly(s: Settings) -> Iterator[Finding]:
    batch, mini = s.integer("data.train_batch_size"), s.integer(f"{ACTOR}.ppo_mini_batch_size")
    one_pass = s.integer(f"{ACTOR}.ppo_epochs") == 1
    if batch and batch == mini and one_pass and s.known("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"):
        yield ON_POLICY.finding(
            "mini-batch = batch: pg_clipfrac and ppo_kl are 0 by construction",
            why=f"{place(s, 'update')}: with one mini-batch and one epoch the old log-probabilities are "
            + ("the new ones, detached." if s.is_old else "those of the same weights (rounding apart).")
            + " Zero is no sign of stability, and clip settings have no effect.",
            fix="nothing, or a smaller ppo_mini_batch_size for several updates a step",
        )
    if not s.is_old:
        return  # 0.9.1 sums the micro-batches' parts of a mean over the mini-batch (losses.py, AggregationType.SUM)
    micro, world = s.integer(f"{ACTOR}.ppo_micro_batch_size_per_gpu"), s.world_size() or 1
    n = s.integer(N) or 1
    if mini and micro and not s.flag(f"{ACTOR}.use_dynamic_bsz") and mini * n // world > micro > 0:
        accumulation = mini * n // world // micro
        yield SCALED_CURVES.finding(
            f"logged actor/pg_loss and actor/kl_loss are divided by {accumulation} (gradient accumulation)",
            why="dp_actor.py logs them times loss_scale_factor; compare runs only with equal accumulation.",
            fix="nothing: multiply when you read the curve",
        )


def learning_rate_arrives(s: Settings) -> Iterator[Finding]:
    total = count(s).declared
    least = 0 if s.is_old else 1  # from here on the number of steps wins over the ratio
    for section in ("actor_rollout_ref.actor", *(["critic"] if s.critic_is_used() else [])):
        lr, steps = s.number(f"{section}.optim.lr"), s.integer(f"{section}.optim.lr_warmup_steps")
        ratio = s.number(f"{section}.optim.lr_warmup_steps_ratio") or 0.0
        if s.given(f"{section}.optim.lr") and lr == 0:
            yield LR_ZERO.finding(f"{section}.optim.lr is 0", why="Nothing is learnt.", fix=f"{section}.optim.lr=1e-6")
        if s.given(f"{section}.optim.lr") and lr is not None and lr < 0:
            yield LR_NEGATIVE.finding(
                f"{section}.optim.lr is {lr:g}",
                why="torch's optimizers refuse it (ValueError: Invalid learning rate).",
                fix=f"{section}.optim.lr={-lr:g}",
            )
        if section == ACTOR and s.given(f"{section}.optim.lr") and lr is not None and lr >= 1e-3:
            yield LR_HIGH.finding(
                f"{section}.optim.lr is {lr:g}",
                why="Policies are trained with 1e-7 to 1e-5 (LoRA: up to 1e-4); even a model of 0.7M parameters fell"
                " from 0.45 to 0.03 accuracy at 1e-3 (12 steps of GRPO, measured).",
                fix=f"{section}.optim.lr=1e-6",
            )
        if steps is not None and steps >= least and s.given(f"{section}.optim.lr_warmup_steps") and ratio > 0:
            yield WARMUP_TWICE.finding(
                f"{section}.optim.lr_warmup_steps={steps} wins over lr_warmup_steps_ratio={ratio:g}",
                why=f"{place(s, 'schedule')} uses the ratio only when lr_warmup_steps is"
                f" {'negative' if s.is_old else '0 or less'} (default -1).",
                fix="set one of the two",
            )
        if ratio >= 1 and (steps is None or steps < least):
            yield WARMUP_LONG.finding(
                f"{section}.optim.lr_warmup_steps_ratio is {ratio:g}",
                why="The learning rate reaches its value only at the end of the run.",
                fix=f"{section}.optim.lr_warmup_steps_ratio=0.1",
            )
        if not total:
            continue
        warmup = steps if steps is not None and steps >= least else int(ratio * total)
        if ratio < 1 and warmup >= total:
            yield WARMUP_LONG.finding(
                f"{section}: {warmup} warm-up steps, and the run has {total}",
                why="The learning rate never reaches its value (torch_functional.py"
                " get_constant_schedule_with_warmup()).",
                fix=f"{section}.optim.lr_warmup_steps={max(0, total // 10)}",
            )
        elif warmup:
            yield WARMUP_NOTE.finding(
                f"{section}: {warmup} of {total} steps are warm-up, from learning rate 0",
                why="The first update changes nothing, so kl_loss is 0 at steps 1 and 2.",
                fix="nothing, or fewer warm-up steps in a short run",
            )
    critic_first = s.integer("trainer.critic_warmup")
    if critic_first and total and critic_first > total and s.known("trainer.critic_warmup"):
        yield CRITIC_WARMUP.finding(
            f"trainer.critic_warmup is {critic_first} and the run has {total} steps: the actor is never updated",
            why="The trainer updates the actor when critic_warmup <= global_steps.",
            fix=f"trainer.critic_warmup={total // 10}",
        )


def optimizer_keeps_precision(s: Settings) -> Iterator[Finding]:
    sections = [f"{ACTOR}.fsdp_config", "critic.model.fsdp_config" if s.is_old else "critic.fsdp"]
    for section in sections:
        key = f"{section}.model_dtype"
        if s.given(key) and s.get(key) in ("bf16", "bfloat16", "fp16", "float16"):
            yield BF16_MASTER.finding(
                f"{key}={s.get(key)}: parameters and optimizer states are 16 bit",
                why="verl itself makes the model in fp32 ('Otherwise, the optimizer is in bf16, which is incorrect',"
                " fsdp_workers.py of 0.6.1): a step of 1e-6 is below what bf16 can add to a weight.",
                fix=f"{key}=fp32 (mixed precision computes in bf16 anyway)",
            )


def precision_setting_is_read(s: Settings) -> Iterator[Finding]:
    if s.is_old:
        return
    for section in (f"{ACTOR}.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp"):
        key, right = f"{section}.dtype", f"{section}.mixed_precision"
        if s.given(key) and s.get(key) not in ("bfloat16", "bf16") and s.get(right) is None:
            yield DTYPE_IDLE.finding(
                f"{key}={s.get(key)} does nothing: the model computes in bfloat16",
                why="engine/fsdp/transformer_impl.py _build_fsdp_module() reads mixed_precision.param_dtype only, and"
                " takes bfloat16 where that is not set (verl 0.9.1).",
                fix=f"+{right}.param_dtype={'fp32' if '32' in str(s.get(key)) else s.get(key)}",
            )


def gradients_are_finite(s: Settings) -> Iterator[Finding]:
    observed = (s.facts.observed or "").lower()
    if "grad" in observed and any(word in observed for word in ("nan", "inf", "not finite", "non-finite")):
        yield NONFINITE.finding(
            "a gradient norm was not finite",
            why=f"{place(s, 'optimizer step')} prints 'grad_norm is not finite', skips the update and goes on: the run"
            " ends normally and may have learnt nothing.",
            fix="count the skipped steps; look for a zero temperature, fp16, or an exploding learning rate",
        )


LINTS = (
    values_are_words_verl_knows,
    groups_have_a_baseline,
    sampling_explores,
    sampling_is_in_range,
    models_are_named,
    kl_settings_do_something,
    clipping_is_as_meant,
    curves_are_read_rightly,
    learning_rate_arrives,
    optimizer_keeps_precision,
    precision_setting_is_read,
    gradients_are_finite,
)
