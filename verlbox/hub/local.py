"""Models and data sets that already lie on this machine: checked and hashed, never changed."""

from __future__ import annotations

from pathlib import Path

from verlbox.datasets.files import find as find_split
from verlbox.findings import EXIT_STAGE, Finding, FindingsError, register
from verlbox.hub import verify
from verlbox.hub.spec import DatasetSpec, Fetched, Kind, ModelSpec, Source

MISSING = register("local-not-found", "error", "The path of source: local does not exist.")


def fetch(kind: Kind, spec: ModelSpec | DatasetSpec, path: Path, source: Source) -> Fetched:
    """Checks a folder (or, for a data set, a file) and hashes its files. Raises FindingsError with all problems."""
    if not path.exists() or (kind == "model" and not path.is_dir()):
        raise FindingsError(
            MISSING.finding(
                f"{path} " + ("is not a folder" if path.exists() else "does not exist"),
                why=f"the recipe takes its {kind} from there",
                fix=f"correct {kind}.path",
            )
        )
    if kind == "model":
        if problems := verify.model_findings(path):
            raise FindingsError(problems, exit_code=EXIT_STAGE)
        files = sorted(file for file in path.rglob("*") if _counts(file, path))
    else:
        files = _split_files(path)
    root = path.parent if path.is_file() else path
    sha256 = {file.relative_to(root).as_posix(): verify.hashes(file)[0] for file in files}
    size = sum(file.stat().st_size for file in files)
    return Fetched(path, source, spec.name, "", sha256, verify.digest(sha256), size, from_cache=True)


def _split_files(path: Path) -> list[Path]:
    """The files that preprocess will read; what else lies in the folder is none of the run's business."""
    files: list[Path] = []
    problems: list[Finding] = []
    exit_code = EXIT_STAGE
    for split in ("train", "test"):
        try:
            files += find_split(path, split)
        except FindingsError as error:
            problems += error.findings
            exit_code = error.exit_code
    if problems:
        raise FindingsError(list(dict.fromkeys(problems)), exit_code=exit_code)
    return sorted(set(files))


def _counts(file: Path, root: Path) -> bool:
    """Files a program could read; not a repository's bookkeeping, nor other hidden files."""
    return file.is_file() and not any(part.startswith(".") for part in file.relative_to(root).parts)
