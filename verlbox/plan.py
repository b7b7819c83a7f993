"""The plan: everything that can be known before a run. Pure arithmetic and text; no torch, no verl.

Covered: rows, steps, the exact verl command and its environment, findings. The command's files come from the stages
before it, so the printed script begins with the command that prepares them.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from verlbox import cluster, hydra_overrides
from verlbox.findings import Finding
from verlbox.platforms import cpu, cpu_091, cuda, npu
from verlbox.recipe import Loaded, Recipe
from verlbox.recipe import resolved as resolved_recipe
from verlbox.run import Run
from verlbox.stacks import CRITIC_BUDGET_091, CRITIC_BY_TOKENS_091, CRITIC_ROWS_091, STACKS, VERL_KEYS, VerlKeys

ROOT = Path(__file__).parents[1]
# What verl needs to be told, by stack: it depends on the kind of device and, on the CPU, on verl's version.
PLATFORMS: Mapping[str, ModuleType] = {"npu": npu, "cuda": cuda, "cuda-061": cuda, "cpu": cpu, "cpu-091": cpu_091}

# Rows of the published data sets before any filtering, for plans made before they are here. Sources: the data sets'
# cards (openai/gsm8k; DigitalLearningGmbH/MATH-lighteval), counted again from full copies.
PUBLISHED_ROWS: Mapping[str, tuple[int, int]] = {
    "openai/gsm8k": (7473, 1319),
    "modelscope/gsm8k": (7473, 1319),
    "DigitalLearningGmbH/MATH-lighteval": (7500, 5000),
}

# verl 0.9.1 does not pass these on to a sampler that is not its own, so with them its own stays (trainer_base.py,
# _build_replay_buffer).
NEEDS_VERLS_SAMPLER = frozenset({"algorithm.filter_groups.enable", "trainer.v1.sampler.sync_refill_failed_groups"})


@dataclass(frozen=True)
class Rows:
    """Numbers of rows, None where unknown; `basis` says how they are known, `findings` what was wrong with the data."""

    train: int | None
    test: int | None
    basis: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Steps:
    """Step arithmetic as verl does it: batches of full size only, the rest of an epoch is not used."""

    per_epoch: int
    epochs: int
    total: int
    unused_rows: int


@dataclass(frozen=True)
class Plan:
    """What a recipe comes to. `effective` holds the settings that verl will see, by key, user overrides included."""

    recipe: Recipe
    run: Run
    rows: Rows
    steps: Steps | None
    settings: Mapping[str, object]
    effective: Mapping[str, object]
    environment: Mapping[str, str]
    findings: tuple[Finding, ...]


def step_arithmetic(rows: int, effective: Mapping[str, object], verl: str) -> Steps:
    """Steps for a number of training rows.

    Source: verl v0.6.1 trainer/ppo/ray_trainer.py, _create_dataloader: drop_last=True, steps = len(loader) * epochs,
    unless trainer.total_training_steps is set; v0.9.1 trainer/ppo/v1/trainer_base.py, _init_dataloader: whole training
    batches, whatever data.gen_batch_size says.
    """
    loaded = _integer(effective.get("data.gen_batch_size")) if verl == "0.6.1" else None
    batch = loaded or _integer(effective.get("data.train_batch_size")) or 1024
    per_epoch = rows // batch
    epochs = _integer(effective.get("trainer.total_epochs")) or 30
    total = _integer(effective.get("trainer.total_training_steps")) or per_epoch * epochs
    return Steps(per_epoch, epochs, min(total, per_epoch * epochs), rows - per_epoch * batch)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def base_model(run: Run) -> Path:
    """Where a run finds the model that it starts from: a link that the download stage sets."""
    return run.path / "base_model"


def prompt_length_file(run: Run) -> Path:
    """One number, written by preprocess: the prompt length that verl pads to, in tokens."""
    return run.data / "max_prompt_length"


def reason_log(run: Run) -> Path:
    """Counts of the reward's reason codes, one line a batch; verl itself carries them for validation only."""
    return run.logs / "reward_reasons.jsonl"


