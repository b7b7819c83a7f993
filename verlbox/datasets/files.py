"""Reading a split of a data set from whatever lies on the disk.

Covered: a file or a directory; JSON Lines, JSON (a list, or an object that holds one), parquet, each also gzipped;
one file or numbered shards; the layouts of hub snapshots (`main/train-00000-of-00001.parquet`, `data/train-*`), of a
folder a split, of a folder a subject. Not covered: CSV, Arrow streams, archives.

A line that is not JSON becomes a BadRow in its place, so that every other row keeps its index. What puts the whole file
in doubt (wrong encoding, cut download, Git LFS pointer, a missing shard) stops with a finding.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verlbox.datasets.rows import BadRow, excerpt
from verlbox.findings import EXIT_STAGE, Code, FindingsError, register

NOT_FOUND = register("dataset-not-found", "error", "The path of a data set does not exist or holds no data files.")
SPLIT_MISSING = register("dataset-split-missing", "error", "A data set lacks a split that the recipe needs.")
AMBIGUOUS = register("dataset-ambiguous", "error", "More than one file or folder could be the split.")
UNREADABLE = register("dataset-unreadable", "error", "A data file cannot be read as what its name says it is.")
CUT = register("dataset-cut", "error", "A data file ends in the middle of a record: a cut download.")
EMPTY = register("dataset-empty", "error", "A data file or a split has no rows.")

SUFFIXES = (".jsonl", ".json", ".parquet")
SPLIT_NAMES = ("train", "test", "validation", "valid", "val", "dev")

_LFS = b"version https://git-lfs.github.com/spec/"
# A split in one file (`train.jsonl`), in shards (`train-00000-of-00002.parquet`, `train_1.jsonl`), or behind the name
# of the set (`gsm8k_train.jsonl`). `train_kept_indices.json` is none of these.
_STEM = r"(?:(?P<set>.+)[-_.])?{split}(?:[-_.](?P<number>\d+)(?:-of-(?P<count>\d+))?)?"
# Folders that hold the set itself when there is a choice: GSM8K's `socratic` holds other answers than its `main`.
_PREFERRED_FOLDERS = ("data", "default", "main")


Record = Mapping[str, object] | tuple[str, str, str]  # the latter: reason, detail and excerpt of a bad row


@dataclass(frozen=True)
class RawSplit:
    """A split as read: its files in order, and for each record the record (or why it is bad) and its file:line."""

    name: str
    files: tuple[Path, ...]
    records: tuple[Mapping[str, object] | BadRow, ...]
    places: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.records)


def read(path: Path, split: str) -> RawSplit:
    """Reads one split. `path` is a file of that split, or a directory in one of the usual layouts.

    Raises FindingsError when the split is not there or its files cannot be trusted.
    """
    files = find(path, split)
    records: list[Mapping[str, object] | BadRow] = []
    places: list[str] = []
    for file in files:
        for place, record in _records(file, split):
            index = len(records)
            records.append(BadRow(index, *record, where=place) if isinstance(record, tuple) else record)
            places.append(place)
    if not records:
        raise _error(
            EMPTY, f"{_listed(files)} has no rows", "an empty file is usually a failed download", "fetch it again"
        )
    return RawSplit(split, tuple(files), tuple(records), tuple(places))


def find(path: Path, split: str) -> list[Path]:
    """The files that make up a split, in order. Raises FindingsError, naming what was expected and what is there."""
    if path.is_file():
        return _from_file(path, split)
    if not path.is_dir():
        raise FindingsError(
            NOT_FOUND.finding(
                f"{path} does not exist",
                why="the recipe reads its data set from this path",
                fix="correct dataset.path; a relative path starts at the directory verlbox was called from",
            )
        )
    try:
        return _in_folder(path, split)
    except OSError as error:
        raise _error(
            UNREADABLE, f"{path} cannot be listed: {error.strerror}", "the stage needs it", "see to its permissions"
        ) from error


def _in_folder(path: Path, split: str) -> list[Path]:
    for folder in _folders(path):
        if files := _split_files(folder, split):
            return files
    subjects = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    found = [(folder, files) for folder in subjects if (files := _split_files(folder, split))]
    if len(found) > 1 and any(folder.name == "socratic" for folder, _ in found):
        raise _error(
            AMBIGUOUS,
            f"{path} holds several configurations: {', '.join(folder.name for folder, _ in found)}",
            "they hold different answers to the same questions",
            "point dataset.path at the folder that is meant",
        )
    if found:
        return [file for _, files in found for file in files]
    raise _missing(path, split)


def _folders(path: Path) -> list[Path]:
    """Where the split may lie, best first: the folder itself, a preferred configuration, a hub cache's snapshot."""
    folders = [path, *(path / name for name in _PREFERRED_FOLDERS)]
    snapshots = path / "snapshots"
    if snapshots.is_dir():
        head = path / "refs" / "main"
        commits = sorted(snapshots.iterdir())
        if head.is_file():
            commits = [snapshots / head.read_text().strip()]
        for commit in commits[:1] if len(commits) == 1 else []:
            folders += [commit, *(commit / name for name in _PREFERRED_FOLDERS)]
    return [folder for folder in folders if folder.is_dir()]


