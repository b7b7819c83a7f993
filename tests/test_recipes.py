"""Every shipped recipe, held against the real configuration of its stack's verl.

Hydra composes verl's own files, verl validates them, makes its dataclasses of them and loads the reward function: 0.6.1
as it is installed, 0.9.1 from its wheel, which is fetched once and unpacked, not installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from verlbox import hydra_overrides, lints, pipeline, plan, recipe
from verlbox.cli import RECIPES
from verlbox.metrics.acceptance import load_bands
from verlbox.run import Run
from verlbox.stacks import STACKS

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
# The stacks a recipe is for, besides its own: the same file, another version of verl.
OTHER_STACKS = {
    "smoke": ["cpu-091"],
    "smoke-ppo": ["cpu-091"],
    **{name: ["cuda-061"] for name in NAMES if name.startswith("cuda-")},
}
COMBINATIONS = [(name, stack) for name in NAMES for stack in [None, *OTHER_STACKS.get(name, [])]]

# Rows after filtering with each recipe's own prompt at 512 tokens: MATH with the long system prompt, GSM8K untouched.
MATH, GSM8K = (7381, 4949), (7473, 1319)
STEPS = {
    "npu-grpo": (MATH, 28),
    "npu-grpo-grouped": (MATH, 28),
    "npu-grpo-official": (MATH, 140),
    "cuda-ppo": (GSM8K, 435),
    "cuda-ppo-article": (GSM8K, 435),
    "cuda-grpo": (GSM8K, 145),
}


def load(name: str, *arguments: str) -> recipe.Loaded:
    return recipe.load(RECIPES / f"{name}.yaml", arguments)


def overrides(name: str, run: Run, *arguments: str) -> list[str]:
    """verl's command line for a recipe, as train would start it."""
    loaded = load(name, *arguments)
    made = plan.make(loaded, run, plan.Rows(*STEPS.get(name, (GSM8K, 0))[0], "after filtering"), 512)
    return plan.verl_command(made.settings, loaded.recipe.overrides)[3:]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run directory after download: verl reads the model's configuration and tokenizer from it."""
    made = Run(tmp_path_factory.mktemp("run"))
    made.logs.mkdir()
    plan.base_model(made).symlink_to(ROOT / "verlbox" / "assets" / "tiny-qwen2-arithmetic")
    return made


def verl_091(config: pytest.Config) -> Path:
    """The unpacked wheel of verl 0.9.1, kept in pytest's cache. Skips when it cannot be fetched."""
    assert config.cache is not None
    folder = config.cache.mkdir("verl-0.9.1")
    if not (folder / "verl").is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        fetched = subprocess.run([*command, "verl==0.9.1"], capture_output=True, text=True, check=False)
        if fetched.returncode:
            pytest.skip(f"verl 0.9.1 cannot be fetched, so its configuration is not checked: {fetched.stderr[-300:]}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def ask(asked: dict[str, list[str]], verl: Path | None) -> dict[str, Any]:
    """tests/verl_config.py's answers, for all overrides at once: importing verl is what takes the time."""
    environment = {**os.environ, "PYTHONPATH": str(verl or ""), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "tests.verl_config"],
        input=json.dumps(asked),
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.rpartition("ANSWERS ")[2])
    return answers


WRONG = {
    "0.6.1": {
        "a key that is not there": "actor_rollout_ref.rollout.num_generations=4",
        "a field that its dataclass lacks": "+actor_rollout_ref.rollout.seed=1",
        "a batch that does not divide": "trainer.n_gpus_per_node=3",
    },
    "0.9.1": {
        "a key that is not there": "critic.model.fsdp_config.param_offload=true",
        "a batch that does not divide": "trainer.n_gpus_per_node=3",
        "the reward under its old key": "~reward.custom_reward_function.path",
    },
}


