"""What a version of verl makes of overrides: a script, so that a version that is not installed can be asked too.

usage: [PYTHONPATH=FOLDER_WITH_VERL] python -m tests.verl_config < OVERRIDES.json > ANSWERS.json

In: {name: [override, ...]}. Out, by name: `error` (the first refusal of Hydra, validate_config, or one of the
dataclasses that verl turns its sections into; null for none), `missing` (mandatory values that nobody set), `reward`
(what the reward function that verl loads from this configuration returns for a right answer) and `manager` (the class
that calls it).
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

DATACLASSES = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic")


def compose(overrides: list[str]) -> Any:
    import verl
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return hydra_compose(config_name="ppo_trainer", overrides=overrides)


def validate(config: Any) -> None:
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    if "config" in inspect.signature(need_reference_policy).parameters:
        reference = need_reference_policy(config)
    else:  # 0.6.1 asks its role mapping, which is made by this rule
        reference = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
    validate_config(config=config, use_reference_policy=reference, use_critic=need_critic(config))
    for section in DATACLASSES:
        part = OmegaConf.select(config, section)
        if "_target_" in part and (section != "critic" or need_critic(config)):
            omega_conf_to_dataclass(OmegaConf.create(OmegaConf.to_container(part, resolve=True)))


def reward(config: Any) -> tuple[dict[str, Any], str]:
    """The row for a right answer, by the function and the manager that this version takes from the configuration."""
    sys.modules.pop("custom_module", None)  # where 0.6.1 keeps the first file that it loaded
    function = import_module("verl.trainer.ppo.reward").get_custom_reward_fn(config)
    assert function is not None, "verl takes no custom reward function from this configuration"
    response, truth = "#### 4", "4"
    if "reward" in config:
        from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

        name = config.reward.reward_manager.name
        row = function(data_source="t", solution_str=response, ground_truth=truth, extra_info={})
    else:
        from verl.workers.reward_manager import get_reward_manager_cls

        name = config.reward_model.reward_manager
        (row,) = function(data_sources=["t"], solution_strs=[response], ground_truths=[truth], extra_infos=[{}])
    return row, get_reward_manager_cls(name).__name__


def answer(overrides: list[str]) -> dict[str, Any]:
    from omegaconf import OmegaConf

    result: dict[str, Any] = {"error": None, "missing": [], "reward": None, "manager": None}
    try:
        config = compose(overrides)
        validate(config)
        result["missing"] = sorted(OmegaConf.missing_keys(config))
        result["reward"], result["manager"] = reward(config)
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    return result


def main() -> None:
    asked: dict[str, list[str]] = json.load(sys.stdin)
    answers = {name: answer(overrides) for name, overrides in asked.items()}
    print("ANSWERS " + json.dumps(answers))


if __name__ == "__main__":
    main()