def compile_settings(recipe: Recipe, run: Run, rows: Rows, prompt_length: int | None) -> dict[str, object]:
    """verl's settings for a recipe, least specific first: platform, recipe keys, the recipe's own verl keys.

    Keys carry Hydra's `+` where verl's configuration does not have them. `prompt_length` is None while unknown.
    """
    stack = STACKS[recipe.stack]
    keys = VERL_KEYS[stack.verl]
    own = {key: value for group in recipe.train.verl.values() for key, value in group.items()}
    settings: dict[str, object] = {
        "data.train_files": str(run.data / "train.parquet"),
        "data.val_files": str(run.data / "test.parquet"),
        "data.max_prompt_length": prompt_length,
        "data.filter_overlong_prompts": False,  # preprocess did it, and counted
        "data.truncation": "error",
        "data.seed": recipe.train.seed,
        **ray_settings(recipe, run, PLATFORMS[stack.name].verl_overrides(recipe.train.devices)),
        "actor_rollout_ref.model.path": str(base_model(run)),
        keys.reward_path: str(ROOT / "verlbox" / "rewards" / f"{recipe.reward.name}.py"),
        keys.reward_function: keys.reward_function_name,
        keys.reward_manager: keys.reward_manager_name,
        f"+{keys.reward_arguments}.reason_log": str(reason_log(run)),
        **{f"+{keys.reward_arguments}.{name}": value for name, value in recipe.reward.arguments.items()},
        "trainer.n_gpus_per_node": recipe.train.devices,
        "trainer.nnodes": recipe.cluster.nodes,
        "trainer.total_epochs": recipe.train.epochs,
        "trainer.project_name": "verlbox",
        "trainer.experiment_name": run.name,
        "trainer.logger": ["console", *recipe.train.loggers],
        "trainer.default_local_dir": str(run.checkpoints),
        "trainer.resume_mode": "auto",
    }
    if keys.rollout_seed is not None:
        settings[keys.rollout_seed] = recipe.train.seed
    settings.update(queue_settings(effective_settings(own, recipe.overrides), keys))
    if own.get("algorithm.adv_estimator", "gae") == "gae":
        settings["critic.model.path"] = str(base_model(run))
        settings["critic.model.tokenizer_path"] = str(base_model(run))
        settings.update(critic_batches(effective_settings(own, recipe.overrides), stack.verl))
    settings.update(own)
    if recipe.train.steps is not None:
        settings["trainer.total_training_steps"] = recipe.train.steps
        batch = _integer(effective_settings(settings, recipe.overrides).get("data.train_batch_size"))
        if batch and rows.train and rows.train >= batch:
            settings["trainer.total_epochs"] = math.ceil(recipe.train.steps / (rows.train // batch))
    settings["hydra.run.dir"] = str(run.logs / "hydra")
    return settings


def critic_batches(named: Mapping[str, object], verl: str) -> dict[str, object]:
    """verl 0.9.1's names for the critic's micro-batches, from the names that both versions have (`named`, the recipe's
    settings with the user's overrides).

    It reads only its engine's keys (trainer/ppo/v1/trainer_base.py, _setup; workers/config/engine.py): without them a
    critic packs 32,768 tokens into a micro-batch, whatever critic.ppo_micro_batch_size_per_gpu and its like say.
    """
    if verl == "0.6.1":
        return {}
    if named.get("critic.use_dynamic_bsz") is True:
        budget = named.get("critic.ppo_max_token_len_per_gpu")
        return {} if budget is None else {f"+{CRITIC_BUDGET_091}": budget}
    rows = named.get("critic.ppo_micro_batch_size_per_gpu")
    if rows is None:
        return {}
    update, forward = CRITIC_ROWS_091
    return {
        f"+{CRITIC_BY_TOKENS_091}": False,
        f"+{update}": rows,
        f"+{forward}": named.get("critic.forward_micro_batch_size_per_gpu", rows),
    }


def queue_settings(named: Mapping[str, object], keys: VerlKeys) -> dict[str, object]:
    """Our parts for the queue between verl 0.9.1's trainer and its workers (`named`, the recipe's settings with the
    user's overrides): execution only, and only for the synchronous trainer that they are written for."""
    synchronous = named.get("trainer.v1.trainer_mode", "sync") == "sync" and named.get("trainer.use_v1") is not False
    if keys.sampler is None or keys.agent_loops is None or not synchronous:
        return {}
    settings: dict[str, object] = {f"+{keys.agent_loops}": "verlbox.platforms.agent_loop_091.AgentLoopManager"}
    if not NEEDS_VERLS_SAMPLER.intersection(named):
        settings[f"{keys.sampler}.path"] = str(ROOT / "verlbox" / "platforms" / "replay_091.py")
        settings[f"{keys.sampler}.name"] = "prompt_replay_buffer"
    return settings


OWN_RAY = "ray_kwargs.ray_init."  # settings of a Ray that verl starts; Ray refuses most of them in a cluster


def ray_settings(recipe: Recipe, run: Run, platform: Mapping[str, object]) -> dict[str, object]:
    """The platform's settings, made those of a job in an existing Ray cluster where the recipe joins one.

    verl hands `ray_kwargs.ray_init` to ray.init as it is (0.6.1 and 0.9.1 trainer/main_ppo.py, run_ppo). Processes of
    a cluster have the environment of their node, not ours, so that the variables travel as Ray's runtime environment.
    """
    joined = cluster.address(recipe)
    if joined is None:
        return dict(platform)
    # RAY_* is for Ray's daemons and for the driver, except what Ray's worker processes read themselves.
    variables = {
        name: value
        for name, value in environment(recipe, run).items()
        if not name.startswith("RAY_") or name.startswith("RAY_EXPERIMENTAL_")
    }
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (variables["PYTHONPATH"], os.environ.get("PYTHONPATH"))))
    return {
        **{key: value for key, value in platform.items() if not key.lstrip("+").startswith(OWN_RAY)},
        f"+{OWN_RAY}address": joined,
        **{f"+{OWN_RAY}runtime_env.env_vars.{name}": variables[name] for name in sorted(variables)},
    }


