"""Health while training: what the metrics of each step say is wrong, said once.

What is covered: updates that verl skips because the gradient is not finite, weights that became NaN, a reward that is 0
for all responses, answers cut off by the length limit, equal rewards without a learning signal, entropy collapse, KL
blow-up, gradients that vanish or explode, validation answers that the grader could not grade. What is not: whether the
policy improves; that is the report's and the acceptance's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from verlbox.findings import Code, Finding, register
from verlbox.rewards.reasons import reason_shares, ungraded_finding

NAN_WEIGHTS = register(
    "health-nan-weights", "error", "Losses are not finite and the policy generates nonsense: the weights are NaN."
)
SKIPPED = register("health-skipped-update", "warning", "verl skipped an update because its gradient was not finite.")
CUT = register("health-answers-cut", "error", "Every reward is 0 and nearly every response was cut off by the limit.")
ZERO_REWARD = register(
    "health-zero-reward", "error", "Every response of several steps scored 0: nothing can be learnt."
)
NO_SIGNAL = register(
    "health-no-signal",
    "warning",
    "All rewards of a group are equal for several steps: advantages are 0, nothing is learnt.",
)
ZERO_GRADIENT = register("health-zero-gradient", "warning", "The gradient is 0 for several steps: nothing is learnt.")
LONG = register("health-length-clip", "warning", "Most responses reach the length limit for several steps.")
ENTROPY = register("health-entropy", "warning", "The policy's entropy collapsed: all samples of a prompt are alike.")
KL = register("health-kl", "warning", "The policy moved far away from the reference (or from itself within a step).")
GRADIENT = register("health-gradient", "warning", "The gradient norm exploded.")

_GRADIENTS = ("actor/grad_norm", "critic/grad_norm")
_LOSSES = ("actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/entropy_loss", "actor/ppo_kl", "critic/vf_loss")
_KLS = ("actor/kl_loss", "critic/kl", "actor/ppo_kl", "actor/reward_kl_penalty")
_NAMES = (
    *_GRADIENTS,
    *_LOSSES,
    *_KLS,
    "critic/score/max",
    "critic/score/min",
    "critic/score/mean",
    "critic/advantages/max",
    "critic/advantages/min",
    "response_length/clip_ratio",
)
_WANTED = frozenset(_NAMES)
_STEP = re.compile(r"\bstep: ?(\d+)(?= - |, )")
_NUMPY = re.compile(r"np\.\w+\((.*)\)")


@dataclass(frozen=True)
class Bounds:
    """When a metric is reported. Defaults stay silent on verl's published healthy runs; a recipe narrows them.

    patience: steps in a row before a state that may pass is reported. nonfinite_steps: skipped updates in a row after
    which the weights count as lost. clip_ratio: share (0..1) of responses at the length limit. cut_clip_ratio: that
    share at which a reward of 0 is explained by the limit. entropy: nats per token, below is collapse (a healthy
    Qwen2-7B run ends at 0.011). kl: in nats, of actor/kl_loss (which verl divides by the gradient accumulation),
    critic/kl, actor/ppo_kl or actor/reward_kl_penalty (healthy runs stay below 0.5). gradient: of the actor's norm
    before clipping (healthy runs: 0.2 to 66). ungraded: share (0..1) of validation answers with a timeout or crash.
    """

    patience: int = 10
    nonfinite_steps: int = 3
    clip_ratio: float = 0.9
    cut_clip_ratio: float = 0.95
    entropy: float = 0.005
    kl: float = 10.0
    gradient: float = 1000.0
    ungraded: float = 0.01


def read_metrics(text: str) -> tuple[int, dict[str, float]] | None:
    """Step and the metrics that health looks at, of a line as verl's console logger prints it; None for other lines.

    Whole lines are read by `verlbox.metrics.read`; here only a few names matter and lines come by the gigabyte.
    """
    step = _STEP.search(text) if "step:" in text else None
    if step is None:
        return None
    rest = text[step.end() :]
    values: dict[str, float] = {}
    for part in rest.split(" - " if rest.startswith(" - ") else ", "):
        name, _, value = part.strip().rpartition(":")
        if name in _WANTED or "/reason_" in name:
            number = _NUMPY.fullmatch(value.strip())
            try:
                values[name] = float(number[1] if number else value)
            except ValueError:
                continue
    return int(step[1]), values


class Health:
    """Fed one step after another; returns each finding once, when it first holds."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._steps = 0
        self._streaks: dict[str, int] = {}
        self._reported: set[str] = set()
        self._last: tuple[int, Mapping[str, float], str] = (0, {}, "")

    def feed(self, step: int, metrics: Mapping[str, float], where: str = "") -> list[Finding]:
        """New findings after this step. metrics: verl's names to values; others are ignored. A step without training
        metrics (a validation before training) counts for the reward check only."""
        new: list[Finding] = []
        for shares in reason_shares(metrics).values():
            finding = ungraded_finding(shares, self.bounds.ungraded, where or f"step {step}")
            new += self._once(finding) if finding else []
        if not any(name in metrics for name in _NAMES):
            return new
        self._steps += 1
        for code, holds, at_once in self._states(metrics):
            streak = self._streaks[code.name] = self._streaks.get(code.name, 0) + 1 if holds else 0
            if streak and (at_once or streak >= self.bounds.patience):
                new += self._once(_finding(code, step, streak, metrics, where))
        if self._streaks.get(SKIPPED.name, 0) >= self.bounds.nonfinite_steps:
            streak = self._streaks[SKIPPED.name]
            new += self._once(_finding(NAN_WEIGHTS, step, streak, metrics, where))
        self._last = (step, dict(metrics), where)
        return new

    def finish(self) -> list[Finding]:
        """What held in every step there was, although there were fewer than `patience`; not said of lengths alone,
        because a short smoke run with tiny limits is no fault."""
        new: list[Finding] = []
        for code in (CUT, ZERO_REWARD, NO_SIGNAL, ZERO_GRADIENT, ENTROPY, KL):
            if self._steps and self._streaks.get(code.name, 0) == self._steps:
                step, metrics, where = self._last
                new += self._once(_finding(code, step, self._steps, metrics, where))
        return new

    def _states(self, metrics: Mapping[str, float]) -> list[tuple[Code, bool, bool]]:
        """(code, whether it holds in this step, whether one step is enough)."""
        bounds = self.bounds
        get = metrics.get
        gradient_lost = any(not math.isfinite(get(n, 0.0)) for n in _GRADIENTS)
        loss_lost = any(not math.isfinite(get(n, 0.0)) for n in _LOSSES)
        clip = get("response_length/clip_ratio", 0.0)
        score = [get(f"critic/score/{end}", math.nan) for end in ("min", "max")]
        if all(math.isnan(s) for s in score):
            mean = get("critic/score/mean", math.nan)
            score = [mean, mean] if mean == 0 else score  # a mean of 0 alone may hide rewards of both signs, rarely
        zero = score == [0.0, 0.0]
        nan = (gradient_lost or loss_lost) and clip >= 0.99
        flat = get("critic/advantages/max") == 0.0 == get("critic/advantages/min")
        entropy = get("actor/entropy", get("actor/entropy_loss", math.inf))
        cut = zero and clip >= bounds.cut_clip_ratio and not nan
        return [
            (NAN_WEIGHTS, nan, True),
            (SKIPPED, (gradient_lost or loss_lost) and not nan, True),
            (CUT, cut, self._streaks.get(CUT.name, 0) >= 2),
            (ZERO_REWARD, zero and not cut and not nan, False),
            (NO_SIGNAL, flat and not zero and not nan, False),
            (ZERO_GRADIENT, get("actor/grad_norm") == 0.0 and not flat and not zero, False),
            (LONG, clip >= bounds.clip_ratio and not nan and not cut, False),
            (ENTROPY, entropy < bounds.entropy, False),
            (KL, any(math.isfinite(get(n, 0.0)) and get(n, 0.0) > bounds.kl for n in _KLS), False),
            (GRADIENT, bounds.gradient < get("actor/grad_norm", 0.0) < math.inf, True),
        ]

    def _once(self, finding: Finding) -> list[Finding]:
        if finding.code in self._reported:
            return []
        self._reported.add(finding.code)
        return [finding]


