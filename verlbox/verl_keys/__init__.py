"""verl's configuration keys with their defaults, as data, for reading a configuration where verl is not installed.

The JSON files are written by tools/make_verl_keys.py from verl's own Hydra configuration; see there for their fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

FOLDER = Path(__file__).parent
VERSIONS = ("0.6.1", "0.9.1")
MISSING = "???"  # OmegaConf's word for a value that the user must give

_INTERPOLATION = re.compile(r"\$\{((?:[^${}]|\{\})+)\}")  # an innermost one
_SELECT = re.compile(r"oc\.select:\s*([^,]+?)\s*(?:,\s*(.*))?", re.DOTALL)


@dataclass(frozen=True)
class VerlKeys:
    """What one verl release accepts. `exact` is False when the data is of another release than the one asked for."""

    version: str
    config_name: str
    exact: bool
    defaults: Mapping[str, object]
    fields: Mapping[str, frozenset[str]]
    closed: frozenset[str]

    @cached_property
    def sections(self) -> frozenset[str]:
        """The keys that hold other keys."""
        parts = (key.split(".") for key in self.defaults)
        return frozenset(".".join(names[:end]) for names in parts for end in range(1, len(names)))


@cache
def _read(version: str, config_name: str) -> dict[str, object]:
    data: dict[str, object] = json.loads((FOLDER / f"{version}-{config_name}.json").read_text(encoding="utf-8"))
    return data


def load(version: str | None = None, config_name: str = "ppo_trainer") -> VerlKeys:
    """The keys of a verl release (default 0.6.1); for a release without data, those of the nearest one that has.

    Raises FileNotFoundError for a config name other than ppo_trainer and ppo_megatron_trainer.
    """
    asked = version or VERSIONS[0]
    nearest = asked if asked in VERSIONS else ("0.9.1" if _release(asked) >= (0, 8) else "0.6.1")
    data = _read(nearest, config_name)
    defaults, fields, closed = data["defaults"], data["fields"], data["closed"]
    assert isinstance(defaults, dict) and isinstance(fields, dict) and isinstance(closed, list)
    return VerlKeys(
        nearest,
        config_name,
        asked == nearest,
        defaults,
        {section: frozenset(names) for section, names in fields.items()},
        frozenset(closed),
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def resolve(key: str, values: Mapping[str, object]) -> object:
    """The value of `key` in `values` (dotted key -> value) with OmegaConf's interpolations followed.

    Understands `${a.b}`, `${.sibling}` and `${oc.select:a.b,default}`; another resolver, or a reference that leads
    nowhere or in a circle, leaves the text as it is. A missing key is None.
    """
    return _resolve(key, values, frozenset())


def _resolve(key: str, values: Mapping[str, object], trail: frozenset[str]) -> object:
    value = values.get(key)
    if not isinstance(value, str) or "${" not in value:
        return value
    parent = key.rpartition(".")[0]
    trail = trail | {key}  # a reference back to one of these is a circle

    def follow(reference: str) -> object:
        select = _SELECT.fullmatch(reference)
        path, default = (select[1], select[2]) if select else (reference, None)
        target = f"{parent}{path}" if path.startswith(".") and parent else path.lstrip(".")
        if target in values and target not in trail:
            found = _resolve(target, values, trail)
            # oc.select gives its default for a null as well (OmegaConf 2.3, resolvers/oc/__init__.py: select).
            return _literal(default) if select and found is None else found
        if select:
            return _literal(default)
        return "${" + reference + "}"

    for _ in range(5):  # each pass replaces the innermost level; a circle further on would grow for ever
        whole = _INTERPOLATION.fullmatch(value)
        if whole:
            return follow(whole[1])
        replaced = _INTERPOLATION.sub(lambda match: _text(follow(match[1])), value)
        if replaced == value:
            break
        value = replaced
    return value


def _text(value: object) -> str:
    return "null" if value is None else str(value)


def _literal(text: str | None) -> object:
    if text is None:
        return None
    from verlbox.hydra_overrides import OverrideSyntaxError, parse_value

    try:
        return parse_value(text.strip())
    except OverrideSyntaxError:
        return text.strip()