def effective_settings(settings: Mapping[str, object], overrides: list[str]) -> dict[str, object]:
    """The settings without Hydra's prefixes, with the user's overrides applied on top in their order."""
    effective = {key.lstrip("+"): value for key, value in settings.items()}
    for text in overrides:
        override = hydra_overrides.parse_override(text)
        if override.prefix == "~":
            effective.pop(override.key, None)
        else:
            effective[override.key] = override.value
    return effective


def set_settings(settings: Mapping[str, object], overrides: list[str]) -> dict[str, object]:
    """What is set, by key with Hydra's prefix as lints and the memory planner read it; the user's in place of ours."""
    parsed = [hydra_overrides.parse_override(text) for text in overrides]
    overridden = {override.key for override in parsed}
    result = {key: value for key, value in settings.items() if key.lstrip("+") not in overridden}
    return {**result, **{override.prefix + override.key: override.value for override in parsed}}


def logger_environment(recipe: Recipe, run: Run, present: Collection[str] = os.environ) -> dict[str, str]:
    """Trackers write into the run and stay offline, unless the user's environment (`present`) sets their mode."""
    places = {
        "wandb": {"WANDB_MODE": "offline", "WANDB_DIR": str(run.logs)},
        "swanlab": {"SWANLAB_MODE": "local", "SWANLAB_LOG_DIR": str(run.logs / "swanlab")},
        "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{run.logs / 'mlflow.db'}"},
    }
    chosen = [places[name] for name in recipe.train.loggers if name in places]
    return {name: value for place in chosen for name, value in place.items() if name not in present}


def environment(recipe: Recipe, run: Run) -> dict[str, str]:
    """The environment variables that verlbox adds for verl; none of them is secret."""
    return {
        **logger_environment(recipe, run),
        **PLATFORMS[recipe.stack].environment(recipe.train.seed),
        "TENSORBOARD_DIR": str(run.tensorboard),
        "HF_HUB_OFFLINE": "1",  # everything is here by now; a hub that hangs must not stop a training run
        "HYDRA_FULL_ERROR": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "TOKENIZERS_PARALLELISM": "true",
    }


def verl_command(settings: Mapping[str, object], overrides: list[str], python: str = sys.executable) -> list[str]:
    """verl's command line: our settings, then the user's overrides to the letter."""
    parsed = [hydra_overrides.parse_override(text) for text in overrides]
    # Hydra appends a key once only, so that of ours has to go where the user appends it; without the user's `+` it is
    # ours that makes the key one that can be set. Any other key may come twice.
    appended = {f"+{override.key}" for override in parsed if override.prefix == "+"}
    kept = {key: value for key, value in settings.items() if key not in appended}
    ours = [hydra_overrides.format_override(key, value) for key, value in kept.items()]
    return [python, "-m", "verl.trainer.main_ppo", *ours, *overrides]


