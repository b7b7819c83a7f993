"""NVIDIA GPUs: which are there, and what is said when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms.machines import add_card, add_devices
from verlbox.platforms import cuda

SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
GPU, BRIDGE = ("0x10de", "0x030200"), ("0x10de", "0x068000")  # an H200, and an NVSwitch
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)  Sun Jul 27\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)


def load_driver(root: Path) -> None:
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(VERSION)


def test_devices_are_numbered_files_and_not_the_shared_ones(tmp_path: Path) -> None:
    add_devices(tmp_path, *SHARED, "nvidia0", "nvidia10", "nvidia2")
    assert cuda.devices(tmp_path) == [0, 2, 10]


def test_windows_subsystem_has_its_one_way_to_the_gpu(tmp_path: Path) -> None:
    add_devices(tmp_path, "dxg")
    assert cuda.devices(tmp_path) == []  # every WSL 2 has that file; the library is what a GPU driver brings
    (tmp_path / "usr/lib/wsl/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/wsl/lib/libcuda.so.1").touch()
    assert cuda.devices(tmp_path) == [0]


@pytest.mark.parametrize(
    ("chosen", "usable"),
    [
        *((None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("", []), ("-1", [])),
        ("0,7,1", [0]),  # CUDA stops at the first number that is not there
        ("GPU-5ebe9f43-ac33-420d-9628-2af0d31d2a17", None),
    ],
)
def test_cuda_visible_devices_is_respected(tmp_path: Path, chosen: str | None, usable: list[int] | None) -> None:
    add_devices(tmp_path, "nvidia0", "nvidia1")
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert cuda.visible(tmp_path, environment) == usable


def test_the_driver_version_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert cuda.driver(tmp_path) is None
    load_driver(tmp_path)
    assert cuda.driver(tmp_path) == "580.65.06"


def test_a_machine_with_a_free_gpu_has_no_problem(tmp_path: Path) -> None:
    add_devices(tmp_path, *SHARED, "nvidia0")
    assert cuda.problems(1, tmp_path, {}) == []
    assert cuda.problems(1, tmp_path, {"CUDA_VISIBLE_DEVICES": "GPU-5ebe9f43"}) == []


def test_a_machine_without_a_gpu_is_told_to_find_one(tmp_path: Path) -> None:
    add_card(tmp_path, "0000:05:00.0", *BRIDGE)
    (problem,) = cuda.problems(1, tmp_path, {})
    assert (problem.severity, problem.code) == ("error", "platform-absent")
    assert "PCI" not in problem.what and "smoke" in problem.fix


def test_a_card_without_a_driver_asks_for_the_driver(tmp_path: Path) -> None:
    add_card(tmp_path, "0000:01:00.0", *GPU)
    (problem,) = cuda.problems(1, tmp_path, {})
    assert "no driver is loaded" in problem.what and "driver" in problem.fix


def test_a_driver_without_device_files_is_a_container_without_its_gpus(tmp_path: Path) -> None:
    add_card(tmp_path, "0000:01:00.0", *GPU)
    load_driver(tmp_path)
    (problem,) = cuda.problems(1, tmp_path, {})
    assert "580.65.06" in problem.what and "--gpus all" in problem.fix


def test_too_few_gpus_are_counted_and_hidden_ones_explained(tmp_path: Path) -> None:
    add_devices(tmp_path, "nvidia0", "nvidia1")
    (hidden,) = cuda.problems(2, tmp_path, {"CUDA_VISIBLE_DEVICES": "0"})
    assert "1 of the 2" in hidden.what and "hides 1" in hidden.what
    (few,) = cuda.problems(4, tmp_path, {})
    assert "2 of the 4" in few.what and "hides" not in few.what
