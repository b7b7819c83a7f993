"""What keeps a container from starting: each a finding with its fix and exit code 3, through the verbs themselves.

An engine that is not there or refuses this user is tried in test_launch.py, a missing image without network on a real
engine in tests/containers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.doctor.recorded import Recorded
from verlbox.container import command as launch
from verlbox.doctor import command as doctor
from verlbox.findings import EXIT_PREFLIGHT


def _run(verb: object, words: Sequence[str], machine: Recorded, monkeypatch: pytest.MonkeyPatch) -> int:
    """A verb on a recorded machine: what it asks of a machine, it asks of that one."""
    monkeypatch.setattr(verb, "here", machine.machine)
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)  # type: ignore[attr-defined]
    arguments, arguments_overrides = parser.parse_known_args(words)
    arguments.overrides = arguments_overrides
    code: int = verb.run(arguments)  # type: ignore[attr-defined]
    return code


@pytest.mark.parametrize(
    ("plant", "words", "code", "fix"),
    [
        (lambda m: None, ["--devices", "42"], "platform-absent", "Name devices that are there"),
        (
            lambda m: [path.unlink() for path in (m.root / "dev").glob("davinci[0-9]*")],
            [],
            "platform-absent",
            "Use a machine with the accelerator",
        ),
        (
            lambda m: m.programs.update({"npu-smi": {"file": "npu-smi-info-busy.txt"}}),
            ["--devices", "0"],
            "device-busy",
            "--devices",
        ),
        (
            lambda m: m.remove("/usr/local/Ascend/driver/version.info"),
            [],
            "driver-mount-missing",
            "Install the card's driver",
        ),
    ],
    ids=["no such device", "no device at all", "device busy", "driver mount missing"],
)
def test_launch_says_what_of_the_accelerator_is_missing(
    plant: Callable[[Recorded], object],
    words: list[str],
    code: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = Recorded("ascend-910b3", tmp_path)
    plant(machine)
    ended = _run(launch, ["npu-grpo", "--dry-run", *words], machine, monkeypatch)
    said = capsys.readouterr()
    assert ended == EXIT_PREFLIGHT
    assert f"error[{code}]" in said.err
    assert fix in said.err
    assert "docker run" in said.out, "the command is printed all the same"


def test_a_compose_that_is_too_old_is_an_error_where_the_image_is_to_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Recorded("docker-host-a100", tmp_path)
    machine.programs["docker compose"] = {"out": "2.17.3\n"}
    assert _run(doctor, ["cuda"], machine, monkeypatch) == EXIT_PREFLIGHT
    said = capsys.readouterr().err
    assert "error[compose-old] compose 2.17.3, 2.20 or newer is needed" in said
    assert "fix: sudo apt-get install docker-compose-plugin" in said
