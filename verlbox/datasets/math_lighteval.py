r"""MATH (Hendrycks et al.), as MATH-lighteval packs it: `problem`, `level`, `type`, `solution` with a `\boxed{}`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from verlbox.datasets.prompts import Prompt
from verlbox.datasets.rows import BadRow, Row, excerpt, text_field, without_entities

DATA_SOURCE = "DigitalLearningGmbH/MATH-lighteval"

# Two training problems of the published set have an empty box in their solution, so that no answer could ever be
# right. The solutions prove that the number asked for is zero. Keyed by sha256 of the problem with
# every run of blanks as one.
_EMPTY_BOX_ERRATA = {
    "79595ba3b4cfcfe2199d686e80a0ccf75c9e41ebbb03a801cfaa02c740ac4680": "0",
    "81a7fe8e017d681cc815fff2e03a4e69fc15c6b6f768109943fcaf6ba54d22dd": "0",
}

_BOX = re.compile(r"\\boxed(?![A-Za-z])\s*")
_FBOX = re.compile(r"\\fbox(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_END_OF_BARE_BOX = re.compile(r"\$|\\\)|\\\]|\n|$")


def last_boxed(solution: str) -> str | None:
    r"""The content of the last `\boxed` (else the last `\fbox`): braces balanced, or up to the end of the formula.

    None when there is no box or the last one is not closed.
    """
    boxes = list(_BOX.finditer(solution)) or list(_FBOX.finditer(solution))
    if not boxes:
        return None
    start = boxes[-1].end()
    if not solution.startswith("{", start):
        end = _END_OF_BARE_BOX.search(solution, start)
        return solution[start : end.start() if end else len(solution)].strip().rstrip(".").rstrip()
    depth = 0
    for brace in _BRACE.finditer(solution, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return solution[start + 1 : brace.start()]
    return None


def to_row(record: Mapping[str, object], index: int, split: str, prompt: Prompt) -> Row | BadRow:
    """verl's row of a MATH record (examples/data_preprocess/math_dataset.py, v0.6.1), or why there is none."""
    problem = text_field(record, "problem", index)
    if isinstance(problem, BadRow):
        return problem
    solution = text_field(record, "solution", index)
    if isinstance(solution, BadRow):
        return solution
    (problem, entities), (solution, more_entities) = without_entities(problem), without_entities(solution)
    remarks = ["html-entities"] if entities or more_entities else []
    gold = last_boxed(solution)
    if gold is None:
        detail = "the last \\boxed{ is not closed" if _BOX.search(solution) else "the solution has no \\boxed{}"
        return BadRow(index, "no-answer", detail, excerpt(solution[-200:]))
    if not gold.strip():
        correction = _EMPTY_BOX_ERRATA.get(hashlib.sha256(" ".join(problem.split()).encode()).hexdigest())
        if correction is None:
            return BadRow(index, "no-answer", "the last \\boxed{} is empty", excerpt(solution[-200:]))
        gold = correction
        remarks.append("empty-box-corrected")
    level, kind = record.get("level"), record.get("type")
    return Row(
        data_source=DATA_SOURCE,
        prompt=prompt.messages(problem),
        ground_truth=gold,
        extra_info={"split": split, "index": index},
        question=problem,
        columns={
            "level": level if isinstance(level, str) else None,
            "type": kind if isinstance(kind, str) else None,
        },
        remarks=tuple(remarks),
    )