def _split_files(folder: Path, split: str) -> list[Path]:
    """The files of a split directly in this folder, or in a folder named after the split."""
    pattern = re.compile(_STEM.format(split=re.escape(split)), re.IGNORECASE)
    plain: list[Path] = []
    named: list[Path] = []
    for file in sorted(folder.iterdir()):
        match = pattern.fullmatch(stem(file)) if _kind(file) and file.is_file() else None
        if match:
            (named if match["set"] else plain).append(file)
    if chosen := plain or named:
        return _complete(chosen, pattern)
    inside = folder / split
    if inside.is_dir():
        # By path as text, as MATH-lighteval orders its rows: train/algebra/1000.json before train/algebra/2.json.
        files = (file for file in inside.rglob("*") if file.is_file() and _kind(file))
        return _one_format(sorted(file for file in files if not file.name.startswith(".")))
    return []


def _complete(files: list[Path], pattern: re.Pattern[str]) -> list[Path]:
    """Shards in order, all of them there, in one format; a split that exists twice is not a choice to make silently."""
    _one_format(files)
    matches = [(match, file) for file in files if (match := pattern.fullmatch(stem(file)))]
    whole = [file for match, file in matches if match["number"] is None]
    if len({match["set"] for match, _ in matches}) > 1 or (whole and len(files) > 1):
        raise _several(files)
    if whole:
        return whole
    counts = {int(match["count"]) for match, _ in matches if match["count"]}
    numbers = sorted(int(match["number"]) for match, _ in matches)
    if len(counts) > 1 or len(set(numbers)) < len(numbers):
        raise _several(files)
    missing = sorted(set(range(max(counts))) - set(numbers)) if counts else []
    if missing:
        raise _error(
            CUT,
            f"{_listed(files)}: {len(missing)} of {max(counts)} shards missing (numbers {missing[:5]})",
            "training on a part of the data would look like a normal run",
            "download the data set again",
        )
    return [file for _, file in sorted(matches, key=lambda item: int(item[0]["number"]))]


def _one_format(files: list[Path]) -> list[Path]:
    if len({_kind(file) for file in files}) > 1:
        raise _several(files)
    return files


def _from_file(path: Path, split: str) -> list[Path]:
    """A file is the split its name says; a name without a split is `train`. The other split may lie beside it."""
    if not _kind(path):
        raise _error(
            UNREADABLE,
            f"{path} is not a data file that verlbox reads",
            f"it reads {', '.join(SUFFIXES)}, each also with .gz",
            "convert it, or point dataset.path at another file",
        )
    name = stem(path).lower()
    own = next((s for s in SPLIT_NAMES if re.fullmatch(_STEM.format(split=s), name)), None)
    if own == split or (own is None and split == "train"):
        return [path]
    if path.name.endswith((".json", ".json.gz")) and own is None and split in _json_splits(path):
        return [path]
    if own is not None:
        other = re.sub(rf"(?i){own}(?!.*{own})", split, path.name)
        if (path.parent / other).is_file():
            return [path.parent / other]
        numberless = re.compile(_STEM.format(split=split), re.IGNORECASE)
        beside = [f for f in sorted(path.parent.iterdir()) if _kind(f) and numberless.fullmatch(stem(f))]
        if beside:
            return _complete(beside, numberless)
    raise _missing(path, split)


