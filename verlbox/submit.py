"""The verb `submit RECIPE --address URL`: the run as a job of a Ray cluster, through Ray's own job API.

What travels is the recipe with its overrides, as the job's working directory. What does not: verlbox, which is on the
cluster's nodes as its images have it; models and data sets (hubs, or paths that the nodes have); and secrets, which the
nodes have in their own environment. The job's command is `entrypoint.py run` on the cluster's head; its output comes
here as it is written, its exit code is returned, and Ctrl-C or SIGTERM stop the job, which the same command goes on
with.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import shlex
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from verlbox import cluster, findings, process, recipe
from verlbox.cluster.check import REFUSED, SECONDS_TO_CONNECT, UNREACHABLE
from verlbox.findings import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PREFLIGHT,
    EXIT_STAGE,
    EXIT_TERMINATED,
    FindingsError,
)
from verlbox.plan import ROOT
from verlbox.run import RUNS_VARIABLE

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

NOT_TAKEN = findings.register("submit-refused", "error", "The Ray cluster did not take the job.")
JOB_LOST = findings.register("submit-job-lost", "error", "The job ended without the run's own exit code.")

RECIPES = ROOT / "recipes"
IN_IMAGES = "/opt/verlbox"  # where verlbox's images have verlbox
RECIPE_FILE = "recipe.yaml"
GRACE = process.GRACE_SECONDS + 40  # a run that is told to stop ends verl and puts its files in order; Ray's own is 3 s
SECONDS_TO_TELL = 10.0  # how long a job that does not take the word to stop is told again
SECONDS_TO_COME_BACK = 120.0  # how long a broken connection to the cluster is tried again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb; overrides of the recipe may follow."""
    parser.set_defaults(takes_overrides=True)
    parser.epilog = "Further arguments are overrides, as for `run`. Ctrl-C stops the job; the same command goes on."
    parser.add_argument("recipe", help="a recipe file, or the name of one in recipes/")
    parser.add_argument("--address", required=True, metavar="URL", help="Ray's job API, such as http://head:8265")
    parser.add_argument("--name", help="name of the run (default: the recipe's name)")
    parser.add_argument(
        "--runs", help=f"folder on the cluster that holds the runs, seen by all nodes (default: its ${RUNS_VARIABLE})"
    )
    parser.add_argument(
        "--verlbox", default=IN_IMAGES, metavar="FOLDER", help="where the nodes have verlbox (default: %(default)s)"
    )
    parser.add_argument("--from", dest="first", metavar="STAGE", help="as for `run`")
    parser.add_argument("--until", dest="last", metavar="STAGE", help="as for `run`")
    parser.add_argument("--accept-drift", action="append", default=[], metavar="KEY", help="as for `run`")
    parser.add_argument("--offline", action="store_true", help="as for `run`")


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb and returns the run's exit code. Raises FindingsError (3 when the cluster cannot take the job)."""
    loaded = recipe.load(recipe.find(arguments.recipe, RECIPES), arguments.overrides, files_here=False).recipe
    wanted = cluster.without_address(loaded)
    name = arguments.name or wanted.name
    client = _connect(arguments.address)
    job = f"verlbox-{name}-{secrets.token_hex(4)}"  # known before it is there, so that it can be stopped at any moment
    output = _Output()
    with process.interruptible():
        try:
            with tempfile.TemporaryDirectory(prefix="verlbox-job-") as folder:
                Path(folder, RECIPE_FILE).write_text(recipe.resolved(wanted), encoding="utf-8")
                _submit(client, arguments.address, name, job, entrypoint(arguments, name), folder)
            print(f"job {job} at {arguments.address}", file=sys.stderr)
            return _follow(client, job, output)
        except process.Interrupted as stop:
            return _stop(client, job, output, stop)


def entrypoint(arguments: argparse.Namespace, name: str) -> str:
    """The job's command, for the shell of the cluster's head.

    It leaves the job's folder, which Ray may put there anew when another process of the job wants it (two nodes on one
    machine share it), and a process whose current folder is gone fails in places that nobody would suspect.
    """
    runs = f'"${{{RUNS_VARIABLE}:?is not set on the cluster, and --runs is not given}}"'
    words = ["--name", name]
    words += ["--from", arguments.first] if arguments.first else []
    words += ["--until", arguments.last] if arguments.last else []
    words += [part for key in arguments.accept_drift for part in ("--accept-drift", key)]
    words += ["--offline"] if arguments.offline else []
    words = [shlex.join(words), "--runs", shlex.quote(arguments.runs) if arguments.runs else runs]
    program = shlex.quote(f"{arguments.verlbox}/entrypoint.py")
    return f'recipe=$PWD/{RECIPE_FILE}; cd /; exec python {program} run "$recipe" {" ".join(words)}'


