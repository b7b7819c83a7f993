"""Getting a model or a data set: sources in order, one shared cache, nothing used before it is checked.

Layout of the cache, shared by all runs:
    <cache>/models/Qwen--Qwen2.5-0.5B-Instruct/<revision>/           complete, checked, with .verlbox-files.json
    <cache>/models/Qwen--Qwen2.5-0.5B-Instruct/.partial-<revision>/  a download that has not ended; it is gone on with
    <cache>/models/Qwen--Qwen2.5-0.5B-Instruct/.client/              what a hub's client writes for itself; removed
    <cache>/models/Qwen--Qwen2.5-0.5B-Instruct/.lock                 held while one process looks or downloads
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from verlbox import run
from verlbox.datasets.files import find as find_split
from verlbox.findings import EXIT_STAGE, EXIT_USAGE, Code, Finding, FindingsError, register
from verlbox.hub import bundled, client, local, random_weights, verify
from verlbox.hub.client import redacted
from verlbox.hub.spec import (
    MODELSCOPE_NAMES,
    RECORD,
    DatasetSpec,
    Fetched,
    HubFile,
    Kind,
    Listing,
    ModelSpec,
    Patience,
    Progress,
    Repository,
    Source,
)
from verlbox.hub.trouble import Failure, Trouble

DENIED = register(
    "hub-denied", "error", "A hub refuses access: the token is missing or wrong, or terms are not accepted."
)
NOT_FOUND = register("hub-not-found", "error", "A hub has no such repository or revision.")
UNUSABLE = register(
    "hub-unusable", "error", "A repository lacks what a run needs, or lists files that are not its own."
)
UNREACHABLE = register("hub-unreachable", "error", "A hub does not answer, or stopped in the middle.")
DAMAGED = register("hub-damaged", "error", "What a hub delivered is not what it lists.")
DISK_FULL = register("hub-disk-full", "error", "The disk has too little room for a download.")
OFFLINE = register("hub-offline", "error", "Working offline, and a file is not in the cache.")
FALLBACK = register("hub-source-failed", "warning", "A source failed and a later one was used.")
REPAIRED = register("hub-cache-damaged", "warning", "A file in the cache had changed and was fetched again.")
STALE = register("hub-not-asked", "warning", "No hub could be asked for the newest revision; the cached one was used.")

_CODES: dict[Failure, Code] = {
    Failure.DENIED: DENIED,
    Failure.NOT_FOUND: NOT_FOUND,
    Failure.REFUSED: DENIED,
    Failure.UNUSABLE: UNUSABLE,
    Failure.UNREACHABLE: UNREACHABLE,
    Failure.TRANSIENT: UNREACHABLE,
    Failure.DAMAGED: DAMAGED,
    Failure.DISK_FULL: DISK_FULL,
}
_RECOVERABLE = {Failure.UNREACHABLE, Failure.TRANSIENT, Failure.DAMAGED}

# Left free beside a download, for everything else that a machine writes meanwhile.
SPARE_BYTES = 256 * 1024 * 1024

# Weights in other formats than safetensors, and other frameworks' copies.
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.tflite", "*.ot")
_NEVER = (".git*", "*/.git*", "*.py", "*.ipynb", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp", "*.mp4")

DEFAULT_PATIENCE = Patience()

Report = Callable[[Progress], None]
Spec = ModelSpec | DatasetSpec


@dataclass(frozen=True)
class _Errand:
    """What is to be fetched, where it belongs (`shelf`: all revisions of one repository), how to wait and to report."""

    kind: Kind
    spec: Spec
    shelf: Path
    progress: Report | None
    patience: Patience


def fetch_model(
    spec: ModelSpec,
    cache: Path,
    *,
    offline: bool = False,
    progress: Report | None = None,
    endpoints: Mapping[Source, str] | None = None,
    patience: Patience = DEFAULT_PATIENCE,
) -> Fetched:
    """The model of a recipe as a folder that transformers loads, every file checked.

    `endpoints` replaces the hubs' addresses (default: `client.endpoints()`, which reads HF_ENDPOINT and
    MODELSCOPE_DOMAIN). HF_HUB_OFFLINE=1 in the environment means `offline`. Raises FindingsError with what each source
    said when none delivers.
    """
    errand = _Errand("model", spec, _shelf("model", spec, cache), progress, patience)
    return _fetch(errand, offline, endpoints)


def fetch_dataset(
    spec: DatasetSpec,
    cache: Path,
    *,
    offline: bool = False,
    progress: Report | None = None,
    endpoints: Mapping[Source, str] | None = None,
    patience: Patience = DEFAULT_PATIENCE,
) -> Fetched:
    """The data set of a recipe as a folder (or a local file) for verlbox.datasets; else as fetch_model."""
    errand = _Errand("dataset", spec, _shelf("dataset", spec, cache), progress, patience)
    return _fetch(errand, offline, endpoints)


def is_offline(asked: bool) -> bool:
    """Whether no hub may be asked: the command line says so, or HF_HUB_OFFLINE does."""
    return asked or os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in {"1", "true", "yes", "on"}


def wanted_files(kind: Kind, listing: Listing) -> list[HubFile]:
    """The files of a repository that are needed: for a model one set of weights, safetensors where there is one."""
    files = [file for file in listing.files if not _matches(file.path, _NEVER)]
    if kind == "dataset":
        data = ("*.jsonl", "*.json", "*.parquet", "*.gz", "README*", "LICENSE*")
        return [file for file in files if _matches(file.path.rpartition("/")[2], data)]
    top = [file for file in files if "/" not in file.path]  # subfolders hold other formats: onnx/, original/
    if any(file.path.endswith(".safetensors") for file in top):
        return [file for file in top if not _matches(file.path, _OTHER_WEIGHTS)]
    return [
        file for file in top if not _matches(file.path, _OTHER_WEIGHTS) or fnmatch.fnmatch(file.path, "pytorch*.bin")
    ]


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def _shelf(kind: Kind, spec: Spec, cache: Path) -> Path:
    return cache / f"{kind}s" / spec.name.replace("/", "--")


def _fetch(errand: _Errand, offline: bool, endpoints: Mapping[Source, str] | None) -> Fetched:
    kind, spec = errand.kind, errand.spec
    if "bundled" in spec.sources:
        return local.fetch(kind, spec, bundled.path(kind, spec.name), "bundled")
    if "local" in spec.sources or "random" in spec.sources:
        if spec.path is None:
            raise ValueError(f"{spec.name}: source {spec.sources[0]} without a path")
        if "random" in spec.sources:
            made = random_weights.path(spec.name, spec.path, errand.shelf.parents[1])
            return local.fetch(kind, spec, made, "random")
        return local.fetch(kind, spec, spec.path, "local")
    if is_offline(offline):
        return _from_cache_only(kind, spec, errand.shelf)
    errand.shelf.mkdir(parents=True, exist_ok=True)
    with _locked(errand):
        return _from_hubs(errand, endpoints or client.endpoints())


@contextlib.contextmanager
def _locked(errand: _Errand) -> Iterator[None]:
    """One process at a time for a repository. The lock is the kernel's: it goes with the process that holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(errand.shelf / ".lock")
    while True:
        try:
            lock.acquire(timeout=1)
            break
        except Timeout:  # another run is downloading it: its bytes are our progress too
            if errand.progress:
                here = _bytes_here(errand.shelf)
                errand.progress(Progress(errand.spec.sources[0], errand.spec.name, here, 0))
    try:
        yield
    finally:
        lock.release()


