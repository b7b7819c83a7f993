"""Lints: what is wrong with verl settings, said before the run.

`check` looks at settings and facts and returns findings; it runs nothing and imports neither verl nor torch. What verl
does is read from the source of the release the stack is pinned to; each finding's `why` names the place. Where that
verl is installed, its own Hydra configuration, composed in a child process (verl_keys/installed.py), gives the values.

Covered: verl 0.6.1's and 0.9.1's `main_ppo` with FSDP, the rules that need no device and no network. Not covered:
Megatron's own parallel layout, multi-turn tools, reward models, anything that only the running process can know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from verlbox.findings import Finding, by_severity
from verlbox.lints import (
    algorithm,
    batch,
    by_verl,
    hydra_keys,
    lengths,
    resources,
    schedule,
    tracking,
    validation,
    versions,
    wiring,
)
from verlbox.lints.settings import ABSENT, SET, UNCERTAIN, Facts, Settings, add_facts, make, shown_environment
from verlbox.verl_keys.installed import Composed

__all__ = ["ABSENT", "LINTS", "SET", "UNCERTAIN", "Facts", "Settings", "add_facts", "check", "shown_environment"]

Lint = Callable[[Settings], Iterator[Finding]]

LINTS: tuple[Lint, ...] = (
    *hydra_keys.LINTS,
    *batch.LINTS,
    *algorithm.LINTS,
    *lengths.LINTS,
    *schedule.LINTS,
    *resources.LINTS,
    *tracking.LINTS,
    *validation.LINTS,
    *wiring.LINTS,
    *versions.LINTS,
)


def check(
    config: Mapping[str, object],
    facts: Facts,
    *,
    complete: bool = True,
    config_name: str | None = "ppo_trainer",
    composed: Composed | None = None,
) -> list[Finding]:
    """All findings about `config`, errors first.

    config: dotted verl keys that are set (an Hydra prefix `+`, `++`, `~` stays in the key), and optionally `merge.*`,
    `env.*`, `parquet.*` and package names with versions. A value ABSENT says that the key is not set, UNCERTAIN that
    its value is not known.
    complete: whether what `config` does not mention has verl's default (a recipe, a script) or is merely not known.
    config_name: the Hydra configuration that verl loads (`ppo_trainer` or `ppo_megatron_trainer`); None for one of the
    user's own, whose keys and defaults are not known.
    composed: what the installed verl of the release in `facts` makes of `config`; without it, keys and defaults are
    those of verlbox's data (verl_keys).
    """
    settings = make(config, facts, complete=complete, config_name=config_name, composed=composed)
    told = [finding for lint in LINTS for finding in lint(settings)]
    return by_severity([*told, *by_verl.findings(settings, told)])
