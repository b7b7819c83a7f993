"""What a data set is made of on its way to verl: rows, bad rows, and the checks every record passes first."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

EXCERPT_CHARS = 160

# Only the entities that scraped copies of these sets really hold: LaTeX uses `&` for alignment, so a general
# unescape could damage it.
_ENTITY = re.compile(r"&(?:lt|gt|le|ge|ne|amp|quot|apos|nbsp|times|divide|minus|deg|pi|#\d{2,5}|#x[0-9a-fA-F]{2,4});")


@dataclass(frozen=True)
class Row:
    """One row in verl's schema. `columns` are further top-level columns that verl's own script leaves in the file.

    `remarks` names what was put right on the way (for example `html-entities`); they are counted, never stored.
    """

    data_source: str
    prompt: list[dict[str, str]]
    ground_truth: str
    extra_info: dict[str, object]
    question: str
    ability: str = "math"
    columns: Mapping[str, str | None] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def as_verl(self) -> dict[str, object]:
        """The row as verl's scripts write it: same columns, same order, same nesting."""
        return {
            **self.columns,
            "data_source": self.data_source,
            "prompt": self.prompt,
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "extra_info": self.extra_info,
        }


@dataclass(frozen=True)
class BadRow:
    """A record that cannot be used: its place in the split (from 0), a kebab-case reason, details, an excerpt."""

    index: int
    reason: str
    detail: str
    excerpt: str
    where: str = ""


def excerpt(value: object) -> str:
    """At most `EXCERPT_CHARS` characters of a value on one line, printable on any terminal."""
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text[: 4 * EXCERPT_CHARS].split()).encode("utf-8", "backslashreplace").decode("utf-8")
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    return text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 1] + "…"


def text_field(record: Mapping[str, object], name: str, index: int) -> str | BadRow:
    """The non-empty text of a field, or the reason why the record cannot be used."""
    value = record.get(name)
    if value is None:
        missing = "is null" if name in record else "is missing"
        return BadRow(index, "missing-field", f"{name} {missing}", excerpt(dict(record)))
    if not isinstance(value, str):
        detail = f"{name} must be text, it is {type(value).__name__}"
        return BadRow(index, "wrong-type", detail, excerpt(dict(record)))
    if not value.strip():
        return BadRow(index, "empty-field", f"{name} is empty", excerpt(dict(record)))
    if "\0" in value:
        return BadRow(index, "damaged-text", f"{name} holds a NUL character", excerpt(value))
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        detail = f"{name} holds half a surrogate pair at character {error.start}"
        return BadRow(index, "damaged-text", detail, excerpt(value))
    return value


def without_entities(text: str) -> tuple[str, bool]:
    """The text with HTML entities such as `&lt;` resolved, and whether there were any."""
    if "&" not in text or not _ENTITY.search(text):
        return text, False
    return _ENTITY.sub(lambda match: html.unescape(match.group()).replace("\u00a0", " "), text), True
