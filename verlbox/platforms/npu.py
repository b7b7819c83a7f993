"""The Ascend NPU platform: which devices are there, and what verl needs to be told for them.

Devices are read from the files that the driver makes, not asked of it: no tool has to be installed, and nothing is
touched that a training run on the same card could notice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from verlbox.findings import Finding
from verlbox.platforms import ABSENT, on_the_bus

NAME = "npu"
ROLLOUT = "vLLM on Ascend"
ROOT = Path(__file__).parents[2]

# What a process needs besides /dev/davinciN to talk to the driver (Ascend's container documentation).
CONTROL_DEVICES = ("davinci_manager", "devmm_svm", "hisi_hdc")
HUAWEI, ACCELERATOR = "0x19e5", "0x1200"  # PCI vendor; class "processing accelerator"


def devices(root: Path = Path("/")) -> list[int]:
    """The numbers of the NPUs that this machine or container shows as /dev/davinciN."""
    found = (re.fullmatch(r"davinci(\d+)", path.name) for path in (root / "dev").glob("davinci*"))
    return sorted(int(match[1]) for match in found if match)


def visible(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> list[int]:
    """The NPUs that a process may use: those that are there, less what ASCEND_RT_VISIBLE_DEVICES leaves out."""
    chosen = environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if chosen is None:
        return devices(root)
    return [number for number in devices(root) if str(number) in re.split(r"[,\s]+", chosen.strip())]


def problems(needed: int = 1, root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """What keeps this machine from being such a platform: fewer NPUs than needed, or no way to their driver."""
    there, usable = devices(root), visible(root, environment)
    if not there:
        cards = on_the_bus(HUAWEI, ACCELERATOR, root)
        if cards:
            fix = (
                "In a container: start it with --device /dev/davinci0 and the control devices (`docker compose run`"
                " and `entrypoint.py launch` do). On the host: install the Ascend driver, then look at `npu-smi info`."
            )
        else:
            fix = "Use a machine with an Ascend NPU, or try the chain without one: `entrypoint.py run smoke`."
        return [
            ABSENT.finding(
                "no Ascend NPU: there is no /dev/davinci0"
                + (f", although the PCI bus lists {cards} card(s)" if cards else ""),
                why="The recipe's stack trains and generates on Ascend NPUs only.",
                fix=fix,
            )
        ]
    found: list[Finding] = []
    if len(usable) < needed:
        hidden = len(there) - len(usable)
        found.append(
            ABSENT.finding(
                f"{len(usable)} of the {needed} NPUs that the recipe asks for"
                + (f"; ASCEND_RT_VISIBLE_DEVICES hides {hidden}" if hidden else ""),
                why="Ray would wait for the others for ever.",
                fix="Unset ASCEND_RT_VISIBLE_DEVICES, or set train.devices to what is there."
                if hidden
                else "Set train.devices to what is there, or use a machine with more.",
            )
        )
    missing = [name for name in CONTROL_DEVICES if not (root / "dev" / name).exists()]
    if missing:
        found.append(
            ABSENT.finding(
                f"NPUs are there, but not {', '.join(f'/dev/{name}' for name in missing)}",
                why="Without the control devices no process reaches the driver, and every NPU call fails.",
                fix="Start the container with " + " ".join(f"--device /dev/{name}" for name in missing) + ".",
            )
        )
    return found


def verl_overrides(devices: int) -> dict[str, object]:
    """verl's settings for this platform; a recipe's own settings come later and win."""
    return {
        "trainer.device": "npu",  # verl 0.6.1 does not find out by itself, and would wait for GPUs for ever
        "actor_rollout_ref.rollout.name": "vllm",
        # torch.compile needs Triton, which the stack does not have; verl's own NPU scripts switch it off as well.
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.ref.use_torch_compile": False,
    }


def environment(seed: int) -> Mapping[str, str]:
    """Environment variables of every verl process on this platform."""
    return {
        "PYTHONPATH": str(ROOT),
        "VLLM_ASCEND_ENABLE_NZ": "0",  # mandatory for RL: the NZ weight format is for weights that never change
        "VLLM_USE_V1": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",  # verl chooses the device of each worker itself
    }
