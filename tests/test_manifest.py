"""What the manifest says of verlbox's own sources: from git, or from what an image was told when it was built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from verlbox import manifest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("told", "commit", "dirty"),
    [
        (COMMIT, COMMIT, False),
        (f"{COMMIT}-dirty", COMMIT, True),
        ("unknown", None, None),
        ("", None, None),
    ],
)
def test_without_git_the_source_is_what_the_image_was_told(
    told: str, commit: str | None, dirty: bool | None, tmp_path: Path
) -> None:
    found = manifest.source(tmp_path, {"VERLBOX_REVISION": told})
    assert (found["commit"], found["dirty"]) == (commit, dirty)


def test_git_counts_before_what_the_environment_says(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", "-C", str(tmp_path), *who, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "file").touch()
    git("add", "file")
    git("commit", "--quiet", "--message", "first")
    found = manifest.source(tmp_path, {"VERLBOX_REVISION": COMMIT})
    assert (found["commit"], found["dirty"]) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "another").touch()
    assert manifest.source(tmp_path, {})["dirty"] is True


def test_of_two_versions_of_a_package_the_one_that_is_imported_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment over a base image's packages: what it installs comes first on the path."""
    for folder, name, version in (("own", "a_package", "1.0"), ("base", "A-Package", "2.0"), ("base", "other", "3.0")):
        info = tmp_path / folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "own"), str(tmp_path / "base")])
    assert manifest.package_versions() == {"a_package": "1.0", "other": "3.0"}