def _json_splits(path: Path) -> tuple[str, ...]:
    content = _parsed(path, _text(path, _content(path)))
    return tuple(content) if isinstance(content, dict) else ()


def _missing(path: Path, split: str) -> FindingsError:
    folder = path if path.is_dir() else path.parent
    names = sorted(f.relative_to(folder).as_posix() for f in folder.glob("*") if _kind(f))
    names += sorted(f.relative_to(folder).as_posix() for f in folder.glob("*/*") if _kind(f))
    code = SPLIT_MISSING if names else NOT_FOUND
    one = f"{path} is one file, hence one split" if path.is_file() else f"{path} has no {split} split"
    return FindingsError(
        code.finding(
            one + (f" (data files here: {', '.join(names[:8])})" if names else ": there are no data files here"),
            why=f"training needs a train and a test split; the {split} split is not there",
            fix=f"put it at {folder / split}.jsonl (or .json, .parquet, .jsonl.gz, or shards {split}-00000-of-00002)",
        )
    )


def _several(files: Sequence[Path]) -> FindingsError:
    return _error(
        AMBIGUOUS,
        f"{_listed(files)} could each be the split",
        "taking one silently, or both, would change the data without a word",
        "remove the ones that are not meant, or give dataset.path a folder that holds only the right one",
    )


def _error(code: Code, what: str, why: str, fix: str, where: str = "") -> FindingsError:
    return FindingsError(code.finding(what, why=why, fix=fix, where=where), exit_code=EXIT_STAGE)


def _listed(files: Iterable[Path]) -> str:
    names = [str(file) for file in files]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _kind(file: Path) -> str:
    """`.jsonl`, `.json` or `.parquet`, also for gzipped files; empty for anything else."""
    name = file.name.lower().removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def stem(file: Path) -> str:
    """The name without its data suffixes: `train-00000-of-00001` for `train-00000-of-00001.parquet`."""
    name = file.name
    if name.lower().endswith(".gz"):
        name = name[:-3]
    return name[: -len(_kind(file))]


def _records(file: Path, split: str) -> list[tuple[str, Record]]:
    data = _content(file)
    if _kind(file) == ".parquet":
        return [(f"{file}: row {n}", row) for n, row in enumerate(_parquet(file, data))]
    text = _text(file, data)
    first = text.lstrip()[:1]
    if first == "[" or (first == "{" and _is_one_document(file, text)):
        return [(f"{file}: item {n}", row) for n, row in enumerate(_document(file, text, split))]
    if first == "<":
        raise _error(
            UNREADABLE,
            f"{file} is a web page, not data: {excerpt(text)}",
            "a download that needs a login or a proxy often ends this way",
            "fetch the file again and look at the address",
        )
    return _lines(file, text)


def _content(file: Path) -> bytes:
    """The file's bytes, decompressed, with what can be told from the first bytes told."""
    try:
        data = file.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _error(
            CUT, f"{file} is a damaged or cut gzip file ({error})", "its end is missing or wrong", "fetch it again"
        ) from error
    except OSError as error:
        raise _error(
            UNREADABLE, f"{file} cannot be read: {error.strerror}", "the stage needs it", "see to its permissions"
        ) from error
    if data.startswith(_LFS):
        raise _error(
            UNREADABLE,
            f"{file} is a Git LFS pointer, not the data",
            "the repository was cloned without its large files",
            "run 'git lfs pull' in the repository that it comes from",
        )
    if not data.strip():
        raise _error(EMPTY, f"{file} is empty", "an empty file is usually a failed download", "fetch it again")
    return data


