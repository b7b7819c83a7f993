from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from verlbox import plan, recipe
from verlbox.run import Run
from verlbox.stacks import VERL_KEYS

ROOT = Path(__file__).parents[1]


def make(tmp_path: Path, *arguments: str, rows: int = 1024, length: int | None = 40) -> plan.Plan:
    loaded = recipe.load(ROOT / "recipes" / "smoke.yaml", arguments)
    return plan.make(loaded, Run(tmp_path / "a run's folder"), plan.Rows(rows, 200, "after filtering"), length)


@pytest.mark.parametrize(
    ("rows", "batch", "epochs", "per_epoch", "total", "unused"),
    [
        (7381, 256, 1, 28, 28, 213),  # the published NPU run, after its prompt filter
        (7381, 256, 5, 28, 140, 213),  # as it was planned
        (7473, 256, 15, 29, 435, 49),  # GSM8K, the published PPO run
        (100, 256, 1, 0, 0, 100),
    ],
)
def test_steps_are_full_batches_only(
    rows: int, batch: int, epochs: int, per_epoch: int, total: int, unused: int
) -> None:
    found = plan.step_arithmetic(rows, {"data.train_batch_size": batch, "trainer.total_epochs": epochs}, "0.6.1")
    assert (found.per_epoch, found.total, found.unused_rows) == (per_epoch, total, unused)


def test_total_training_steps_wins_but_cannot_exceed_the_epochs() -> None:
    settings = {"data.train_batch_size": 100, "trainer.total_epochs": 2}
    assert plan.step_arithmetic(1000, {**settings, "trainer.total_training_steps": 7}, "0.6.1").total == 7
    assert plan.step_arithmetic(1000, {**settings, "trainer.total_training_steps": 70}, "0.6.1").total == 20


def test_train_steps_raise_the_epochs_as_needed(tmp_path: Path) -> None:
    made = make(tmp_path, "train.steps=50", "data.train_batch_size=32", rows=320)
    assert made.steps is not None
    assert (made.steps.per_epoch, made.steps.epochs, made.steps.total) == (10, 5, 50)


def test_user_overrides_come_last_to_the_letter_and_win(tmp_path: Path) -> None:
    made = make(tmp_path, "data.train_batch_size=64", "+data.note='a b'", "trainer.total_epochs=2")
    command = plan.verl_command(made.settings, made.recipe.overrides)
    assert command[-3:] == ["data.train_batch_size=64", "+data.note='a b'", "trainer.total_epochs=2"]
    assert made.effective["data.train_batch_size"] == 64
    assert made.effective["data.note"] == "a b"
    assert made.steps is not None and made.steps.per_epoch == 16


def test_trackers_stay_offline_unless_the_environment_says_otherwise(tmp_path: Path) -> None:
    made = make(tmp_path, "train.loggers=[tensorboard,wandb,swanlab]")
    alone = plan.logger_environment(made.recipe, made.run, present={})
    assert alone["WANDB_MODE"] == "offline"
    assert alone["SWANLAB_MODE"] == "local"
    assert Path(alone["WANDB_DIR"]).is_relative_to(made.run.path)
    online = plan.logger_environment(made.recipe, made.run, present={"WANDB_MODE": "online"})
    assert "WANDB_MODE" not in online
    assert plan.logger_environment(make(tmp_path).recipe, made.run, present={}) == {}


def test_a_deleted_key_is_not_in_effect(tmp_path: Path) -> None:
    assert "trainer.save_freq" not in make(tmp_path, "~trainer.save_freq").effective


def test_the_reward_function_is_named_by_the_keys_of_the_stacks_verl(tmp_path: Path) -> None:
    made = make(tmp_path)
    keys = VERL_KEYS["0.6.1"]
    assert made.effective[keys.reward_path] == str(ROOT / "verlbox" / "rewards" / "gsm8k.py")
    assert Path(str(made.effective[keys.reward_path])).is_file()


def test_the_script_is_what_a_shell_reads_back_as_the_command(tmp_path: Path) -> None:
    made = make(tmp_path, "+data.note='a \"b\" $HOME'")
    script = plan.script(made, ROOT / "recipes" / "smoke.yaml", [])
    assert script.count("--until preprocess") == 1
    lines = script.partition("env ")[2]
    assert shlex.split(lines.replace("\\\n", " "))[-1] == "+data.note='a \"b\" $HOME'"
    shown = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {lines}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    command = plan.verl_command(made.settings, made.recipe.overrides)
    assert shown[-len(command) :] == command


