"""Checks of the limits that this process works under: open files, processes, locked memory, the pids control group."""

from __future__ import annotations

from verlbox import findings
from verlbox.doctor.machine import cgroup_values, gib, in_container, limit
from verlbox.doctor.subject import Checked, Subject
from verlbox.findings import Finding

LIMIT = findings.register("limit-low", "warning", "A limit of this shell or container is too low for Ray and verl.")

# Ray opens several files a worker and warns below 8192; its documentation asks for 65536. Every worker of Ray has some
# dozens of threads, and each thread counts against processes and pids.
FILES = (1024, 8192)
PROCESSES = (512, 4096)
LOCKED = 2**26  # RDMA registers buffers as locked memory; below 64 MiB links between machines fail


def _shown(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def open_files(subject: Subject) -> Checked:
    found = limit(subject.machine, "Max open files")
    if found is None:
        return Checked("open files: unknown")
    soft, hard = found
    problems: list[Finding] = []
    if soft is not None and soft < FILES[1]:
        wanted = FILES[1] if hard is not None and hard < 65536 else 65536
        shell = "docker run --ulimit nofile=65536:65536" if in_container(subject.machine) else f"ulimit -n {wanted}"
        raise_hard = "; the hard limit is lower: `* hard nofile 65536` in /etc/security/limits.conf, log in again"
        problems.append(
            LIMIT.finding(
                f"only {soft} open files are allowed",
                why="Ray opens more as workers start, and then fails with `Too many open files`.",
                fix=shell + (raise_hard if hard is not None and hard < wanted else ""),
                severity="error" if soft < FILES[0] else "warning",
            )
        )
    return Checked(f"open files: {_shown(soft)} (hard {_shown(hard)})", problems)


def processes(subject: Subject) -> Checked:
    """Processes of the user (ulimit -u) and of the control group (pids.max): threads count."""
    problems: list[Finding] = []
    user = limit(subject.machine, "Max processes")
    soft = user[0] if user else None
    if soft is not None and soft < PROCESSES[1]:
        problems.append(
            LIMIT.finding(
                f"only {soft} processes and threads are allowed for this user",
                why="Ray's workers have dozens of threads each; creating one then fails with `Resource temporarily"
                " unavailable`.",
                fix="ulimit -u 65536",
                severity="error" if soft < PROCESSES[0] else "warning",
            )
        )
    group = min(
        (int(v) for v in cgroup_values(subject.machine, "pids", "pids.max", "pids.max") if v.isdigit()), default=None
    )
    if group is not None and group < PROCESSES[1]:
        problems.append(
            LIMIT.finding(
                f"the control group allows {group} processes and threads",
                why="Ray's workers have dozens of threads each; the container then cannot start another.",
                fix="docker run --pids-limit -1 (compose: `pids_limit: -1`)",
                severity="error" if group < PROCESSES[0] else "warning",
            )
        )
    return Checked(f"processes: {_shown(soft)}; pids of the control group: {_shown(group)}", problems)


def locked_memory(subject: Subject) -> Checked:
    found = limit(subject.machine, "Max locked memory")
    soft = found[0] if found else None
    fact = f"locked memory: {'unlimited' if soft is None else gib(soft)}"
    infiniband = bool(subject.machine.names("/sys/class/infiniband"))
    if soft is None or soft >= LOCKED or subject.devices < 2 or not infiniband:
        return Checked(fact)
    problem = LIMIT.finding(
        f"only {gib(soft)} may be locked, and there are RDMA cards",
        why="Collective communication registers its buffers with the card as locked memory, and fails.",
        fix="ulimit -l unlimited (docker run --ulimit memlock=-1)",
    )
    return Checked(fact, [problem])
