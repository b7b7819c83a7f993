"""Real runs with real verl on the CPU, shared by the tests of this folder: each takes minutes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from verlbox import process

ROOT = Path(__file__).parents[2]
CANARY = "canary-1f0c9a77e6"  # set as every token that a run could know; must appear in no file of the run
TOKENS = ("HF_TOKEN", "MODELSCOPE_API_TOKEN", "WANDB_API_KEY", "SWANLAB_API_KEY")
LINE = re.compile(r"^step (\d+)/(\d+) ", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """A command that has ended: exit code, what it printed, seconds."""

    code: int
    output: str
    seconds: float


def environment(runs: Path) -> dict[str, str]:
    own = dict.fromkeys(TOKENS, CANARY)
    return {**os.environ, **own, "VERLBOX_RUNS": str(runs), "VERLBOX_CACHE": str(runs / "cache")}


def verlbox(runs: Path, *arguments: str, timeout: float = 900) -> Ended:
    """Runs the command line to its end."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), *arguments],
        env=environment(runs),
        cwd=runs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ended(done.returncode, done.stdout, time.monotonic() - started)


def stop_when(
    runs: Path, arguments: Sequence[str], ready: Callable[[str], bool], number: signal.Signals, timeout: float = 600
) -> Ended:
    """Starts the command line, sends it a signal as soon as its output is `ready`, and waits for its end."""
    started = time.monotonic()
    output = runs / "output.txt"
    with output.open("w") as stream:
        child = subprocess.Popen(
            [sys.executable, str(ROOT / "entrypoint.py"), *arguments],
            env=environment(runs),
            cwd=runs,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        while not ready(output.read_text()):
            assert child.poll() is None, output.read_text()
            assert time.monotonic() - started < timeout, output.read_text()
            time.sleep(0.05)
        child.send_signal(number)
        code = child.wait(60)
    return Ended(code, output.read_text(), time.monotonic() - started)


def last_step(output: str) -> int:
    steps = LINE.findall(output)
    return int(steps[-1][0]) if steps else 0


def nothing_left(run: Path, patience: float = 0.0) -> bool:
    """Whether no process of the run is alive (after at most `patience` seconds)."""
    deadline = time.monotonic() + patience
    while process.tagged(str(run)):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="session", autouse=True)
def _needs_verl() -> None:
    pytest.importorskip("verl", reason="real runs need the CPU stack (make install)")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def smoke(runs: Path) -> Ended:
    """The smoke recipe as it is shipped, run once without interruption."""
    return verlbox(runs, "run", "smoke")