# code name -> (names to quote, why, fix)
_ADVICE: dict[str, tuple[tuple[str, ...], str, str]] = {
    NAN_WEIGHTS.name: (
        (*_GRADIENTS, *_LOSSES, "response_length/clip_ratio"),
        "verl skips an update whose gradient is not finite, so NaN losses mean that the weights or the rollout engine's"
        " copy of them are already lost; every later step is worthless",
        "find the first step with a grad_norm of nan, resume from the checkpoint before it with a lower learning rate"
        " or a KL term, and check that training and rollout use the same dtype",
    ),
    SKIPPED.name: (
        (*_GRADIENTS, *_LOSSES),
        "verl 0.6.1 prints a warning, drops the update and goes on; one is harmless, a run of them trains nothing",
        "if it comes back: lower the learning rate, use bfloat16 instead of float16, look at this step's rewards and"
        " lengths",
    ),
    CUT.name: (
        ("critic/score/max", "response_length/clip_ratio"),
        "a response that is cut at the limit never writes its answer, so a rule-based reward is 0 for all of them",
        "raise data.max_response_length (1024 or more for MATH with reasoning), or ask for less in the prompt",
    ),
    ZERO_REWARD.name: (
        ("critic/score/mean", "critic/score/max", "response_length/clip_ratio"),
        "with equal rewards every advantage is 0: the run costs time and changes nothing",
        "grade a few responses by hand: does the reward look for a format that the prompt does not ask for, is the"
        " ground truth column right, does the reward function time out",
    ),
    NO_SIGNAL.name: (
        ("critic/score/mean", "critic/advantages/max", "critic/advantages/min", "actor/grad_norm"),
        "a group whose responses all have the same reward has advantage 0 (GRPO, RLOO); only the KL term still acts",
        "use harder prompts or filter out those always solved, raise rollout.n, check that the reward is not constant",
    ),
    ZERO_GRADIENT.name: (
        ("actor/grad_norm", "actor/pg_loss", "critic/score/mean"),
        "rewards differ, yet nothing reaches the weights",
        "check the learning rate and its warm-up, that parameters are trainable, that the response mask is not empty",
    ),
    LONG.name: (
        ("response_length/clip_ratio", "critic/score/mean"),
        "responses that are cut off cannot be answered fully; they pull the reward down and teach cutting off",
        "raise data.max_response_length, or penalise length; if lengths rose suddenly, the policy is degenerating",
    ),
    ENTROPY.name: (
        ("actor/entropy", "actor/entropy_loss", "critic/score/mean"),
        "without entropy the samples of a prompt are alike, so there is nothing left to compare",
        "go back to an earlier checkpoint; raise actor.entropy_coeff or clip_ratio_high, lower the learning rate",
    ),
    KL.name: (
        _KLS,
        "the policy leaves the reference so fast that language quality is usually lost, and the reward may be gamed",
        "lower the learning rate, raise the KL coefficient (and check that the term is switched on at all)",
    ),
    GRADIENT.name: (
        ("actor/grad_norm", "actor/pg_loss", "critic/score/mean"),
        "clipping bounds the step, not the damage of a broken batch",
        "look at this step's lengths and rewards; lower the learning rate if it comes back",
    ),
}


def _finding(code: Code, step: int, streak: int, metrics: Mapping[str, float], where: str) -> Finding:
    names, why, fix = _ADVICE[code.name]
    shown = ", ".join(f"{n}={metrics[n]:.4g}" for n in dict.fromkeys(names) if n in metrics)
    span = f"step {step}" if streak == 1 else f"{streak} steps up to step {step}"
    return code.finding(f"{code.meaning} ({span}: {shown})", why=why, fix=fix, where=where)
