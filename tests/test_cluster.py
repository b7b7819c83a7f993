"""What a cluster does to a recipe's plan, and what is said of a cluster that does not fit: without Ray."""

from __future__ import annotations

import argparse
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from verlbox import cli, cluster, preflight, recipe, submit
from verlbox.cluster import check
from verlbox.findings import EXIT_PREFLIGHT, Finding
from verlbox.plan import ROOT, Plan, Rows, as_text, make, verl_command
from verlbox.run import Run
from verlbox.stacks import STACKS

SEEN = {"python": "3.11.9", "ray": "2.60.0", "verl": "0.6.1"}


@pytest.fixture(autouse=True)
def _no_cluster_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/of/cann")


def plan(tmp_path: Path, *arguments: str, name: str = "smoke") -> Plan:
    loaded = recipe.load(ROOT / "recipes" / f"{name}.yaml", arguments)
    return make(loaded, Run(tmp_path / "runs" / name), Rows(1024, 300, "after filtering"), 31)


# --- the plan ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, None),
        (["cluster.nodes=2"], {}, "auto"),
        ([], {"RAY_ADDRESS": "10.0.0.7:6379"}, "10.0.0.7:6379"),
        ([], {"RAY_ADDRESS": "local"}, None),
        (["cluster.address=10.0.0.8:6379"], {"RAY_ADDRESS": "10.0.0.7:6379"}, "10.0.0.8:6379"),
    ],
)
def test_the_address_is_the_recipes_then_rays_then_this_machines(
    arguments: list[str], environment: dict[str, str], expected: str | None
) -> None:
    loaded = recipe.load(ROOT / "recipes" / "smoke.yaml", arguments)
    assert cluster.address(loaded.recipe, environment) == expected


def test_without_a_cluster_verl_starts_a_ray_of_its_own(tmp_path: Path) -> None:
    effective = plan(tmp_path).effective
    assert effective["ray_kwargs.ray_init.num_cpus"] == 2
    assert effective["trainer.nnodes"] == 1
    assert not any("runtime_env" in key or key.endswith("address") for key in effective)


@pytest.mark.parametrize("name", ["smoke", "npu-grpo", "cuda-ppo"])
def test_a_joined_cluster_is_given_no_resources_and_the_variables_of_the_platform(tmp_path: Path, name: str) -> None:
    made = plan(tmp_path, "cluster.nodes=2", "cluster.address=head:6379", name=name)
    prefix = "ray_kwargs.ray_init."
    ours = {key.removeprefix(prefix): value for key, value in made.effective.items() if key.startswith(prefix)}
    assert ours.pop("address") == "head:6379"
    variables = {key.removeprefix("runtime_env.env_vars."): value for key, value in ours.items()}
    assert all(key.startswith("runtime_env.env_vars.") for key in ours), "Ray refuses resources where it only joins"
    assert made.effective["trainer.nnodes"] == 2
    assert variables["TENSORBOARD_DIR"] == str(made.run.tensorboard)
    assert variables["PYTHONPATH"] == f"{ROOT}:/of/cann", "CANN's own packages stay"
    noset = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
    assert variables.get(noset) == ("1" if name == "npu-grpo" else None)
    # Ray's job API brings its own RAY_worker_niceness, and Ray refuses a variable that is given twice.
    assert [key for key in variables if key.startswith("RAY_") and key != noset] == []
    assert "Ray at head:6379" in as_text(made, "")


def test_verl_itself_reads_the_variables_as_text(tmp_path: Path) -> None:
    hydra = pytest.importorskip("hydra", reason="it comes with a stack")
    from omegaconf import OmegaConf

    made = plan(tmp_path, "cluster.nodes=2")
    pytest.importorskip("verl", reason="it comes with a stack")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", verl_command(made.settings, [])[3:])
    given: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    assert (given["address"], given["num_cpus"]) == ("auto", None)
    assert {type(value) for value in given["runtime_env"]["env_vars"].values()} == {str}


