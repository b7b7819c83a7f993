"""Files that already are in verl's schema, made by verl's scripts or by hand: checked, never rebuilt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from verlbox.datasets.rows import BadRow, Row, excerpt, text_field

REQUIRED = ("data_source", "prompt", "reward_model")


def is_prepared(columns: set[str]) -> bool:
    """Whether these columns are meant for verl's trainer rather than for a preprocessing script."""
    return "prompt" in columns


def to_row(record: Mapping[str, object], index: int, split: str, data_source: str) -> Row | BadRow:
    """The row as it is, with `ground_truth` as text and the split in `extra_info`.

    A `data_source` other than the data set's own is refused: verl looks the reward up by it.
    """
    source = text_field(record, "data_source", index)
    if isinstance(source, BadRow):
        return source
    if source != data_source:
        detail = f"data_source is {source!r}; the reward of this data set is looked up as {data_source!r}"
        return BadRow(index, "wrong-data-source", detail, excerpt(dict(record)))
    messages = _messages(record.get("prompt"))
    if isinstance(messages, str):
        return BadRow(index, "wrong-prompt", messages, excerpt(record.get("prompt")))
    reward_model = record.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    if truth is None or isinstance(truth, (Mapping, list)):
        return BadRow(index, "no-answer", "reward_model.ground_truth is missing", excerpt(dict(record)))
    gold = f"{truth:g}" if isinstance(truth, float) and truth.is_integer() and abs(truth) < 1e6 else str(truth)
    extra = record.get("extra_info")
    kept = (
        {key: value for key, value in extra.items() if key in ("answer", "question")} if isinstance(extra, dict) else {}
    )
    ability = record.get("ability")
    question = next((m["content"] for m in reversed(messages) if m["role"] == "user"), messages[-1]["content"])
    row = Row(
        data_source=source,
        prompt=messages,
        ground_truth=gold,
        extra_info={"split": split, "index": index, **kept},
        question=question,
        remarks=() if isinstance(truth, str) else ("ground-truth-cast",),
    )
    return replace(row, ability=ability) if isinstance(ability, str) and ability else row


def _messages(prompt: object) -> list[dict[str, str]] | str:
    """The conversation, or what is wrong with it."""
    wanted = "verl needs a list of {role, content}"
    if isinstance(prompt, str):
        return f"prompt is plain text; {wanted}"
    if not isinstance(prompt, list) or not prompt:
        return f"prompt is {type(prompt).__name__ if prompt is not None else 'missing'}; {wanted}"
    messages: list[dict[str, str]] = []
    for message in prompt:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            return f"a message lacks role or content as text; {wanted}"
        messages.append({"role": role, "content": content})
    return messages
