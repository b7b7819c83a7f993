"""`export kuberay RECIPE`: the recipe as a RayJob manifest, which KubeRay runs on a Ray cluster made for it.

Two objects: a ConfigMap with the recipe, and the RayJob. The cluster has as many pods as the recipe has nodes, the head
being one of them, of the stack's image, with its devices; claims for runs and cache (ReadWriteMany with several nodes)
and the images are the cluster's to provide. Written for KubeRay 1.5 and newer; docs/cluster.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from typing import Any

import yaml

from verlbox import cluster, findings, recipe
from verlbox.container import images
from verlbox.export import of_recipe
from verlbox.findings import EXIT_OK, EXIT_USAGE, FindingsError
from verlbox.plan import PLATFORMS, ROOT
from verlbox.recipe import Recipe
from verlbox.stacks import STACKS, PlatformName, Stack
from verlbox.submit import GRACE, IN_IMAGES

HELP = "a RayJob manifest for KubeRay"

LOCAL_FILES = findings.register(
    "export-local-files", "error", "The recipe names files of this machine, which the exported job would not find."
)

# What the device plugins of NVIDIA and of Huawei call a device.
PLUGIN: dict[PlatformName, str] = {"cuda": "nvidia.com/gpu", "npu": "huawei.com/Ascend910"}
RECIPE_FOLDER, RUNS, CACHE, HOME = "/etc/verlbox", "/runs", "/cache", "/home/verlbox"
USER = 1000  # the image's own user
HEALTH = {"path": "/api/local_raylet_healthz", "port": 52365}  # Ray's agent on each node; the images have no wget


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `export kuberay`; overrides of the recipe may follow."""
    of_recipe.add_arguments(parser, "kubectl apply -f -")
    parser.add_argument("--image", help="the stack's image as the Kubernetes cluster pulls it (default: as built here)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the manifest. Raises FindingsError."""
    wanted = of_recipe.load(arguments, files_here=False)
    name = arguments.name or wanted.name
    refuse_local_files(wanted)
    objects = manifest(wanted, name, arguments.image or images.reference(STACKS[wanted.stack]))
    text = HEAD.format(name=job_name(name)) + yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=110)
    of_recipe.write(text, arguments.out)
    return EXIT_OK


HEAD = """\
# Made by `entrypoint.py export kuberay`. Before it is applied, the namespace has the claims verlbox-runs and
# verlbox-cache, which all pods mount, and, if wanted, the secret verlbox-tokens (HF_TOKEN, WANDB_API_KEY, ...).
#
#   kubectl apply -f FILE && kubectl logs --follow job/{name}
#
# After a lost node, delete the RayJob and apply it again: the run goes on from its last checkpoint.
"""


