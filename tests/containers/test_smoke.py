"""The smoke recipe in its container, with real verl: trained, stopped, gone on with, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.containers.conftest import BUILD_CANARY, ROOT, RUN_CANARY, Ended, Host, command, wait_until

if TYPE_CHECKING:
    from docker.client import DockerClient

STEP = re.compile(r"^step (\d+)/(\d+) ", re.MULTILINE)


@pytest.fixture(scope="module")
def stopped(host: Host, tmp_path_factory: pytest.TempPathFactory, client: DockerClient) -> Iterator[Any]:
    """`docker compose run smoke`, stopped by `docker stop` after its first checkpoint; what the engine knew of it."""
    output = tmp_path_factory.mktemp("output") / "first.txt"
    words = ["docker", "compose", "run", "--rm", "--name", "verlbox-tests-smoke", "smoke"]
    with output.open("w") as stream:
        running = subprocess.Popen(
            words,
            env={**os.environ, **host.environment},
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
        )
        wait_until(lambda: len(STEP.findall(output.read_text())) >= 5 or running.poll() is not None, "step 5", 400)
        assert running.poll() is None, output.read_text()
        container = client.containers.get("verlbox-tests-smoke")
        attributes = container.attrs
        processes = container.top()["Processes"]
        assert command(["docker", "stop", "verlbox-tests-smoke"]).code == 0
        code = running.wait(60)
    yield Ended(code, output.read_text(), 0), attributes, processes


@pytest.fixture(scope="module")
def finished(host: Host, stopped: Any) -> Ended:
    """The same command again."""
    return host.compose("run", "--rm", "smoke")


def test_stopping_the_container_ends_it_with_the_exit_code_of_sigterm(stopped: Any) -> None:
    ended, _, _ = stopped
    assert ended.code == 143, ended.output
    assert "the same command goes on" in ended.output


def test_it_is_contained(stopped: Any, host: Host) -> None:
    _, attributes, processes = stopped
    settings = attributes["HostConfig"]
    assert settings["ReadonlyRootfs"]
    assert settings["CapDrop"] == ["ALL"]
    assert not settings["CapAdd"]
    assert settings["SecurityOpt"] == ["no-new-privileges:true"]
    assert settings["NetworkMode"] == "none"
    assert not settings["Privileged"]
    assert settings["IpcMode"] == "private"
    assert attributes["Config"]["User"] == f"{host.environment['UID']}:{host.environment['GID']}"
    assert {line[0] for line in processes} == {host.environment["UID"]}


def test_it_goes_on_from_its_last_checkpoint_and_passes(finished: Ended, host: Host) -> None:
    assert finished.code == 0, finished.output
    assert re.search(r"resuming after step (4|8) of 16", finished.output), finished.output
    manifest = json.loads((host.runs / "smoke/manifest.json").read_text())
    assert manifest["stages"]["report"]["state"] == "done"
    assert manifest["steps"]["total"] == 16


def test_the_manifest_says_which_sources_the_image_was_built_from(finished: Ended, stopped: Any, host: Host) -> None:
    source = json.loads((host.runs / "smoke/manifest.json").read_text())["verlbox"]
    revision = stopped[1]["Config"]["Labels"]["org.opencontainers.image.revision"]
    assert source["commit"] == revision.removesuffix("-dirty")
    assert source["dirty"] == revision.endswith("-dirty")


def test_everything_it_left_is_the_callers(finished: Ended, host: Host) -> None:
    owner = host.runs.stat().st_uid
    left = list(host.runs.rglob("*"))
    assert len(left) > 20
    assert {path.lstat().st_uid for path in left} == {owner}


def test_no_secret_is_in_the_run(finished: Ended, host: Host) -> None:
    texts = (path.read_bytes() for path in host.runs.rglob("*") if path.is_file() and not path.is_symlink())
    assert not any(RUN_CANARY.encode() in text for text in texts)
    assert RUN_CANARY not in finished.output


def test_a_user_error_comes_out_with_its_exit_code(host: Host) -> None:
    ended = host.compose("run", "--rm", "smoke", "train.stepz=1")
    assert ended.code == 2
    assert "Did you mean train.steps?" in ended.output


def test_the_caller_may_be_named_on_the_command_line(host: Host) -> None:
    ended = host.compose(
        "run", "--rm", "--user", "4242:4242", "--entrypoint", "sh", "smoke", "-c", "id -u; touch /tmp/x"
    )
    assert (ended.code, ended.output.splitlines()[-1]) == (0, "4242")


def test_the_report_service_reports_on_the_run(finished: Ended, host: Host) -> None:
    ended = host.compose("run", "--rm", "report", "smoke", "--lang", "zh")
    assert ended.code == 0, ended.output


def test_a_missing_folder_for_runs_is_not_made_as_root(host: Host, tmp_path: Path) -> None:
    environment = {**host.environment, "VERLBOX_RUNS": str(tmp_path / "absent")}
    ended = command(["docker", "compose", "run", "--rm", "smoke", "--until", "download"], environment=environment)
    assert ended.code != 0
    assert "absent" in ended.output
    assert not (tmp_path / "absent").exists()


# --- the image ---------------------------------------------------------------------------------------------------


def test_neither_history_nor_files_of_the_image_hold_a_secret(
    cpu_image: str, finished: Ended, client: DockerClient, tmp_path: Path
) -> None:
    canaries = (BUILD_CANARY.encode(), RUN_CANARY.encode())
    described = command(["docker", "history", "--no-trunc", cpu_image]).output + str(client.images.get(cpu_image).attrs)
    assert not any(canary.decode() in described for canary in canaries)
    container = client.containers.create(cpu_image)
    try:
        archive = tmp_path / "files.tar"
        assert command(["docker", "export", "--output", str(archive), container.id]).code == 0
    finally:
        container.remove()
    names: list[str] = []
    with tarfile.open(archive) as files:
        for member in files:
            names.append(member.name)
            content = files.extractfile(member) if member.isfile() else None
            if content is not None and member.size < 1 << 24:
                text = content.read()
                assert not any(canary in text for canary in canaries), member.name
    archive.unlink()
    assert not {"opt/verlbox/.env", "opt/verlbox/.git", "opt/verlbox/tests"} & set(names)
    compilers = re.compile(r"(^|/)s?bin/(gcc|g\+\+|cc|cpp|c\+\+|clang|ld|make|nvcc)(-\d+)?$")
    assert [name for name in names if compilers.search(name)] == []
    assert not any(name.startswith("opt/venv/bin/pip") for name in names)
    bytecode = [name for name in names if name.startswith("opt/verlbox/verlbox/__pycache__/cli.")]
    assert bytecode, "compiled when the image is built: a container cannot"


def test_the_image_says_what_it_is(cpu_image: str, client: DockerClient) -> None:
    labels = client.images.get(cpu_image).labels
    assert labels["io.verlbox.stack"] == "cpu"
    assert labels["io.verlbox.pins"] == "requirements-cpu.txt"
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])


def test_the_image_is_usable_without_any_option(cpu_image: str) -> None:
    assert command(["docker", "run", "--rm", cpu_image, "pins", "check", "cpu"]).code == 0
    assert "smoke" in command(["docker", "run", "--rm", cpu_image, "list"]).output
