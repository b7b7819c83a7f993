from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from verlbox import manifest
from verlbox.doctor import machine
from verlbox.stages import report

TREES = Path(__file__).parents[1] / "doctor" / "trees"
HOST = {"processor": "A processor", "cores": 16, "memory_bytes": 128 * 2**30, "system": "Linux"}


@pytest.mark.parametrize(
    ("kind", "recorded", "name", "gib"),
    [
        ("cuda", "cuda-h200/programs/nvidia-smi-query.txt", "NVIDIA H200", 140.4),
        ("npu", "ascend-910b3/programs/npu-smi-info.txt", "910B3", 64.0),
    ],
)
def test_the_hardware_is_the_accelerator_that_trained(
    kind: str, recorded: str, name: str, gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = machine.Output(0, (TREES / recorded).read_text(encoding="utf-8"), "")
    monkeypatch.setattr(machine, "run_program", lambda command, seconds: said)
    manifest.accelerators.cache_clear()
    try:
        known = {**HOST, "accelerators": list(manifest.accelerators(kind))}
    finally:
        manifest.accelerators.cache_clear()
    found = report._hardware(known, kind, devices=2)
    assert (found.device, found.count) == (name, 2)
    assert found.memory_gib == pytest.approx(gib, abs=0.1)
    assert (found.host, found.cores) == ("A processor, 128 GiB, Linux", 16)


def test_without_a_vendors_tool_no_processor_is_passed_off_as_an_accelerator() -> None:
    found = report._hardware(HOST, "cuda", devices=1)
    assert (found.device, found.memory_gib) == ("cuda", None)
    assert "A processor" in found.host


def test_on_a_cpu_the_processor_and_its_memory_are_the_hardware() -> None:
    found = report._hardware({**HOST, "accelerators": []}, "cpu", devices=1)
    assert (found.device, found.memory_gib, found.host, found.cores) == ("A processor", 128.0, "Linux", 16)


def test_rows_are_counted_by_data_source(tmp_path: Path) -> None:
    table = pyarrow.table({"data_source": ["a", "b", "a"]})
    pyarrow.parquet.write_table(table, tmp_path / "test.parquet")
    assert report._sources(tmp_path / "test.parquet") == {"a": 2, "b": 1}
    assert report._sources(tmp_path / "none.parquet") == {}
