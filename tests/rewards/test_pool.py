"""The grading processes: limits, isolation, and that nothing outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from verlbox.rewards import graded_math, pool

ROOT = Path(__file__).parents[2]
HANGS = "\\sum_{k=1}^{1000000000} k^{k}"
MATRIX_SUM = "\\begin{pmatrix}1 & 2\\end{pmatrix} + \\begin{pmatrix}5 & 6\\end{pmatrix}"


@pytest.fixture(scope="module")
def graders() -> Iterator[pool.Pool]:
    made = pool.Pool(2, timeout=1.0)
    yield made
    made.close()


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(entry.parent.name))
    return found


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: object, seconds: float) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def test_math_verify_judges_what_the_fast_paths_cannot(graders: pool.Pool) -> None:
    assert graders.ask("\\begin{pmatrix}6 & 8\\end{pmatrix}", MATRIX_SUM).reason == "ok"
    assert graders.ask("\\begin{pmatrix}6 & 9\\end{pmatrix}", MATRIX_SUM).reason == "wrong"
    assert graders.ask("5", "\\sqrt").reason == "unparsable"


@pytest.mark.parametrize("answer", ["__import__('os').getpid()", "exit()", "\x00\ud800", "(" * 3900, "5\n6", ""])
def test_hostile_text_neither_runs_nor_breaks_the_protocol(graders: pool.Pool, answer: str) -> None:
    assert graders.ask("72", answer).reason in ("unparsable", "wrong", "timeout")
    assert graders.ask("\\begin{pmatrix}6 & 8\\end{pmatrix}", MATRIX_SUM).reason == "ok"


def test_an_item_costs_its_timeout_and_no_restart(graders: pool.Pool) -> None:
    graders.ask("1", "1")
    start = time.monotonic()
    verdicts = graders.ask_all([("5", HANGS)] * 4)
    seconds = time.monotonic() - start
    assert [verdict.reason for verdict in verdicts] == ["timeout"] * 4
    assert max(verdict.seconds for verdict in verdicts) < 2.5  # a loaded machine gets twice the limit
    assert seconds < 8.0


def test_a_grader_has_no_environment_and_a_memory_limit() -> None:
    os.environ["VERLBOX_TEST_SECRET"] = "x"
    made = pool.Pool(1)
    try:
        made.ask("1", "1")
        supervisor = made._idle[0].process.pid
        (grader,) = children(supervisor)
        for process in (supervisor, grader):
            assert b"SECRET" not in Path(f"/proc/{process}/environ").read_bytes()
        limits = Path(f"/proc/{grader}/limits").read_text()
        assert f"Max address space         {pool.MEMORY}" in limits
    finally:
        made.close()
        del os.environ["VERLBOX_TEST_SECRET"]


def test_memory_that_runs_out_is_a_crash_of_one_item() -> None:
    made = pool.Pool(1, timeout=10.0, memory=72 << 20)
    try:
        assert made.ask("1", "1").reason == "ok"
        assert made.ask("5", "x" * 3_000_000).reason == "crash"
        assert made.ask("1", "1").reason == "ok"
    finally:
        made.close()


def test_a_killed_grader_and_a_killed_process_are_replaced() -> None:
    made = pool.Pool(1)
    try:
        made.ask("1", "1")
        (grader,) = children(made._idle[0].process.pid)
        os.kill(grader, signal.SIGKILL)
        assert made.ask("1", "1").reason == "crash"
        assert made.ask("1", "1").reason == "ok"
        os.kill(made._idle[0].process.pid, signal.SIGKILL)
        assert made.ask("1", "1").reason == "crash"
        assert made.ask("1", "1").reason == "ok"
    finally:
        made.close()


def test_it_works_off_the_main_thread(graders: pool.Pool) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(graders.ask("\\begin{pmatrix}6 & 8\\end{pmatrix}", MATRIX_SUM).reason)
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == ["ok"] * 4


@pytest.mark.parametrize("hanging", [False, True])
def test_nothing_outlives_a_killed_parent(hanging: bool) -> None:
    program = (
        "import sys, threading, time\n"
        "from verlbox.rewards import pool\n"
        "made = pool.Pool(1, timeout=60.0)\n"
        "made.ask('1', '1')\n"
        f"job = threading.Thread(target=made.ask, args=('5', {HANGS!r}), daemon=True)\n"
        f"if {hanging}: job.start(); time.sleep(0.5)\n"
        "print(made._idle[0].process.pid if made._idle else 0, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        parent.stdout.readline()
        (supervisor,) = children(parent.pid)
        family = [supervisor, *children(supervisor)]
        assert len(family) == 2
    finally:
        parent.kill()
        parent.wait()
    assert wait_until(lambda: not any(map(alive, family)), 5.0)


def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    with pytest.raises(RuntimeError, match=r"did not start.*math_verify"):
        pool.Pool(1).ask("1", "1")


def _grade_in_child(results: SimpleQueue[str]) -> None:
    row = graded_math.compute_score_single("m", f"\\boxed{{{MATRIX_SUM}}}", "\\begin{pmatrix}6 & 8\\end{pmatrix}")
    results.put(str(row["reason"]))


def test_it_works_in_a_daemonic_process() -> None:
    """multiprocessing forbids children to daemonic processes, which Ray workers may be; plain pipes do not care."""
    context = multiprocessing.get_context("spawn")
    results: SimpleQueue[str] = context.SimpleQueue()
    process = context.Process(target=_grade_in_child, args=(results,), daemon=True)
    process.start()
    assert results.get() == "ok"
    process.join(10)
    assert process.exitcode == 0
