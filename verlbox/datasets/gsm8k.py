"""GSM8K: `question` and a worked `answer` that ends in `#### N`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from verlbox.datasets.prompts import Prompt
from verlbox.datasets.rows import BadRow, Row, excerpt, text_field, without_entities

DATA_SOURCE = "openai/gsm8k"

_SIGNS = str.maketrans({"−": "-", "–": "-", "﹣": "-"})
_DECORATION = re.compile(r"\\?[$€£¥₹*]|USD\b|US(?=\s*\$)")
_NUMBER = re.compile(
    r"""(?P<sign>[+-]?)\s*
        (?P<value>
            (?:\d+\s+)?\d+\s*/\s*\d+              # 1/2, 2 1/2
          | \d{1,3}(?:\ \d{3})+(?:\.\d+)?         # 70 000
          | \d+(?:,\d+)*(?:\.\d+)?                # 18, 70,000, 1,080.50
          | \.\d+                                 # .5
        )
        (?P<rest>.*)""",
    re.VERBOSE,
)


def number_after_marker(answer: str) -> str | None:
    """The number behind the last `####`, as plain ASCII: `70,000` is `70000`, `$18.` is `18`, `７２` is `72`.

    A unit behind the number is dropped; None when there is no marker, no number, or more than one number.
    """
    _, marker, tail = answer.rpartition("####")
    if not marker:
        return None
    line = tail.strip().split("\n", 1)[0]
    line = unicodedata.normalize("NFKC", line).translate(_SIGNS)
    line = " ".join(_DECORATION.sub(" ", line).split())
    match = _NUMBER.fullmatch(line)
    if match is None or re.search(r"\d", match["rest"]):
        return None
    value = match["value"]
    value = re.sub(r"\s*/\s*", "/", value) if "/" in value else re.sub(r"[, ]", "", value)
    value = f"0{value}" if value.startswith(".") else value
    return f"-{value}" if match["sign"] == "-" else value


def to_row(
    record: Mapping[str, object], index: int, split: str, prompt: Prompt, data_source: str = DATA_SOURCE
) -> Row | BadRow:
    """verl's row of a GSM8K record (examples/data_preprocess/gsm8k.py, v0.6.1), or why there is none."""
    question = text_field(record, "question", index)
    if isinstance(question, BadRow):
        return question
    answer = text_field(record, "answer", index)
    if isinstance(answer, BadRow):
        return answer
    (question, entities), (answer, more_entities) = without_entities(question), without_entities(answer)
    gold = number_after_marker(answer)
    if gold is None:
        reason, detail = "no-answer", "the answer has no '####' line"
        if "####" in answer:
            reason, detail = "answer-not-a-number", "what follows the last '####' is not one number"
        return BadRow(index, reason, detail, excerpt(answer[-200:]))
    remarks = ["html-entities"] if entities or more_entities else []
    if answer.count("####") > 1:
        remarks.append("several-answers")
    return Row(
        data_source=data_source,
        prompt=prompt.messages(question),
        ground_truth=gold,
        extra_info={"split": split, "index": index, "answer": answer, "question": question},
        question=question,
        remarks=tuple(remarks),
    )
