"""What `submit` does when the connection to the cluster breaks; the verb itself runs in tests/e2e/test_cluster.py."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from verlbox import cli, process, submit

aiohttp = pytest.importorskip("aiohttp", reason="Ray's job client comes with a stack")


class Cluster:
    """A job API whose connection breaks in each of the ways that Ray's client shows, then holds."""

    def __init__(self) -> None:
        self.whole = False
        self.breaks: list[Exception] = [
            RuntimeError("closed"),
            ConnectionError("gone"),
            aiohttp.ServerDisconnectedError(),
        ]

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield "one\n"
        if self.breaks:
            raise self.breaks.pop(0)
        self.whole = True
        yield "two\n"

    def get_job_info(self, job: str) -> Any:
        if not self.whole:
            raise ConnectionError("gone")
        return argparse.Namespace(status=argparse.Namespace(is_terminal=lambda: True), driver_exit_code=5)

    def stop_job(self, job: str) -> None:
        raise ConnectionError("gone")


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        return None

    monkeypatch.setattr("asyncio.sleep", sleep)


@pytest.mark.usefixtures("_at_once")
def test_a_connection_that_breaks_is_taken_up_again_and_nothing_is_shown_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert submit._follow(cast("Any", Cluster()), "job", submit._Output()) == 5
    assert capsys.readouterr().out == "one\ntwo\n"


class Interrupting:
    """A job API at which this process is told to stop at one `moment`; it takes the word at the third time."""

    def __init__(self, moment: str, signum: int = signal.SIGINT) -> None:
        self.moment, self.signum = moment, signum
        self.submitted: list[str] = []
        self.told: list[str] = []
        self.answers: list[bool | Exception] = [RuntimeError("404: Job does not exist"), False, True]

    def reach(self, moment: str) -> None:
        if moment == self.moment:
            self.moment = ""
            os.kill(os.getpid(), self.signum)

    def submit_job(self, *, submission_id: str, **_: object) -> str:
        self.submitted.append(submission_id)
        self.reach("submit")
        return submission_id

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        self.reach("tail")
        yield "one\n"

    def get_job_info(self, job: str) -> Any:
        self.reach("info")
        ended = self.told != [] and not self.answers
        return argparse.Namespace(status=argparse.Namespace(is_terminal=lambda: ended), driver_exit_code=None)

    def stop_job(self, job: str) -> bool:
        self.told.append(job)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("moment", ["submit", "tail", "info"])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_job_is_stopped_at_whatever_moment_the_word_comes(
    moment: str, signum: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Interrupting(moment, signum)
    monkeypatch.setattr(submit, "_connect", lambda address: api)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert cli.main(["submit", "smoke", "--address", "http://head:8265"]) == code
    assert len(api.submitted) == 1 and api.told == api.submitted * 3


def test_a_signal_whose_exception_was_swallowed_stops_the_job_when_following_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Interrupting("")

    async def swallowing(*_: object) -> None:
        with contextlib.suppress(process.Interrupted):
            os.kill(os.getpid(), signal.SIGINT)
            time.monotonic()  # the handler runs before this

    monkeypatch.setattr(submit, "_connect", lambda address: api)
    monkeypatch.setattr(submit, "_tail", swallowing)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert cli.main(["submit", "smoke", "--address", "http://head:8265"]) == 130
    assert api.told == api.submitted * 3


def test_a_job_that_cannot_be_told_to_stop_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submit, "SECONDS_TO_TELL", 0.0)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert submit._stop(cast("Any", Cluster()), "job-7", submit._Output(), process.Interrupted(2)) == 130
    assert "gone; `ray job stop job-7` tells it" in capsys.readouterr().err
