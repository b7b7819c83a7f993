"""What a node of a Ray cluster says of itself; the whole look at a cluster runs in tests/e2e/test_cluster.py."""

from __future__ import annotations

import hashlib
from pathlib import Path

from verlbox.cluster import probe


def put_token(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / ".verlbox-abc").write_text(content)


def test_a_shared_folder_is_one_where_the_drivers_file_is_and_the_nodes_can_be_written(tmp_path: Path) -> None:
    put_token(tmp_path / "shared", "abc")
    put_token(tmp_path / "namesake", "another run's")
    (tmp_path / "empty").mkdir()
    folders = [str(tmp_path / name) for name in ("shared", "namesake", "empty", "absent")]
    trouble = probe.look(folders, "abc", "node1", [])["trouble"]
    assert trouble == {
        folders[1]: "another folder of the same name",
        folders[2]: "No such file or directory",
        folders[3]: "No such file or directory",
    }
    assert (tmp_path / "shared" / ".verlbox-abc.node1").read_text() == "abc"
    for folder in folders:
        probe._remove(folder, "abc")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_files_are_told_by_their_content_and_absent_ones_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    files = [str(tmp_path / "a.py"), str(tmp_path / "b.py")]
    seen = probe.look([], "abc", "node1", files)
    assert seen["hashes"] == {files[0]: hashlib.sha256(b"x = 1").hexdigest(), files[1]: None}
    assert seen["versions"]["python"].startswith("3.")


def test_enough_nodes_have_all_of_what_is_needed_on_one() -> None:
    request = {"needed": {"CPU": 3, "GPU": 1}, "nodes": 2}
    whole, cpu, gpu = {"CPU": 3.0, "GPU": 1.0}, {"CPU": 9.0}, {"CPU": 2.0, "GPU": 8.0}
    assert probe._enough([whole, cpu, whole, gpu], request)
    assert not probe._enough([whole, cpu, gpu], request)
