"""Which accelerators of the host a container gets, and what else of the host's driver it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from verlbox import findings
from verlbox.doctor import ascend, nvidia
from verlbox.doctor.machine import Machine
from verlbox.doctor.nvidia import BUSY
from verlbox.findings import Finding
from verlbox.platforms import ABSENT, cuda, npu
from verlbox.stacks import PlatformName

NO_DRIVER = findings.register(
    "driver-mount-missing", "error", "A part of the host's driver that a container needs is not there."
)

# Ascend's container documentation: what of the host's driver is mounted, always read-only.
DRIVER_NEEDED = ("/usr/local/Ascend/driver/lib64", "/usr/local/Ascend/driver/version.info")
DRIVER_USEFUL = ("/etc/ascend_install.info", "/usr/local/dcmi", "/usr/local/bin/npu-smi")


@dataclass(frozen=True)
class Found:
    """The accelerators of a host by number; `busy` maps those that are in use to what uses them."""

    present: tuple[int, ...]
    busy: Mapping[int, str]


@dataclass(frozen=True)
class Chosen:
    """What a container gets: accelerators by number, device files, read-only mounts, additional groups."""

    numbers: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()


def look(platform: PlatformName, machine: Machine, taken: Mapping[int, str]) -> Found:
    """The accelerators of a host; `taken` are those that running containers of ours hold.

    The vendor's tool says which are in use; where there is none, only `taken` are known to be.
    """
    if platform == "npu":
        said = machine.program(["npu-smi", "info"], 5.0)
        using = (
            {card.number: f"{len(card.processes)} processes" for card in ascend.cards(said.out) if card.processes}
            if said
            else {}
        )
        ill = (
            {
                card.number: f"health {card.health}"
                for card in ascend.cards(said.out)
                if card.health not in (*ascend.WELL, "Warning")
            }
            if said
            else {}
        )
        return Found(tuple(npu.devices(machine.root)), {**using, **ill, **taken})
    if platform == "cuda":
        said = machine.program(["nvidia-smi", f"--query-gpu={nvidia.QUERY}", "--format=csv,noheader,nounits"], 5.0)
        using = {
            card.index: f"{card.used / 1024:.1f} of {card.total / 1024:.0f} GiB used"
            for card in nvidia.cards(said.out if said else "")
            if card.used > nvidia.USED_SHARE * card.total
        }
        return Found(tuple(cuda.devices(machine.root)), {**using, **taken})
    return Found((), {})


def choose(found: Found, needed: int, asked: Sequence[int] | None) -> tuple[tuple[int, ...], list[Finding]]:
    """The accelerators for a run: those asked for, or the first free ones; and what is wrong with them."""
    free = [number for number in found.present if number not in found.busy]
    if asked is None:
        if len(free) >= needed:
            return tuple(free[:needed]), []
        if len(found.present) < needed:
            return (), [_absent(found.present, f"the recipe asks for {needed}")]
        return (), [_busy(found, [number for number in found.present if number in found.busy], free, needed)]
    problems: list[Finding] = []
    if absent := [number for number in asked if number not in found.present]:
        problems.append(_absent(found.present, f"{_list(absent)} asked for"))
    if busy := [number for number in asked if number in found.busy]:
        problems.append(_busy(found, busy, free, len(asked)))
    if len(asked) != needed:
        problems.append(
            ABSENT.finding(
                f"--devices names {len(asked)}, the recipe uses {needed}",
                why="verl starts as many workers as the recipe says: some would have no device, or devices no worker.",
                fix=f"Name {needed} devices, or add train.devices={len(asked)}.",
            )
        )
    return tuple(asked), problems


def _list(numbers: Collection[int]) -> str:
    return ", ".join(map(str, numbers))


def _absent(present: Sequence[int], asked: str) -> Finding:
    return ABSENT.finding(
        f"{asked}; this machine has {f'the devices {_list(present)}' if present else 'none'}",
        why="A container gets the host's devices; what is not there cannot be passed on.",
        fix="Name devices that are there, or set train.devices to their number."
        if present
        else "Use a machine with the accelerator, or try the chain without one: `entrypoint.py launch smoke`.",
    )


def _busy(found: Found, busy: Sequence[int], free: Sequence[int], needed: int) -> Finding:
    what = "; ".join(f"device {number}: {found.busy[number]}" for number in busy)
    return BUSY.finding(
        what,
        why="vLLM takes a share of the whole card's memory at start and fails when it is not free.",
        fix=f"--devices {','.join(map(str, free[:needed]))}"
        if len(free) >= needed
        else f"Wait for it or end it; free now: {_list(free) or 'none'}.",
        severity="error",
    )


def chosen(platform: PlatformName, numbers: Sequence[int], machine: Machine) -> tuple[Chosen, list[Finding]]:
    """What a container needs for these accelerators, and what of it is missing on the host."""
    if platform != "npu":
        return Chosen(tuple(numbers)), []
    files = tuple(f"/dev/{name}" for name in (*(f"davinci{number}" for number in numbers), *npu.CONTROL_DEVICES))
    missing = [path for path in DRIVER_NEEDED if not machine.exists(path)]
    missing += [f"/dev/{name}" for name in npu.CONTROL_DEVICES if not machine.exists(f"/dev/{name}")]
    problems = (
        [
            NO_DRIVER.finding(
                f"{', '.join(missing)} is not there",
                why="CANN in the container uses the host's driver: its libraries and its control devices.",
                fix="Install the card's driver on the host: https://www.hiascend.com/hardware/firmware-drivers",
            )
        ]
        if missing
        else []
    )
    owner = machine.owner("/dev/davinci_manager")
    mounts = tuple(path for path in (*DRIVER_NEEDED, *DRIVER_USEFUL) if path in DRIVER_NEEDED or machine.exists(path))
    return Chosen(tuple(numbers), files, mounts, (owner[1],) if owner else ()), problems
