"""Lints on the configuration that the installed verl itself composes, and verl's own words where no lint has any.

0.6.1 is that of this interpreter; 0.9.1 that of .venv-091, where `make smoke-091` made it (marked long).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verlbox import lint_command, preflight, recipe, verl_keys
from verlbox.cli import RECIPES
from verlbox.findings import Finding
from verlbox.lints import Facts, check
from verlbox.pipeline import make_plan
from verlbox.run import Run
from verlbox.verl_keys import installed

ROOT = Path(__file__).parents[2]
PYTHON_091 = ROOT / ".venv-091" / "bin" / "python"

pytest.importorskip("verl", reason="composing verl's configuration needs verl (make install)")
if installed.version() != "0.6.1":
    pytest.skip("these tests know verl 0.6.1", allow_module_level=True)

SOUND: dict[str, object] = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.model.path": "/models/m",
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
    "trainer.n_gpus_per_node": 1,
    "trainer.logger": "[console,tensorboard]",
    "trainer.save_freq": 5,
    "trainer.test_freq": 5,
}


def found(*overrides: str) -> list[Finding]:
    """Findings of a sound configuration with more overrides, by the installed verl."""
    texts = [*(f"{key}={value}" for key, value in SOUND.items()), *overrides]
    return lint_command.lint(texts, [], None, complete=True)


def errors(*overrides: str) -> dict[str, str]:
    return {f.code: f.what for f in found(*overrides) if f.severity == "error"}


def test_what_is_right_is_refused_by_nobody() -> None:
    assert errors() == {}


def test_every_default_is_the_installed_verls_own() -> None:
    composed = installed.compose("ppo_trainer", [])
    assert dict(composed.defaults) == dict(verl_keys.load("0.6.1").defaults)
    assert composed.values["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] is None
    assert composed.values["critic.ppo_mini_batch_size"] == 256  # a reference to the actor's, followed


def test_a_default_that_differs_here_from_verlboxs_data_decides() -> None:
    """As of a checkout of verl with another default; nothing but the composed configuration can know it."""
    here = installed.compose("ppo_trainer", [])
    other = installed.Composed(here.defaults, {**here.values, "algorithm.use_kl_in_reward": True}, (), ())
    settings = {"algorithm.kl_ctrl.kl_coef": 0.001}
    assert "kl-setting-without-effect" in {f.code for f in check(settings, Facts(verl="0.6.1"))}
    assert "kl-setting-without-effect" not in {f.code for f in check(settings, Facts(verl="0.6.1"), composed=other)}


def test_a_lint_speaks_for_verl_where_both_find_the_same() -> None:
    by_both = {
        "trainer.n_gpus_per_node=3": "batch-not-divisible",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2048": "mini-batch-too-big",
        "actor_rollout_ref.actor.loss_agg_mode=mean": "unknown-word",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2": "remove-padding-needed",
        "+actor_rollout_ref.rollout.seed=1": "key-refused",
        "actor_rollout_ref.rollout.num_generations=8": "key-unknown",
        "+data.train_batch_size=4": "key-exists",
        "data.train_files=~/x.parquet": "override-syntax",
    }
    for override, code in by_both.items():
        codes = errors(override).keys()
        assert code in codes and not codes & {"hydra-refuses", "verl-refuses"}, (override, codes)


def test_what_only_verl_knows_is_said_in_its_words() -> None:
    assert errors("data.max_prompt_length=${data.nothing}")["verl-refuses"] == (
        "Interpolation key 'data.nothing' not found"
    )
    assert "nosuchgroup" in errors("data@data=nosuchgroup")["hydra-refuses"]


def test_all_refusals_of_hydra_are_found_at_once() -> None:
    composed = installed.compose("ppo_trainer", ["data.first=1", "trainer.second=2", "~critic.third"])
    assert [override for override, _ in composed.refusals] == ["data.first=1", "trainer.second=2", "~critic.third"]
    assert composed.values["data.train_batch_size"] == 1024  # the rest is judged all the same


def test_the_child_imports_no_torch_and_no_ray() -> None:
    """They would cost seconds at every plan."""
    script = ROOT / "verlbox" / "verl_keys" / "compose.py"
    probe = (
        f"import sys, runpy; sys.argv = [{str(script)!r}, {str(verl_folder())!r}]; "
        f"runpy.run_path({str(script)!r}, run_name='__main__'); "
        "print(sorted(n for n in ('torch', 'ray', 'vllm', 'transformers.models') if sys.modules.get(n)), "
        "file=sys.stderr)"
    )
    asked = json.dumps({"config_name": "ppo_trainer", "overrides": [f"{k}={v}" for k, v in SOUND.items()]})
    done = subprocess.run(
        [sys.executable, "-c", probe], input=asked, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert json.loads(done.stdout)["objections"] == []


def verl_folder() -> Path:
    import importlib.util

    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def test_a_plan_names_the_place_of_what_verl_refuses(tmp_path: Path) -> None:
    override = "actor_rollout_ref.rollout.prompt_length=${data.nothing}"
    loaded = recipe.load(RECIPES / "smoke.yaml", [override])
    (finding,) = [f for f in make_plan(loaded, Run(tmp_path / "run")).findings if f.severity == "error"]
    assert finding.code == "verl-refuses" and "data.nothing" in finding.what


def test_another_verl_than_the_stacks_is_not_asked_and_the_plan_says_so(tmp_path: Path) -> None:
    loaded = recipe.load(RECIPES / "cuda-ppo.yaml", [])
    made = make_plan(loaded, Run(tmp_path / "run"))
    assert preflight.compose(made)[0] is None
    (note,) = [f for f in made.findings if f.code == "settings-judged-by-data"]
    assert note.severity == "note" and "0.6.1" in note.why and "0.9.1" in note.why


@pytest.mark.long
@pytest.mark.skipif(not PYTHON_091.exists(), reason="there is no .venv-091 with verl 0.9.1 (make smoke-091 makes it)")
@pytest.mark.parametrize(
    ("override", "code"),
    [
        (None, None),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=2048", "mini-batch-too-big"),
        ("actor_rollout_ref.rollout.mode=sync", "rollout-unknown"),
        ("+actor_rollout_ref.actor.foo=1", "key-refused"),
        ("data.max_prompt_length=${data.nothing}", "verl-refuses"),
    ],
)
def test_verl_091_is_asked_where_it_is_installed(override: str | None, code: str | None) -> None:
    texts = [*(f"{key}={value}" for key, value in SOUND.items()), *([override] if override else [])]
    done = subprocess.run(
        [str(PYTHON_091), "entrypoint.py", "lint", "--complete", "--json", *texts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert [f["code"] for f in found if f["severity"] == "error"] == ([code] if code else [])
