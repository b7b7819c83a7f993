"""Ray nodes on this machine, for tests: each is a set of processes that can be killed as a machine that fails is.

Ports are free ones below Ray's own range for workers. The cluster wants a token, as one in a shared network should.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verlbox import process

RAY = str(Path(sys.executable).with_name("ray"))
CPU_NODE = ("--num-cpus=2", "--num-gpus=1", '--resources={"cpu":1}')


def free_port() -> int:
    """A port that nothing listens on, outside of what Ray gives to its workers (10002 to 19999)."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
        if not 10001 <= port <= 19999:
            return port


@dataclass
class Nodes:
    """A Ray cluster on 127.0.0.1. `environment` is what its nodes and its users have in theirs."""

    folder: Path
    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    dashboard: int = field(default_factory=free_port)
    names: list[str] = field(default_factory=list)
    agents: dict[str, int] = field(default_factory=dict)  # the port of each node's own agent

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, name: str, options: Sequence[str] = CPU_NODE) -> None:
        """Starts a node and waits until it has joined; the first one is the head."""
        if name not in self.names:
            self.names.append(name)
        role = [f"--address={self.address}"]
        if name == self.names[0]:
            role = ["--head", f"--port={self.port}", f"--temp-dir={self.folder}"]
            role += [f"--dashboard-port={self.dashboard}", f"--ray-client-server-port={free_port()}"]
        command = [RAY, "start", *role, "--node-ip-address=127.0.0.1", *options, "--disable-usage-stats"]
        self.agents[name] = free_port()
        command += [f"--dashboard-agent-listen-port={self.agents[name]}", "--object-store-memory=150000000"]
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment, process.TAG: self._tag(name)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    def alive(self, name: str) -> bool:
        return bool(process.tagged(self._tag(name)))

    def kill(self, name: str) -> None:
        """Ends all processes of a node at once, and those that it started: the machine is gone."""
        for _ in range(20):
            pids = process.tagged(self._tag(name))
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            if not pids:
                return
            time.sleep(0.1)

    def stop(self) -> None:
        for name in reversed(self.names):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tag(self, name: str) -> str:
        return f"{self.folder}/{name}"


def cluster() -> Nodes:
    """A cluster without nodes yet."""
    folder = Path(tempfile.mkdtemp(prefix="vbn-", dir="/tmp"))  # short: Ray's sockets lie in it
    token = secrets.token_hex(32)
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_TMPDIR": str(folder),
        "RAY_worker_niceness": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(RAY).parent}:{os.environ['PATH']}",  # a job's `python` is the nodes'
    }
    return Nodes(folder, environment)
