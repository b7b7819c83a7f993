"""The container that `launch` starts, and what it says when it cannot; without an engine."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from verlbox.container import command, engine, images, launch
from verlbox.container.devices import Chosen
from verlbox.findings import EXIT_OK, EXIT_PREFLIGHT, EXIT_USAGE, FindingsError
from verlbox.recipe import load
from verlbox.run import Run
from verlbox.stacks import STACKS

ROOT = Path(__file__).parents[2]
TOKEN = "canary-5d1c7"


def _arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments, overrides = parser.parse_known_args(words)
    arguments.overrides = overrides
    return arguments


def _contained(recipe: str, devices: Chosen, environment: dict[str, str], tmp_path: Path) -> launch.Contained:
    return launch.describe(
        load(ROOT / f"recipes/{recipe}.yaml").recipe,
        Run(tmp_path / "runs/a run"),
        ["run", "x"],
        image="verlbox/x:1",
        user="1234:5",
        cache=tmp_path / "cache",
        inputs=[ROOT / f"recipes/{recipe}.yaml"],
        devices=devices,
        environment=environment,
    )


def test_a_run_with_bundled_inputs_gets_no_network_and_no_secret(tmp_path: Path) -> None:
    contained = _contained("smoke", Chosen(), {"HF_TOKEN": TOKEN}, tmp_path)
    text = launch.docker_command(contained)
    assert "--network=none" in text
    assert not any("HF_TOKEN" in part for part in text)
    assert TOKEN not in str(launch.create_arguments(contained, {"HF_TOKEN": TOKEN}))


def test_secrets_are_passed_by_name_and_never_printed(tmp_path: Path) -> None:
    environment = {"HF_TOKEN": TOKEN, "WANDB_API_KEY": ""}
    contained = _contained("npu-grpo", Chosen((3,)), environment, tmp_path)
    assert "--env=HF_TOKEN" in launch.docker_command(contained)
    assert not any("WANDB" in part for part in launch.docker_command(contained))
    assert TOKEN not in launch.as_text(launch.docker_command(contained))
    assert launch.create_arguments(contained, environment)[0]["environment"]["HF_TOKEN"] == TOKEN


def test_the_printed_command_says_what_the_engine_is_asked_for(tmp_path: Path) -> None:
    files = ("/dev/davinci3", "/dev/davinci_manager")
    chosen = Chosen((3,), files, ("/usr/local/Ascend/driver/lib64",), (1000,))
    printed = launch.docker_command(_contained("npu-grpo", chosen, {}, tmp_path))
    own, asked = launch.create_arguments(_contained("npu-grpo", chosen, {}, tmp_path))
    runs, driver = f"{tmp_path}/runs", "/usr/local/Ascend/driver/lib64"
    for option in (
        "--name=verlbox-a-run",
        "--user=1234:5",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges:true",
        "--device=/dev/davinci3",
        "--group-add=1000",
        f"--mount=type=bind,src={runs},dst={runs}",
        f"--mount=type=bind,src={driver},dst={driver},ro",
        f"--env=VERLBOX_RUNS={runs}",
        "--label=io.verlbox.devices=3",
    ):
        assert option in printed
    assert (own["user"], own["stop_timeout"]) == ("1234:5", launch.STOP_SECONDS)
    assert asked["read_only"] is True
    assert asked["cap_drop"] == ["ALL"]
    assert asked["devices"] == [f"{name}:{name}:rwm" for name in files]
    assert [(m["Source"], m["ReadOnly"]) for m in asked["mounts"]] == [
        (runs, False),
        (f"{tmp_path}/cache", False),
        (str(ROOT / "recipes/npu-grpo.yaml"), True),
        (driver, True),
    ]
    assert printed[-3:] == ["verlbox/x:1", "run", "x"]


def test_gpus_are_requested_by_number(tmp_path: Path) -> None:
    contained = _contained("cuda-ppo", Chosen((1, 2)), {}, tmp_path)
    assert '--gpus="device=1,2"' in launch.docker_command(contained)
    assert launch.create_arguments(contained)[1]["device_requests"][0]["DeviceIDs"] == ["1", "2"]


def test_a_folder_that_is_both_runs_and_cache_is_mounted_once(tmp_path: Path) -> None:
    contained = launch.describe(
        load(ROOT / "recipes/smoke.yaml").recipe,
        Run(tmp_path / "a"),
        [],
        image="i",
        user="1:1",
        cache=tmp_path,
        inputs=[],
        devices=Chosen(),
    )
    assert contained.mounts == (launch.Mount(str(tmp_path)),)


def test_dry_run_prints_the_command_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    monkeypatch.chdir(tmp_path)
    words = ["smoke", "--dry-run", "--name", "n", "--runs", str(tmp_path / "runs"), "--until", "preprocess"]
    code = command.run(_arguments(*words, "dataset.source=local", "dataset.path=rows.jsonl", "train.seed=3"))
    printed = capsys.readouterr().out
    assert code == EXIT_OK
    for part in (
        "docker run",
        f"--user={os.getuid()}:{os.getgid()}",
        f"dst={data},ro",
        f"dataset.path={data}",
        "--until",
    ):
        assert part in printed
    assert not (tmp_path / "runs").exists()


def test_dry_run_without_the_accelerator_prints_the_command_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/dev/davinci0").exists():
        pytest.skip("this machine has an NPU")
    code = command.run(_arguments("npu-grpo", "--dry-run", "--devices", "0"))
    said = capsys.readouterr()
    assert code == EXIT_PREFLIGHT
    assert "--device=/dev/davinci0" in said.out
    assert "platform-absent" in said.err
    assert "driver-mount-missing" in said.err


def _trouble(host: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, int]:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(FindingsError) as caught:
        command.run(_arguments("smoke"))
    (finding,) = caught.value.findings
    return finding.code, finding.fix, caught.value.exit_code


def test_without_an_engine_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, fix, exit_code = _trouble(f"unix://{tmp_path}/absent.sock", monkeypatch)
    assert (code, exit_code) == ("engine-absent", EXIT_PREFLIGHT)
    assert "systemctl start docker" in fix


def _break_off(server: socket.socket) -> None:
    server.accept()[0].close()


def test_an_engine_that_breaks_off_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_break_off, args=(server,), daemon=True).start()
        code, _, exit_code = _trouble(f"tcp://127.0.0.1:{server.getsockname()[1]}", monkeypatch)
    assert (code, exit_code) == ("engine-absent", EXIT_PREFLIGHT)


def test_a_host_that_cannot_be_read_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _trouble("nonsense://x", monkeypatch)[0] == "engine-absent"


def test_a_socket_that_this_user_may_not_use_is_a_finding_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o600)
        tmp_path.chmod(0o755)
        code = (
            "import os, sys\n"
            "from verlbox.container import engine\n"
            "from verlbox.findings import FindingsError\n"
            "import docker, requests\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "try: engine.connect()\n"
            "except FindingsError as error: print(error.findings[0].code, error.exit_code)\n"
        )
        if os.getuid() != 0:
            pytest.skip("only root can become another user")
        for parent in tmp_path.parents:  # pytest keeps its folders to their owner
            if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
                parent.chmod(parent.stat().st_mode | 0o011)
        said = _python(code, {"DOCKER_HOST": f"unix://{path}"})
    assert said.split() == ["engine-denied", "3"], said


def _python(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (
            ["ERROR: failed to solve: python:3.11-slim: failed to resolve source metadata for docker.io/library"],
            "image-unreachable",
        ),
        (
            ["#9 E: Failed to fetch http://deb.debian.org/x  Temporary failure resolving 'deb.debian.org'", "ERROR: x"],
            "image-unreachable",
        ),
        (
            ['ERROR: failed to solve: process "/bin/sh -euc pip" did not complete successfully: exit code: 1'],
            "image-build-failed",
        ),
        ([], "image-build-failed"),
    ],
)
def test_a_failed_build_is_told_from_a_missing_network(output: Sequence[str], code: str) -> None:
    finding = images.explain(STACKS["cpu"], list(output))
    assert finding.code == code
    assert "verlbox/cpu:" in finding.what


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', "nvidia-container-toolkit"),
        ('error gathering device information while adding custom device "/dev/davinci0"', "doctor"),
        ("Conflict. The container name is already in use by container", "docker rm verlbox-a-run"),
    ],
)
def test_a_refusal_of_the_engine_comes_with_its_fix(text: str, fix: str, tmp_path: Path) -> None:
    finding = launch.refused(_contained("smoke", Chosen(), {}, tmp_path), RuntimeError(text))
    assert finding.code == "container-not-started"
    assert fix in finding.fix


def test_an_engine_error_is_told_by_its_cause() -> None:
    denied = (
        "Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))"
    )
    assert engine.explain(RuntimeError(denied)).code == "engine-denied"
    absent = "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))"
    assert "there is no socket" in engine.explain(RuntimeError(absent)).what


def test_a_recipe_that_joins_a_cluster_is_refused_and_sent_to_submit() -> None:
    for words in (("smoke", "cluster.nodes=2"), ("smoke", "cluster.address=head:6379")):
        with pytest.raises(FindingsError) as error:
            command.run(_arguments(*words, "--dry-run"))
        assert error.value.exit_code == EXIT_USAGE
        (finding,) = error.value.findings
        assert finding.code == "launch-several-machines"
        assert "submit" in finding.fix


def test_the_container_sees_the_folder_of_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer").mkdir()
    words = ("model.name=Qwen/Qwen2.5-0.5B", "model.source=random", f"model.path={tmp_path / 'tokenizer'}")
    command.run(_arguments("smoke", *words, "--dry-run", "--runs", str(tmp_path / "runs")))
    assert f"{tmp_path / 'tokenizer'}" in capsys.readouterr().out
