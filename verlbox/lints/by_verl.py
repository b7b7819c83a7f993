"""What Hydra and verl themselves say of the settings, where they are installed: the last word, after our own lints.

Our lints name the setting, the reason and the remedy, and find what verl finds only hours later or never; they come
first. What Hydra or verl refuses and no lint has spoken of is added here in their words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from verlbox.findings import Finding, register
from verlbox.lints.settings import Settings, split_prefix

REFUSED_BY_HYDRA = register("hydra-refuses", "error", "Hydra refuses a setting when it composes verl's configuration.")
REFUSED_BY_VERL = register("verl-refuses", "error", "verl's own check refuses the configuration.")

# A setting's name in a message: ppo_mini_batch_size, or whatever is quoted.
_NAME = re.compile(r"[A-Za-z]+(?:_[A-Za-z0-9]+)+|(?<=')[\w.]+(?=')")
# Names that say nothing of what a message is about.
_COMMON = frozenset({"actor_rollout_ref", "object_type", "full_key", "reference_type"})


def findings(s: Settings, told: Sequence[Finding]) -> Iterator[Finding]:
    """Refusals that none of the findings `told` is about; nothing where the configuration was not composed."""
    if s.composed is None:
        return
    errors = [f"{f.what} {f.why} {f.fix}" for f in told if f.severity == "error"]
    for override, message in s.composed.refusals:
        key = split_prefix(override.partition("=")[0])[1]
        if key and any(key in text for text in errors):
            continue
        yield REFUSED_BY_HYDRA.finding(
            f"{override}: {_first_line(message)}" if override else _first_line(message),
            why=f"Hydra composed the configuration of the verl {s.keys.version} that is installed here.",
            fix="see Hydra's override grammar, or `python -m verl.trainer.main_ppo --cfg job`",
        )
    for message in s.composed.objections:
        names = set(_NAME.findall(message)) - _COMMON
        if any(re.search(rf"\b{re.escape(name)}\b", text) for name in names for text in errors):
            continue
        yield REFUSED_BY_VERL.finding(
            _first_line(message),
            why=f"verl {s.keys.version}, installed here, says so when it starts: utils/config.py validate_config() or a"
            " dataclass of workers/config/.",
            fix="change the setting that the message names",
        )


def _first_line(message: str) -> str:
    return message.splitlines()[0] if message else "no reason is given"
