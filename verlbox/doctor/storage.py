"""Checks of storage: folders for runs and models, shared memory, the temporary folder of Ray."""

from __future__ import annotations

import re

from verlbox import findings
from verlbox.doctor.machine import gib, in_container, mount
from verlbox.doctor.subject import Checked, Repair, Subject
from verlbox.findings import Finding

FOLDER = findings.register("folder-unusable", "error", "A folder that runs need is missing or cannot be written.")
SPACE = findings.register("disk-space", "error", "Too little disk space for what the recipe writes.")
KIND = findings.register(
    "disk-kind", "note", "A folder lies on a file system that is slow, or lost with the container."
)
SHM = findings.register("shared-memory-small", "warning", "/dev/shm is small.")
TEMPORARY = findings.register("temporary-folder", "error", "Ray cannot keep its sockets in the temporary folder.")

# Ray's longest socket: <folder>/ray/session_2026-11-30_12-34-56_123456_1234567/sockets/plasma_store, at most 107 bytes
# (the kernel's limit for a socket's path; Ray raises OSError beyond it). Process numbers have up to 7 digits.
SOCKET = "/ray/session_2026-11-30_12-34-56_123456_1234567/sockets/plasma_store"
LONGEST_SOCKET = 107
# verlbox gives Ray a folder of its own, vbx-XXXXXXXX, in the temporary folder if that is short, else in /tmp.
OWN_FOLDER = "/vbx-12345678"
LONGEST_PARENT = 24

FULL = 0.95  # Ray stops to create objects when a disk is fuller (local_fs_capacity_threshold)

# Bytes a parameter takes: weights on the hub (bf16) and merged (bf16), and a checkpoint (weights and Adam's two
# moments in float32: verl saves FSDP's shards as they are trained).
WEIGHTS, CHECKPOINT = 2, 12
LEAST_SPACE = {"cpu": 2 * 2**30, "npu": 20 * 2**30, "cuda": 20 * 2**30}
SLOW = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "beegfs", "gpfs")

# Docker's default is 64 MiB; NCCL and HCCL exchange data between processes there, Ray keeps its objects there.
SMALL_SHM = 2**30


def needed(subject: Subject) -> int:
    """Bytes that a run of the recipe writes at least, from the model's size in its name; a fixed sum where it has none.

    The last step is always saved. Older checkpoints count only where the recipe says how many are kept: the plan's
    lints know the steps and judge the rest.
    """
    least = LEAST_SPACE[subject.platform]
    if subject.recipe is None:
        return least
    size = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z])", subject.recipe.model.name)
    if not size:
        return least
    parameters = float(size[1]) * (1e9 if size[2] in "Bb" else 1e6)
    settings = {key: value for group in subject.recipe.train.verl.values() for key, value in group.items()}
    kept = settings.get("trainer.max_actor_ckpt_to_keep")
    checkpoints = kept + 1 if isinstance(kept, int) else 1  # the new one is written before the oldest goes
    if settings.get("algorithm.adv_estimator", "gae") == "gae":
        checkpoints *= 2  # the critic's
    return max(least, int(parameters * (2 * WEIGHTS + CHECKPOINT * checkpoints)))


def disk(subject: Subject) -> Checked:
    """Space, kind and rights of the folders for runs and for models."""
    facts: list[str] = []
    problems: list[Finding] = []
    repairs: list[Repair] = []
    for label, folder, share in (("runs", subject.runs, needed(subject)), ("cache", subject.cache, 0)):
        machine = subject.machine
        existing = _existing(subject, folder)
        space = machine.space(str(machine.path(existing)))
        point, kind = mount(machine, existing)
        facts.append(f"{label}: {gib(space.free) if space else '?'} free ({kind or 'unknown'})")
        if existing != folder:
            repairs.append(Repair(folder=folder))
        if not machine.may(existing, 0b011) or not machine.path(existing).is_dir():
            problems.append(
                FOLDER.finding(
                    f"{label}: {folder} cannot be written" + ("" if existing == folder else f" ({existing} exists)"),
                    why="Nothing could be stored.",
                    fix=f"sudo chown $(id -u):$(id -g) {existing}, or set VERLBOX_{label.upper()} to another folder.",
                )
            )
        if space and space.free < share:
            problems.append(
                SPACE.finding(
                    f"{label}: {gib(space.free)} free in {folder}, about {gib(share)} needed",
                    why="A checkpoint that does not fit ends the run, or leaves it without its last state.",
                    fix=f"export VERLBOX_{label.upper()}=FOLDER on a larger disk, or lower"
                    " trainer.max_actor_ckpt_to_keep in the recipe.",
                )
            )
        if kind == "overlay" and in_container(machine):
            problems.append(
                KIND.finding(
                    f"{label}: {folder} lies inside the container",
                    why="It is lost when the container is removed.",
                    fix=f"docker run -v $PWD/{label}:{folder} ..., as compose.yaml does.",
                )
            )
        elif kind in SLOW:
            problems.append(
                KIND.finding(
                    f"{label}: {folder} lies on a network file system ({kind}, {point})",
                    why="Checkpoints take longer there than they should, and so does every start from a cached model.",
                    fix=f"export VERLBOX_{label.upper()}=FOLDER on a local disk.",
                )
            )
    return Checked("; ".join(facts), problems, repairs)