def _text(file: Path, data: bytes) -> str:
    """UTF-8, with or without a byte order mark; anything else is refused with its position, never replaced."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise _error(
            UNREADABLE,
            f"{file} is not UTF-8: byte 0x{data[error.start]:02x} at position {error.start}"
            + (" (it looks like UTF-16)" if utf16 else ""),
            "guessing an encoding would change questions without a word",
            f"convert it: iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8 {file.name} > converted.jsonl"
            + ("" if utf16 else " (Latin-1; Chinese text is often GBK)"),
            where=f"{file}:{line}",
        ) from error
    if not text.strip():
        raise _error(EMPTY, f"{file} holds only blank lines", "there is nothing to train on", "fetch it again")
    return text


def _parquet(file: Path, data: bytes) -> list[dict[str, object]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(data))
        rows: list[dict[str, object]] = table.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        raise _error(
            UNREADABLE,
            f"{file} is not a complete parquet file: {excerpt(str(error))}",
            f"it has {len(data)} bytes; a cut download has no footer",
            "fetch it again",
        ) from error
    if not rows and table.num_rows == 0:
        raise _error(EMPTY, f"{file} has no rows", "there is nothing to train on", "fetch it again")
    return rows


def _object(pairs: list[tuple[str, object]]) -> Record:
    """A JSON object; one that names a key twice is a bad row, since parsers differ in which value they keep."""
    mapping = dict(pairs)
    if len(mapping) == len(pairs):
        return mapping
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    return ("duplicate-key", f"the key {twice!r} stands twice in one object", excerpt(repr(pairs)))


_decoder = json.JSONDecoder(object_pairs_hook=_object)


def _lines(file: Path, text: str) -> list[tuple[str, Record]]:
    """JSON Lines. Lines end at a newline only: U+2028 may stand inside a question."""
    rows: list[tuple[str, Record]] = []
    lines = text.split("\n")
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line:
            continue
        place = f"{file}:{number}"
        try:
            value = _decoder.decode(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError) and _ends_early(error, line):
                raise _error(
                    CUT,
                    f"{file} ends in the middle of line {number}: {excerpt(line)}",
                    f"a cut download; {len(rows)} complete rows stand before it",
                    "fetch it again, or delete the last line if the shorter file is meant",
                    where=place,
                ) from error
            rows.append((place, ("not-json", f"not JSON: {excerpt(str(error))}", excerpt(line))))
        else:
            rows.append((place, _row(value)))
    return rows


def _ends_early(error: json.JSONDecodeError, line: str) -> bool:
    """Whether the text stops before the JSON does (rather than being wrong somewhere inside)."""
    return error.pos >= len(line) or error.msg.startswith("Unterminated string")


def _row(value: object) -> Record:
    if isinstance(value, dict):
        return value
    if isinstance(value, tuple):  # made by _object: JSON itself has no tuples
        return value
    return ("not-an-object", f"a row must be an object, this is {type(value).__name__}", excerpt(value))


def _is_one_document(file: Path, text: str) -> bool:
    """Whether a text that begins with `{` is one JSON document rather than JSON Lines."""
    first, _, rest = text.lstrip().partition("\n")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return _kind(file) == ".json" or first.strip() == "{"
    return isinstance(value, dict) and not rest.strip() and _rows_within(value) is not None


def _rows_within(document: dict[str, object], split: str | None = None) -> list[object] | None:
    """The list of rows that a document holds under its split's name or under `data`."""
    for key in [split] if split else [*SPLIT_NAMES]:
        rows = document.get(key) if key else None
        if isinstance(rows, list):
            return rows
    rows = document.get("data")
    return rows if isinstance(rows, list) else None


def _parsed(file: Path, text: str) -> object:
    try:
        return _decoder.decode(text.strip())
    except json.JSONDecodeError as error:
        early = error.pos >= len(text.strip()) or error.msg.startswith("Unterminated string")
        raise _error(
            CUT if early else UNREADABLE,
            f"{file} is not JSON: {error.msg} (line {error.lineno}, column {error.colno})",
            "the file is one JSON document, so no row of it can be trusted",
            "fetch it again, or convert it to JSON Lines (one object a line), where single bad lines are skipped",
            where=f"{file}:{error.lineno}",
        ) from error
    except RecursionError as error:
        raise _error(
            UNREADABLE, f"{file} is nested too deeply", "no data set is written this way", "fetch it again"
        ) from error


def _document(file: Path, text: str, split: str) -> list[Record]:
    """The rows of one JSON document: a list, {"data": [...]}, {"train": [...], "test": [...]}, or a single row."""
    content = _parsed(file, text)
    rows = content
    if isinstance(content, dict):
        rows = _rows_within(content, split)
        if rows is None:
            rows = [content]
    if not rows:
        raise _error(EMPTY, f"{file} holds no rows", "there is nothing to train on", "fetch it again")
    assert isinstance(rows, list)
    return [_row(row) for row in rows]
