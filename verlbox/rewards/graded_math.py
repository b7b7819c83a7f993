"""The graded mathematics reward: 0.7 for the right answer, up to 0.2 for the form, up to 0.1 for the steps.

A wrong answer earns 0 whatever its form. verl loads this file by path (`custom_reward_function.path`); see
docs/rewards.md for both calling conventions, the rules and where they depart from the published reward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from verlbox.rewards import answers, equivalence, pool, reasons
from verlbox.rewards.pool import Verdict
from verlbox.rewards.reasons import Reason, Row

ACCURACY = 0.7
TAG = 0.05  # for each of the four tags with its line breaks, exactly once
OUTSIDE = 0.001  # taken off for each character before <think> and after </answer>
MAX_OUTSIDE = 0.1
MAX_RESPONSE = 200_000  # characters; 4,096 tokens are about 16,000

_TAGS = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
_STEP = re.compile(r"(?:[Ss]tep\s*([1-9]\d{0,5})\s*[:.]|([1-9]\d{0,5})\s*[.)]|[(\[]?\s*([1-9]\d{0,5})\s*[)\]])\s*(.+)")
_KEYWORDS = (
    "solve",
    "equation",
    "calculate",
    "substitute",
    "therefore",
    "because",
    "thus",
    "sum",
    "product",
    "derivative",
    "integral",
)


def format_score(response: str) -> float:
    """0 to 0.2: the four tags, less the text outside them; 0 when the tags are out of order."""
    think, think_end = response.find("<think>"), response.find("</think>")
    answer, answer_end = response.find("<answer>"), response.find("</answer>")
    for first, second in ((think, think_end), (think_end, answer), (answer, answer_end)):
        if first >= 0 and 0 <= second < first:
            return 0.0
    score = TAG * sum(response.count(tag) == 1 for tag in _TAGS)
    outside = [response[: max(think, 0)], response[answer_end + len("</answer>") :] if answer_end >= 0 else ""]
    for text in outside:
        score = max(0.0, score - min(OUTSIDE * len(text.strip()), MAX_OUTSIDE))
    return score


def steps_score(response: str) -> float:
    """0, 0.05 or 0.1: numbered steps in sequence inside `<think>`, and how many steps use a working word."""
    start, end = response.find("<think>"), response.find("</think>")
    if start < 0 or end < 0:
        return 0.0
    steps: list[tuple[int, str]] = []
    for line in response[start + len("<think>") : end].splitlines():
        step = _STEP.match(line.strip())
        if step and len(step[4].strip()) > 3:
            steps.append((int(step[1] or step[2] or step[3]), step[4].lower()))
    in_sequence = 0
    for number, _ in steps:
        in_sequence += number == in_sequence + 1
    working = sum(any(word in text for word in _KEYWORDS) for _, text in steps)
    if in_sequence >= 3 and working >= 2:
        return 0.1
    return 0.05 if in_sequence >= 2 and working >= 1 else 0.0


def grade(
    responses: Sequence[str],
    ground_truths: Sequence[str],
    timeout: float = pool.TIMEOUT,
    workers: int | None = None,
) -> list[Verdict]:
    """The reason code of each response and the seconds its answer took. Several committed answers must all be right.

    Raises RuntimeError when math-verify is needed and its process cannot be started.
    """
    committed = [answers.committed(text) if len(text) <= MAX_RESPONSE else () for text in responses]
    pairs = [(gold, answer) for gold, found in zip(ground_truths, committed, strict=True) for answer in found]
    verdicts = iter(equivalence.judge(pairs, timeout, workers))
    graded: list[Verdict] = []
    for text, found in zip(responses, committed, strict=True):
        mine = [next(verdicts) for _ in found]
        seconds = sum(verdict.seconds for verdict in mine)
        if len(text) > MAX_RESPONSE:
            graded.append(Verdict("too_long", 0.0))
        elif not mine:
            graded.append(Verdict("no_answer", 0.0))
        else:
            graded.append(Verdict(next((v.reason for v in mine if v.reason != "ok"), "ok"), seconds))
    return graded


def row(response: str, reason: Reason) -> Row:
    """verl's row: `score` (0 to 1), `acc` (0 or 1), the parts `accuracy`, `format`, `steps`, the reason as columns.

    The parts say what the form was worth; they count towards the score only when the answer is right.
    """
    correct = reason == "ok"
    short = response if len(response) <= MAX_RESPONSE else ""
    accuracy, form, steps = ACCURACY * correct, format_score(short), steps_score(short)
    return {
        "score": accuracy + form + steps if correct else 0.0,
        "acc": float(correct),
        "accuracy": accuracy,
        "format": form,
        "steps": steps,
        **reasons.reason_columns(reason),
    }


def compute_score(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[str],
    extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
    *,
    timeout: float = pool.TIMEOUT,
    workers: int | None = None,
    reason_log: str | None = None,
    **_: Any,
) -> list[Row]:
    """One row a response, in order (verl's batch reward manager).

    `timeout`: seconds an answer; `workers`: grading processes, one a core by default; `reason_log`: file that the
    batch's reason counts are appended to.
    """
    graded = grade(solution_strs, ground_truths, timeout, workers)
    if reason_log:
        reasons.append_tally(reason_log, [item.reason for item in graded])
    return [row(text, item.reason) for text, item in zip(solution_strs, graded, strict=True)]


def compute_score_single(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **options: Any,
) -> Row:
    """One response's row (verl's naive reward manager, and every manager of verl 0.9.1).

    verl 0.9.1 calls this from the threads of eight processes, so each keeps to an eighth of the cores by default.
    """
    options.setdefault("workers", max(1, min(pool.cores(), pool.MAX_WORKERS * 8) // 8))
    return compute_score([data_source], [solution_str], [ground_truth], [extra_info], **options)[0]
