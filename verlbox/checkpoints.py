"""verl's checkpoint folder: which checkpoints are complete, and mending it after a crash.

verl 0.6.1 writes a checkpoint as files, none of them atomically, in this order: for each role model, optimizer, extra
state and configuration of every rank, then `data.pt` (the data loader), then the tracker that names the newest step
(utils/checkpoint/fsdp_checkpoint_manager.py, trainer/ppo/ray_trainer.py, _save_checkpoint). On resuming it believes the
tracker: it dies on a torn checkpoint, and starts from scratch without a word when the tracker names a missing one.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verlbox.run import set_aside, write_atomic

TRACKER = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d+)")
_SHARD = re.compile(r"(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt")
# verl's role folders (actor, critic), each with its save_contents (model, optimizer, extra, hf_model).
Roles = Mapping[str, Sequence[str]]
_KINDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}


@dataclass(frozen=True)
class Repair:
    """What `repair` found and did: the newest complete step (0 for none), and the folders it set aside."""

    step: int
    set_aside: tuple[Path, ...]
    tracker_was: str | None


def step_of(folder: Path) -> int:
    match = _STEP.fullmatch(folder.name)
    return int(match.group(1)) if match else -1


def folders(checkpoints: Path) -> list[Path]:
    """The step folders, oldest first."""
    found = [p for p in checkpoints.glob("global_step_*") if p.is_dir() and step_of(p) >= 0]
    return sorted(found, key=step_of)


def _whole(path: Path) -> bool:
    """Whether a file that torch.save wrote has its end: the zip directory is written last."""
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(archive.infolist())
    except (OSError, zipfile.BadZipFile):
        return False


def _whole_role(folder: Path, contents: Sequence[str]) -> bool:
    try:
        world_size = int(json.loads((folder / "fsdp_config.json").read_text())["world_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    wanted = {(_KINDS[c], rank) for c in contents if c in _KINDS for rank in range(world_size)}
    have: set[tuple[str, int]] = set()
    for path in folder.glob("*.pt"):
        match = _SHARD.fullmatch(path.name)
        if match and int(match.group(2)) == world_size and _whole(path):
            have.add((match.group(1), int(match.group(3))))
    if not wanted <= have:
        return False
    return "hf_model" not in contents or any(
        _whole_safetensors(p) for p in (folder / "huggingface").glob("*.safetensors")
    )


def _whole_safetensors(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says (8 bytes of length, JSON, data)."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        end = max((item["data_offsets"][1] for name, item in header.items() if name != "__metadata__"), default=0)
        return path.stat().st_size == 8 + length + int(end)
    except (OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError):
        return False


def is_complete(folder: Path, roles: Roles) -> bool:
    """Whether a checkpoint holds everything that verl needs to resume: all shards of all roles, and the data loader."""
    return _whole(folder / "data.pt") and all(_whole_role(folder / role, contents) for role, contents in roles.items())


def repair(checkpoints: Path, roles: Roles, shelf: Path) -> Repair:
    """Makes the folder one that verl resumes rightly from.

    Incomplete checkpoints newer than the newest complete one are moved to `shelf` (older ones are what verl's rotation
    left and do no harm), and the tracker is made to name the newest complete step, or removed when there is none.
    """
    tracker = checkpoints / TRACKER
    was = tracker.read_text(encoding="utf-8", errors="replace").strip() if tracker.is_file() else None
    newest, torn = 0, []
    for folder in reversed(folders(checkpoints)):
        if is_complete(folder, roles):
            newest = step_of(folder)
            break
        torn.append(folder)
    moved = tuple(set_aside(folder, shelf) for folder in torn)
    if newest and was != str(newest):
        write_atomic(tracker, str(newest))
    elif not newest and was is not None:
        tracker.unlink()
    return Repair(newest, moved, was)
