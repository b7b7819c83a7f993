from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verlbox.findings import FindingsError
from verlbox.run import Marker, Run, changes, place, replacing, set_aside, write_atomic


def marker(run: Run, **inputs: object) -> Marker:
    return Marker("train", "done", inputs, run.records([run.path / "out"]))


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, "old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with replacing(folder) as new:
        (new / "a").write_text("1")
    with pytest.raises(RuntimeError), replacing(folder) as new:
        (new / "a").write_text("2")
        raise RuntimeError
    assert (folder / "a").read_text() == "1"
    with replacing(folder) as new:
        (new / "b").write_text("3")
    assert [p.name for p in folder.iterdir()] == ["b"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_marker_survives_its_file(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / "out").write_text("content")
    run.write_marker(marker(run, epochs=1))
    read = run.marker("train")
    assert read == marker(run, epochs=1)
    assert read is not None and run.intact(read)


def test_an_output_that_changed_or_vanished_is_noticed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / "out").write_text("content")
    made = marker(run)
    os.utime(tmp_path / "out", (1, 1))
    assert run.intact(made), "a new time with the same content is no change"
    (tmp_path / "out").write_text("CONTENT")
    assert not run.intact(made)
    (tmp_path / "out").unlink()
    assert not run.intact(made)


def test_a_damaged_marker_is_a_finding(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_atomic(run.marker_path("train"), '{"stage": "train"')
    with pytest.raises(FindingsError, match="run-unreadable"):
        run.marker("train")


def test_changes_name_the_inputs_that_differ(tmp_path: Path) -> None:
    made = Marker("train", "done", {"a": 1, "b": [1, 2], "upstream.data": "x"})
    found = changes(made, {"a": 2, "b": (1, 2), "c": None, "upstream.data": "y"})
    assert [(c.key, c.before, c.after) for c in found] == [("a", 1, 2), ("c", "(absent)", None)]


def test_a_second_process_on_the_run_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    with run.locked():
        code = (
            f"from verlbox.run import Run; from pathlib import Path\nwith Run(Path({str(run.path)!r})).locked(): pass"
        )
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "run-locked" in other.stderr
    assert str(os.getpid()) in other.stderr
    with run.locked():
        pass


def test_setting_aside_never_overwrites(tmp_path: Path) -> None:
    for content in ("1", "2"):
        (tmp_path / "x").write_text(content)
        set_aside(tmp_path / "x", tmp_path / "shelf")
    assert {p.name: p.read_text() for p in (tmp_path / "shelf").iterdir()} == {"x": "1", "x.1": "2"}


def test_markers_are_readable_json(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / "out").write_text("content")
    run.write_marker(marker(run, epochs=1))
    content = json.loads(run.marker_path("train").read_text())
    assert content["outputs"]["out"]["sha256"] == "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", ".hidden", "", " ", ".."])
def test_a_runs_name_does_not_lead_out_of_the_folder_of_runs(name: str, tmp_path: Path) -> None:
    with pytest.raises(FindingsError) as error:
        place(str(tmp_path), name)
    assert (error.value.findings[0].code, error.value.exit_code) == ("run-name", 2)


def test_any_other_name_is_a_folder_beside_the_others(tmp_path: Path) -> None:
    assert place(str(tmp_path), "Seed 2 (again)").path == tmp_path / "Seed 2 (again)"
