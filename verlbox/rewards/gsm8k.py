"""GSM8K's reward: 1 when the number after `####` (or the committed answer) equals the ground truth, else 0.

verl loads this file by path (`custom_reward_function.path`); see docs/rewards.md for both calling conventions.
Numbers are compared exactly as fractions: no sympy, no worker process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from verlbox.rewards import answers, reasons

Method = Literal["strict", "flexible"]
Row = dict[str, float | str]


def _grade(response: str, ground_truth: str, method: Method) -> tuple[reasons.Reason, bool]:
    gold = answers.line_value(answers.plain_text(ground_truth).rpartition("####")[2])
    if gold.value is None:
        return "unparsable", False
    found = answers.marker_value(response)
    if found is None:
        return "no_answer", False
    if found.state == "too_long":
        return "too_long", False
    if found.state == "none":
        return "unparsable", False
    return ("ok" if found.value == gold.value else "wrong"), True


def score_one(response: str, ground_truth: str, method: Method = "strict") -> Row:
    """One response's row: `score` and `acc` (0 or 1), `format` (a marker was there), the reason as text and columns."""
    reason, formatted = _grade(response, ground_truth, method)
    correct = float(reason == "ok")
    return {"score": correct, "acc": correct, "format": float(formatted), **reasons.reason_columns(reason)}


def compute_score(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[str],
    extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
    *,
    method: Method = "strict",
    reason_log: str | None = None,
    **_: Any,
) -> list[Row]:
    """One row a response, in order (verl's batch reward manager). `reason_log`: file the batch's reasons are added to."""
    rows = [score_one(text, truth, method) for text, truth in zip(solution_strs, ground_truths, strict=True)]
    if reason_log:
        reasons.append_tally(reason_log, [row["reason"] for row in rows])  # type: ignore[misc]
    return rows


def compute_score_single(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **options: Any,
) -> Row:
    """One response's row (verl's naive reward manager, and every manager of verl 0.9.1)."""
    return compute_score([data_source], [solution_str], [ground_truth], [extra_info], **options)[0]
