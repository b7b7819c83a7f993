"""verl's own configuration, composed by Hydra and judged by verl itself: a script, run as a child process.

usage: python compose.py FOLDER_OF_VERL < {"config_name": ..., "overrides": [...]} > answer.json

What is covered: Hydra's composition of verl's files with the overrides, and what verl says of the result before it
starts Ray: validate_config, and the dataclasses that actor, rollout and critic become. What is not: checks that load
the model, and those inside workers. verl's packages are entered without their `__init__`, which would import torch, Ray
and transformers (seconds); the few modules that the dataclasses only mention are stand-ins, and an error that is not
about the configuration is left out of the answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

# Entered without their __init__; verl.utils.profiler's is replaced by its one light module.
PACKAGES = ("verl", "verl.utils", "verl.utils.profiler", "verl.workers", "verl.trainer")
STAND_INS = ("transformers", "verl.utils.fs", "verl.utils.model", "verl.utils.import_utils", "verl.utils.qat")
TOO_HEAVY = ("torch", "ray", "vllm")  # a check that asks for one of these cannot run here
SECTIONS = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic")  # what verl itself instantiates
MOST_REFUSALS = 8  # composing takes 0.2 s


def leaves(node: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Leaves of nested mappings by dotted key, without `_target_`; an empty mapping is a leaf."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            if key != "_target_":
                yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def resolved(config: Any) -> dict[str, object]:
    """Every leaf as verl will see it; a reference that leads nowhere, or a value that must be given, stays text."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values: dict[str, object] = {}
    for key, raw in leaves(OmegaConf.to_container(config, resolve=False)):
        values[key] = raw
        if isinstance(raw, str) and "${" in raw:
            with contextlib.suppress(OmegaConfBaseException):
                value = OmegaConf.select(config, key)
                values[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return values


def key_of(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def compose(name: str, overrides: list[str]) -> tuple[Any, list[dict[str, str]]]:
    """The configuration from the overrides that Hydra accepts (None when it names no culprit), and its refusals."""
    from hydra import compose as hydra_compose
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    refusals: list[dict[str, str]] = []
    accepted = list(overrides)
    while True:
        try:
            return hydra_compose(config_name=name, overrides=accepted), refusals
        except (HydraException, OmegaConfBaseException) as error:
            message = "\n".join(str(e) for e in (error, error.__cause__) if e is not None)
            named = [text for text in accepted if text in message]
            named = named or [text for text in accepted if key_of(text) and key_of(text) in message]
            culprit = max(named, key=len, default="")
            refusals.append({"override": culprit, "message": str(error).strip()})
            if not culprit or len(refusals) >= MOST_REFUSALS:
                return None, refusals
            accepted = [text for text in accepted if text != culprit]


class StandIn(ModuleType):
    """A module whose every name is a class that takes any arguments and does nothing."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None})


def enter(folder: Path) -> None:
    """Makes verl's configuration modules importable without what their packages import."""
    for name in PACKAGES:
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    sys.modules.update((name, StandIn(name)) for name in STAND_INS)
    sys.modules.update((name, None) for name in TOO_HEAVY)  # type: ignore[misc]
    vars(sys.modules["verl.utils"]).update(hf_processor=None, hf_tokenizer=None)
    profiler = import_module("verl.utils.profiler.config")
    configs = {name: value for name, value in vars(profiler).items() if name.endswith("Config")}
    vars(sys.modules["verl.utils.profiler"]).update(configs)
    # It reads the model's files, which need not be here yet.
    import_module("verl.workers.config.model").HFModelConfig.__post_init__ = lambda _: None


def objections(config: Any) -> list[str]:
    """What verl's own checks say, each once; a check that cannot run here says nothing."""
    from omegaconf import OmegaConf

    own = import_module("verl.utils.config")
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    # need_critic() and need_reference_policy() of verl 0.6.1 and 0.9.1, trainer/ppo/utils.py (0.6.1's second one asks
    # the role mapping that main_ppo.py makes by this rule); the module itself imports Ray.
    critic = bool(config.critic.enable) if config.critic.enable is not None else algorithm.adv_estimator == "gae"
    reference = bool(algorithm.get("use_kl_in_reward", False) or actor.use_kl_loss)
    checks = [partial(own.validate_config, config=config, use_reference_policy=reference, use_critic=critic)]
    for name in SECTIONS:
        part = OmegaConf.select(config, name)
        if part is not None and "_target_" in part and (name != "critic" or critic):
            checks.append(partial(own.omega_conf_to_dataclass, part))
    found: list[str] = []
    for check in checks:
        try:
            check()
        except Exception as error:
            message = judged(error)
            if message and message not in found:
                found.append(message)
    return found


def judged(error: BaseException) -> str:
    """The text of an error if verl or OmegaConf means the configuration by it, else an empty text."""
    from hydra.errors import InstantiationException
    from omegaconf.errors import OmegaConfBaseException

    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, (ValueError, AssertionError, NotImplementedError, OmegaConfBaseException)):
        return str(error).strip()
    return str(error) if isinstance(error, TypeError) and "unexpected keyword argument" in str(error) else ""


def answer(folder: Path, name: str, overrides: list[str]) -> dict[str, Any]:
    """Defaults (references as text), values in effect, Hydra's refusals and verl's objections."""
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(config_dir=str(folder / "trainer" / "config"), version_base=None):
        plain, _ = compose(name, [])
        config, refusals = compose(name, overrides)
        found: list[str] = []
        if config is not None and not refusals:
            enter(folder)
            found = objections(config)
    return {
        "defaults": dict(leaves(OmegaConf.to_container(plain, resolve=False))),
        "values": resolved(config) if config is not None else {},
        "refusals": refusals,
        "objections": found,
    }


def main() -> None:
    asked = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()):  # validate_config prints
        result = answer(Path(sys.argv[1]).resolve(), asked["config_name"], asked["overrides"])
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
