"""What `submit` does when the connection to the cluster breaks; the verb itself runs in tests/e2e/test_cluster.py."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from verlbox import process, submit

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
    assert submit._follow(cast("Any", Cluster()), "job") == 5
    assert capsys.readouterr().out == "one\ntwo\n"


def test_a_job_that_cannot_be_told_to_stop_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupted(*_: object) -> None:
        raise process.Interrupted(2)

    monkeypatch.setattr(submit, "_tail", interrupted)
    assert submit._follow(cast("Any", Cluster()), "job-7") == 130
    assert "`ray job stop job-7` tells it" in capsys.readouterr().err
