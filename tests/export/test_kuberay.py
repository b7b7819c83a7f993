"""The RayJob manifest against the custom resource definition of KubeRay, and what it says of each stack."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from verlbox import cli, recipe
from verlbox.export import kuberay
from verlbox.recipe import Recipe

jsonschema = pytest.importorskip("jsonschema", reason="it comes with a stack")

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(__file__).parent / "rayjob.schema.json").read_text(encoding="utf-8"))
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


def exported(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    assert cli.main(["export", "kuberay", *arguments]) == 0
    config, job = yaml.safe_load_all(capsys.readouterr().out)
    return config, job


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    spec = job["spec"]["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])]
    return [*(group["template"]["spec"] for group in groups), job["spec"]["submitterPodTemplate"]["spec"]]


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_valid_rayjob(name: str, nodes: int, capsys: pytest.CaptureFixture[str]) -> None:
    _, job = exported(capsys, name, f"cluster.nodes={nodes}")
    jsonschema.Draft202012Validator(SCHEMA).validate(job)


@pytest.mark.parametrize(
    ("key", "value"), [("entrypont", "x"), ("backoffLimit", "none"), ("submissionMode", ["x"]), ("ttlSeconds", 3)]
)
def test_the_schema_refuses_what_the_definition_does_not_know(
    key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    _, job = exported(capsys, "smoke")
    job["spec"][key] = value
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(job)
    del job["spec"][key]
    for pod in pods(job):
        pod["containers"][0]["imagePulPolicy"] = "Always"
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(job)


@pytest.mark.parametrize(
    ("name", "device", "resources"),
    [
        ("cuda-ppo", "nvidia.com/gpu", {"num-gpus": "1"}),
        ("npu-grpo-official", "huawei.com/Ascend910", {"resources": "'{\"NPU\": 4}'"}),
        ("smoke", None, {"num-gpus": "1", "resources": "'{\"cpu\": 1}'"}),
    ],
)
def test_each_node_asks_for_the_devices_of_its_kind_and_offers_them_to_ray(
    name: str, device: str | None, resources: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, job = exported(capsys, name, "cluster.nodes=3")
    spec = job["spec"]["rayClusterSpec"]
    (group,) = spec["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)
    assert group["rayStartParams"] == resources
    assert spec["headGroupSpec"]["rayStartParams"] == {"dashboard-host": "0.0.0.0", **resources}
    for node in (spec["headGroupSpec"], group):
        limits = node["template"]["spec"]["containers"][0]["resources"]["limits"]
        devices = {key: value for key, value in limits.items() if "/" in key}
        assert devices == ({} if device is None else {device: "4" if "npu" in name else "1"})


def test_one_node_needs_no_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert "workerGroupSpecs" not in exported(capsys, "smoke")[1]["spec"]["rayClusterSpec"]


def test_ray_on_ascend_leaves_the_devices_alone_and_starts_within_cann(capsys: pytest.CaptureFixture[str]) -> None:
    _, job = exported(capsys, "npu-grpo", "cluster.nodes=2")
    assert job["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    for pod in pods(job)[:2]:
        variables = {item["name"]: item["value"] for item in pod["containers"][0]["env"]}
        assert variables["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"] == "1"
        (command,) = pod["containers"][0]["args"]
        assert "/opt/verlbox/docker/entrypoint.sh" in command and "$KUBERAY_GEN_RAY_START_CMD" in command


def test_all_pods_are_contained_and_share_runs_and_cache(capsys: pytest.CaptureFixture[str]) -> None:
    _, job = exported(capsys, "cuda-ppo", "cluster.nodes=2")
    for pod in pods(job):
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 1000
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    for pod in pods(job)[:2]:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["runs"]["persistentVolumeClaim"] == {"claimName": "verlbox-runs"}
        assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "verlbox-cache"}
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == set(volumes)


def test_the_recipe_travels_with_its_overrides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config, job = exported(
        capsys,
        "smoke",
        "--name",
        "My.Run_2",
        "train.steps=7",
        "trainer.test_freq=7",
        "--image",
        "registry.example/cpu:1",
    )
    file = tmp_path / "recipe.yaml"
    file.write_text(config["data"]["recipe.yaml"])
    loaded: Recipe = recipe.load(file).recipe
    assert (loaded.train.steps, loaded.overrides) == (7, ["trainer.test_freq=7"])
    assert config["metadata"]["name"] == "my-run-2-recipe"
    assert "--name My.Run_2 --runs /runs" in job["spec"]["entrypoint"]
    assert {pod["containers"][0]["image"] for pod in pods(job)} == {"registry.example/cpu:1"}


def test_files_of_this_machine_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dataset.source=local", f"dataset.path={tmp_path}"]
    assert cli.main(["export", "kuberay", "smoke", *words]) == 2
    assert f"export-local-files] dataset.path is {tmp_path}" in capsys.readouterr().err
    assert cli.main(["export", "kuberay", "smoke", "dataset.source=local", "dataset.path=/cache/gsm8k"]) == 0


@pytest.mark.parametrize("name", ["a" * 60, "Run_1.b", "-x-", "7b", "7" * 60, "___"])
def test_names_are_what_kuberay_takes(name: str) -> None:
    made = kuberay.job_name(name)
    assert len(made) <= 40 and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made)


def test_a_name_is_one_word_of_the_jobs_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, job = exported(capsys, "smoke", "--name", "it's $HOME")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[words.index("--name") + 1] == "it's $HOME"


def test_the_recipes_own_address_stays_here(capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = exported(capsys, "smoke", "cluster.nodes=2", "cluster.address=10.0.0.7:6379")
    assert yaml.safe_load(config["data"]["recipe.yaml"])["cluster"] == {"nodes": 2, "address": None}


def test_a_file_that_cannot_be_written_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "kuberay", "smoke", "--out", str(tmp_path / "absent" / "job.yaml")]) == 2
    assert f"export-not-written] {tmp_path}/absent/job.yaml: No such file" in capsys.readouterr().err
