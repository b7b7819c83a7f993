"""Past one machine: which Ray cluster a run joins, and what each of its nodes has to offer.

verlbox starts no cluster and stops none; `submit`, KubeRay, Slurm, compose or `ray start` do (docs/cluster.md). With an
address, or several nodes, training joins the cluster as one more job of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from verlbox.recipe import Recipe
from verlbox.stacks import PlatformName, Stack

ADDRESS_VARIABLE = "RAY_ADDRESS"
# The Ray resources that one device is, by platform. verl places its workers by the first and counts devices by GPU or
# NPU (verl v0.6.1 single_controller/ray/base.py, get_placement_groups; trainer/ppo/ray_trainer.py,
# _check_resource_available), so that the CPU's logical device is both.
RESOURCES: Mapping[PlatformName, tuple[str, ...]] = {"npu": ("NPU",), "cuda": ("GPU",), "cpu": ("cpu", "GPU")}


def address(recipe: Recipe, environment: Mapping[str, str] = os.environ) -> str | None:
    """The address of the cluster that a run joins; None when it starts a Ray of its own.

    The recipe's, else RAY_ADDRESS (which Ray sets in the jobs that are submitted to it; its `local` is a Ray of one's
    own), else `auto`, the cluster that runs on this machine, where the recipe wants several nodes.
    """
    given = recipe.cluster.address or environment.get(ADDRESS_VARIABLE)
    if given and given != "local":
        return given
    return "auto" if recipe.cluster.nodes > 1 else None


def without_address(recipe: Recipe) -> Recipe:
    """The recipe for a job of a cluster that tells its jobs its own address (RAY_ADDRESS)."""
    return recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"address": None})})


def needed(stack: Stack, devices: int) -> dict[str, int]:
    """What a node must have free, by Ray's names of resources: devices, and the CPUs that verl reserves beside them.

    Source: the bundles of verl's placement groups (single_controller/ray/base.py, get_placement_groups), of
    `max_colocate_count` CPUs for each device: 1 in 0.6.1 (trainer/ppo/ray_trainer.py), 3 in 0.9.1
    (ResourcePoolManager's default).
    """
    cpus = 1 if stack.verl == "0.6.1" else 3
    return {"CPU": cpus * devices, **dict.fromkeys(RESOURCES[stack.platform], devices)}


def custom_resources(platform: PlatformName, devices: int) -> dict[str, int]:
    """What `--resources` of `ray start` says for devices; GPU has an option of its own."""
    return {name: devices for name in RESOURCES[platform] if name != "GPU"}


def node_options(platform: PlatformName, devices: int) -> list[str]:
    """The options of `ray start` that make a node offer devices, whether Ray finds them by itself or not."""
    custom = custom_resources(platform, devices)
    options = [f"--num-gpus={devices}"] if "GPU" in RESOURCES[platform] else []
    return [*options, f"--resources={json.dumps(custom, separators=(',', ':'))}"] if custom else options