def _from_hubs(errand: _Errand, endpoints: Mapping[Source, str]) -> Fetched:
    """The sources in order. Raises FindingsError with what each said."""
    kind, spec = errand.kind, errand.spec
    notes: list[Finding] = []
    kept = _complete(errand.shelf, spec)
    if kept and spec.revision is not None:
        damage = _check(kind, *kept)
        if not damage:
            return _fetched(spec, *kept, from_cache=True)
        notes.append(_repaired(kept[0], damage))
        _back_to_partial(kept[0], damage)
    failures: list[tuple[Source, str, Trouble]] = []
    asked: set[str] = set()
    for source in spec.sources:
        endpoint = endpoints[source].rstrip("/")
        if endpoint in asked:  # HF_ENDPOINT makes `huggingface` and `mirror` the same address
            continue
        asked.add(endpoint)
        try:
            fetched = _from_hub(errand, source, endpoint)
        except Trouble as trouble:
            failures.append((source, endpoint, trouble))
            if trouble.failure is Failure.DISK_FULL:
                break  # another source needs the same room
            continue
        notes += [_said(kind, spec, *failure, as_note=True) for failure in failures]
        return replace(fetched, findings=(*notes, *fetched.findings))
    unreachable = all(trouble.failure in (Failure.UNREACHABLE, Failure.TRANSIENT) for _, _, trouble in failures)
    if kept and unreachable and spec.revision is None and not _check(kind, *kept):
        stale = STALE.finding(
            f"{spec.name}: no hub answers, the cached revision {kept[1]['revision']} is used",
            why="the newest revision cannot be asked for",
            fix="pin the revision in the recipe, or work with --offline, to make this certain",
        )
        return replace(_fetched(spec, *kept, from_cache=True), findings=(stale,))
    raise FindingsError([_said(kind, spec, *failure) for failure in failures] + notes, exit_code=EXIT_STAGE)


