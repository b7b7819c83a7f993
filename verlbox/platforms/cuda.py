"""The NVIDIA GPU platform: which devices are there, and what verl needs to be told for them.

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

NAME = "cuda"
ROLLOUT = "vLLM"
ROOT = Path(__file__).parents[2]

NVIDIA, DISPLAY = "0x10de", "0x03"  # PCI vendor; classes 0x0300 (VGA) and 0x0302 (3D) are GPUs, 0x0680 a bridge


def devices(root: Path = Path("/")) -> list[int]:
    """The numbers of the GPUs that this machine or container shows as /dev/nvidiaN; [0] under WSL 2 (/dev/dxg)."""
    found = (re.fullmatch(r"nvidia(\d+)", path.name) for path in (root / "dev").glob("nvidia*"))
    numbers = sorted(int(match[1]) for match in found if match)
    under_wsl = (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists()
    return numbers or ([0] if under_wsl else [])


def visible(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> list[int] | None:
    """The GPUs that a process may use: those that are there, less what CUDA_VISIBLE_DEVICES leaves out.

    As CUDA reads it, the list ends at the first number that is not there. None when it names GPUs or MIG slices by
    UUID, which only the driver can resolve.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return devices(root)
    count, usable = len(devices(root)), []
    for name in chosen.split(","):
        if re.match(r"\s*(GPU|MIG)-", name):
            return None
        if not name.strip().isdigit() or int(name) >= count:
            break
        usable.append(int(name))
    return usable


def driver(root: Path = Path("/")) -> str | None:
    """The version of the loaded kernel driver, such as 580.65.06; None when none is loaded."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else None


def problems(needed: int = 1, root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """What keeps this machine from being such a platform: fewer GPUs than needed, or no driver for them."""
    there, usable = devices(root), visible(root, environment)
    if not there:
        cards, version = on_the_bus(NVIDIA, DISPLAY, root), driver(root)
        if version:
            seen = f", although the driver {version} is loaded"
            fix = (
                "In a container: start it with --gpus all (`docker compose run` and `entrypoint.py launch` do)."
                " On the host: `nvidia-modprobe -u -c0` makes the device files."
            )
        elif cards:
            seen = f", although the PCI bus lists {cards} GPU(s): no driver is loaded"
            fix = "Install NVIDIA's driver on the host, then look at `nvidia-smi`."
        else:
            seen = ""
            fix = (
                "Use a machine with an NVIDIA GPU, or try the chain without one: `entrypoint.py run smoke`"
                " (with verl 0.9.1: `make smoke-091`)."
            )
        return [
            ABSENT.finding(
                f"no NVIDIA GPU: there is no /dev/nvidia0{seen}",
                why="The recipe's stack trains and generates on NVIDIA GPUs only.",
                fix=fix,
            )
        ]
    if usable is None or len(usable) >= needed:
        return []
    hidden = len(there) - len(usable)
    return [
        ABSENT.finding(
            f"{len(usable)} of the {needed} GPUs that the recipe asks for"
            + (f"; CUDA_VISIBLE_DEVICES hides {hidden}" if hidden else ""),
            why="Ray would wait for the others for ever.",
            fix="Unset CUDA_VISIBLE_DEVICES, or set train.devices to what is there."
            if hidden
            else "Set train.devices to what is there, or use a machine with more.",
        )
    ]


def verl_overrides(devices: int) -> dict[str, object]:
    """verl's settings for this platform; a recipe's own settings come later and win."""
    return {
        "trainer.device": "cuda",
        "actor_rollout_ref.rollout.name": "vllm",  # mandatory in verl 0.6.1 and 0.9.1, and without a default
    }


def environment(seed: int) -> Mapping[str, str]:
    """Environment variables of every verl process on this platform."""
    return {
        "PYTHONPATH": str(ROOT),
        "VLLM_NO_USAGE_STATS": "1",
    }