def _existing(subject: Subject, folder: str) -> str:
    """The folder, or its nearest parent that exists."""
    parts = folder.rstrip("/").split("/")
    for end in range(len(parts), 0, -1):
        place = "/".join(parts[:end]) or "/"
        if subject.machine.exists(place):
            return place
    return "/"


def shared_memory(subject: Subject) -> Checked:
    machine = subject.machine
    space = machine.space(str(machine.path("/dev/shm"))) if machine.exists("/dev/shm") else None
    if space and space.total >= SMALL_SHM:
        return Checked(f"/dev/shm {gib(space.total)}")
    if subject.from_image:
        return Checked("/dev/shm of the container is set by compose.yaml")
    size = gib(space.total) if space else "not there"
    container = in_container(machine)
    problem = SHM.finding(
        f"/dev/shm is {size}",
        why=f"Several devices exchange data there and fail with a bus error; {subject.devices} are asked for."
        if subject.devices > 1
        else "Ray keeps its objects in the temporary folder instead, on disk, and transfers become slow.",
        fix="docker run --shm-size 16g (compose: `shm_size`)"
        if container
        else "sudo mount -o remount,size=16G /dev/shm || sudo mount -t tmpfs -o size=16G tmpfs /dev/shm",
        severity="error" if subject.devices > 1 and subject.platform != "cpu" else "warning",
    )
    return Checked(f"/dev/shm {size}", [problem])


def temporary(subject: Subject) -> Checked:
    """The folder in which Ray keeps its session: length of its socket paths, rights, and how full its disk is."""
    machine = subject.machine
    chosen = machine.environment.get("TMPDIR") or "/tmp"
    folder = (chosen if len(chosen) <= LONGEST_PARENT else "/tmp") + OWN_FOLDER
    parent = folder.removesuffix(OWN_FOLDER)
    problems: list[Finding] = []
    repairs: list[Repair] = []
    own = machine.environment.get("RAY_TMPDIR", "")
    if own and len(own + SOCKET) > LONGEST_SOCKET:
        problems.append(
            TEMPORARY.finding(
                f"RAY_TMPDIR={own} makes Ray's sockets {len(own + SOCKET)} bytes long, {LONGEST_SOCKET} are allowed",
                why="Scripts that start Ray by themselves fail with `AF_UNIX path length cannot exceed 107 bytes`;"
                " verlbox's own runs use a short folder.",
                fix="export RAY_TMPDIR=/tmp",
                severity="warning",
            )
        )
        repairs.append(Repair(line="export RAY_TMPDIR=/tmp"))
    if not machine.exists(parent) or not machine.may(parent, 0b011):
        there = machine.exists(parent)
        problems.append(
            TEMPORARY.finding(
                f"{parent} " + ("cannot be written" if there else "does not exist"),
                why="Ray keeps its sockets and logs there.",
                fix=f"sudo chmod 1777 {parent}" if there else f"mkdir -p {parent}",
            )
        )
        repairs += [] if there else [Repair(folder=parent)]
    space = machine.space(str(machine.path(parent)))
    if space and space.total and space.free < (1 - FULL) * space.total:
        problems.append(
            TEMPORARY.finding(
                f"the disk of {parent} is more than 95 % full ({gib(space.free)} of {gib(space.total)} free)",
                why="Ray then refuses to spill objects to it and the run stops.",
                fix=f"du -xsh {parent}/* | sort -h | tail, and remove what is not needed; or export TMPDIR=FOLDER.",
            )
        )
    return Checked(f"{parent}, {gib(space.free) if space else '?'} free", problems, repairs)
