"""GSM8K's reward: 1 when the number that a response commits to is the ground truth, else 0.

verl loads this file by path (`custom_reward_function.path`); see docs/rewards.md for both calling conventions.
Numbers are compared exactly, as fractions: no sympy, no worker process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from verlbox.rewards import answers, reasons
from verlbox.rewards.reasons import Reason, Row

Method = Literal["strict", "flexible"]
MAX_RESPONSE = 200_000  # characters; 4,096 tokens are about 16,000


def grade(response: str, ground_truth: str, method: Method = "flexible") -> Reason:
    """The reason code. `strict`: only a `#### N` line counts; `flexible`: boxes and `answer is N` count as well.

    Raises ValueError for another method.
    """
    if method not in ("strict", "flexible"):
        raise ValueError(f"gsm8k's method is strict or flexible, not {method!r}")
    gold = answers.line_value(answers.plain_text(ground_truth).rpartition("####")[2])
    if gold.value is None:
        return "unparsable"
    if len(response) > MAX_RESPONSE:
        return "too_long"
    found = answers.marker_value(response) if method == "strict" else answers.stated_value(response)
    if found is None:
        return "no_answer"
    if found.state == "too_long":
        return "too_long"
    if found.state == "none":
        return "unparsable"
    return "ok" if found.value == gold.value else "wrong"


def grade_number(prediction: str, gold: str) -> Reason:
    """The reason code of a bare answer, such as `$1,000` or `72 clips`, against a bare gold answer."""
    found, wanted = (answers.line_value(answers.plain_text(answers.bare_answer(text))) for text in (prediction, gold))
    if not prediction.strip():
        return "no_answer"
    if found.state == "too_long":
        return "too_long"
    if wanted.value is None or found.state == "none":
        return "unparsable"
    return "ok" if found.value == wanted.value else "wrong"


def row(response: str, reason: Reason) -> Row:
    """verl's row: `score` and `acc` (0 or 1), `format` (1 when there is a `####` line), the reason as columns."""
    correct = float(reason == "ok")
    return {
        "score": correct,
        "acc": correct,
        "format": float(answers.has_marker(response)),
        **reasons.reason_columns(reason),
    }


def compute_score(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[str],
    extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
    *,
    method: Method = "flexible",
    reason_log: str | None = None,
    **_: Any,
) -> list[Row]:
    """One row a response, in order (verl's batch reward manager).

    `reason_log`: file that the batch's reason counts are appended to.
    """
    graded = [grade(text, gold, method) for text, gold in zip(solution_strs, ground_truths, strict=True)]
    if reason_log:
        reasons.append_tally(reason_log, graded)
    return [row(text, reason) for text, reason in zip(solution_strs, graded, strict=True)]


def compute_score_single(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **options: Any,
) -> Row:
    """One response's row (verl's naive reward manager, and every manager of verl 0.9.1)."""
    return compute_score([data_source], [solution_str], [ground_truth], [extra_info], **options)[0]
