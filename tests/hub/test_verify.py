"""Folders on this machine: what makes a model complete, local and bundled sources, progress lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.hub.fake_hub import safetensors, tiny_model
from verlbox.findings import FindingsError
from verlbox.hub import DatasetSpec, ModelSpec, Progress, bundled_names, fetch_dataset, fetch_model, progress_bar
from verlbox.hub.verify import model_findings


def _lay_out(folder: Path) -> Path:
    for name, data in tiny_model().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _problems(folder: Path) -> str:
    return " | ".join(finding.what for finding in model_findings(folder))


def test_a_complete_folder_has_no_findings(tmp_path: Path) -> None:
    assert _problems(_lay_out(tmp_path)) == ""


def test_real_safetensors_files_are_accepted(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    from safetensors.numpy import save_file

    _lay_out(tmp_path)
    for old in tmp_path.glob("model*"):
        old.unlink()
    save_file({"w": numpy.ones((3, 4)), "b": numpy.zeros(0)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert _problems(tmp_path) == ""


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    _lay_out(tmp_path)
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "tokenizer.json").unlink()
    shard = tmp_path / "model-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    problems = _problems(tmp_path)
    assert "config.json is not JSON" in problems
    assert "no tokenizer.json" in problems
    size = shard.stat().st_size
    assert f"model-00001.safetensors has {size} bytes, its header describes {size + 1}" in problems


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "not a safetensors file"),
        (b"<html>no such file</html>", "not a safetensors file"),
        (b"\x02\0\0\0\0\0\0\0[]", "damaged header"),
        (b"\x10\0\0\0\0\0\0\0" + b'{"a":{"x":12345}', "damaged header"),
    ],
)
def test_what_is_no_safetensors_file_is_named(tmp_path: Path, data: bytes, part: str) -> None:
    _lay_out(tmp_path)
    (tmp_path / "model-00001.safetensors").write_bytes(data)
    assert part in _problems(tmp_path)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    _lay_out(tmp_path)
    (tmp_path / "model-00001.safetensors").write_bytes(safetensors({"other": 20_000}))
    assert "1 tensors are not in the shard" in _problems(tmp_path)


def test_an_index_whose_sum_is_wrong_is_named(tmp_path: Path) -> None:
    _lay_out(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["metadata"]["total_size"] = 7
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "the shards hold 50000 bytes" in _problems(tmp_path)


def test_a_local_model_is_checked_and_left_as_it_is(tmp_path: Path) -> None:
    _lay_out(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    fetched = fetch_model(ModelSpec("mine", ("local",), path=tmp_path), tmp_path / "cache", offline=True)
    assert (fetched.path, fetched.source) == (tmp_path, "local")
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "config.json").unlink()
    with pytest.raises(FindingsError, match=r"config\.json is missing"):
        fetch_model(ModelSpec("mine", ("local",), path=tmp_path), tmp_path / "cache")


def test_a_local_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(FindingsError, match="nowhere does not exist"):
        fetch_dataset(DatasetSpec("x", ("local",), path=tmp_path / "nowhere"), tmp_path)


def test_a_local_data_set_is_hashed_by_the_files_that_are_read(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl", "notes.jsonl"):
        (tmp_path / name).write_text("{}\n")
    for path in (tmp_path, tmp_path / "train.jsonl"):
        fetched = fetch_dataset(DatasetSpec("x", ("local",), path=path), tmp_path / "cache")
        assert list(fetched.sha256) == ["test.jsonl", "train.jsonl"]
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(FindingsError, match="has no test split"):
        fetch_dataset(DatasetSpec("x", ("local",), path=tmp_path), tmp_path / "cache")


def test_the_bundled_arithmetic_needs_no_network_and_has_both_splits(tmp_path: Path) -> None:
    fetched = fetch_dataset(DatasetSpec("arithmetic", ("bundled",)), tmp_path, offline=True)
    assert {"train.jsonl", "test.jsonl"} <= set(fetched.sha256)
    assert "arithmetic" in bundled_names("dataset")
    with pytest.raises(FindingsError, match="bundled-unknown"):
        fetch_dataset(DatasetSpec("aritmetic", ("bundled",)), tmp_path)


def test_progress_in_a_pipe_is_one_line_a_tenth() -> None:
    out = io.StringIO()
    with progress_bar(out) as report:
        for done in range(0, 1001):
            report(Progress("mirror", "a/b", done * 2048, 1000 * 2048))
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[-1] == "a/b from mirror: 2.0 of 2.0 MiB (100%)"
