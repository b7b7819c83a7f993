"""What the checks know of a machine, through a few small functions that tests point at recorded trees.

Nothing here judges: files are read below `root`, programs are asked with a time limit, and a thing that is not there
is None or empty, never an exception.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path


@dataclass(frozen=True)
class Output:
    """What a program said: exit code, standard output and standard error."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Space:
    """A file system's size and what an ordinary user may still write, in bytes."""

    total: int
    free: int


@dataclass(frozen=True)
class Reply:
    """An HTTP answer: its status, or 0 and the reason why there is none; the server's clock in seconds since 1970."""

    status: int
    reason: str = ""
    date: float | None = None


def run_program(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> Output | None:
    """Runs a program with a time limit. None when there is no such program; code 124 when it took too long."""
    try:
        ended = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
            env=None if environment is None else dict(environment),
        )
    except subprocess.TimeoutExpired as error:
        partial = error.stdout or b""
        return Output(124, partial.decode("utf-8", "replace") if isinstance(partial, bytes) else partial, "timed out")
    except OSError:
        return None
    return Output(ended.returncode, ended.stdout, ended.stderr)


def measure(path: str) -> Space | None:
    """The file system that holds a path, or its nearest existing parent."""
    for candidate in (Path(path), *Path(path).parents):
        with contextlib.suppress(OSError):
            found = os.statvfs(candidate)
            return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
    return None


def ask(url: str, seconds: float) -> Reply:
    """Asks a server for its headers; an answer of any status is an answer."""

    def date(headers: Message) -> float | None:
        with contextlib.suppress(TypeError, ValueError):
            return parsedate_to_datetime(headers["Date"]).timestamp()
        return None

    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "verlbox-doctor"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return Reply(answer.status, date=date(answer.headers))
    except urllib.error.HTTPError as error:
        return Reply(error.code, date=date(error.headers))
    except (OSError, ValueError) as error:
        return Reply(0, str(getattr(error, "reason", error)))


@dataclass(frozen=True)
class Machine:
    """A machine or container as seen by one user: this one (`here()`), or a recorded one."""

    environment: Mapping[str, str]
    python: str
    architecture: str
    glibc: str | None
    home: str
    uid: int
    groups: frozenset[int]
    now: float
    root: Path = Path("/")
    sites: tuple[str, ...] | None = None  # folders of installed packages; None: those of this interpreter
    markers: Mapping[str, str] = field(default_factory=dict)  # marker variables that differ from this interpreter's
    program: Callable[[Sequence[str], float], Output | None] = run_program
    space: Callable[[str], Space | None] = measure
    ask: Callable[[str, float], Reply] = ask

    def path(self, place: str) -> Path:
        return self.root / place.lstrip("/")

    def read(self, place: str) -> str | None:
        """A file's text; None when it is not there or may not be read."""
        try:
            return self.path(place).read_text("utf-8", "replace")
        except OSError:
            return None

    def exists(self, place: str) -> bool:
        return self.path(place).exists()

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty when there is none."""
        try:
            return sorted(path.name for path in self.path(folder).iterdir())
        except OSError:
            return []

    def owner(self, place: str) -> tuple[int, int, int] | None:
        """Owner, group and permission bits of a file."""
        try:
            found = self.path(place).stat()
        except OSError:
            return None
        return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)

    def may(self, place: str, bits: int) -> bool:
        """Whether the user may read (4), write (2), execute (1) a file, by its permission bits. root may."""
        found = self.owner(place)
        if found is None:
            return False
        owner, group, mode = found
        if self.uid == 0:
            return True
        shift = 6 if owner == self.uid else 3 if group in self.groups else 0
        return (mode >> shift) & bits == bits


def here() -> Machine:
    """This machine, as this process sees it."""
    libc, version = platform.libc_ver()
    return Machine(
        environment=dict(os.environ),
        python=platform.python_version(),
        architecture=platform.machine(),
        glibc=version if libc == "glibc" else None,
        home=str(Path("~").expanduser()),
        uid=os.getuid(),
        groups=frozenset({os.getgid(), *os.getgroups()}),
        now=time.time(),
    )


# --- what several checks ask -------------------------------------------------------------------------------------


def fields(text: str, separator: str) -> dict[str, str]:
    """`key<separator>value` lines as a mapping; the first of equal keys counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, split, value = line.partition(separator)
        if split:
            found.setdefault(key.strip(), value.strip())
    return found


def memory(machine: Machine) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    entries = fields(machine.read("/proc/meminfo") or "", ":")
    return {key: int(value.split()[0]) * 1024 for key, value in entries.items() if value.split()[:1]}


def cgroup_values(machine: Machine, controller: str, new: str, old: str) -> Iterator[str]:
    """A limit's values from the process's control group up to the top, of cgroup v2 (`new`) or v1 (`old`).

    A limit holds for all groups below it, so the smallest counts. In a container the group's path may not be visible;
    the mount's top is then the container's own group.
    """
    groups = [line.split(":", 2) for line in (machine.read("/proc/self/cgroup") or "").splitlines() if line]
    for number, controllers, place in groups:
        if number == "0" and not controllers:
            base, name = "/sys/fs/cgroup", new
        elif controller in controllers.split(","):
            base, name = f"/sys/fs/cgroup/{controller}", old
        else:
            continue
        for folder in (Path(place), *Path(place).parents):
            value = machine.read(f"{base}/{str(folder).strip('/')}/{name}")
            if value is not None:
                yield value.strip()


def limit(machine: Machine, name: str) -> tuple[int | None, int | None] | None:
    """Soft and hard limit of this process by its name in /proc/self/limits; None stands for unlimited."""
    for line in (machine.read("/proc/self/limits") or "").splitlines():
        if line.startswith(name):
            soft, hard = (None if value == "unlimited" else int(value) for value in line[len(name) :].split()[:2])
            return soft, hard
    return None


def mount(machine: Machine, place: str) -> tuple[str, str]:
    """Mount point and file system type of a path, from /proc/self/mountinfo; the longest mount point counts."""
    best, kind = "", ""
    for line in (machine.read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        parts = left.split()
        if len(parts) < 5 or not right:
            continue
        point = parts[4].replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return best, kind


def age() -> float:
    """Seconds since this process was started; 0 where /proc does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # field 22, after the name
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def in_container(machine: Machine) -> bool:
    """Whether this is a Docker, Podman or Kubernetes container."""
    marked = machine.exists("/.dockerenv") or machine.exists("/run/.containerenv")
    return marked or "KUBERNETES_SERVICE_HOST" in machine.environment


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 7, 1) of "2.7.1.post2", (8, 3) of "8.3.RC1"."""
    match = re.match(r"\s*[vV]?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def gib(size: float) -> str:
    """Bytes as GiB, or MiB below one."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
