"""Is what lies in a folder complete and unharmed: hashes against the hub's, safetensors against their own headers."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from verlbox.findings import Finding, register
from verlbox.hub.spec import HubFile

INCOMPLETE = register("model-incomplete", "error", "A model folder lacks a file, or a file of it is damaged.")

# A safetensors header is JSON of at most 100 MB (the format's own limit).
_MAX_HEADER = 100_000_000
_READ = 1 << 20


def hashes(path: Path) -> tuple[str, str]:
    """sha256 and git blob hash (sha1) of a file, read once."""
    sha256 = hashlib.sha256()
    blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(_READ):
            sha256.update(block)
            blob.update(block)
    return sha256.hexdigest(), blob.hexdigest()


def differing(folder: Path, files: Iterable[HubFile]) -> tuple[dict[str, str], dict[str, str]]:
    """Compares files with what is known of them: the sha256 of the right ones, and what is wrong with the others."""
    right: dict[str, str] = {}
    wrong: dict[str, str] = {}

    def check(file: HubFile) -> tuple[str, str, str]:
        path = folder / file.path
        if not path.is_file():
            return file.path, "", "is missing"
        size = path.stat().st_size
        if size != file.size:
            return file.path, "", f"has {size} bytes instead of {file.size}"
        sha256, git_sha1 = hashes(path)
        if file.sha256 and sha256 != file.sha256:
            return file.path, "", f"has sha256 {sha256} instead of {file.sha256}"
        if not file.sha256 and file.git_sha1 and git_sha1 != file.git_sha1:
            return file.path, "", f"has git hash {git_sha1} instead of {file.git_sha1}"
        return file.path, sha256, ""

    with ThreadPoolExecutor(max_workers=2) as pool:  # hashing releases the interpreter's lock
        for name, sha256, problem in pool.map(check, files):
            if problem:
                wrong[name] = problem
            else:
                right[name] = sha256
    return right, wrong


def digest(sha256: Mapping[str, str]) -> str:
    """One hash over names and contents, whatever the source and the times of the files."""
    lines = "".join(f"{name}\0{value}\n" for name, value in sorted(sha256.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def model_findings(folder: Path) -> list[Finding]:
    """What a model folder lacks to be loaded by transformers and verl: configuration, tokenizer, whole weights."""
    problems = [*_config_problems(folder), *_tokenizer_problems(folder), *_weight_problems(folder)]
    return [
        INCOMPLETE.finding(
            f"{folder}: {problem}",
            why="the run would stop when the model is loaded, or train a model with random parts",
            fix="remove the folder so that it is fetched again, or for source: local complete it",
        )
        for problem in problems
    ]


def _config_problems(folder: Path) -> list[str]:
    config = folder / "config.json"
    if not config.is_file():
        return ["config.json is missing"]
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        return [f"config.json is not JSON ({error})"]
    return [] if isinstance(content, dict) and "model_type" in content else ["config.json has no model_type"]


def _tokenizer_problems(folder: Path) -> list[str]:
    have = {path.name for path in folder.iterdir()}
    problems = [] if "tokenizer_config.json" in have else ["tokenizer_config.json is missing"]
    if not ({"tokenizer.json", "tokenizer.model"} & have or {"vocab.json", "merges.txt"} <= have):
        problems.append("no tokenizer.json (nor tokenizer.model, nor vocab.json with merges.txt)")
    for name in {"tokenizer_config.json", "tokenizer.json", "vocab.json"} & have:
        try:
            json.loads((folder / name).read_text(encoding="utf-8"))
        except ValueError as error:
            problems.append(f"{name} is not JSON ({error})")
    return problems


def _weight_problems(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _sharded_problems(folder, index)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(folder.glob("pytorch_model*.bin"))
        return [] if pickled else ["no weights (*.safetensors)"]
    return [problem for file in files for problem in _tensors(file)[1]]


def _sharded_problems(folder: Path, index: Path) -> list[str]:
    """Every tensor of the index in the shard that it names, every shard whole, the sum of bytes as the index says."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        weight_map: dict[str, str] = dict(content["weight_map"])
        total = content.get("metadata", {}).get("total_size")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{index.name} is damaged ({type(error).__name__}: {error})"]
    problems: list[str] = []
    found: dict[str, set[str]] = {}
    bytes_found = 0
    for name in sorted(set(weight_map.values())):
        if not (folder / name).is_file():
            problems.append(f"{name} is missing, named by {index.name}")
            continue
        tensors, damage = _tensors(folder / name)
        problems += damage
        found[name] = set(tensors)
        bytes_found += sum(tensors.values())
    absent = sorted(tensor for tensor, name in weight_map.items() if name in found and tensor not in found[name])
    if absent and not problems:
        problems.append(f"{len(absent)} tensors are not in the shard that {index.name} names, first {absent[0]}")
    if not problems and isinstance(total, int) and total != bytes_found:
        problems.append(f"the shards hold {bytes_found} bytes of tensors, {index.name} says {total}")
    return problems


def _tensors(file: Path) -> tuple[dict[str, int], list[str]]:
    """Bytes of each tensor by the file's header, and what is wrong with the file.

    Format: https://github.com/huggingface/safetensors#format: 8 bytes little-endian header length, JSON header, data;
    data_offsets are relative to the end of the header and cover the rest of the file without gaps.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            return {}, [f"{file.name} is not a safetensors file ({size} bytes, header length {length})"]
        try:
            header = json.loads(stream.read(length))
            spans = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
            tensors = {name: int(end) - int(begin) for name, (begin, end) in spans.items()}
            data = max((int(end) for _, end in spans.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {}, [f"{file.name} has a damaged header ({type(error).__name__}: {error})"]
    if 8 + length + data != size:
        return tensors, [f"{file.name} has {size} bytes, its header describes {8 + length + data}"]
    return tensors, []
