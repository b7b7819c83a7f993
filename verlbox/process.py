"""Child processes: complete logs, forwarded signals, the child's own exit code, and nothing left behind.

What it guarantees: every byte that the child prints is in its log (if the disk fills up, it is still shown); SIGTERM
and SIGINT given to verlbox reach the child; when the child is gone, so is everything that it started (verl starts Ray,
which starts daemons in sessions of their own); when verlbox itself is killed, the child is told to end, and the next
run on the same directory ends what remains. Linux only, as verl is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

TAG = "VERLBOX_RUN"  # environment variable that names the run in every process that belongs to it
GRACE_SECONDS = 20.0  # from a forwarded signal to SIGKILL; Ray's own shutdown takes 5 to 6 s on two cores
_PR_SET_PDEATHSIG = 1


class Interrupted(BaseException):
    """SIGINT or SIGTERM was received. Not an Exception, so that no handler for failures swallows it."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"signal {signum}")


_received: list[int] = []  # the signal that ended the work, for where its exception was swallowed


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into Interrupted within the block; later ones are ignored while it unwinds.

    Python drops an exception that a handler raises inside a finaliser or a fork callback, so the signal is also kept:
    `raise_if_interrupted` raises it where the work goes on.
    """

    def handler(signum: int, _: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        _received.append(signum)
        raise Interrupted(signum)

    _received.clear()
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
        _received.clear()


def raise_if_interrupted() -> None:
    """Raises Interrupted when a signal was received within `interruptible`."""
    if _received:
        raise Interrupted(_received[0])


def _end_with_parent(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != parent:  # it died before prctl took effect
            os._exit(1)

    return in_child


def tagged(tag: str) -> list[int]:
    """Process ids, other than this process, whose environment says that they belong to the run `tag`."""
    wanted = f"{TAG}={tag}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # gone in the meantime, or somebody else's
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_tagged(tag: str, patience: float = 5.0) -> int:
    """Ends every process of the run `tag`, SIGTERM first, SIGKILL after `patience` seconds; returns their number."""
    pids = tagged(tag)
    count = len(pids)
    deadline = time.monotonic() + patience
    number = signal.SIGTERM
    while pids:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        pause = time.monotonic() + 1.0
        while (pids := tagged(tag)) and time.monotonic() < pause:
            time.sleep(0.05)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        if time.monotonic() > deadline + 30:
            break  # a process in uninterruptible sleep ignores even SIGKILL
    return count


class _Log:
    """The log file of a child. A full disk stops the writing, not the run; `lost` then says why."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.stream = path.open("ab", buffering=0)
        self.lost: OSError | None = None

    def write(self, block: bytes) -> None:
        if self.lost is None:
            try:
                self.stream.write(block)
            except OSError as error:
                self.lost = error

    def close(self) -> None:
        self.stream.close()


def run(
    command: Sequence[str],
    *,
    log: Path,
    tag: str,
    environment: Mapping[str, str],
    cwd: Path,
    on_line: Callable[[str], None] | None = None,
) -> int:
    """Runs a command to its end and returns its exit code (128 + n when signal n ended it, as shells count).

    Output goes to `log` as it comes, stdout and stderr in one, and line by line to `on_line` (carriage returns end a
    line too). Raises Interrupted, after the child and all it started are gone, when this process was told to stop;
    OSError when the command cannot be started or the log cannot be written.
    """
    child = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment, TAG: tag, "PYTHONUNBUFFERED": "1"},
        cwd=cwd,
        start_new_session=True,
        preexec_fn=_end_with_parent(os.getpid()),  # noqa: PLW1509 - no threads of ours are alive here
    )
    record = _Log(log)
    try:
        _follow(child, record, on_line)
        code = child.wait()
    except BaseException as stop:
        # Interrupted, or a fault of ours: in either case nothing may stay behind.
        _stop(child, stop.signum if isinstance(stop, Interrupted) else signal.SIGTERM, record, tag)
        raise
    finally:
        record.close()
        end_tagged(tag)
    if record.lost is not None:
        raise record.lost
    return 128 - code if code < 0 else code


def _follow(
    child: subprocess.Popen[bytes], log: _Log, on_line: Callable[[str], None] | None, until: float | None = None
) -> None:
    """Copies the child's output until it ends; orphans that hold the pipe open are heard for a moment, not for ever."""
    assert child.stdout is not None
    descriptor = child.stdout.fileno()
    pending = b""
    gone: float | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while until is None or time.monotonic() < until:
            if until is None:
                raise_if_interrupted()
            silent = not selector.select(timeout=0.5)
            if child.poll() is not None:
                gone = gone or time.monotonic()
                if silent or time.monotonic() - gone > 5:
                    break
            if silent:
                continue
            block = os.read(descriptor, 1 << 16)
            if not block:
                break
            log.write(block)
            if on_line is not None:
                *lines, pending = (pending + block).replace(b"\r", b"\n").split(b"\n")
                for line in lines:
                    on_line(line.decode("utf-8", "replace"))
    if pending and on_line is not None:
        on_line(pending.decode("utf-8", "replace"))


def _stop(child: subprocess.Popen[bytes], signum: int, log: _Log, tag: str) -> None:
    """Forwards a signal to the child, keeps its last words, and kills it when the grace period is over."""
    if child.poll() is None:
        child.send_signal(signum)
        _follow(child, log, None, until=time.monotonic() + GRACE_SECONDS)
    if child.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1.0)
    if child.poll() is None:
        child.kill()
        child.wait()
