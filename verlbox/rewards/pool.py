"""A pool of grading processes for the answers that the fast paths leave undecided.

Each worker is a process of its own (see worker.py), started when the first undecided answer arrives and at most one a
core. An item that exceeds the time limit costs that limit and a fork; start-up never counts as an item's time.
Works off the main thread and in Ray's daemonic workers: plain subprocesses and pipes, no signals, no multiprocessing.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from verlbox.rewards.reasons import Reason

TIMEOUT = 1.0  # seconds an item, of the grader's own processor time; by the clock at most twice that
MEMORY = 512 << 20  # bytes of address space a grader may use; it uses 64 MiB after start (measured)
START_SECONDS = 120.0  # importing sympy takes 1 to 3 seconds, more on a loaded machine
MAX_WORKERS = 8
_WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Verdict:
    """How one pair was judged: ok, wrong, unparsable, timeout or crash, and the seconds it took."""

    reason: Reason
    seconds: float


class _Worker:
    """One grading process and its pipes."""

    def __init__(self, timeout: float, memory: int) -> None:
        self.timeout = timeout
        # The library path is kept because Python itself may need it; nothing else of the environment is.
        environment = {key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
        )
        settings = {"path": [entry for entry in sys.path if entry], "timeout": timeout, "memory": memory}
        try:
            self._send(settings)
            ready = self._receive(START_SECONDS)
        except OSError:
            ready = None
        if ready is None:
            self.process.kill()
            _, errors = self.process.communicate()
            tail = errors.decode(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"the grading process did not start: {' '.join(tail) or 'no reply'}")

    def _send(self, message: object) -> None:
        assert self.process.stdin is not None
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[self.process.stdin.write(data) or 0 :]

    def _receive(self, seconds: float) -> dict[str, object] | None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + seconds
        poll = select.poll()  # not select(): a training process may hold more than 1,024 descriptors
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
        reply = b""
        while not reply.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return None
            reply += chunk
        return dict(json.loads(reply))

    def ask(self, gold: str, answer: str) -> Verdict | None:
        """The verdict; None when the process itself is gone or stuck and must be replaced."""
        start = time.monotonic()
        try:
            self._send({"gold": gold, "answer": answer})
            reply = self._receive(2 * self.timeout + 1.0)
        except OSError:
            reply = None
        if reply is None:
            return None
        return Verdict(cast(Reason, reply["reason"]), time.monotonic() - start)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Pool:
    """At most `workers` grading processes, started one by one as the load asks for them; usable from any thread."""

    def __init__(self, workers: int, timeout: float = TIMEOUT, memory: int = MEMORY) -> None:
        self.timeout, self.memory = timeout, memory
        self._owner = os.getpid()
        self._slots = threading.Semaphore(workers)
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="grading")

    def ask(self, gold: str, answer: str) -> Verdict:
        """The verdict on one pair. Raises RuntimeError when no grading process can be started."""
        with self._slots:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            worker = worker or _Worker(self.timeout, self.memory)
            verdict = worker.ask(gold, answer)
            if verdict is None:
                worker.close()
                return Verdict("crash", self.timeout)
            with self._lock:
                self._idle.append(worker)
            return verdict

    def ask_all(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """The verdicts on pairs of (gold, answer), in order, in parallel. Raises RuntimeError as `ask` does."""
        return list(self._threads.map(lambda pair: self.ask(*pair), pairs))

    def close(self) -> None:
        """Ends the processes; those of a parent this process was forked from are left alone."""
        if self._owner != os.getpid():
            return
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.close()


_shared: dict[tuple[int, int, float], Pool] = {}
_shared_lock = threading.Lock()


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared(workers: int | None = None, timeout: float = TIMEOUT) -> Pool:
    """This process's pool for these settings; nothing is started before the first question."""
    key = (os.getpid(), workers or min(cores(), MAX_WORKERS), timeout)
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Pool(key[1], timeout)
        return _shared[key]


@atexit.register
def _close_shared() -> None:
    for pool in _shared.values():
        pool.close()