class _Plain(yaml.SafeDumper):
    """Text of several lines as a block, and equal parts written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def job_name(name: str) -> str:
    """A run's name as KubeRay wants names: a label of RFC 1035, which begins with a letter, and short enough for what
    KubeRay appends to it.
    """
    made = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    return (made if made[:1].isalpha() else f"run-{made}")[:40].strip("-")


def refuse_local_files(wanted: Recipe) -> None:
    """Raises FindingsError for a model or data set that lies on this machine only."""
    local = [(key, section.path) for key, section in (("model", wanted.model), ("dataset", wanted.dataset))]
    found = [
        LOCAL_FILES.finding(
            f"{key}.path is {path}",
            why="A pod sees only its image and its volumes.",
            fix=f"Take it from a hub, or copy it to the volume of the cache and set {key}.path={CACHE}/...",
        )
        for key, path in local
        if path is not None and not path.startswith((f"{CACHE}/", f"{RUNS}/"))
    ]
    if found:
        raise FindingsError(found, EXIT_USAGE)


def manifest(wanted: Recipe, name: str, image: str) -> list[dict[str, Any]]:
    """The ConfigMap and the RayJob of a recipe."""
    stack, job = STACKS[wanted.stack], job_name(name)
    command = (
        f"python {IN_IMAGES}/entrypoint.py run {RECIPE_FOLDER}/recipe.yaml --name {shlex.quote(name)} --runs {RUNS}"
    )
    options = {"num-gpus": str(wanted.train.devices)} if "GPU" in cluster.RESOURCES[stack.platform] else {}
    custom = cluster.custom_resources(stack.platform, wanted.train.devices)
    if custom:
        options["resources"] = f"'{json.dumps(custom)}'"
    node = {"rayStartParams": options, "template": _pod(wanted, stack, job, image)}
    workers = wanted.cluster.nodes - 1
    group = {"groupName": "nodes", "replicas": workers, "minReplicas": workers, "maxReplicas": workers, **node}
    spec: dict[str, Any] = {
        "rayVersion": pinned("ray", stack),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {**node, "rayStartParams": {"dashboard-host": "0.0.0.0", **options}},
    }
    if workers:
        spec["workerGroupSpecs"] = [group]
    metadata: dict[str, Any] = {"name": job, "labels": {"app.kubernetes.io/name": "verlbox"}}
    if stack.platform == "npu":  # its container command is ours: CANN's environment first
        metadata["annotations"] = {"ray.io/overwrite-container-cmd": "true"}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{job}-recipe", "labels": metadata["labels"]},
            "data": {"recipe.yaml": recipe.resolved(wanted)},
        },
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": metadata,
            "spec": {
                "entrypoint": command,
                "runtimeEnvYAML": yaml.safe_dump({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": f"{GRACE:.0f}"}}),
                "backoffLimit": 0,
                "shutdownAfterJobFinishes": True,
                "ttlSecondsAfterFinished": 300,  # for a look at Ray's dashboard
                "rayClusterSpec": spec,
                "submitterPodTemplate": _submitter(image),
            },
        },
    ]


def pinned(package: str, stack: Stack) -> str:
    """The version of a package that a stack pins."""
    text = (ROOT / stack.requirements).read_text(encoding="utf-8")
    found = re.search(rf"^{package}(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE)
    assert found, f"{stack.requirements} has no pin of {package}"
    return found[1]


def _contained(read_only: bool = True) -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": read_only,
        "capabilities": {"drop": ["ALL"]},
    }


def _user() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,  # also the usual group of Ascend's devices
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _pod(wanted: Recipe, stack: Stack, job: str, image: str) -> dict[str, Any]:
    """One node of the Ray cluster."""
    devices = wanted.train.devices
    limits = {"cpu": str(of_recipe.node_cpus(wanted)), "memory": f"{of_recipe.node_memory_gib(wanted)}Gi"}
    if stack.platform in PLUGIN:
        limits[PLUGIN[stack.platform]] = str(devices)
    mounts = {"runs": RUNS, "cache": CACHE, "recipe": RECIPE_FOLDER, "shm": "/dev/shm", "tmp": "/tmp", "home": HOME}
    variables = {**PLATFORMS[stack.name].environment(wanted.train.seed), "PYTHONPATH": IN_IMAGES}
    container: dict[str, Any] = {
        "name": "ray",
        "image": image,
        "resources": {"limits": limits, "requests": limits},
        "env": [{"name": key, "value": value} for key, value in sorted(variables.items())],
        "envFrom": [{"secretRef": {"name": "verlbox-tokens", "optional": True}}],
        "volumeMounts": [{"name": key, "mountPath": path} for key, path in mounts.items()],
        "securityContext": _contained(),
        "readinessProbe": {"httpGet": HEALTH, "initialDelaySeconds": 10, "periodSeconds": 5, "failureThreshold": 12},
        "livenessProbe": {"httpGet": HEALTH, "initialDelaySeconds": 60, "periodSeconds": 10, "failureThreshold": 12},
    }
    if stack.platform == "npu":
        start = f'exec {IN_IMAGES}/docker/entrypoint.sh bash -c "ulimit -n 65536; $KUBERAY_GEN_RAY_START_CMD"'
        container |= {"command": ["bash", "-c", "--"], "args": [start]}
    return {
        "metadata": {"labels": {"app.kubernetes.io/name": "verlbox"}},
        "spec": {
            "securityContext": _user(),
            "terminationGracePeriodSeconds": 120,
            "containers": [container],
            "volumes": [
                {"name": "runs", "persistentVolumeClaim": {"claimName": "verlbox-runs"}},
                {"name": "cache", "persistentVolumeClaim": {"claimName": "verlbox-cache"}},
                {"name": "recipe", "configMap": {"name": f"{job}-recipe"}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},  # Ray's object store
                {"name": "tmp", "emptyDir": {}},
                {"name": "home", "emptyDir": {}},
            ],
        },
    }


def _submitter(image: str) -> dict[str, Any]:
    """The pod that hands the job over and shows its output."""
    small = {"cpu": "500m", "memory": "1Gi"}
    container = {
        "name": "submitter",
        "image": image,
        "resources": {"limits": {"memory": "1Gi"}, "requests": small},
        "securityContext": _contained(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "spec": {
            "restartPolicy": "Never",
            "securityContext": _user(),
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        }
    }