def test_nodes_count_in_the_batch_and_in_what_training_depends_on(tmp_path: Path) -> None:
    from verlbox.stages import train

    loaded = recipe.load(ROOT / "recipes" / "smoke.yaml", ["cluster.nodes=2"])
    made = plan(tmp_path, "cluster.nodes=2")
    assert "micro-batch-not-divisor" in {finding.code for finding in preflight.lint(made, loaded.places)}
    assert train.inputs(made.recipe, made.run)["cluster.nodes"] == 2
    assert "cluster.address" not in train.inputs(made.recipe, made.run)


# --- the look at the cluster -------------------------------------------------------------------------------------


def node(name: str, **changes: Any) -> dict[str, Any]:
    has = {"CPU": 4.0, "GPU": 1.0, "cpu": 1.0, "memory": 1e9}
    return {
        "id": name,
        "name": name,
        "has": has,
        "free": has,
        "versions": SEEN,
        "trouble": {},
        "hashes": None,
        **changes,
    }


def judged(tmp_path: Path, *nodes: dict[str, Any]) -> list[Finding]:
    made = plan(tmp_path, "cluster.nodes=2", "cluster.address=head:6379")
    known = {str(file): check._hash(file) for file in check._files(made)}
    filled = [{**one, "hashes": known if one["hashes"] is None else one["hashes"]} for one in nodes]
    return check.judge(made, "head:6379", {"nodes": filled})


@pytest.mark.parametrize(("stack", "cpus"), [("cpu", 2), ("cpu-091", 6), ("npu", 2), ("cuda", 6)])
def test_the_cpus_that_verl_reserves_count(stack: str, cpus: int) -> None:
    assert cluster.needed(STACKS[stack], 2)["CPU"] == cpus


def test_a_cluster_that_fits_is_passed_without_a_word(tmp_path: Path) -> None:
    assert judged(tmp_path, node("a"), node("b"), node("c", has={"CPU": 1.0}, free={})) == []


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"has": {"CPU": 4.0, "cpu": 1.0}}, "cluster-too-small", "1 of the cluster's 2 have them"),
        ({"free": {"CPU": 4.0}}, "cluster-busy", "1 have them free"),
        ({"versions": {**SEEN, "verl": "0.9.1"}}, "cluster-software-differs", "verl 0.9.1 (elsewhere 0.6.1)"),
        ({"versions": {"python": "3.11.9"}}, "cluster-software-differs", "ray none (elsewhere 2.60.0)"),
        (
            {"trouble": {"/runs": "No such file or directory"}},
            "cluster-files-not-shared",
            "does not share /runs: No such",
        ),
        ({"hashes": {}}, "cluster-files-not-shared", "files otherwise than this machine"),
        ({"silent": "no answer in 60 s"}, "cluster-node-silent", "no answer in 60 s"),
    ],
)
def test_each_thing_that_a_node_lacks_is_one_finding(
    tmp_path: Path, changes: dict[str, Any], code: str, said: str
) -> None:
    (finding,) = judged(tmp_path, node("a"), node("b", **changes))
    assert finding.code == code
    assert said in finding.what and finding.why and finding.fix
    assert preflight.exit_code([finding]) == EXIT_PREFLIGHT


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (["RuntimeError", "Version mismatch: The cluster was started with:\n Ray: 2.55.1"], "cluster-software-differs"),
        (["AuthenticationError", "Failed to connect"], "cluster-refused"),
        (["RuntimeError", "Can't find a raylet on this machine"], "cluster-not-joined"),
    ],
)
def test_what_ray_says_of_a_cluster_that_cannot_be_joined_is_told_apart(
    tmp_path: Path, error: list[str], code: str
) -> None:
    (finding,) = check.judge(plan(tmp_path), "head:6379", {"error": error})
    assert finding.code == code


