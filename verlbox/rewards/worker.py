"""The grading process behind the pool, run as a script: `python -I worker.py`. It imports nothing of verlbox.

A supervisor imports math-verify once, then forks a grader that answers one job a line. The time limit is on the
grader's own processor time, so that a busy machine fails no good answer, and on twice as much by the clock. A grader
over it is killed; the next job gets a fresh fork, in milliseconds instead of the second that the import takes.
What is covered: the grader has a limit on its address space, no environment, no core dumps, a time limit that is an
alarm of its own as well, and dies with the supervisor (PR_SET_PDEATHSIG). The supervisor ends when its input does or
when its parent changes, which it looks for every second, so nothing outlives the parent.
What is not covered: the grader may open files and sockets. It parses LaTeX only, with a grammar: answers never reach
sympy's `parse_expr`, which evaluates Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

POLL_SECONDS = 1.0
CLOCK_FACTOR = 2.0  # the clock may show this many times the limit, when others use the processor
PR_SET_PDEATHSIG = 1


def _processor_seconds(process: int) -> float:
    """Processor time a process has used, from /proc; 0 when it is gone."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _equal(gold: str, answer: str) -> bool | None:
    """math-verify's verdict on two LaTeX expressions; None when one of them cannot be parsed."""
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=0)]
    parsed = [
        parse(f"$\\boxed{{{text}}}$", config, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (gold, answer)
    ]
    if not all(parsed):
        return None
    return bool(verify(parsed[0], parsed[1], timeout_seconds=None))


def _grade(job: dict[str, Any]) -> dict[str, Any]:
    try:
        verdict = _equal(job["gold"], job["answer"])
    except MemoryError:
        return {"reason": "crash"}
    except RecursionError:
        return {"reason": "unparsable"}
    except Exception:  # whatever a parser or sympy trips over is a property of the answer
        return {"reason": "unparsable"}
    return {"reason": "unparsable" if verdict is None else "ok" if verdict else "wrong"}


def _serve_as_grader(jobs: int, results: int, timeout: float, memory: int) -> None:
    """The forked grader: answers jobs until its input ends. Never returns."""
    import ctypes

    supervisor = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with os.fdopen(jobs, "rb") as lines, os.fdopen(results, "wb") as out:
        for line in lines:
            signal.setitimer(signal.ITIMER_REAL, 2 * CLOCK_FACTOR * timeout)
            try:
                reply = _grade(json.loads(line))
            except MemoryError:
                reply = {"reason": "crash"}
            signal.setitimer(signal.ITIMER_REAL, 0)
            out.write(json.dumps(reply).encode() + b"\n")
            out.flush()
            if reply["reason"] == "crash":  # memory that ran out may be fragmented: start over
                os._exit(1)
    os._exit(0)


class _Grader:
    """A forked grader and the pipes to it."""

    def __init__(self, timeout: float, memory: int) -> None:
        job_out, self.jobs = os.pipe()
        self.results, result_in = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(self.jobs)
            os.close(self.results)
            devnull = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(devnull, descriptor)
            _serve_as_grader(job_out, result_in, timeout, memory)
        os.close(job_out)
        os.close(result_in)

    def ask(self, line: bytes, timeout: float, parent: int) -> dict[str, Any]:
        """The grader's reply; `timeout` or `crash` when there is none: then it must be killed."""
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self.jobs, view) :]
        except BrokenPipeError:
            return {"reason": "crash"}
        start, used = time.monotonic(), _processor_seconds(self.process)
        reply = b""
        while not reply.endswith(b"\n"):
            passed = time.monotonic() - start
            left = min(CLOCK_FACTOR * timeout - passed, timeout - (_processor_seconds(self.process) - used))
            if left <= 0 or os.getppid() != parent:
                return {"reason": "timeout"}
            ready, _, _ = select.select([self.results], [], [], min(max(left, 0.01), POLL_SECONDS))
            if not ready:
                continue
            chunk = os.read(self.results, 65536)
            if not chunk:
                return {"reason": "crash"}
            reply += chunk
        return dict(json.loads(reply))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.jobs)
        os.close(self.results)


def _lines(parent: int) -> Iterator[bytes]:
    """Lines of standard input, until it ends or the parent is gone."""
    waiting = b""
    while True:
        ready, _, _ = select.select([0], [], [], POLL_SECONDS)
        if os.getppid() != parent:
            return
        if not ready:
            continue
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return
        waiting += chunk
        *lines, waiting = waiting.split(b"\n")
        yield from lines


def main() -> None:
    """Reads settings (one line), says that it is ready, then answers jobs, one JSON line each."""
    parent = os.getppid()
    lines = _lines(parent)
    settings = json.loads(next(lines))
    sys.path[:] = settings["path"]
    os.environ.clear()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import logging

    logging.disable(logging.CRITICAL)
    _equal("\\sqrt{2}", "2^{1/2}")  # load everything that grading loads
    timeout, memory = float(settings["timeout"]), int(settings["memory"])
    print(json.dumps({"ready": os.getpid()}), flush=True)
    grader: _Grader | None = None
    for line in lines:
        grader = grader or _Grader(timeout, memory)
        start = time.monotonic()
        reply = grader.ask(line + b"\n", timeout, parent)
        reply["seconds"] = round(time.monotonic() - start, 6)
        if reply["reason"] in ("timeout", "crash"):
            grader.kill()
            grader = None
        print(json.dumps(reply), flush=True)
    if grader:
        grader.kill()


if __name__ == "__main__":
    main()