def make(loaded: Loaded, run: Run, rows: Rows, prompt_length: int | None) -> Plan:
    """The plan of a recipe for a run directory, which need not exist."""
    recipe = loaded.recipe
    if prompt_length is None and isinstance(recipe.dataset.max_prompt_length, int):
        prompt_length = recipe.dataset.max_prompt_length
    settings = compile_settings(recipe, run, rows, prompt_length)
    effective = effective_settings(settings, recipe.overrides)
    steps = None if rows.train is None else step_arithmetic(rows.train, effective, STACKS[recipe.stack].verl)
    return Plan(recipe, run, rows, steps, settings, effective, environment(recipe, run), rows.findings)


def script(plan: Plan, recipe_file: Path, arguments: list[str]) -> str:
    """The run as shell lines that can be pasted: prepare the data, then train with verl itself."""
    prepare = [sys.executable, str(ROOT / "entrypoint.py"), "run", str(recipe_file), *arguments]
    prepare += ["--name", plan.run.name, "--runs", str(plan.run.path.parent), "--until", "preprocess"]
    settings = dict(plan.settings)
    unknown_length = settings["data.max_prompt_length"] is None
    if unknown_length:
        settings["data.max_prompt_length"] = 0
    command = [shlex.quote(part) for part in verl_command(settings, plan.recipe.overrides)]
    if unknown_length:
        place = command.index("data.max_prompt_length=0")
        command[place] = f'data.max_prompt_length="$(cat {shlex.quote(str(prompt_length_file(plan.run)))})"'
    variables = [f"{name}={shlex.quote(value)}" for name, value in plan.environment.items()]
    # PYTHONPATH is added to, not replaced: an Ascend host's set_env.sh puts CANN's packages there.
    variables = [v + "${PYTHONPATH:+:$PYTHONPATH}" if v.startswith("PYTHONPATH=") else v for v in variables]
    return "\n".join(
        [
            shlex.join(prepare) + " &&",
            f"cd {shlex.quote(str(plan.run.path))} &&",
            " \\\n  ".join(["env", *variables, *command[:1], " ".join(command[1:3]), *command[3:]]),
        ]
    )


BY_HAND = "# the same, by hand:"


def as_text(plan: Plan, commands: str, memory: str = "") -> str:
    """The plan for people: what it is, rows and steps, memory where that is known, the recipe, the script."""
    recipe = plan.recipe
    stack = STACKS[recipe.stack]
    rows = f"{_count(plan.rows.train)} train, {_count(plan.rows.test)} test ({plan.rows.basis})"
    lines = [
        f"recipe   {recipe.name}: {recipe.description}",
        f"stack    {stack.name} (verl {stack.verl}, platform {stack.platform})",
        f"model    {recipe.model.name} from {_sources(recipe.model.source)}",
        f"data     {recipe.dataset.name} from {_sources(recipe.dataset.source)}, prompt {recipe.dataset.prompt}",
        f"rows     {rows}",
        f"steps    {_steps_text(plan)}",
        f"run      {plan.run.path}",
    ]
    joined = cluster.address(recipe)
    if joined is not None:
        lines.append(f"cluster  {recipe.cluster.nodes} nodes with {recipe.train.devices} devices each, Ray at {joined}")
    if memory:
        lines.append(memory)
    resolved = resolved_recipe(recipe).rstrip()
    return "\n".join([*lines, "", "# the recipe with every default:", resolved, "", BY_HAND, commands])


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _sources(source: str | list[Any]) -> str:
    return source if isinstance(source, str) else ", else ".join(source)


def _steps_text(plan: Plan) -> str:
    steps = plan.steps
    if steps is None:
        return "known after preprocess"
    batch = plan.effective.get("data.train_batch_size")
    group = plan.effective.get("actor_rollout_ref.rollout.n", 1)
    unused = f"; {steps.unused_rows} rows of an epoch are not used (full batches only)" if steps.unused_rows else ""
    return (
        f"{steps.total} ({steps.per_epoch} an epoch x {steps.epochs}; {batch} prompts x {group} responses each){unused}"
    )


def as_json(plan: Plan, commands: str) -> str:
    """The plan for programs."""
    return json.dumps(
        {
            "recipe": plan.recipe.model_dump(mode="json"),
            "run": str(plan.run.path),
            "rows": {"train": plan.rows.train, "test": plan.rows.test, "basis": plan.rows.basis},
            "steps": None if plan.steps is None else asdict(plan.steps),
            "settings": dict(plan.effective),
            "environment": dict(plan.environment),
            "command": verl_command(plan.settings, plan.recipe.overrides),
            "script": commands,
            "findings": [asdict(finding) for finding in plan.findings],
        },
        ensure_ascii=False,
        indent=2,
    )