@pytest.mark.parametrize(
    ("argument", "code"),
    [
        ("cluster.address=http://head:8265", "recipe-wrong-value"),
        ("cluster.address=ray://head:10001", "recipe-wrong-value"),
        ("cluster.address=head", "recipe-wrong-value"),
        ("ray_kwargs.ray_init.num_cpus=8", "recipe-wrong-value"),
    ],
)
def test_what_no_cluster_can_mean_is_said_before_any_is_asked(tmp_path: Path, argument: str, code: str) -> None:
    made = plan(tmp_path, "cluster.nodes=2", argument)
    address = cluster.address(made.recipe)
    assert address is not None
    found, nodes = check.look(made, address)
    assert ([finding.code for finding in found], nodes) == ([code], {})


@pytest.mark.parametrize(
    ("words", "folders", "model_file"),
    [
        ([], 1, False),
        (["model.source=huggingface", "model.name=Qwen/Qwen2.5-0.5B"], 2, False),
        (["model.source=local", "model.path={here}"], 1, True),
        (["model.source=random", "model.name=Qwen/Qwen2.5-0.5B", "model.path={here}"], 2, False),
    ],
)
def test_what_nodes_have_to_see_follows_from_where_the_model_lies(
    tmp_path: Path, words: list[str], folders: int, model_file: bool
) -> None:
    made = plan(tmp_path, *(word.format(here=tmp_path) for word in words))
    assert len(check._folders(made)) == folders
    assert (tmp_path / "config.json" in check._files(made)) is model_file


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "127.0.0.1:{port}"])
def test_an_address_that_the_environment_happens_to_hold_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", given := address.format(port=closed_port()))
    ((finding,), _) = check.look(plan(tmp_path), given)
    assert "unset it for a Ray of the run's own" in finding.fix
    ((finding,), _) = check.look(plan(tmp_path, f"cluster.address={given}"), given)
    assert "unset" not in finding.fix


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


def test_a_run_whose_cluster_does_not_answer_creates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("verl", reason="preflight stops at a missing stack")
    words = ["run", "smoke", f"cluster.address=127.0.0.1:{closed_port()}", "--runs", str(tmp_path / "runs")]
    assert cli.main(words) == EXIT_PREFLIGHT
    assert "error[cluster-unreachable]" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# --- submit ------------------------------------------------------------------------------------------------------


def arguments(**given: Any) -> argparse.Namespace:
    usual: dict[str, Any] = {
        "verlbox": "/opt/verlbox",
        "runs": None,
        "first": None,
        "last": None,
        "accept_drift": [],
        "offline": False,
    }
    return argparse.Namespace(**{**usual, **given})


def test_the_jobs_command_is_run_with_the_arguments_given(tmp_path: Path) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    text = submit.entrypoint(arguments(last="train", accept_drift=["train.seed"], runs="/a folder/runs"), "a-b")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(text, shell=True, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = ["/opt/verlbox/entrypoint.py", "run", f"{tmp_path}/recipe.yaml", "--name", "a-b", "--until", "train"]
    expected += ["--accept-drift", "train.seed", "--runs", "/a folder/runs"]
    assert done.stdout.splitlines() == expected


def test_without_a_folder_for_runs_the_job_says_so(tmp_path: Path) -> None:
    text = submit.entrypoint(arguments(), "a")
    done = subprocess.run(text, shell=True, env={"PATH": "/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "VERLBOX_RUNS: is not set on the cluster, and --runs is not given" in done.stderr


@pytest.mark.parametrize(
    "address", ["head:8265", "ray://head:10001", "http://127.0.0.1:{port}", "http://no.such.host.invalid"]
)
def test_an_address_without_a_job_api_is_a_finding(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["submit", "smoke", "--address", address.format(port=closed_port())]) == EXIT_PREFLIGHT
    assert "error[cluster-unreachable] no Ray job API at" in capsys.readouterr().err