def _connect(address: str) -> JobSubmissionClient:
    """Ray's client for the address. Raises FindingsError when no job API answers there, or it wants a token."""
    parts = urlsplit(address)

    def unreachable(reason: str) -> FindingsError:
        return FindingsError(
            UNREACHABLE.finding(
                f"no Ray job API at {address}: {reason}",
                why="The job is handed to the cluster's head, by default at port 8265 of it.",
                fix="Look at the address (http://HEAD:8265), and whether the head was started with"
                " --dashboard-host=0.0.0.0 or its port is forwarded. docs/cluster.md",
            ),
            EXIT_PREFLIGHT,
        )

    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise unreachable("it is not an http:// address")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), SECONDS_TO_CONNECT).close()
    except (OSError, ValueError) as error:
        raise unreachable(getattr(error, "strerror", None) or str(error)) from error
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise FindingsError(
            NOT_TAKEN.finding(
                f"ray's job client is not installed here: {error}",
                why="Jobs are handed over by Ray's own client.",
                fix="Use the environment of a stack (`make install`), or the stack's image.",
            ),
            EXIT_PREFLIGHT,
        ) from error
    try:
        return JobSubmissionClient(address)
    except AuthenticationError as error:
        raise FindingsError(
            REFUSED.finding(
                f"the Ray cluster at {address} wants a token, or another one",
                why="It was started with Ray's token authentication.",
                fix="Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as on the cluster's nodes.",
            ),
            EXIT_PREFLIGHT,
        ) from error
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise unreachable(_first_line(error)) from error


def _submit(client: JobSubmissionClient, address: str, name: str, job: str, command: str, folder: str) -> None:
    environment = {"RAY_JOB_STOP_WAIT_TIME_S": f"{GRACE:.0f}"}
    try:
        client.submit_job(
            entrypoint=command,
            submission_id=job,
            runtime_env={"working_dir": folder, "env_vars": environment},
            metadata={"verlbox": name},
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise FindingsError(
            NOT_TAKEN.finding(
                f"{address} did not take the job: {_first_line(error)}",
                why="Nothing was started.",
                fix="Look at the cluster (`ray status`, its dashboard) and at Ray's versions here and there.",
            ),
            EXIT_PREFLIGHT,
        ) from error


def _follow(client: JobSubmissionClient, job: str, output: _Output) -> int:
    """Shows the job's output until its end and returns its exit code."""
    asyncio.run(_tail(client, job, output))
    process.raise_if_interrupted()
    info = _info(client, job)
    if info is not None and info.driver_exit_code is not None:
        return int(info.driver_exit_code)
    if info is not None and info.status == "SUCCEEDED":
        return EXIT_OK
    if info is not None and info.status == "STOPPED":
        return EXIT_TERMINATED
    said = "the cluster does not answer any more" if info is None else f"{info.status}: {info.message}"
    raise FindingsError(
        JOB_LOST.finding(
            f"job {job}: {said}",
            why="The run's own exit code is not known; it may have come to its end all the same.",
            fix="Look at the cluster, then run the same command again: it goes on from what was done.",
        ),
        EXIT_STAGE,
    )


def _stop(client: JobSubmissionClient, job: str, output: _Output, stop: process.Interrupted) -> int:
    """Tells the job to end, shows its output until it has, and returns the code of the signal.

    A job that was only just handed over may not be known yet (Ray answers 404), or not be started (it answers that
    nothing was stopped, and starts it): it is told again for a while.
    """
    print(f"stopping job {job} ...", file=sys.stderr)
    deadline = time.monotonic() + SECONDS_TO_TELL
    while True:
        reason = "it does not run yet"
        try:
            told = client.stop_job(job)
        except (RuntimeError, OSError) as error:
            told, reason = False, _first_line(error)
        info = None if told else _info(client, job)
        if told or (info is not None and info.status.is_terminal()):
            asyncio.run(_tail(client, job, output))
            break
        if time.monotonic() > deadline:
            print(f"it was not told: {reason}; `ray job stop {job}` tells it", file=sys.stderr)
            break
        time.sleep(1.0)
    return EXIT_INTERRUPTED if stop.signum == signal.SIGINT else EXIT_TERMINATED


class _Output:
    """What of the job's output was shown already: Ray sends it from the beginning at each connection."""

    def __init__(self) -> None:
        self.shown = 0

    def begin(self) -> None:
        self.passed = 0

    def show(self, text: str) -> None:
        new = text[max(0, self.shown - self.passed) :]
        self.passed += len(text)
        self.shown = max(self.shown, self.passed)
        sys.stdout.write(new)
        sys.stdout.flush()


async def _tail(client: JobSubmissionClient, job: str, output: _Output) -> None:
    """Shows output as it comes until the job has ended, or the cluster has been silent for too long."""
    from aiohttp import ClientError

    answered = time.monotonic()
    while True:
        output.begin()
        with contextlib.suppress(RuntimeError, OSError, ClientError):  # the connection broke: the job may well go on
            async for text in client.tail_job_logs(job):
                output.show(text)
                answered = time.monotonic()
        info = _info(client, job)
        if info is not None:
            answered = time.monotonic()
            if info.status.is_terminal():
                return
        if time.monotonic() > answered + SECONDS_TO_COME_BACK:
            return
        await asyncio.sleep(1.0)


def _info(client: JobSubmissionClient, job: str) -> Any:
    """What Ray knows of the job; None when the cluster does not answer."""
    try:
        return client.get_job_info(job)
    except (RuntimeError, OSError):
        return None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
