"""The parent's side of the worker process: its environment, its answers, and the end of a worker that hangs."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from verlbox.hub import huggingface, modelscope
from verlbox.hub.spec import HubFile, Listing, Patience, Repository, Source
from verlbox.hub.trouble import Failure, Trouble

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MODELSCOPE_API_TOKEN")
_POLL_SECONDS = 0.25
_IMPORT_SECONDS = 120.0  # a busy machine, a cold network file system


def endpoints() -> dict[Source, str]:
    """Addresses of the hubs. HF_ENDPOINT replaces both Hugging Face and its mirror, as for every Hugging Face tool."""
    chosen = os.environ.get("HF_ENDPOINT", "").strip()
    return {
        "modelscope": modelscope.endpoint(),
        "huggingface": chosen or huggingface.ENDPOINT,
        "mirror": chosen or huggingface.MIRROR,
    }


def environment(source: Source, endpoint: str, home: Path) -> dict[str, str]:
    """The worker's environment: the client's settings, its own token and no other, no folder of the user's."""
    kept = {name: value for name, value in os.environ.items() if name not in TOKENS}
    token = _token(source, endpoint)
    client = modelscope.environment() if source == "modelscope" else huggingface.environment(endpoint)
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    homes = {
        "HF_HOME": str(home / "huggingface"),
        "MODELSCOPE_CACHE": str(home / "modelscope"),
        "MODELSCOPE_CREDENTIALS_PATH": str(home / "modelscope" / "credentials"),
    }
    return {**kept, **token, **client, **homes, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _token(source: Source, endpoint: str) -> dict[str, str]:
    """The token a source may see. A mirror of somebody else's gets HF_TOKEN only when HF_ENDPOINT names it."""
    if source == "modelscope":
        token = os.environ.get("MODELSCOPE_API_TOKEN")
        return {"MODELSCOPE_API_TOKEN": token} if token else {}
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    trusted = source == "huggingface" or endpoint == os.environ.get("HF_ENDPOINT", "").strip().rstrip("/")
    return {"HF_TOKEN": token} if token and trusted else {}


def redacted(text: str) -> str:
    """The text without any token of the environment, without passwords and signatures in addresses."""
    for name in TOKENS:
        if secret := os.environ.get(name):
            text = text.replace(secret, "[hidden]")
    text = re.sub(r"(https?://)[^/\s@]+@", r"\1[hidden]@", text)
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\")]*", r"\1?[hidden]", text)


class Session:
    """A running worker: asks for its listing, lets it download, ends it."""

    def __init__(self, process: subprocess.Popen[str], log: IO[bytes], patience: Patience) -> None:
        self._process = process
        self._log = log
        self._patience = patience
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def listing(self) -> Listing:
        """What the hub holds. Raises Trouble (unreachable) when no answer comes in time."""
        if self._answer(time.monotonic() + _IMPORT_SECONDS) is None:
            raise Trouble(Failure.TRANSIENT, f"the hub's client did not start within {_IMPORT_SECONDS:g} s")
        answer = self._answer(time.monotonic() + self._patience.listing_seconds)
        if answer is None:
            raise Trouble(Failure.UNREACHABLE, f"no answer within {self._patience.listing_seconds:g} s")
        content = answer["listing"]
        return Listing(str(content["revision"]), tuple(HubFile(**file) for file in content["files"]))

    def download(self, wanted: list[str], folder: Path, here: Callable[[], int], report: Callable[[int], None]) -> None:
        """Downloads into `folder`. `here` counts the bytes that have arrived; Trouble when they stay the same."""
        self.say({"wanted": wanted, "folder": str(folder.resolve())})
        done, since = here(), time.monotonic()
        report(done)
        while self._answer(time.monotonic() + _POLL_SECONDS) is None:
            now = here()
            if now != done:
                done, since = now, time.monotonic()
                report(done)
            elif time.monotonic() - since > self._patience.stall_seconds:
                raise Trouble(Failure.TRANSIENT, f"no byte arrived for {self._patience.stall_seconds:g} s")
        report(here())

    def end(self) -> None:
        """Ends the worker and all its threads at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()

    def _answer(self, deadline: float) -> Mapping[str, Any] | None:
        """The next answer, None when there is none by the deadline. Raises the Trouble that the worker reports."""
        try:
            line = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if line is None:
            code = self._process.wait()
            raise Trouble(Failure.TRANSIENT, f"the hub's client ended with exit code {code}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise Trouble(Failure(answer["failed"]), redacted(str(answer["message"])))
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().split("\n")
        return redacted(lines[-1])[-300:]

    def say(self, value: object) -> None:
        """Sends one line; a worker that is gone says why with its next answer."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout
        with contextlib.suppress(ValueError):  # closed by end()
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put(None)


@contextlib.contextmanager
def session(source: Source, repository: Repository, home: Path, patience: Patience) -> Iterator[Session]:
    """Starts a worker for one repository of one hub, and ends it however the block ends.

    `home` is a folder for what the client writes for itself; it is emptied first (a killed run may have left it) and
    removed at the end.
    """
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    request = {
        "client": "modelscope" if source == "modelscope" else "huggingface",
        "repository": asdict(repository),
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "verlbox.hub.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(source, repository.endpoint, home),
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is ours to handle; end() then stops the whole group
        )
        running = Session(process, log, patience)
        try:
            running.say(request)
            yield running
        finally:
            running.end()
            shutil.rmtree(home, ignore_errors=True)