@pytest.fixture(scope="module")
def answers(run: Run, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """By verl version, then by recipe@stack or by what is wrong."""
    pytest.importorskip("verl", reason="composing verl's configuration needs verl (make install)")
    asked: dict[str, dict[str, list[str]]] = {"0.6.1": {}, "0.9.1": {}}
    for name, stack in COMBINATIONS:
        used = stack or load(name).recipe.stack
        asked[STACKS[used].verl][f"{name}@{used}"] = overrides(name, run, f"stack={used}")
    for version, example in (("0.6.1", "npu-grpo"), ("0.9.1", "cuda-ppo-article")):
        for what, override in WRONG[version].items():
            asked[version][what] = [*overrides(example, run), override]
    old_key = asked["0.9.1"]["the reward under its old key"]
    path = str(ROOT / "verlbox" / "rewards" / "gsm8k.py")
    old_key[-1:] = ["reward.custom_reward_function.path=null", f"custom_reward_function.path={path}"]
    return {
        "0.6.1": ask(asked["0.6.1"], None),
        "0.9.1": ask(asked["0.9.1"], verl_091(request.config)),
    }


@pytest.mark.parametrize(("name", "stack"), COMBINATIONS)
def test_verl_accepts_the_recipe_and_loads_its_reward(
    name: str, stack: str | None, answers: dict[str, dict[str, Any]]
) -> None:
    used = stack or load(name).recipe.stack
    version = STACKS[used].verl
    answer = answers[version][f"{name}@{used}"]
    assert answer["error"] is None
    # 0.9.1's reward model has an engine of its own, which is read only when there is such a model.
    assert answer["missing"] in ([], ["reward.reward_model.rollout.name"])
    assert answer["manager"] == {"0.6.1": "BatchRewardManager", "0.9.1": "NaiveRewardManager"}[version]
    right_answer = {"gsm8k": 1.0, "graded_math": 0.7}[load(name).recipe.reward.name]
    assert answer["reward"]["reason"] == "ok"
    assert answer["reward"]["score"] == right_answer


@pytest.mark.parametrize(("version", "what"), [(version, what) for version, cases in WRONG.items() for what in cases])
def test_what_verl_refuses_or_ignores_is_found(version: str, what: str, answers: dict[str, dict[str, Any]]) -> None:
    assert answers[version][what]["error"] is not None


KEY_LINTS = frozenset(
    {"key-unknown", "key-needs-plus", "key-exists", "key-refused", "key-unread", "legacy-key-ignored", "key-not-there"}
)


@pytest.mark.parametrize(("name", "stack"), COMBINATIONS)
def test_lints_say_what_is_true_of_a_shipped_recipe_and_no_more(name: str, stack: str | None, run: Run) -> None:
    loaded = load(name, *([f"stack={stack}"] if stack else []))
    made = pipeline.make_plan(loaded, run)
    assert [f.what for f in made.findings if f.severity == "error"] == []
    warnings = {"npu-grpo": ["group-of-one"]}.get(name, [])
    assert [f.code for f in made.findings if f.severity == "warning"] == warnings
    assert not KEY_LINTS & {f.code for f in made.findings}


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_exact_from_the_filtered_rows(name: str, run: Run) -> None:
    rows, steps = STEPS[name]
    made = plan.make(load(name), run, plan.Rows(*rows, "after filtering"), 512)
    assert made.steps is not None
    assert made.steps.total == steps


@pytest.mark.parametrize("name", NAMES)
def test_the_last_step_is_saved_and_old_checkpoints_outlive_the_new_one(name: str, run: Run) -> None:
    effective = pipeline.make_plan(load(name), run).effective
    assert isinstance(effective["trainer.save_freq"], int) and effective["trainer.save_freq"] > 0
    with_critic = effective.get("algorithm.adv_estimator", "gae") == "gae"
    for role in ("actor", "critic") if with_critic else ("actor",):
        assert effective[f"trainer.max_{role}_ckpt_to_keep"] == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_band_that_acceptance_names_exists(name: str) -> None:
    bands = load_bands()
    for criterion in load(name).recipe.acceptance:
        if isinstance(criterion.bound, str):
            assert (criterion.bound, criterion.metric, criterion.reducer, criterion.window) in bands


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_opens_with_how_it_is_used(name: str) -> None:
    header = (RECIPES / f"{name}.yaml").read_text().partition("\nname:")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    assert f"entrypoint.py run {name}" in header or f"entrypoint.py run recipes/{name}.yaml" in header
    assert "override" in header
    commands = [line.partition("entrypoint.py ")[2] for line in header.splitlines() if "entrypoint.py run " in line]
    for command in commands:
        words = [word for word in command.partition("  ")[0].split() if "=" in word and word != "\\"]
        for word in words:
            hydra_overrides.parse_override(word)


def test_settings_of_the_published_npu_run() -> None:
    """The run's own numbers, by the keys that decide its algorithm."""
    settings = pipeline.make_plan(load("npu-grpo"), Run(ROOT / "runs" / "absent")).effective
    assert {key: settings[key] for key in (
        "data.train_batch_size", "data.max_prompt_length", "data.max_response_length", "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.actor.optim.lr_warmup_steps", "actor_rollout_ref.actor.kl_loss_coef", "trainer.total_epochs",
        "trainer.test_freq", "trainer.device",
    )} == {
        "data.train_batch_size": 256, "data.max_prompt_length": 512, "data.max_response_length": 1024,
        "actor_rollout_ref.rollout.n": 1, "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
        "actor_rollout_ref.actor.optim.lr": 1e-6, "actor_rollout_ref.actor.optim.lr_warmup_steps": 10,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001, "trainer.total_epochs": 1, "trainer.test_freq": 10,
        "trainer.device": "npu",
    }  # fmt: skip


def test_the_grouped_recipe_costs_what_the_published_one_does() -> None:
    one, grouped = (
        pipeline.make_plan(load(name), Run(ROOT / "runs" / "absent")).effective
        for name in ("npu-grpo", "npu-grpo-grouped")
    )
    for plan_of in (one, grouped):
        prompts, group = plan_of["data.train_batch_size"], plan_of["actor_rollout_ref.rollout.n"]
        assert isinstance(prompts, int) and isinstance(group, int)
        assert prompts * group == 256
    different = {k for k in {*one, *grouped} if one.get(k) != grouped.get(k)}
    assert different == {
        "data.train_batch_size", "actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.ppo_mini_batch_size",
        "trainer.total_training_steps", "trainer.save_freq",
    }  # fmt: skip


def test_the_two_ppo_recipes_have_one_algorithm() -> None:
    """They differ in execution only: micro-batches, padding, memory, checkpoints."""
    tuned, article = (
        pipeline.make_plan(load(name), Run(ROOT / "runs" / "absent")).effective
        for name in ("cuda-ppo", "cuda-ppo-article")
    )
    execution = (
        *("micro_batch_size_per_gpu", "use_dynamic_bsz", "max_token_len_per_gpu", "use_remove_padding"),
        *("enable_gradient_checkpointing", "gpu_memory_utilization", "enforce_eager", "free_cache_engine", "save_freq"),
        *("entropy_from_logits_with_chunking", "use_torch_compile", "wrap_policy.disable", "forward_only"),
        *("calculate_log_probs", "cudagraph_capture_sizes"),
    )
    different = {key for key in {*tuned, *article} if tuned.get(key) != article.get(key)}
    assert {key for key in different if not key.endswith(execution)} == set()


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("npu-", "cuda-"))])
def test_without_its_accelerator_a_recipe_ends_with_the_finding_and_creates_nothing(name: str, tmp_path: Path) -> None:
    if list(Path("/dev").glob("nvidia[0-9]*")) or list(Path("/dev").glob("davinci[0-9]*")):
        pytest.skip("this machine has an accelerator")
    done = subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), "run", name, "--runs", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "error[platform-absent]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_lints_know_the_key_that_091_ignores(run: Run) -> None:
    config = {"custom_reward_function.path": "/somewhere/reward.py"}
    found = lints.check(config, lints.Facts(verl="0.9.1"), complete=False)
    assert "legacy-key-ignored" in {finding.code for finding in found}
