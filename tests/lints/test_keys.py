"""The key data and the lints on keys agree with verl's own Hydra configuration."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from verlbox import verl_keys
from verlbox.hydra_overrides import format_value
from verlbox.lints import Facts, check

hydra = pytest.importorskip("hydra")
KEY_CODES = {"key-unknown", "key-needs-plus", "key-exists", "key-not-there"}


@pytest.fixture(scope="module")
def folder() -> Path:
    import importlib.util

    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("verl is not installed")
    package = Path(next(iter(spec.submodule_search_locations)))
    if (package / "version" / "version").read_text(encoding="utf-8").strip() != "0.6.1":
        pytest.skip("another verl than 0.6.1 is installed")
    return package / "trainer" / "config"


def compose(folder: Path, name: str) -> Any:
    with hydra.initialize_config_dir(config_dir=str(folder), version_base=None):
        return hydra.compose(name)


@pytest.fixture(scope="module")
def composed(folder: Path) -> Any:
    return compose(folder, "ppo_trainer")


def with_overrides(composed: Any, overrides: list[str]) -> Any:
    """The configuration with overrides applied by Hydra's own code, without composing it anew (a second each)."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser

    config = copy.deepcopy(composed)
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(overrides), config)
    return config


@pytest.mark.parametrize("name", ["ppo_trainer", "ppo_megatron_trainer"])
def test_defaults_are_those_of_the_installed_release(folder: Path, name: str) -> None:
    from omegaconf import OmegaConf

    theirs = OmegaConf.to_container(compose(folder, name), resolve=True, throw_on_missing=False)
    keys = verl_keys.load("0.6.1", name)
    differ = []
    for key in keys.defaults:
        value = theirs
        for part in key.split("."):
            assert isinstance(value, dict)
            value = value[part]
        # A reference to a whole section has no value of its own in flat keys.
        if not isinstance(value, dict) and verl_keys.resolve(key, keys.defaults) != value:
            differ.append(key)
    assert differ == []


@pytest.mark.parametrize(
    "override",
    [
        "trainer.save_freq=10", "trainer.save_freqs=10", "+trainer.save_freq=10", "++trainer.save_freq=10",
        "~trainer.save_freq", "~trainer.nothing", "+trainer.new=1", "trainer.new=1", "+data.seed=1",
        "+trainer.total_training_steps=5",
        "custom_reward_function.reward_kwargs.a=1", "+custom_reward_function.reward_kwargs.a=1",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.a=1", "+actor_rollout_ref.rollout.engine_kwargs.vllm.a=1",
        "actor_rollout_ref.model.override_config.a=1", "+actor_rollout_ref.model.override_config.a=1",
        "actor_rollout_ref.ref.model.path=/x", "+actor_rollout_ref.ref.model.path=/x",
        "actor_rollout_ref.rollout.name=vllm", "+actor_rollout_ref.rollout.name=vllm", "+trainer.logger=[console]",
        "ray_init.num_cpus=8", "ray_kwargs.ray_init.num_cpus=8", "ray_kwargs.ray_init.address=auto",
        "+ray_kwargs.ray_init.address=auto", "actor_rollout_ref.actor.optim={lr:1e-5}", "+new.section=1", "new=1",
        "data.sampler.class_path=x", "actor_rollout_ref.actor.checkpoint.save_contents=[model]", "critic.model.path=/x",
    ],
)  # fmt: skip
def test_a_key_is_refused_exactly_when_hydra_refuses_it(composed: Any, override: str) -> None:
    from verlbox.hydra_overrides import parse_override

    parsed = parse_override(override)
    found = check({f"{parsed.prefix}{parsed.key}": parsed.value}, Facts(verl="0.6.1"), complete=False)
    ours = {f.code for f in found} & KEY_CODES
    try:
        with_overrides(composed, [override])
        theirs = None
    except Exception as error:  # Hydra has several types
        theirs = error
    assert bool(ours) == bool(theirs), (ours, theirs)


def test_batch_rules_agree_with_the_validation_of_verl(composed: Any) -> None:
    pytest.importorskip("torch")
    from verl.trainer.ppo.utils import need_critic
    from verl.utils.config import validate_config

    a, r = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    judged = {
        "batch-not-divisible", "mini-batch-too-big", "micro-batch-set-twice", "micro-batch-missing",
        "micro-batch-too-small", "remove-padding-needed", "validation-temperature",
    }  # fmt: skip
    axes: list[list[dict[str, object]]] = [
        [{}, {"data.train_batch_size": 100}],
        [{"trainer.n_gpus_per_node": 8}, {"trainer.n_gpus_per_node": 1}],
        [{f"{a}.ppo_micro_batch_size_per_gpu": 4}, {}, {f"{a}.ppo_micro_batch_size": 4}],
        [{f"{a}.ppo_mini_batch_size": 64}, {}],
        [{"algorithm.adv_estimator": "grpo"}, {"critic.ppo_micro_batch_size_per_gpu": 4}, {}],
        [{f"{a}.use_kl_loss": True, f"{r}.log_prob_micro_batch_size_per_gpu": 4},
         {f"{r}.log_prob_micro_batch_size_per_gpu": 4}],
    ]  # fmt: skip
    disagree = []
    for parts in itertools.product(*axes):
        config = {key: value for part in parts for key, value in part.items()}
        changed = with_overrides(composed, [f"{key}={format_value(value)}" for key, value in config.items()])
        reference = bool(config.get(f"{a}.use_kl_loss"))
        try:
            validate_config(changed, reference, need_critic(changed))
            theirs = ""
        except Exception as error:  # AssertionError, ValueError, InstantiationException
            theirs = str(error)
        ours = {f.code for f in check(config, Facts(verl="0.6.1")) if f.severity == "error"} & judged
        if bool(ours) != bool(theirs):
            disagree.append((config, ours, theirs))
    assert disagree == []


def test_the_data_of_each_release_is_whole() -> None:
    for version in verl_keys.VERSIONS:
        for path in verl_keys.FOLDER.glob(f"{version}-*.json"):
            data = json.loads(path.read_text(encoding="utf-8"))
            assert data["verl"] == version
            assert data["defaults"]["actor_rollout_ref.rollout.name"] == verl_keys.MISSING
            assert set(data["closed"]) >= set(data["fields"])


def test_a_reference_that_goes_round_in_circles_stays_text() -> None:
    assert verl_keys.resolve("a", {"a": "x${b}", "b": "y${a}"}) == "xy${a}"
    assert verl_keys.resolve("a", {"a": "${oc.select:a,1}"}) == 1
    assert verl_keys.resolve("a", {"a": "${a}"}) == "${a}"
    assert isinstance(verl_keys.resolve("a", {"a": "x${b}", "b": "y${c}", "c": "z${b}"}), str)
