"""A recorded machine (trees/) that a test can change before the doctor looks at it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from verlbox import pins
from verlbox.doctor.machine import Machine, Output, Reply, Space
from verlbox.doctor.subject import Subject
from verlbox.recipe import Recipe
from verlbox.stacks import STACKS

TREES = Path(__file__).with_name("trees")
NOW = 1_796_000_000.0  # 2026-11-30
USER = 54_321  # owns none of the files: the group decides


_shared = tempfile.TemporaryDirectory(prefix="verlbox-recorded-")


def describe(site: Path, name: str, version: str, *requires: str) -> None:
    """Writes a package's metadata into a folder of installed packages."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    (folder / "METADATA").write_text("\n".join(lines) + "\n\nRequires-Dist: not a header\n")


@cache
def pinned_set(stack: str, architecture: str) -> Path:
    """A folder with the metadata of all that a stack pins; shared by all tests, which do not change it."""
    folder = Path(_shared.name, f"{stack}-{architecture}")
    for name, version in pins.pinned(STACKS[stack], architecture).items():
        describe(folder, name, version)
    return folder


class Recorded:
    """A copy of a recorded tree. Its fields and files may be changed; `subject()` is what the doctor looks at."""

    def __init__(self, tree: str, folder: Path) -> None:
        data: dict[str, Any] = yaml.safe_load((TREES / tree / "machine.yaml").read_text())
        self.root = folder / "root"
        shutil.copytree(TREES / tree / "root", self.root)
        self.tree = TREES / tree
        self.stack = STACKS[data["stack"]]
        self.architecture: str = data["architecture"]
        self.python: str = data["python"]
        self.glibc: str | None = data["glibc"]
        self.home: str = data["home"]
        self.environment: dict[str, str] = data["environment"]
        self.spaces: dict[str, list[int]] = data["spaces"]
        self.programs: dict[str, dict[str, Any]] = data["programs"]
        self.modes: dict[str, str] = data["modes"]
        self.replies: dict[str, Reply] = {}
        self.answer_after = 0.0  # seconds
        self.imports: dict[str, list[str]] = {}
        self.import_death: tuple[str, int] | None = None
        self.uid = USER
        self.groups = frozenset({(self.root / "tmp").stat().st_gid})
        self.now = NOW
        self.devices = 1
        self.recipe: Recipe | None = None
        self.asked: list[str] = []
        self.site = folder / "site-packages"  # comes before the folder of the pinned set
        (self.site / "vllm").mkdir(parents=True)
        if self.stack.platform == "cuda":  # as the wheel of vllm 0.24.0 has it
            (self.site / "vllm" / "_C_stable_libtorch.abi3.so").touch()
        self.pinned = pinned_set(self.stack.name, self.architecture) if data.get("installed", True) else None
        self.folder = folder

    def install(self, name: str, version: str, *requires: str) -> None:
        """Puts the metadata of a package into site-packages, in place of the pinned one of that name."""
        describe(self.site, name, version, *requires)

    def uninstall(self, name: str) -> None:
        """Takes a pinned package away."""
        assert self.pinned
        rest = Path(tempfile.mkdtemp(dir=self.folder))
        for folder in self.pinned.iterdir():
            if not folder.name.startswith(f"{name}-"):
                (rest / folder.name).symlink_to(folder)
        self.pinned = rest

    def write(self, place: str, text: str) -> None:
        path = self.root / place.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def replace(self, place: str, old: str, new: str) -> None:
        path = self.root / place.lstrip("/")
        text = path.read_text()
        assert old in text, f"{place} does not hold {old!r}"
        path.write_text(text.replace(old, new))

    def remove(self, place: str) -> None:
        path = self.root / place.lstrip("/")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def _program(self, command: Sequence[str], seconds: float) -> Output | None:
        if command[1].endswith("probe.py"):
            return self._probe(command[2:])
        said = self.programs.get(" ".join(command[:2])) or self.programs.get(command[0])
        if said is None:
            return None
        text = (self.tree / "programs" / said["file"]).read_text() if "file" in said else said.get("out", "")
        return Output(said.get("code", 0), text, said.get("err", ""))

    def _probe(self, modules: Sequence[str]) -> Output:
        lines: list[str] = []
        for name in modules:
            if self.import_death and self.import_death[0] == name:
                return Output(self.import_death[1], "\n".join(lines), "Fatal Python error: Segmentation fault")
            lines.append(json.dumps({"module": name, "seconds": 0.1, "causes": self.imports.get(name, [])}))
        return Output(0, "\n".join(lines), "")

    def _space(self, path: str) -> Space | None:
        place = "/" + os.path.relpath(path, self.root).lstrip(".")
        fitting = [name for name in self.spaces if place == name or place.startswith(name.rstrip("/") + "/")]
        total, free = self.spaces[max(fitting, key=len)]
        return Space(total, free)

    def _ask(self, url: str, seconds: float) -> Reply:
        self.asked.append(url)
        time.sleep(self.answer_after)
        return self.replies.get(url, Reply(200, date=self.now))

    def machine(self) -> Machine:
        for place, mode in self.modes.items():
            path = self.root / place.lstrip("/")
            if path.exists():
                path.chmod(int(mode, 8))
        major, minor = self.python.split(".")[:2]
        return Machine(
            environment=self.environment,
            python=self.python,
            architecture=self.architecture,
            glibc=self.glibc,
            home=self.home,
            uid=self.uid,
            groups=self.groups,
            now=self.now,
            root=self.root,
            sites=tuple(str(place) for place in (self.site, self.pinned) if place),
            markers={"python_version": f"{major}.{minor}", "python_full_version": self.python},
            program=self._program,
            space=self._space,
            ask=self._ask,
        )

    def subject(self) -> Subject:
        return Subject(
            machine=self.machine(),
            stack=self.stack,
            runs="/data/results",
            cache="/data/cache",
            devices=self.devices,
            recipe=self.recipe,
        )
