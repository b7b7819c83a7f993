"""Which accelerators a container gets: recorded hosts, no accelerator needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from verlbox.container import devices
from verlbox.container.devices import Found
from verlbox.doctor.machine import Machine, Output, here

NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 95.8        45                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          51213/ 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 95.8        45                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          3413 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 4711          | python                   | 47813                   |
+===========================+===============+====================================================+
"""
NVIDIA_SMI = "0, NVIDIA H200, 143771, 120000, 580.65.06, 9.0\n1, NVIDIA H200, 143771, 0, 580.65.06, 9.0\n"


def _machine(root: Path, said: str = "") -> Machine:
    def program(command: Sequence[str], seconds: float) -> Output | None:
        return Output(0, said, "") if said else None

    return replace(here(), root=root, program=program)


@pytest.fixture
def npu_host(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "usr/local/Ascend/driver/lib64").mkdir(parents=True)
    (tmp_path / "usr/local/Ascend/driver/version.info").touch()
    (tmp_path / "usr/local/dcmi").mkdir()
    return tmp_path


def test_a_free_npu_is_chosen_with_all_that_a_container_needs_of_the_driver(npu_host: Path) -> None:
    machine = _machine(npu_host, NPU_SMI)
    found = devices.look("npu", machine, {})
    assert found == Found((0, 1), {0: "1 processes"})
    numbers, problems = devices.choose(found, 1, None)
    assert (numbers, problems) == ((1,), [])
    chosen, missing = devices.chosen("npu", numbers, machine)
    assert missing == []
    assert chosen.files == ("/dev/davinci1", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
    assert chosen.mounts == (
        "/usr/local/Ascend/driver/lib64",
        "/usr/local/Ascend/driver/version.info",
        "/usr/local/dcmi",
    )
    assert chosen.groups == (os.getgid(),)


def test_a_missing_driver_is_named_and_its_mounts_stay_in_the_command(npu_host: Path) -> None:
    (npu_host / "usr/local/Ascend/driver/version.info").unlink()
    (npu_host / "dev/hisi_hdc").unlink()
    chosen, missing = devices.chosen("npu", [0], _machine(npu_host))
    assert [f.code for f in missing] == ["driver-mount-missing"]
    assert missing[0].what == "/usr/local/Ascend/driver/version.info, /dev/hisi_hdc is not there"
    assert "/usr/local/Ascend/driver/version.info" in chosen.mounts


def test_a_gpu_whose_memory_is_in_use_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for number in (0, 1):
        (tmp_path / f"dev/nvidia{number}").touch()
    found = devices.look("cuda", _machine(tmp_path, NVIDIA_SMI), {})
    assert found == Found((0, 1), {0: "117.2 of 140 GiB used"})
    assert devices.choose(found, 1, None) == ((1,), [])


def test_devices_of_our_own_containers_are_in_use_before_their_memory_is(npu_host: Path) -> None:
    found = devices.look("npu", _machine(npu_host), {1: "container verlbox-other"})
    assert devices.choose(found, 1, None) == ((0,), [])
    _, problems = devices.choose(found, 1, [1])
    assert [(f.code, f.severity, f.fix) for f in problems] == [("device-busy", "error", "--devices 0")]


@pytest.mark.parametrize(
    ("found", "needed", "asked", "codes"),
    [
        (Found((), {}), 1, None, ["platform-absent"]),
        (Found((0,), {}), 2, None, ["platform-absent"]),
        (Found((0, 1), {0: "x", 1: "y"}), 1, None, ["device-busy"]),
        (Found((0, 1), {}), 1, [5], ["platform-absent"]),
        (Found((0, 1), {1: "x"}), 2, [1, 5], ["platform-absent", "device-busy"]),
        (Found((0, 1), {}), 1, [0, 1], ["platform-absent"]),
    ],
)
def test_devices_that_cannot_be_had_are_errors(
    found: Found, needed: int, asked: list[int] | None, codes: list[str]
) -> None:
    _, problems = devices.choose(found, needed, asked)
    assert [f.code for f in problems] == codes
    assert all(f.severity == "error" and f.fix for f in problems)
