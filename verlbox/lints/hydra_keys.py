"""Keys: whether verl has them, whether they need a `+`, whether their values have the right type.

Source: the composed configuration of each verl release (verlbox/verl_keys); Hydra 1.3,
_internal/config_loader_impl.py _apply_overrides_to_config(); verl 0.9.1, experimental/reward_loop/reward_loop.py
migrate_legacy_reward_impl() (which main_ppo does not call).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from verlbox import verl_keys
from verlbox.findings import Finding, Severity, register
from verlbox.lints.settings import Settings, nearest

UNKNOWN = register("key-unknown", "error", "verl has no such key.")
NEEDS_PLUS = register(
    "key-needs-plus", "error", "The key is read by verl but not in its configuration: it needs a `+`."
)
EXISTS = register("key-exists", "error", "`+` adds a key, and this one is there already.")
CANNOT_DELETE = register("key-not-there", "error", "`~` removes a key, and this one is not there.")
NOT_A_FIELD = register("key-refused", "error", "The section becomes a dataclass that has no such field.")
UNREAD = register("key-unread", "warning", "The added key is probably a slip: nothing reads it.")
IGNORED = register("legacy-key-ignored", "error", "The key passes validation and is then ignored.")
WRONG_TYPE = register("value-type-wrong", "error", "The value is not of the type verl expects.")

# What people write -> what verl calls it. Close spellings need no entry; these are other projects' and older words.
_OTHER_WORDS = {
    "num_generations": "actor_rollout_ref.rollout.n",
    "num_return_sequences": "actor_rollout_ref.rollout.n",
    "n_samples": "actor_rollout_ref.rollout.n",
    "group_size": "actor_rollout_ref.rollout.n",
    "num_gens": "actor_rollout_ref.rollout.n",
    "num_samples": "actor_rollout_ref.rollout.n",
    "rollout_n": "actor_rollout_ref.rollout.n",
    "learning_rate": "actor_rollout_ref.actor.optim.lr",
    "num_train_epochs": "trainer.total_epochs",
    "num_epochs": "trainer.total_epochs",
    "epochs": "trainer.total_epochs",
    "max_steps": "trainer.total_training_steps",
    "save_steps": "trainer.save_freq",
    "save_interval": "trainer.save_freq",
    "eval_steps": "trainer.test_freq",
    "eval_freq": "trainer.test_freq",
    "val_freq": "trainer.test_freq",
    "max_completion_length": "data.max_response_length",
    "max_new_tokens": "data.max_response_length",
    "response_len": "data.max_response_length",
    "per_device_train_batch_size": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "micro_batch_size": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "beta": "actor_rollout_ref.actor.kl_loss_coef",
    "kl_coef": "algorithm.kl_ctrl.kl_coef",
    "report_to": "trainer.logger",
    "n_gpus": "trainer.n_gpus_per_node",
    "num_gpus": "trainer.n_gpus_per_node",
    "tp_size": "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "tensor_parallel_size": "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "model_path": "actor_rollout_ref.model.path",
    "max_checkpoints": "trainer.max_actor_ckpt_to_keep",
    "save_total_limit": "trainer.max_actor_ckpt_to_keep",
    "output_dir": "trainer.default_local_dir",
    "gradient_checkpointing": "actor_rollout_ref.model.enable_gradient_checkpointing",
}
_MOVED = {
    "0.6.1": {
        "ray_init": "ray_kwargs.ray_init",
        "reward.custom_reward_function": "custom_reward_function",
        "critic.fsdp": "critic.model.fsdp_config",
        "reward.reward_manager.name": "reward_model.reward_manager",
    },
    "0.9.1": {
        "ray_init": "ray_kwargs.ray_init",
        "critic.model.fsdp_config": "critic.fsdp",
        "reward_model.reward_manager": "reward.reward_manager.name",
        "reward_model.num_workers": "reward.num_workers",
        "reward_model.model.path": "reward.reward_model.model_path",
    },
}
# Not in the YAML, read by the code: below these anything may be added. verl 0.6.1: trainer/ppo/reward.py,
# trainer/main_ppo.py, utils/dataset/rl_dataset.py, utils/tracking.py, ray_trainer.py, vllm_rollout_spmd.py.
_READ_ADDITIONS = (
    "custom_reward_function.reward_kwargs",
    "reward.custom_reward_function.reward_kwargs",
    "reward_model.reward_kwargs",
    "reward.reward_kwargs",
    "ray_kwargs.ray_init",
    "data.gen_batch_size",
    "data.cache_dir",
    "data.chat_template_func",
    "data.need_tools_kwargs",
    "data.filter_prompts",
    "trainer.wandb_proxy",
    "trainer.remove_previous_ckpt_in_save",
    "actor_rollout_ref.ref.model",
    "actor_rollout_ref.rollout.repetition_penalty",
    "critic.nccl_timeout",
    "algorithm.filter_groups",
)
_LEGACY_091 = ("custom_reward_function.", "reward_model.", "sandbox_fusion.")
_REAL_NUMBERS = frozenset({"entropy_coeff", "top_p", "temperature", "over_sample_rate", "esi_redundant_time"})
_INTEGER_NAMES = re.compile(
    r"(_batch_size(_per_gpu)?|_to_keep|\.seed|total_training_steps|max_model_len|num_cpus|max_length)$"
)


def _is_read_addition(key: str) -> bool:
    return any(key == known or key.startswith(known + ".") for known in _READ_ADDITIONS)


def _open_parent(s: Settings, key: str) -> str | None:
    """The mapping, null or list in verl's configuration that `key` would go into, when it is such a leaf."""
    parts = key.split(".")
    for end in range(len(parts) - 1, 0, -1):
        parent = ".".join(parts[:end])
        if parent in s.keys.defaults:
            return parent
    return None


