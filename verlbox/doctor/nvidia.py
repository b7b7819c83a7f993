"""Checks of an NVIDIA host or container: device files, driver, cards."""

from __future__ import annotations

from dataclasses import dataclass

from verlbox import findings
from verlbox.doctor import matrix
from verlbox.doctor.machine import Machine, in_container, version
from verlbox.doctor.subject import Checked, Subject
from verlbox.findings import Finding
from verlbox.platforms import cuda

DEVICE = findings.register("nvidia-device", "error", "An NVIDIA device file is missing or may not be opened.")
DRIVER = findings.register("nvidia-driver", "error", "The NVIDIA driver is too old for the CUDA of the stack.")
SMI = findings.register(
    "nvidia-smi-fails", "error", "nvidia-smi fails: driver and libraries do not fit, or a card is lost."
)
CARD = findings.register("nvidia-card", "error", "A GPU is too old for the stack.")
BUSY = findings.register("device-busy", "warning", "A device that the run would use is in use.")

CONTROL = ("nvidiactl", "nvidia-uvm")
USED_SHARE = 0.1  # of a card's memory; a display and the driver take less

QUERY = "index,name,memory.total,memory.used,driver_version,compute_cap"

# Compute capability: CUDA 13 builds of torch start at 7.5; flash-attn and bfloat16 at 8.0.
OLDEST_CARD, BFLOAT16_CARD = (7, 5), (8, 0)


@dataclass(frozen=True)
class Card:
    """A line of nvidia-smi; memory in MiB."""

    index: int
    name: str
    total: int
    used: int
    capability: tuple[int, ...]


def cards(text: str) -> list[Card]:
    """The cards of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; a value it cannot read becomes 0."""
    found: list[Card] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 6 and parts[0].isdigit():
            total, used = (int(value) if value.isdigit() else 0 for value in parts[2:4])
            found.append(Card(int(parts[0]), parts[1], total, used, version(parts[5])))
    return found


def _wsl(machine: Machine) -> bool:
    return machine.exists("/dev/dxg")


def devices(subject: Subject) -> Checked:
    machine = subject.machine
    numbers = cuda.devices(machine.root)
    problems = cuda.problems(subject.devices, machine.root, machine.environment)
    fact = f"{len(numbers)} GPU(s): " + ", ".join(f"nvidia{n}" for n in numbers) if numbers else "no /dev/nvidia0"
    if not numbers or _wsl(machine):
        return Checked(fact, problems)
    names = [*CONTROL, *(f"nvidia{number}" for number in numbers)]
    missing = [name for name in names if not machine.exists(f"/dev/{name}")]
    closed = [name for name in names if name not in missing and not machine.may(f"/dev/{name}", 0b110)]
    if missing:
        problems.append(
            DEVICE.finding(
                f"{', '.join('/dev/' + name for name in missing)} is missing",
                why="CUDA cannot be initialised without it (error 999 or 304).",
                fix="docker run --gpus all" if in_container(machine) else "sudo nvidia-modprobe -u -c0",
            )
        )
    if closed:
        problems.append(
            DEVICE.finding(
                f"this user may not open {', '.join('/dev/' + name for name in closed)}",
                why="CUDA finds no device.",
                fix=f"sudo usermod -aG $(stat -c %G /dev/{closed[0]}) $USER, and log in again",
            )
        )
    return Checked(fact, problems)


def driver(subject: Subject) -> Checked:
    found = cuda.driver(subject.machine.root)
    if found is None:
        return Checked("no driver is loaded")  # `devices` says what that means
    row = next((row for row in matrix.load().cuda_drivers if row.stack == subject.stack.name), None)
    if row is None or version(found) >= version(row.toolkit):
        return Checked(f"driver {found}")
    fatal = version(found) < version(row.oldest)
    problem = DRIVER.finding(
        f"driver {found}, the stack {subject.stack.name} is built for CUDA {row.cuda}: "
        + (f"{row.oldest} is the oldest that can run it" if fatal else f"{row.toolkit} came with it"),
        why="`CUDA driver version is insufficient for CUDA runtime version`."
        if fatal
        else "Kernels that the driver compiles itself (PTX) may fail; others run.",
        fix=f"sudo apt-get install nvidia-driver-{version(row.toolkit)[0]}, and restart"
        + (" (or the stack cuda-061, for CUDA 12.8)" if subject.stack.name == "cuda" else ""),
        severity="error" if fatal else "warning",
    )
    return Checked(f"driver {found}", [problem])


def state(subject: Subject) -> Checked:
    """What nvidia-smi says: capability and use of the cards."""
    machine = subject.machine
    if not cuda.devices(machine.root):
        return Checked("no card to ask")
    said = machine.program(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"], 2.0)
    if said is None:
        return Checked("no nvidia-smi")
    if said.code:
        reason = (said.out.strip() or said.err.strip()).splitlines()[:1]
        text = reason[0] if reason else f"exit code {said.code}"
        mismatch = "mismatch" in text
        problem = SMI.finding(
            f"nvidia-smi: {text}",
            why="The driver's libraries were updated while the old kernel module stayed loaded."
            if mismatch
            else "The driver does not answer, so no CUDA program can run.",
            fix="sudo reboot" if mismatch else "sudo dmesg | grep -i nvrm, then restart the host",
        )
        return Checked("nvidia-smi fails", [problem])
    found = cards(said.out)
    problems: list[Finding] = []
    for card in found:
        if card.capability and card.capability < BFLOAT16_CARD:
            fatal = card.capability < OLDEST_CARD
            problems.append(
                CARD.finding(
                    f"GPU {card.index} ({card.name}) has compute capability {'.'.join(map(str, card.capability))}",
                    why="The stack's torch has no kernels for it."
                    if fatal
                    else "It has no bfloat16, and flash-attn does not support it.",
                    fix="Use a newer card, or hide this one: export CUDA_VISIBLE_DEVICES=...",
                    severity="error" if fatal else "warning",
                )
            )
    problems += _busy(subject, found)
    shown = ", ".join(f"{card.name} {card.total / 1024:.0f} GiB" for card in found)
    return Checked(shown or "nvidia-smi lists no card", problems)


def _busy(subject: Subject, found: list[Card]) -> list[Finding]:
    visible = cuda.visible(subject.machine.root, subject.machine.environment)
    if visible is None:
        return []
    would_use = visible[: subject.devices]
    busy = [c for c in found if c.index in would_use and c.total and c.used > USED_SHARE * c.total]
    if not busy:
        return []
    idle = [c.index for c in found if c.index in visible and c.used <= USED_SHARE * c.total]
    enough = len(idle) >= subject.devices
    what = ", ".join(f"GPU {c.index} ({c.used / 1024:.1f} of {c.total / 1024:.0f} GiB used)" for c in busy)
    return [
        BUSY.finding(
            what,
            why="vLLM takes a share of the whole card's memory at start and fails when it is not free.",
            fix="export CUDA_VISIBLE_DEVICES=" + ",".join(map(str, idle[: subject.devices]))
            if enough
            else "nvidia-smi --query-compute-apps=pid,used_memory --format=csv shows whose it is.",
        )
    ]
