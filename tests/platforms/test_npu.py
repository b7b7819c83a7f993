"""Ascend NPUs: which are there, and what is said when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms.machines import add_card, add_devices
from verlbox.platforms import npu

CONTROL = ("davinci_manager", "devmm_svm", "hisi_hdc")
CARD = ("0x19e5", "0x120000")  # a 910B as lspci shows it: Huawei, processing accelerator
NETWORK = ("0x19e5", "0x020000")  # Huawei makes network cards too


def test_devices_are_numbered_files_and_not_the_control_devices(tmp_path: Path) -> None:
    add_devices(tmp_path, *CONTROL, "davinci0", "davinci10", "davinci2")
    assert npu.devices(tmp_path) == [0, 2, 10]


@pytest.mark.parametrize(
    ("chosen", "usable"), [(None, [0, 1, 2]), ("1", [1]), ("0,2", [0, 2]), ("0, 7", [0]), ("", []), ("-1", [])]
)
def test_ascend_rt_visible_devices_is_respected(tmp_path: Path, chosen: str | None, usable: list[int]) -> None:
    add_devices(tmp_path, "davinci0", "davinci1", "davinci2")
    environment = {} if chosen is None else {"ASCEND_RT_VISIBLE_DEVICES": chosen}
    assert npu.visible(tmp_path, environment) == usable


def test_a_machine_with_a_free_npu_has_no_problem(tmp_path: Path) -> None:
    add_devices(tmp_path, *CONTROL, "davinci0")
    assert npu.problems(1, tmp_path, {}) == []


def test_a_machine_without_an_npu_is_told_to_find_one(tmp_path: Path) -> None:
    add_card(tmp_path, "0000:01:00.0", *NETWORK)
    (problem,) = npu.problems(1, tmp_path, {})
    assert (problem.severity, problem.code) == ("error", "platform-absent")
    assert "/dev/davinci0" in problem.what and "PCI" not in problem.what
    assert "smoke" in problem.fix


def test_a_card_without_device_files_is_a_matter_of_driver_or_container(tmp_path: Path) -> None:
    for slot in ("0000:c1:00.0", "0000:c2:00.0"):
        add_card(tmp_path, slot, *CARD)
    (problem,) = npu.problems(1, tmp_path, {})
    assert "2 card(s)" in problem.what
    assert "--device /dev/davinci0" in problem.fix and "npu-smi" in problem.fix


def test_missing_control_devices_are_named(tmp_path: Path) -> None:
    add_devices(tmp_path, "davinci0", "davinci_manager")
    (problem,) = npu.problems(1, tmp_path, {})
    assert "--device /dev/devmm_svm --device /dev/hisi_hdc" in problem.fix


def test_too_few_npus_are_counted_and_hidden_ones_explained(tmp_path: Path) -> None:
    add_devices(tmp_path, *CONTROL, "davinci0", "davinci1", "davinci2", "davinci3")
    assert npu.problems(4, tmp_path, {}) == []
    (hidden,) = npu.problems(4, tmp_path, {"ASCEND_RT_VISIBLE_DEVICES": "0"})
    assert "1 of the 4" in hidden.what and "hides 3" in hidden.what
    (few,) = npu.problems(8, tmp_path, {})
    assert "4 of the 8" in few.what and "hides" not in few.what


def test_what_reinforcement_learning_on_ascend_needs_is_set() -> None:
    environment = npu.environment(1)
    assert environment["VLLM_ASCEND_ENABLE_NZ"] == "0"
    assert environment["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"] == "1"
    assert npu.verl_overrides(1)["trainer.device"] == "npu"