def right_key(s: Settings, key: str) -> str | None:
    """The key that was probably meant."""
    for old, new in _MOVED[s.keys.version].items():
        if key == old or key.startswith(old + "."):
            return new + key[len(old) :]
    parent, _, name = key.rpartition(".")
    siblings = [k for k in s.keys.defaults if k.rpartition(".")[0] == parent]
    if name in _OTHER_WORDS and _OTHER_WORDS[name] in s.keys.defaults:
        return _OTHER_WORDS[name]
    close = nearest(name, [k.rpartition(".")[2] for k in siblings])
    if close:
        return f"{parent}.{close}"
    same_name = [k for k in s.keys.defaults if k.rpartition(".")[2] == name]
    if same_name:
        return nearest(key, same_name) or min(same_name, key=len)
    return nearest(key, s.keys.defaults)


def keys_exist(s: Settings) -> Iterator[Finding]:
    defaults, sections = s.keys.defaults, s.keys.sections
    severity: Severity | None = None if s.keys.exact else "warning"
    release = f"verl {s.keys.version}" + ("" if s.keys.exact else " (the nearest release known to verlbox)")
    if s.own_config:
        return
    for key, value in s.explicit.items():
        prefix = s.prefixes.get(key, "")
        if key.startswith("hydra.") or "@" in key or "/" in key or not key:
            continue
        there = key in defaults or key in sections
        parent = None if there else _open_parent(s, key)
        inside_list = parent is not None and isinstance(defaults[parent], list)
        inside_reference = parent is not None and isinstance(defaults[parent], str) and "${" in str(defaults[parent])
        if inside_list or inside_reference:
            continue
        match prefix:
            case "" if not there and (_is_read_addition(key) or parent is not None or _is_field(s, key)):
                yield NEEDS_PLUS.finding(
                    f"{key} is not in verl's configuration: it needs a +",
                    why=f"{release} reads it, but Hydra refuses a key that the YAML does not have ('Could not"
                    " override').",
                    fix=f"+{key}=...",
                )
            case "" if not there:
                guess = right_key(s, key)
                yield UNKNOWN.finding(
                    f"{key}: {release} has no such key",
                    why=f"Hydra refuses it: 'Could not override '{key}''.",
                    fix=f"did you mean {guess}?" if guess else "see `python -m verl.trainer.main_ppo --cfg job`",
                    severity=severity,
                )
            case "+" if there and not isinstance(value, (dict, list)):
                present = verl_keys.resolve(key, defaults)
                if present is not None and present != verl_keys.MISSING:
                    yield EXISTS.finding(
                        f"+{key}: the key is there already",
                        why="Hydra: 'Could not append to config. An item is already at ...'.",
                        fix=f"remove the + (or write ++{key})",
                    )
            case "~" if not there:
                yield CANNOT_DELETE.finding(
                    f"~{key}: there is no such key",
                    why="Hydra: 'Could not delete from config'.",
                    fix=f"did you mean {right_key(s, key)}?",
                )
            case "+" | "++" if not there and parent is None and not _is_read_addition(key):
                yield from _added_key(s, key, prefix)
            case _:
                pass


