from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verlbox import process

ROOT = Path(__file__).parents[1]


def run(tmp_path: Path, code: str, lines: list[str] | None = None) -> int:
    return process.run(
        [sys.executable, "-c", code],
        log=tmp_path / "log",
        tag=str(tmp_path),
        environment=dict(os.environ),
        cwd=tmp_path,
        on_line=None if lines is None else lines.append,
    )


def test_the_exit_code_is_the_childs_own(tmp_path: Path) -> None:
    assert run(tmp_path, "raise SystemExit(7)") == 7
    assert run(tmp_path, "import os; os.kill(os.getpid(), 9)") == 137


def test_every_byte_is_logged_and_every_line_is_passed_on(tmp_path: Path) -> None:
    lines: list[str] = []
    code = r"import sys; sys.stdout.buffer.write(b'a\r 50%\rb\n\xff\nlast'); sys.stdout.flush(); "
    code += "print('err', file=sys.stderr)"
    assert run(tmp_path, code, lines) == 0
    assert (tmp_path / "log").read_bytes() == b"a\r 50%\rb\n\xff\nlasterr\n"
    assert lines == ["a", " 50%", "b", "\ufffd", "lasterr"]


def test_a_child_of_the_child_in_a_session_of_its_own_does_not_stay(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True); print('up')"
    started = time.monotonic()
    assert run(tmp_path, code) == 0
    assert process.tagged(str(tmp_path)) == []
    assert time.monotonic() - started < 20


SCRIPT = """
import os, sys
from pathlib import Path
from verlbox import process
folder = Path(sys.argv[1])
child = sys.argv[2]
with process.interruptible():
    try:
        command = [sys.executable, "-c", child]
        process.run(command, log=folder / "log", tag=str(folder), environment=dict(os.environ), cwd=folder)
    except process.Interrupted as stop:
        sys.exit(128 + stop.signum)
"""
POLITE = """
import signal, subprocess, sys, time
def stop(number, frame):
    print("stopped by", number, flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, stop); signal.signal(signal.SIGINT, stop)
subprocess.Popen(["sleep", "300"], start_new_session=True)
print("ready", flush=True)
time.sleep(300)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)"


def start(tmp_path: Path, child: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), child], env=environment)
    log = tmp_path / "log"
    deadline = time.monotonic() + 30
    while not (log.exists() and b"ready" in log.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return parent


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_child_and_nothing_stays(tmp_path: Path, number: signal.Signals, code: int) -> None:
    parent = start(tmp_path, POLITE)
    parent.send_signal(number)
    assert parent.wait(30) == code
    assert f"stopped by {int(number)}" in (tmp_path / "log").read_text()
    assert process.tagged(str(tmp_path)) == []


def test_a_child_that_ignores_the_signal_is_killed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = start(tmp_path, DEAF)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(process.GRACE_SECONDS + 20) == 143
    assert process.tagged(str(tmp_path)) == []


def test_what_a_killed_run_leaves_is_ended_by_the_next(tmp_path: Path) -> None:
    parent = start(tmp_path, POLITE)
    parent.kill()
    parent.wait()
    assert process.end_tagged(str(tmp_path)) >= 1
    assert process.tagged(str(tmp_path)) == []


def test_the_child_is_told_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = start(tmp_path, POLITE)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while "stopped by 15" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
        if len(process.tagged(str(tmp_path))) <= 1:  # only the orphan of the child is left
            break
    assert len(process.tagged(str(tmp_path))) <= 1
    process.end_tagged(str(tmp_path))


SWALLOWED = """
import os, signal, sys
from pathlib import Path
from verlbox import process
folder = Path(sys.argv[1])

class Finaliser:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)  # Python ignores what the handler raises in here

with process.interruptible():
    try:
        item = Finaliser()
        del item
        command = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"]
        process.run(command, log=folder / "log", tag=str(folder), environment=dict(os.environ), cwd=folder)
    except process.Interrupted as stop:
        sys.exit(128 + stop.signum)
"""


def test_a_signal_whose_exception_python_swallowed_still_ends_the_work(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SWALLOWED, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert "Exception ignored" in done.stderr, "the case is not the one that is meant"
    assert done.returncode == 143
    assert process.tagged(str(tmp_path)) == []
