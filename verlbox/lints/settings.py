"""What a lint looks at: verl settings with their defaults resolved, and facts about the data and the machine.

A configuration is *complete* (a recipe, a launch script: what is not set has verl's default) or *partial* (a few
settings somebody asks about). On a partial one a lint speaks only when the settings that decide it are known: set, or
said to be absent. So a question about two keys is not answered with complaints about forty others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from verlbox import verl_keys
from verlbox.verl_keys import VerlKeys
from verlbox.verl_keys.installed import Composed

ABSENT = "<absent>"  # as a value: this key is known not to be set
UNCERTAIN = "<uncertain>"  # as a value: the key is set, to what is not known
SET = "<set>"  # as the value of an environment variable: it is set, its value is nobody's business

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"


@dataclass(frozen=True)
class Facts:
    """What is known beside the settings; None is "not known". Sizes are in tokens, rows, GB (10^9 bytes), seconds.

    `environment` maps names of variables to their value, to SET for secrets, or to None for "known to be unset";
    `environment_complete` says that a name it does not hold is unset as well.
    `packages` maps distribution names (lower case, hyphens) to versions.
    """

    verl: str | None = None
    platform: str | None = None  # npu, cuda, cpu
    visible_accelerators: int | None = None
    gpus: int | None = None  # devices the run uses, where the settings do not say
    accelerator_gb: float | None = None
    train_rows_after_filter: int | None = None
    val_rows: int | None = None
    longest_prompt_tokens: int | None = None
    model_max_position_embeddings: int | None = None
    rope_scaling_factor: float | None = None
    num_attention_heads: int | None = None
    model_parameters: int | None = None
    total_training_steps: int | None = None
    planned_stop_after_step: int | None = None
    seconds_per_step: float | None = None
    seconds_basis: str | None = None  # who measured them
    free_disk_gb: float | None = None
    existing_checkpoint: str | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    environment_complete: bool = False
    logged_in: tuple[str, ...] = ()  # loggers whose login is stored on disk (~/.netrc, ~/clearml.conf, ...)
    tty: bool | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    parquet_columns: tuple[str, ...] | None = None
    data_source: str | None = None
    functions_in_file: tuple[str, ...] | None = None
    reward_parameters: tuple[str, ...] | None = None  # of the reward function; "**" stands for **kwargs
    cwd: str | None = None
    folder: tuple[str, ...] | None = None
    model_is_local: bool | None = None
    task: str | None = None
    prompt_asks_for: str | None = None
    wants: str | None = None
    reported: str | None = None
    observed: str | None = None
    allow_degenerate_group: bool = False
    known_defaults: frozenset[str] = frozenset()


_ALIASES = {
    "rows": "train_rows_after_filter",
    "train_rows": "train_rows_after_filter",
    "train_rows_after_filtering": "train_rows_after_filter",
    "dataset_rows": "train_rows_after_filter",
    "test_rows": "val_rows",
    "validation_rows": "val_rows",
    "test_rows_after_filter": "val_rows",
    "val_rows_after_filter": "val_rows",
    "gpu_gb": "accelerator_gb",
    "device_gb": "accelerator_gb",
    "npu_gb": "accelerator_gb",
    "accelerator_memory_gb": "accelerator_gb",
    "gpu_memory_gb": "accelerator_gb",
    "npus": "gpus",
    "n_gpus": "gpus",
    "num_gpus": "gpus",
    "devices": "gpus",
    "visible_gpus": "visible_accelerators",
    "visible_npus": "visible_accelerators",
    "visible_devices": "visible_accelerators",
    "available_gpus": "visible_accelerators",
    "max_position_embeddings": "model_max_position_embeddings",
    "attention_heads": "num_attention_heads",
    "model_num_attention_heads": "num_attention_heads",
    "parameters": "model_parameters",
    "params": "model_parameters",
    "total_steps": "total_training_steps",
    "steps": "total_training_steps",
    "planned_stop": "planned_stop_after_step",
    "stop_after_step": "planned_stop_after_step",
    "longest_prompt": "longest_prompt_tokens",
    "max_prompt_tokens": "longest_prompt_tokens",
    "disk_free_gb": "free_disk_gb",
    "disk_gb": "free_disk_gb",
    "columns": "parquet_columns",
    "functions": "functions_in_file",
    "device": "platform",
    "accelerator": "platform",
    "host": "platform",
    "dataset": "task",
    "checkpoint": "existing_checkpoint",
}
_INTEGERS = frozenset(
    [
        "visible_accelerators",
        "gpus",
        "train_rows_after_filter",
        "val_rows",
        "longest_prompt_tokens",
        "model_max_position_embeddings",
        "num_attention_heads",
        "model_parameters",
        "total_training_steps",
        "planned_stop_after_step",
    ]
)
_NUMBERS = frozenset(["accelerator_gb", "rope_scaling_factor", "seconds_per_step", "free_disk_gb"])
_FLAGS = frozenset(["tty", "environment_complete", "model_is_local", "allow_degenerate_group"])
_LISTS = frozenset(["logged_in", "parquet_columns", "functions_in_file", "reward_parameters", "folder"])
_PLAIN_NAMES = frozenset(f.name for f in fields(Facts)) - {"environment", "packages", "known_defaults"}
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)

# Distributions whose versions decide something (lints/versions.py); elsewhere a bare name is not a package.
PACKAGES = frozenset(
    [
        "verl",
        "torch",
        "torch-npu",
        "vllm",
        "vllm-ascend",
        "sglang",
        "transformers",
        "tensordict",
        "numpy",
        "pyarrow",
        "ray",
        "click",
        "datasets",
        "flash-attn",
        "setuptools",
        "torchvision",
        "torchaudio",
        "triton",
        "xgrammar",
        "peft",
        "accelerate",
        "cann",
        "python",
        "pyairports",
        "cuda",
    ]
)


def package_name(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def shown_environment(environment: Mapping[str, str]) -> dict[str, str | None]:
    """An environment for Facts.environment: secrets are reduced to SET, empty variables count as unset."""
    return {n: (None if not v else SET if _SECRET.search(n) else v) for n, v in environment.items()}


def _parse(name: str, value: object) -> object:
    """`value` in the type of the fact `name`; raises ValueError."""
    if value is None:
        return None
    if name in _INTEGERS:
        return int(str(value).replace("_", "").replace(",", ""))
    if name in _NUMBERS:
        return float(str(value))
    if name in _FLAGS:
        if isinstance(value, bool):
            return value
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]
    if name in _LISTS:
        items = value if isinstance(value, (list, tuple)) else str(value).strip("[]").split(",")
        return tuple(str(item).strip().strip("'\"") for item in items if str(item).strip())
    return str(value)


def add_facts(facts: Facts, given: Mapping[str, object]) -> tuple[Facts, list[str]]:
    """`facts` with the named ones added, and the names (or values) that could not be understood.

    Names: the fields of Facts and their aliases; NAME in capitals is an environment variable (null: unset); a package
    name gives its version; a setting's last part with a value such as "default 256" says that it has its default.
    """
    changes: dict[str, object] = {}
    environment, packages = dict(facts.environment), dict(facts.packages)
    defaults = set(facts.known_defaults)
    unknown: list[str] = []
    for given_name, value in given.items():
        name = _ALIASES.get(given_name, given_name)
        package = package_name(given_name)
        if name in _PLAIN_NAMES and not (package in PACKAGES and name != "verl"):
            try:
                changes[name] = _parse(name, value)
            except (ValueError, KeyError):
                unknown.append(f"{given_name}={value}")
            if name == "verl" and value is not None:
                packages["verl"] = str(value)
        elif package in PACKAGES:
            packages[package] = str(value)
        elif given_name.startswith("env.") or re.fullmatch(r"[A-Z][A-Z0-9_]+", given_name):
            variable = given_name.removeprefix("env.")
            text = None if value is None or value in ("", "null", "unset", False) else str(value)
            environment[variable] = SET if text and _SECRET.search(variable) else text
        elif isinstance(value, str) and value.startswith("default"):
            defaults.add(given_name)
        else:
            unknown.append(given_name)
    return replace(
        facts,
        **changes,  # type: ignore[arg-type]  # the types are those of _parse
        environment=environment,
        packages=packages,
        known_defaults=frozenset(defaults),
    ), unknown


@dataclass(frozen=True)
class Settings:
    """One configuration under examination. `explicit` has verl's keys without prefixes; `other` what is not verl's."""

    explicit: Mapping[str, object]
    prefixes: Mapping[str, str]
    absent: frozenset[str]
    uncertain: frozenset[str]
    other: Mapping[str, object]
    facts: Facts
    complete: bool
    own_config: bool
    keys: VerlKeys
    composed: Composed | None = None

    @cached_property
    def _values(self) -> dict[str, object]:
        values = {**self.keys.defaults, **self.explicit, **dict.fromkeys(self.uncertain)}
        for key, prefix in self.prefixes.items():
            if prefix == "~":
                values.pop(key, None)
        return values

    def get(self, key: str) -> object:
        """The value verl would see: the given one or the default, interpolations followed; None where there is none."""
        if self.composed is not None and key in self.composed.values:
            return self.composed.values[key]
        return verl_keys.resolve(key, self._values)

    def integer(self, key: str) -> int | None:
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, key: str) -> float | None:
        value = self.get(key)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        value = self.get(key)
        return value if isinstance(value, str) else None

    def flag(self, key: str) -> bool:
        return self.get(key) is True

    def items(self, key: str) -> list[object]:
        """A setting that may be one value or a list, as a list; empty for null."""
        value = self.get(key)
        return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]

    def given(self, key: str) -> bool:
        return key in self.explicit

    def known(self, *keys: str) -> bool:
        """Whether it is certain what these settings are."""
        return all(
            (self.complete and key not in self.uncertain)
            or key in self.explicit
            or key in self.absent
            or key.rpartition(".")[2] in self.facts.known_defaults
            for key in keys
        )

    def any_known(self, *keys: str) -> bool:
        return any(self.known(key) for key in keys)

    @property
    def is_old(self) -> bool:
        """Whether the settings are those of the 0.6 line (synchronous rollout, reward_model.*, ...)."""
        return self.keys.version == "0.6.1"

    def world_size(self) -> int | None:
        """Number of devices (trainer.n_gpus_per_node x nnodes), None when it is not known."""
        if self.known("trainer.n_gpus_per_node"):
            per_node, nodes = self.integer("trainer.n_gpus_per_node"), self.integer("trainer.nnodes")
            return per_node * nodes if per_node and nodes else None
        return self.facts.gpus

    def environment(self, name: str) -> tuple[bool, str | None]:
        """(known, value) of an environment variable."""
        if name in self.facts.environment:
            return True, self.facts.environment[name]
        return self.facts.environment_complete, None

    def critic_is_used(self) -> bool:
        """verl 0.6.1, trainer/ppo/utils.py need_critic()."""
        enable = self.get("critic.enable")
        return bool(enable) if enable is not None else self.get("algorithm.adv_estimator") == "gae"

    def reference_is_used(self) -> bool:
        """verl 0.6.1, trainer/main_ppo.py add_ref_policy_worker()."""
        return self.flag("algorithm.use_kl_in_reward") or self.flag(f"{ACTOR}.use_kl_loss")


def _flatten(key: str, value: object, sections: frozenset[str]) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value and key in sections:
        for name, inner in value.items():
            yield from _flatten(f"{key}.{name}", inner, sections)
    else:
        yield key, value


def make(
    config: Mapping[str, object],
    facts: Facts,
    *,
    complete: bool,
    config_name: str | None,
    composed: Composed | None = None,
) -> Settings:
    """Sorts `config` (dotted keys, an Hydra prefix allowed) into verl's settings, facts and the rest.

    config_name, composed: as in `check`; a name of None stands for a configuration that is not verl's.
    """
    explicit: dict[str, object] = {}
    prefixes: dict[str, str] = {}
    absent: set[str] = set()
    uncertain: set[str] = set()
    other: dict[str, object] = {}
    as_facts: dict[str, object] = {}
    version = facts.verl or facts.packages.get("verl") or str(config.get("verl") or "") or None
    keys = verl_keys.load(version, config_name or "ppo_trainer")
    if composed is not None:
        keys = replace(keys, defaults=composed.defaults)
    for name, value in config.items():
        prefix, key = split_prefix(name)
        if value == ABSENT:
            absent.add(key)
        elif value == UNCERTAIN:
            uncertain.add(key)
        elif key.startswith("env.") or package_name(key) in PACKAGES:
            as_facts[key] = value
        elif key.startswith("parquet."):
            field_name = {"parquet.data_source": "data_source", "parquet.columns": "parquet_columns"}.get(key)
            as_facts.update({field_name: value} if field_name else {})
        elif key == "any":
            as_facts["observed"] = value
        elif key.startswith("merge.") or re.search(r"[/ ]", key) or _is_a_version(key, value):
            other[key] = value
        else:
            for inner, leaf in _flatten(key, value, keys.sections):
                explicit[inner] = leaf
                prefixes[inner] = prefix
    facts, _ = add_facts(facts, as_facts)
    own = config_name is None
    sets = (frozenset(absent), frozenset(uncertain))
    return Settings(explicit, prefixes, *sets, other, facts, complete and not own, own, keys, composed)


def _is_a_version(key: str, value: object) -> bool:
    """Whether this is rather a package with its version than a setting: `modelscope: 1.37.1`."""
    return "." not in key and isinstance(value, str) and bool(re.fullmatch(r"v?\d+(\.\d+)+\S*", value))


def split_prefix(name: str) -> tuple[str, str]:
    match = re.match(r"(\+\+|\+|~|)(.*)", name, re.DOTALL)
    assert match
    return match[1], match[2]


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word most like `word`, or None when none is like it."""
    import difflib

    found = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.6)
    return found[0] if found else None