def _is_field(s: Settings, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    return name in s.keys.fields.get(parent, frozenset())


def _added_key(s: Settings, key: str, prefix: str) -> Iterator[Finding]:
    parent, _, name = key.rpartition(".")
    if _is_field(s, key):
        return
    if parent in s.keys.closed:
        yield NOT_A_FIELD.finding(
            f"{prefix}{key}: {parent} has no field {name}",
            why=f"verl {s.keys.version} turns {parent} into a dataclass, which refuses the extra name.",
            fix=f"did you mean {right_key(s, key)}?",
            severity=None if s.keys.exact else "warning",
        )
        return
    siblings = [k.rpartition(".")[2] for k in s.keys.defaults if k.rpartition(".")[0] == parent]
    close = nearest(name, siblings)
    if close and (abs(len(close) - len(name)) <= 2 or close.replace("_", "") == name.replace("_", "")):
        yield UNREAD.finding(
            f"{prefix}{key}: probably {parent}.{close} is meant",
            why="With a + any key is accepted, and this one is read by nothing that verlbox knows.",
            fix=f"{parent}.{close}=...",
        )


def legacy_keys_are_read(s: Settings) -> Iterator[Finding]:
    if s.is_old:
        return
    for key, value in s.explicit.items():
        if key.startswith(_LEGACY_091) and value is not None and key in s.keys.defaults:
            new = _MOVED["0.9.1"].get(key, f"reward.{key}")
            decides = key == "custom_reward_function.path"
            yield IGNORED.finding(
                f"{key} is the old key: verl {s.keys.version} accepts and ignores it",
                why="main_ppo does not call migrate_legacy_reward_impl(); it reads config.reward only"
                + (", so the built-in reward is used instead of yours." if decides else "."),
                fix=f"{new}=...",
                severity=None if decides else "warning",
            )


def values_have_the_right_type(s: Settings) -> Iterator[Finding]:
    for key, value in s.explicit.items():
        if key not in s.keys.defaults or value is None or s.prefixes.get(key) == "~":
            continue
        default = s.keys.defaults[key]
        if isinstance(value, str) and ("${" in value or value == verl_keys.MISSING):
            continue
        if isinstance(default, str) and "${" in default:
            default = verl_keys.resolve(key, s.keys.defaults)
        name = key.rpartition(".")[2]
        expected = ""
        if isinstance(default, bool):
            expected = "" if isinstance(value, bool) or value in (0, 1) else "True or False"
        elif isinstance(default, int) and name not in _REAL_NUMBERS:
            expected = "" if isinstance(value, int) else "a whole number"  # False is 0
        elif isinstance(default, (int, float)):
            expected = "" if isinstance(value, (int, float)) and not isinstance(value, bool) else "a number"
        elif default is None and _INTEGER_NAMES.search(key):
            expected = "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number, or null"
        if expected:
            shown = repr(value) if isinstance(value, str) else value
            yield WRONG_TYPE.finding(
                f"{key}={shown}: expected {expected}",
                why="verl does not convert values; a quoted 'False' counts as true.",
                fix=f"{key}={default if default is not None else 'null'} is the default",
            )


LINTS = (keys_exist, legacy_keys_are_read, values_have_the_right_type)
