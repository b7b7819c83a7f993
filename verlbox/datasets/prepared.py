"""Files that already are in verl's schema, made by verl's scripts or by hand: checked, never rebuilt."""

from __future__ import annotations

from collections.abc import Mapping

from verlbox.datasets.rows import BadRow, Row, excerpt, text_field

REQUIRED = ("data_source", "prompt", "reward_model")
_VERL_COLUMNS = (*REQUIRED, "ability", "extra_info")


def is_prepared(columns: set[str]) -> bool:
    """Whether these columns are meant for verl's trainer rather than for a preprocessing script."""
    return "prompt" in columns


def to_row(
    record: Mapping[str, object], index: int, split: str, data_source: str, others: frozenset[str]
) -> Row | BadRow:
    """The row as it is, with `ground_truth` and the other fields of `extra_info` as text, and with split and index.

    verl finds rewards and names metrics by `data_source`: a path or another spelling there becomes the data set's own;
    the source of one of the `others` that verlbox knows means that this is another data set.
    """
    source = text_field(record, "data_source", index)
    if isinstance(source, BadRow):
        return source
    if source != data_source and source in others:
        detail = f"data_source is {source!r}, not {data_source!r}"
        return BadRow(index, "wrong-data-source", detail, excerpt(dict(record)))
    messages = _messages(record.get("prompt"))
    if isinstance(messages, str):
        return BadRow(index, "wrong-prompt", messages, excerpt(record.get("prompt")))
    reward_model = record.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    if truth is None or isinstance(truth, (Mapping, list)) or not str(truth).strip():
        return BadRow(index, "no-answer", "reward_model.ground_truth is missing", excerpt(dict(record)))
    whole = isinstance(truth, float) and truth.is_integer() and abs(truth) < 2**53
    gold = str(int(truth)) if whole and isinstance(truth, float) else str(truth)
    extra, ability = record.get("extra_info"), record.get("ability")
    fields = dict(extra) if isinstance(extra, Mapping) else {}
    kept = {name: str(value) for name, value in fields.items() if isinstance(value, (str, int, float))}
    columns = {n: v for n, v in record.items() if n not in _VERL_COLUMNS and (v is None or isinstance(v, str))}
    remarks = {
        "prepared": True,
        "ground-truth-cast": not isinstance(truth, str),
        "data-source-corrected": source != data_source,
        "fields-dropped": any(value is not None and name not in kept for name, value in fields.items())
        or any(name not in columns and name not in _VERL_COLUMNS for name in record),
    }
    return Row(
        data_source=data_source,
        prompt=messages,
        ground_truth=gold,
        extra_info={**kept, "split": split, "index": index},
        question=next((m["content"] for m in reversed(messages) if m["role"] == "user"), messages[-1]["content"]),
        ability=ability if isinstance(ability, str) and ability else "math",
        columns=columns,
        remarks=tuple(name for name, applies in remarks.items() if applies),
    )


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
