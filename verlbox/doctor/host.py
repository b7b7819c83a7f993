"""Checks of the host: system, Python, processors, memory, clock."""

from __future__ import annotations

import re

from verlbox import findings, pins
from verlbox.doctor.machine import cgroup_values, fields, gib, memory, version
from verlbox.doctor.subject import Checked, Subject

SYSTEM = findings.register("host-system", "error", "The operating system cannot load the stack's wheels.")
PYTHON = findings.register("host-python", "error", "Another Python runs here than the stack is pinned for.")
PROCESSORS = findings.register("host-processors", "error", "Too few processors for Ray to place verl's workers.")
MEMORY = findings.register("host-memory", "error", "Too little memory for the stack.")
CLOCK = findings.register("host-clock", "warning", "The clock is wrong.")

# Memory in bytes: below the first value a run was never seen to fit (cpu: measured peaks of the smoke recipe with verl
# 0.6.1, 1.7 GiB, and 0.9.1, 3.6 GiB), below the second it is tight. Accelerators: a worker loads the model on the
# host before it moves to the card, Ray's object store takes 30 % of memory: rules of thumb, not measurements.
MEMORY_NEEDED = {"cpu": (2 * 2**30, 4 * 2**30), "npu": (8 * 2**30, 32 * 2**30), "cuda": (8 * 2**30, 32 * 2**30)}

# verl's resource pool asks Ray for a bundle of one CPU with each device (single_controller/ray/base.py).
CPUS_A_DEVICE = 1

# When the newest pins were taken: no correct clock is behind it. Seconds since 1970, 2026-09-22.
PINS_TAKEN = 1_790_035_200


def system(subject: Subject) -> Checked:
    machine, stack = subject.machine, subject.stack
    release = fields(machine.read("/etc/os-release") or "", "=")
    name = release.get("PRETTY_NAME", "unknown system").strip('"')
    kernel = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    fact = f"{name}, kernel {kernel or 'unknown'}, {machine.architecture}, glibc {machine.glibc or 'none'}"
    problems = []
    oldest = pins.load()[stack.name].glibc
    if (machine.glibc is None or version(machine.glibc) < version(oldest)) and not subject.from_image:
        problems.append(
            SYSTEM.finding(
                f"glibc {machine.glibc or 'is not there'}: the stack's wheels need {oldest} or newer",
                why=f"pip finds no wheel, tries to build it, or the import fails with `GLIBC_{oldest} not found`.",
                fix=f"Use the image (`{subject.service}`), or a system such as Ubuntu 22.04 or Debian 12.",
            )
        )
    machines = pins.load()[stack.name].machines
    if machine.architecture not in machines:
        problems.append(
            SYSTEM.finding(
                f"this machine is {machine.architecture}, the stack {stack.name} is locked for {', '.join(machines)}",
                why="The pins were never resolved for it.",
                fix=f"Use a machine of {' or '.join(machines)}, or add it to machines of {stack.name} in pins.yaml"
                f" and run `python entrypoint.py pins lock {stack.name}`.",
                severity="warning" if subject.platform == "cpu" else "error",
            )
        )
    return Checked(fact, problems)


def python(subject: Subject) -> Checked:
    wanted = subject.stack.python
    fact = f"Python {subject.machine.python}"
    if version(subject.machine.python)[:2] == version(wanted):
        return Checked(fact)
    if subject.from_image:
        return Checked(f"{fact}; the image brings {wanted}")
    return Checked(
        fact,
        [
            PYTHON.finding(
                f"Python {subject.machine.python} runs here, the stack {subject.stack.name} is pinned for {wanted}",
                why="The pinned wheels do not exist for it, or another resolution would be needed.",
                fix=f"python{wanted} -m venv .venv && . .venv/bin/activate, then `python entrypoint.py doctor` again.",
            )
        ],
    )


def processors(subject: Subject) -> Checked:
    machine = subject.machine
    listed = len(re.findall(r"^processor\s*:", machine.read("/proc/cpuinfo") or "", re.M))
    allowed = _allowed(fields(machine.read("/proc/self/status") or "", ":").get("Cpus_allowed_list", ""))
    shares = [share for share in map(_share, cgroup_values(machine, "cpu", "cpu.max", "cpu.cfs_quota_us")) if share]
    periods = list(cgroup_values(machine, "cpu", "none", "cpu.cfs_period_us"))
    if shares and periods:  # cgroup v1 writes quota and period into two files
        shares = [share / int(periods[0]) for share in shares if periods[0].isdigit()]
    count = min([number for number in (listed, allowed) if number] or [1])
    usable = min([float(count), *shares])
    fact = f"{usable:g} of {listed} processors"
    needed = max(1, subject.devices * CPUS_A_DEVICE)
    if usable < needed and subject.platform != "cpu":
        problem = PROCESSORS.finding(
            f"{usable:g} processors for {subject.devices} devices",
            why="verl asks Ray for one processor with each device; with fewer, the workers are never placed and the"
            " run waits without a word.",
            fix=f"docker run --cpus {needed + 2} (compose: `cpus`), or a machine with more.",
        )
        return Checked(fact, [problem])
    return Checked(fact)


def _allowed(ranges: str) -> int:
    """How many processors a list such as 0-3,8 holds."""
    count = 0
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _share(value: str) -> float | None:
    """Processors of cpu.max ("150000 100000"), or the bare quota of cgroup v1; None where there is no limit."""
    parts = value.split()
    if not parts or parts[0] in ("max", "-1") or not parts[0].isdigit():
        return None
    return int(parts[0]) / int(parts[1]) if len(parts) == 2 else float(parts[0])


def main_memory(subject: Subject) -> Checked:
    machine = subject.machine
    there = memory(machine)
    total, free = there.get("MemTotal", 0), there.get("MemAvailable", 0)
    limits = [int(v) for v in cgroup_values(machine, "memory", "memory.max", "memory.limit_in_bytes") if v.isdigit()]
    limit = min(limits, default=2**62)
    fact = f"{gib(free)} free of {gib(total)}"
    if limit < total:
        fact += f"; this control group may use {gib(limit)}"
    usable = min(free, limit)
    least, ample = MEMORY_NEEDED[subject.platform]
    if usable >= ample:
        return Checked(fact)
    fix = (
        f"docker run --memory {ample // 2**30}g (compose: `mem_limit`), or remove the limit."
        if limit < free
        else f"End other programs (`ps aux --sort=-rss | head`), or use a machine with {ample // 2**30} GiB free."
    )
    problem = MEMORY.finding(
        f"{gib(usable)} of memory can be used, {gib(least if usable < least else ample)} is wanted",
        why="Ray kills workers when 95 % of the memory is used, and the kernel kills the rest (exit code 137).",
        fix=fix,
        severity="error" if usable < least else "warning",
    )
    return Checked(fact, [problem])


def clock(subject: Subject) -> Checked:
    from datetime import datetime, timezone

    now = subject.machine.now
    fact = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    if now >= PINS_TAKEN:
        return Checked(fact)
    problem = CLOCK.finding(
        f"the clock says {fact}, before this version of verlbox was made",
        why="Certificates look as if they were not valid yet, and downloads fail.",
        fix="sudo timedatectl set-ntp true",
    )
    return Checked(fact, [problem])
