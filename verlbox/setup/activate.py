"""The script that a shell sources before runs in an environment that `setup` made."""

from __future__ import annotations

import shlex
from pathlib import Path

from verlbox.doctor import ascend
from verlbox.doctor.machine import Machine
from verlbox.platforms import npu
from verlbox.stacks import Stack

DRIVER = "/usr/local/Ascend/driver/lib64"
# Of the variables that runs set for themselves, those that a script of one's own needs too.
NPU_VARIABLES = ("VLLM_ASCEND_ENABLE_NZ", "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES")


def script(stack: Stack, folder: Path, machine: Machine) -> str:
    """The text of the script, for bash: CANN and NNAL (npu), what RL needs in the environment, the environment itself.

    As in the image: NNAL is told the C++ ABI of the pinned torch, which it would import to find out. Where there is no
    CANN, which stops `setup` (but not its --dry-run), the places are those of its default installation.
    """
    place = shlex.quote(str(folder / "activate"))
    lines = [f"# Written by `entrypoint.py setup {stack.name}`. In bash: source {place}"]
    if stack.platform == "npu":
        if machine.exists(DRIVER):
            places = f"{DRIVER}/driver:{DRIVER}/common:{DRIVER}"
            lines.append(f'export LD_LIBRARY_PATH="{places}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"')
        toolkit = ascend.toolkit(machine) or "/usr/local/Ascend/ascend-toolkit/latest"
        lines.append(f"source {shlex.quote(ascend.set_env(machine, toolkit))}")
        lines.append(f"source {shlex.quote(ascend.nnal_script(toolkit))} --cxx_abi=1")
        variables = npu.environment(seed=0)
        lines += [f"export {name}={shlex.quote(variables[name])}" for name in NPU_VARIABLES]
    lines.append(f"source {shlex.quote(str(folder / 'bin' / 'activate'))}")
    return "\n".join(lines) + "\n"