def _from_hub(errand: _Errand, source: Source, endpoint: str) -> Fetched:
    """One source, with its attempts. Raises the last Trouble."""
    wait = errand.patience.first_wait_seconds
    attempt = 0
    while True:
        attempt += 1
        try:
            return _attempt(errand, source, endpoint)
        except Trouble as trouble:
            if trouble.failure not in _RECOVERABLE or attempt >= _attempts(trouble.failure, errand):
                raise
        time.sleep(wait)
        wait = min(2 * wait, 30.0)


def _attempts(failure: Failure, errand: _Errand) -> int:
    """How often a failure is worth trying: twice when there are others to ask, or when whole files come wrong."""
    few = failure is Failure.DAMAGED or (failure is Failure.UNREACHABLE and len(errand.spec.sources) > 1)
    return min(errand.patience.attempts, 2) if few else errand.patience.attempts


def _attempt(errand: _Errand, source: Source, endpoint: str) -> Fetched:
    kind, spec, shelf = errand.kind, errand.spec, errand.shelf
    name = MODELSCOPE_NAMES.get(spec.name, spec.name) if source == "modelscope" else spec.name
    repository = Repository(kind, name, spec.revision, endpoint)
    with client.session(source, repository, shelf / ".client", errand.patience) as hub:
        listing = hub.listing()
        files = wanted_files(kind, listing)
        _refuse_unsafe(files)
        if not files:
            raise Trouble(Failure.UNUSABLE, f"revision {listing.revision} holds no {kind} files")
        folder = shelf / _folder_name(listing.revision)
        notes: list[Finding] = []
        if folder.is_dir() and (record := _record(folder)):
            damage = _check(kind, folder, record)
            if not damage:
                return _fetched(spec, folder, record, from_cache=True)
            notes.append(_repaired(folder, damage))
            _back_to_partial(folder, damage)
        partial = shelf / f".partial-{folder.name}"
        partial.mkdir(exist_ok=True)
        run.write_json(partial / RECORD, {"name": spec.name, "wanted": [asdict(file) for file in files]})
        right = verify.differing(partial, files)[0]  # what an earlier attempt, or a damaged folder, left whole
        absent = [file for file in files if file.path not in right]
        total = sum(file.size for file in files)
        whole = sum(file.size for file in files if file.path in right)
        _refuse_full_disk(spec.name, partial, total - whole)

        def report(done: int) -> None:
            if errand.progress:
                errand.progress(Progress(source, spec.name, min(done, total), total))

        if absent:
            hub.download([file.path for file in absent], partial, lambda: _bytes_here(partial), report)
        arrived, wrong = verify.differing(partial, absent)
        right |= arrived
        if wrong:
            for path in wrong:
                (partial / path).unlink(missing_ok=True)
            raise Trouble(Failure.DAMAGED, _listed(wrong))
        if kind == "model" and (problems := verify.model_findings(partial)):
            raise Trouble(Failure.UNUSABLE, "; ".join(problem.what.partition(": ")[2] for problem in problems))
        if kind == "dataset":
            _refuse_without_splits(partial)
    _remove_bookkeeping(partial, {file.path for file in files})
    record = {
        "kind": kind,
        "name": spec.name,
        "source": source,
        "endpoint": redacted(endpoint),
        "requested": spec.revision,
        "revision": listing.revision,
        "fetched": time.time(),
        "files": {
            file.path: {
                "size": file.size,
                "sha256": right[file.path],
                "checked": "sha256 of the hub" if file.sha256 else "git hash of the hub" if file.git_sha1 else "size",
            }
            for file in files
        },
    }
    _settle(partial, folder, record)
    for leftover in shelf.glob(".partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return replace(_fetched(spec, folder, record, from_cache=False), findings=tuple(notes))


# --- the cache ----------------------------------------------------------------------------------------------------


def _folder_name(revision: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", revision) or "unknown"


def _record(folder: Path) -> dict[str, object] | None:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("files"), dict) else None


def _complete(shelf: Path, spec: Spec) -> tuple[Path, dict[str, object]] | None:
    """The newest complete folder that answers to the revision asked for (any, when none is)."""
    found: list[tuple[float, Path, dict[str, object]]] = []
    for folder in shelf.glob("*"):
        record = _record(folder) if folder.is_dir() and not folder.name.startswith(".") else None
        if record is None:
            continue
        revision = str(record["revision"])
        asked = spec.revision
        if (
            asked is None
            or asked in (revision, record["requested"])
            or (len(asked) >= 7 and revision.startswith(asked))
        ):
            found.append((float(str(record.get("fetched", 0))), folder, record))
    return max(found, key=lambda item: item[0])[1:] if found else None


def _check(kind: Kind, folder: Path, record: Mapping[str, object]) -> dict[str, str]:
    """What is wrong with a complete folder by its record: nothing, or problems by file."""
    files = record["files"]
    assert isinstance(files, dict)
    known = [HubFile(path, int(entry["size"]), str(entry["sha256"])) for path, entry in files.items()]
    wrong = verify.differing(folder, known)[1]
    if not wrong and kind == "model":
        wrong = {finding.what: "" for finding in verify.model_findings(folder)}
    return wrong


def _fetched(spec: Spec, folder: Path, record: Mapping[str, object], *, from_cache: bool) -> Fetched:
    files = record["files"]
    assert isinstance(files, dict)
    sha256 = {path: str(entry["sha256"]) for path, entry in files.items()}
    size = sum(int(entry["size"]) for entry in files.values())
    source = next(name for name in ("modelscope", "huggingface", "mirror") if name == record["source"])
    return Fetched(
        folder, source, spec.name, str(record["revision"]), sha256, verify.digest(sha256), size, from_cache=from_cache
    )


def _back_to_partial(folder: Path, damage: Mapping[str, str]) -> None:
    """A damaged folder becomes a partial download: its good files are kept, the others fetched again."""
    for path in damage:
        if (folder / path).is_file():
            (folder / path).unlink()
    partial = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    folder.rename(partial)


def _settle(partial: Path, folder: Path, record: Mapping[str, object]) -> None:
    """Makes a checked download complete: record written, everything on the disk, then the final name."""
    run.write_json(partial / RECORD, record)
    for path in partial.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
    run.fsync_directory(partial)
    if folder.exists():  # without a record: not ours to trust
        shutil.rmtree(folder)
    partial.rename(folder)
    run.fsync_directory(folder.parent)


def _remove_bookkeeping(folder: Path, wanted: set[str]) -> None:
    """What the clients leave beside the files (.cache, .msc, ._____temp)."""
    for path in folder.iterdir():
        name = path.name
        if name in wanted or any(file.startswith(f"{name}/") for file in wanted):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _bytes_here(folder: Path) -> int:
    """Bytes of all files of a folder, unfinished ones included; files may come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _refuse_unsafe(files: list[HubFile]) -> None:
    for file in files:
        if file.path.startswith("/") or "\\" in file.path or ".." in file.path.split("/"):
            raise Trouble(Failure.UNUSABLE, f"the hub lists a file outside the repository: {file.path!r}")


def _refuse_without_splits(folder: Path) -> None:
    """A repository may hold only a script that loads the data from elsewhere."""
    for split in ("train", "test"):
        try:
            find_split(folder, split)
        except FindingsError as error:
            raise Trouble(Failure.UNUSABLE, error.findings[0].what) from error


def _refuse_full_disk(name: str, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed and needed + SPARE_BYTES > free:
        raise Trouble(
            Failure.DISK_FULL,
            f"{name} needs {_gib(needed)} and {_gib(SPARE_BYTES)} to spare, {folder} has {_gib(free)} free",
        )


def _gib(size: int) -> str:
    return f"{size / 1024**3:.2f} GiB"


def _from_cache_only(kind: Kind, spec: Spec, shelf: Path) -> Fetched:
    """Offline: the complete folder of the cache, or a finding that says what is missing."""
    kept = _complete(shelf, spec) if shelf.is_dir() else None
    at = f" at revision {spec.revision}" if spec.revision else ""
    fix = "run the download stage once with a network, or copy the folder from a machine that has it"
    if kept is None:
        missing = _missing_of_partial(shelf)
        raise FindingsError(
            OFFLINE.finding(
                f"{kind} {spec.name}{at} is not in the cache ({shelf})" + (f"; {missing}" if missing else ""),
                why="no hub may be asked: --offline or HF_HUB_OFFLINE=1",
                fix=fix,
            ),
            exit_code=EXIT_USAGE,
        )
    folder, record = kept
    if damage := _check(kind, folder, record):
        raise FindingsError(
            OFFLINE.finding(
                f"{folder} is not whole: {_listed(damage)}",
                why="no hub may be asked for the right files: --offline or HF_HUB_OFFLINE=1",
                fix=fix,
            ),
            exit_code=EXIT_STAGE,
        )
    return _fetched(spec, folder, record, from_cache=True)


def _missing_of_partial(shelf: Path) -> str:
    """What an unfinished download still lacks."""
    for partial in sorted(shelf.glob(".partial-*")):
        try:
            wanted = json.loads((partial / RECORD).read_text(encoding="utf-8"))["wanted"]
        except (OSError, ValueError, KeyError):
            continue
        missing = [file["path"] for file in wanted if not (partial / file["path"]).is_file()]
        return f"a download is unfinished, {len(missing)} of {len(wanted)} files missing: {', '.join(missing[:5])}"
    return ""


# --- what is said -------------------------------------------------------------------------------------------------


def _listed(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{path} {problem}".strip() for path, problem in sorted(problems.items())[:5])


def _repaired(folder: Path, damage: Mapping[str, str]) -> Finding:
    return REPAIRED.finding(
        f"{folder} had changed since it was fetched: {_listed(damage)}",
        why="a run must train what its manifest says",
        fix="look for programs that write into the cache, or for a failing disk",
    )


def _said(kind: Kind, spec: Spec, source: Source, endpoint: str, trouble: Trouble, *, as_note: bool = False) -> Finding:
    """What a source said, as an error, or as a warning when another source delivered."""
    at = f" at revision {spec.revision}" if spec.revision else ""
    name = MODELSCOPE_NAMES.get(spec.name, spec.name) if source == "modelscope" else spec.name
    what = f"{source} ({redacted(endpoint)}): {kind} {name}{at}: {redacted(trouble.message)}"
    variable = "MODELSCOPE_API_TOKEN" if source == "modelscope" else "HF_TOKEN"
    fixes = {
        Failure.DENIED: f"set {variable} in the environment, and accept the repository's terms on its web page",
        Failure.NOT_FOUND: f"correct {kind}.name or {kind}.revision (each hub has revisions of its own)",
        Failure.REFUSED: "take another source",
        Failure.UNUSABLE: f"correct {kind}.name, or take another source",
        Failure.UNREACHABLE: "look at the network and its proxy (HTTPS_PROXY), or set HF_ENDPOINT to a mirror in reach",
        Failure.TRANSIENT: "run the same command again: the download goes on where it stopped",
        Failure.DAMAGED: "run the same command again; if it stays, take another source",
        Failure.DISK_FULL: "make room, or put the cache on another disk",
    }
    if as_note:
        return FALLBACK.finding(what, why="a later source delivered", fix=fixes[trouble.failure])
    why = {
        Failure.DAMAGED: "every file is compared with the hub's listing before it is used",
        Failure.DENIED: "no attempt is repeated that is refused",
        Failure.DISK_FULL: "a full disk in the middle of a run costs more than stopping here",
    }.get(trouble.failure, f"the recipe takes its {kind} from there")
    return _CODES[trouble.failure].finding(what, why=why, fix=fixes[trouble.failure])
