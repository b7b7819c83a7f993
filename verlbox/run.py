"""The run directory: lock, atomic writes, content hashes, stage markers and drift.

A stage counts as done when its marker exists, says so, and the files it names still have the content it names. The
marker is written last, so that a crash at any moment leaves a run that the same command continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from verlbox import findings
from verlbox.findings import EXIT_USAGE, FindingsError

RUN_LOCKED = findings.register("run-locked", "error", "Another process is working on the same run directory.")
RUN_NAME = findings.register("run-name", "error", "A run's name is no name of a folder.")
RUN_UNREADABLE = findings.register("run-unreadable", "error", "A run directory is missing, or a file in it is damaged.")

STAGES = ("download", "preprocess", "train", "merge", "evaluate", "report")  # a run's stages, in their order

State = Literal["running", "done", "failed", "interrupted"]
RUNS_VARIABLE = "VERLBOX_RUNS"  # where runs are kept; ./runs when unset


@dataclass(frozen=True)
class FileRecord:
    """What is known of an output file: size in bytes, time of change in ns, and content hash."""

    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True)
class Marker:
    """What a stage leaves behind. Paths in `outputs` are relative to the run directory, or absolute outside it."""

    stage: str
    state: State
    inputs: Mapping[str, Any]
    outputs: Mapping[str, FileRecord] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    finished: str = ""
    findings: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Change:
    """One input of a stage that is not what it was when the stage ran."""

    stage: str
    key: str
    before: object
    after: object


# --- writing ------------------------------------------------------------------------------------------------------


def fsync_directory(path: Path) -> None:
    """Makes renames in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a file so that readers see the old content or the new, never a part (temporary name, fsync, rename)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content.encode("utf-8") if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def write_json(path: Path, value: object) -> None:
    write_atomic(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Gives an empty folder to fill, and puts it in the place of `folder` when the block ends well.

    Every file is fsynced before the rename. The folder that was there before is removed only after the new one stands.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.new")
    previous = folder.with_name(f".{folder.name}.old")
    for leftover in (temporary, previous):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                with path.open("rb") as stream:
                    os.fsync(stream.fileno())
            elif path.is_dir():
                fsync_directory(path)
        fsync_directory(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(previous)
    temporary.rename(folder)
    fsync_directory(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def set_aside(path: Path, shelf: Path) -> Path:
    """Moves a file or folder to `shelf` under a free name, and returns where it is now: nothing is deleted."""
    shelf.mkdir(parents=True, exist_ok=True)
    number = 0
    while (target := shelf / (path.name if number == 0 else f"{path.name}.{number}")).exists():
        number += 1
    path.rename(target)
    fsync_directory(shelf)
    return target


# --- hashing ------------------------------------------------------------------------------------------------------


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def record(path: Path, known: FileRecord | None = None) -> FileRecord:
    """The record of a file; its content is read only when size or time differ from what is `known` already."""
    status = path.stat()
    if known is not None and (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns):
        return known
    return FileRecord(status.st_size, status.st_mtime_ns, sha256_of(path))


def digest(records: Mapping[str, FileRecord]) -> str:
    """One hash over names and contents of files, whatever their times."""
    lines = "".join(f"{name}\0{item.sha256}\n" for name, item in sorted(records.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


# --- the directory ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The directory of one execution of a recipe."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def tag(self) -> str:
        """What marks the processes of this run (see process.py): its place, which no other run shares."""
        return str(self.path)

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation"

    @property
    def report(self) -> Path:
        return self.path / "report"

    def marker_path(self, stage: str) -> Path:
        return self.path / "stages" / f"{stage}.json"

    def marker(self, stage: str) -> Marker | None:
        """The marker of a stage, or None. Raises FindingsError when the file is there but damaged."""
        path = self.marker_path(stage)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            outputs = {name: FileRecord(**item) for name, item in content.pop("outputs").items()}
            return Marker(outputs=outputs, **content)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FindingsError(
                RUN_UNREADABLE.finding(
                    f"the marker {path} is damaged ({error})",
                    why="verlbox cannot tell whether the stage was done.",
                    fix=f"Remove {path}; the stage then runs again.",
                )
            ) from error

    def write_marker(self, marker: Marker) -> None:
        write_json(self.marker_path(marker.stage), asdict(marker))

    def resolve(self, name: str) -> Path:
        """The path of an output as a marker names it."""
        return self.path / name

    def output_name(self, path: Path) -> str:
        """How a marker names a file: relative to the run where it lies inside, absolute elsewhere."""
        return str(path.relative_to(self.path)) if path.is_relative_to(self.path) else str(path)

    def records(self, paths: Iterable[Path], known: Mapping[str, FileRecord] | None = None) -> dict[str, FileRecord]:
        """Records of files, and of all files inside folders, keyed by output name."""
        files: list[Path] = []
        for path in paths:
            files += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        names = {self.output_name(path): path for path in files}
        return {name: record(path, (known or {}).get(name)) for name, path in names.items()}

    def intact(self, marker: Marker) -> bool:
        """Whether every output of a marker is there with the content the marker names."""
        for name, known in marker.outputs.items():
            try:
                if record(self.resolve(name), known).sha256 != known.sha256:
                    return False
            except OSError:
                return False
        return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run for this process. Raises FindingsError when another process holds it.

        The kernel releases the lock when the holder dies, however it dies. The descriptor is closed in children, so
        a child that outlives this process cannot keep the run locked.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                stream.seek(0)
                holder = stream.read().strip() or "unknown"
                raise FindingsError(
                    RUN_LOCKED.finding(
                        f"the run {self.path} is in use by process {holder}",
                        why="Two processes on one run would destroy each other's files.",
                        fix="Wait for it, stop it, or give this run another name with --name.",
                    ),
                    EXIT_USAGE,
                ) from error
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
            yield


def runs_folder(option: str | None) -> Path:
    return Path(option or os.environ.get(RUNS_VARIABLE) or "runs").resolve()


def place(option: str | None, name: str) -> Run:
    """Where a run of this name is or will be. Raises FindingsError for a name that leads out of the folder of runs."""
    if not name.strip() or name.startswith(".") or "/" in name or "\0" in name:
        raise FindingsError(
            RUN_NAME.finding(
                f"--name {name!r} is not the name of a folder",
                why="Runs lie side by side in one folder.",
                fix="Take a name without a slash and not beginning with a dot; --runs says where the runs are.",
            ),
            EXIT_USAGE,
        )
    return Run(runs_folder(option) / name)


def open_run(name: str, folder: Path) -> Run:
    """An existing run, by path or by name. Raises FindingsError when there is none."""
    for candidate in (Path(name), folder / name):
        if (candidate / "recipe.resolved.yaml").is_file():
            return Run(candidate.resolve())
    present = sorted(p.parent.name for p in folder.glob("*/recipe.resolved.yaml"))
    raise FindingsError(
        RUN_UNREADABLE.finding(
            f"no run {name}",
            why=f"Neither {name} nor {folder / name} is a run directory.",
            fix=f"Runs here: {', '.join(present) or 'none'}.",
        )
    )


# --- drift --------------------------------------------------------------------------------------------------------

UPSTREAM = "upstream."  # inputs that only restate an earlier stage's outputs


def changes(marker: Marker, inputs: Mapping[str, Any]) -> list[Change]:
    """The inputs of a stage that differ from those in its marker, without mere consequences of earlier stages."""
    after = json.loads(json.dumps(inputs))  # as the marker would hold it
    keys = sorted({*marker.inputs, *after})
    absent = "(absent)"
    pairs = ((key, marker.inputs.get(key, absent), after.get(key, absent)) for key in keys)
    return [Change(marker.stage, k, a, b) for k, a, b in pairs if a != b and not k.startswith(UPSTREAM)]