def test_an_unknown_prompt_length_is_read_from_what_preprocess_leaves(tmp_path: Path) -> None:
    made = make(tmp_path, length=None)
    made.run.data.mkdir(parents=True)
    plan.prompt_length_file(made.run).write_text("37\n")
    lines = plan.script(made, ROOT / "recipes" / "smoke.yaml", []).partition("env ")[2]
    shown = subprocess.run(["bash", "-c", f"printf '%s\\n' {lines}"], capture_output=True, text=True, check=True).stdout
    assert "data.max_prompt_length=37" in shown.splitlines()


def test_verl_0_9_1_looks_for_answers_with_our_sampler_unless_something_only_its_own_can_do(tmp_path: Path) -> None:
    key = "trainer.v1.sampler.custom_sampler.path"
    assert Path(str(make(tmp_path, "stack=cpu-091").effective[key])).name == "replay_091.py"
    assert key not in make(tmp_path).effective  # verl 0.6.1 has no such thing
    for own in ("algorithm.filter_groups.enable=true", "trainer.v1.sampler.sync_refill_failed_groups=true"):
        assert key not in make(tmp_path, "stack=cpu-091", own).effective
    assert make(tmp_path, "stack=cpu-091", f"{key}=mine.py").effective[key] == "mine.py"


def test_what_is_written_for_the_synchronous_trainer_is_not_given_to_another(tmp_path: Path) -> None:
    loops, sampler = (
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
        "trainer.v1.sampler.custom_sampler.path",
    )
    assert make(tmp_path, "stack=cpu-091").effective[loops] == "verlbox.platforms.agent_loop_091.AgentLoopManager"
    assert make(tmp_path, "stack=cpu-091", f"{loops}=my.Manager").effective[loops] == "my.Manager"
    assert loops in make(tmp_path, "stack=cpu-091", "algorithm.filter_groups.enable=true").effective
    for other in ("trainer.use_v1=false", "trainer.v1.trainer_mode=colocate_async"):
        assert not {loops, sampler} & set(make(tmp_path, "stack=cpu-091", other).effective)
    assert loops not in make(tmp_path).effective  # verl 0.6.1


def test_verl_0_9_1_counts_training_batches_and_verl_0_6_1_what_its_loader_fetches() -> None:
    settings = {"data.train_batch_size": 256, "data.gen_batch_size": 64, "trainer.total_epochs": 1}
    assert plan.step_arithmetic(7473, settings, "0.9.1").total == 29
    assert plan.step_arithmetic(7473, settings, "0.6.1").total == 116


def test_verl_0_9_1_gets_the_critics_micro_batches_under_the_names_that_it_reads(tmp_path: Path) -> None:
    """Without them it packs 32,768 tokens into each, measured: 2 s for an update that was meant to be by fours."""
    recipes = ROOT / "recipes"
    made = {
        name: plan.make(recipe.load(recipes / f"{name}.yaml"), Run(tmp_path), plan.Rows(7473, 1319, ""), 512).settings
        for name in ("cuda-ppo", "cuda-ppo-article", "smoke-ppo")
    }
    assert made["cuda-ppo"]["+critic.ppo_infer_max_token_len_per_gpu"] == 16384
    article = {key: value for key, value in made["cuda-ppo-article"].items() if key.startswith("+critic.fsdp.")}
    assert article == {
        "+critic.fsdp.use_dynamic_bsz": False,
        "+critic.fsdp.micro_batch_size_per_gpu": 4,
        "+critic.fsdp.infer_micro_batch_size_per_gpu": 4,
    }
    assert not any("micro_batch" in key and key.startswith("+critic") for key in made["smoke-ppo"])  # verl 0.6.1
    loaded = recipe.load(recipes / "cuda-ppo-article.yaml", ["critic.ppo_micro_batch_size_per_gpu=2"])
    overridden = plan.make(loaded, Run(tmp_path), plan.Rows(7473, 1319, ""), 512).effective
    assert overridden["critic.fsdp.micro_batch_size_per_gpu"] == 2


def test_a_key_that_hydra_appends_is_given_once_and_the_users_wins(tmp_path: Path) -> None:
    key = "+actor_rollout_ref.model.override_config.attn_implementation"
    made = make(tmp_path, f"{key}=eager")
    command = plan.verl_command(made.settings, made.recipe.overrides)
    assert [part for part in command if part.startswith(key)] == [f"{key}=eager"]


@pytest.mark.parametrize("prefix", ["", "++", "~"])
def test_a_key_that_ours_appends_is_there_for_what_the_user_does_to_it(tmp_path: Path, prefix: str) -> None:
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    theirs = f"{prefix}{key}" if prefix == "~" else f"{prefix}{key}=eager"
    made = make(tmp_path, theirs)
    command = plan.verl_command(made.settings, made.recipe.overrides)
    assert [part for part in command if key in part] == [f"+{key}={made.settings[f'+{key}']}", theirs]
