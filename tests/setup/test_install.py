"""How stacks are installed: order, options and pins of each command, and the file as images run it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from verlbox import pins
from verlbox.setup import install
from verlbox.setup.install import Command, Places, Step
from verlbox.stacks import STACKS

ROOT = Path(__file__).parents[2]
PLACES = Places("/env/bin/python", ("/env/bin/python", "-m", "pip"), "/pins")


def steps(stack: str, machine: str = "x86_64", **environment: str) -> tuple[Step, ...]:
    text = (ROOT / STACKS[stack].requirements).read_text("utf-8")
    return install.steps(stack, PLACES, environment, machine, text)


def words(stack: str, step: str, machine: str = "x86_64", **environment: str) -> Command:
    """The last command of a step."""
    return next(s for s in steps(stack, machine, **environment) if s.name == step).commands[-1]


def test_npu_is_installed_torch_first_then_the_engines_then_the_rest_then_verl() -> None:
    assert [step.name for step in steps("npu")] == ["torch", "engines", "others", "verl"]
    for step in steps("npu"):
        assert {"--no-deps", "--require-hashes"} <= set(step.commands[-1].words), step.name


def test_vllm_for_npu_is_built_empty_from_its_source() -> None:
    _, source, build, _, ascend = next(step for step in steps("npu") if step.name == "engines").commands
    assert "VLLM_TARGET_DEVICE" not in source.environment
    assert "--require-hashes --no-binary vllm -d /pins -r /pins/vllm.txt" in " ".join(source.words)
    assert build.environment["VLLM_TARGET_DEVICE"] == "empty"
    assert build.words[-1] == f"/pins/vllm-{pins.pinned(STACKS['npu'], 'x86_64')['vllm']}.tar.gz"
    assert "--require-hashes" not in build.words, "a file on this disk, whose hash was checked"
    for command in (source, build):
        assert {"--no-deps", "--no-build-isolation"} <= set(command.words)
        assert command.environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
        assert command.path == "/env/bin", "cmake and ninja of the environment"
    assert ascend.words[-1] == "/pins/vllm-ascend.txt"


def test_only_x86_64_takes_torch_for_npu_from_pytorchs_index() -> None:
    here, there = words("npu", "torch", "x86_64"), words("npu", "torch", "aarch64")
    assert here.environment == {"TORCH_INDEX": install.TORCH_INDEX}
    assert "-r /pins/index.txt" in " ".join(here.words)
    assert (there.environment, "/pins/index.txt" in there.words) == ({}, False)
    mirrored = words("npu", "torch", "x86_64", TORCH_INDEX="https://mirror/cpu")
    assert mirrored.environment == {"TORCH_INDEX": "https://mirror/cpu"}


def test_what_the_build_of_vllm_imports_is_pinned_and_there_before() -> None:
    pinned = pins.pinned(STACKS["npu"], "x86_64")
    assert {name for name in install.NPU_BUILD.split("|") if name not in pinned} == set()
    assert {"setuptools", "setuptools-scm", "cmake", "ninja", "packaging", "wheel", "jinja2"} <= set(
        install.NPU_BUILD.split("|")
    )  # build-system.requires of vllm 0.11.0, but for torch


def test_another_torch_npu_comes_after_the_pinned_one() -> None:
    names = [step.name for step in steps("npu", TORCH_NPU="2.7.1.post2")]
    assert names == ["torch", "engines", "others", "verl", "torch-npu"]
    assert words("npu", "torch-npu", TORCH_NPU="2.7.1.post2").words[-2:] == ("--no-deps", "torch-npu==2.7.1.post2")


@pytest.mark.parametrize("stack", ["cuda", "cuda-061"])
def test_flash_attn_is_built_from_source_against_the_torch_that_is_there(stack: str) -> None:
    names = [step.name for step in steps(stack)]
    assert names == ["torch", "engines", "others", "flash-attn-wheel", "flash-attn"]
    build = words(stack, "flash-attn-wheel")
    assert {"--no-build-isolation", "--no-deps", "flash-attn==2.8.3"} <= set(build.words)
    assert build.environment == {
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
        "FLASH_ATTN_CUDA_ARCHS": "80;90",
        "MAX_JOBS": "4",
    }
    assert words(stack, "flash-attn-wheel", FLASH_ATTN_CUDA_ARCHS="120").environment["FLASH_ATTN_CUDA_ARCHS"] == "120"


def _picked(command: Command) -> list[str]:
    done = subprocess.run(command.words, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "==" in line]


@pytest.mark.parametrize("stack", ["cuda", "cuda-061"])
def test_the_parts_in_which_cuda_is_installed_are_the_whole(stack: str) -> None:
    parts = {step.name: _picked(step.commands[0]) for step in steps(stack)[:3]}
    whole = [line for line in (ROOT / STACKS[stack].requirements).read_text().splitlines() if "==" in line]
    assert sorted(line for part in parts.values() for line in part) == sorted(whole)
    assert any(line.startswith("verl==") for line in parts["others"])
    assert not any(line.startswith(("torch==", "vllm==", "nvidia-")) for line in parts["others"])


def test_every_package_of_the_npu_stack_is_in_one_of_its_steps() -> None:
    found: set[str] = set()
    for step in steps("npu"):
        for command in step.commands:
            if command.output:
                found |= {line.split("==")[0] for line in _picked(command)}
            for file in (word for word in command.words if word.startswith("requirements-")):
                found |= {pin.name for pin in pins.parse((ROOT / file).read_text(), ["x86_64", "aarch64"])}
    assert {pins.canonical(name) for name in found} == set(pins.pinned(STACKS["npu"], "x86_64"))


def test_the_cpu_build_of_torch_is_tried_first_and_pypis_is_no_failure() -> None:
    torch, others = (step.commands[0] for step in steps("cpu"))
    assert torch.words[-1] == "torch==2.13.0"
    assert torch.environment == {"PIP_INDEX_URL": install.TORCH_INDEX}
    assert torch.otherwise
    assert others.words[-2:] == ("-r", "requirements-cpu.txt")
    assert others.environment == {}, "all else comes from the user's own index"


SECRET = "https://user:s3cr%40t@index.example/cpu"
HIDDEN = "https://[hidden]@index.example/cpu"


@pytest.mark.parametrize("stack", ["npu", "cpu", "cpu-091"])
def test_the_password_of_an_index_is_in_the_environment_of_one_command_and_in_no_text(stack: str) -> None:
    commands = [command for step in steps(stack, TORCH_INDEX=SECRET) for command in step.commands]
    assert not any("s3cr" in " ".join((*command.words, command.text(), command.otherwise)) for command in commands)
    holders = [command for command in commands if SECRET in command.environment.values()]
    assert len(holders) == 1
    (name,) = holders[0].environment
    assert f"{name}='{HIDDEN}' " in holders[0].text()
    assert holders[0].variables({})[name] == SECRET


def test_what_stands_before_the_host_of_an_address_is_hidden() -> None:
    assert install.redacted(f"{SECRET}/a@b and https://t0ken@h/x, https://a:p@ss@h") == (
        f"{HIDDEN}/a@b and https://[hidden]@h/x, https://[hidden]@h"
    )
    for text in ("https://h/simple/a@1", "verl @ file:///wheels/verl.whl", "me@host"):
        assert install.redacted(text) == text


# What pip prints in the end, each time with exit code 1.
SILENT = (
    "ERROR: No matching distribution found for torch==2.13.0",
    "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='h', port=443): Read timed out.",
    "('Connection broken: IncompleteRead(10 bytes read, 90 more expected)', IncompleteRead(10 bytes read))",
)
OWN = (
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package",
    "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/opt/venv/lib'",
    "WARNING: 401 Error, Credentials not correct for https://h/torch/\nERROR: No matching distribution found for torch",
    "",
)


def test_only_a_silent_index_is_a_reason_to_take_another() -> None:
    torch = words("cpu", "torch")
    assert [torch.excused(text) for text in SILENT] == [True] * len(SILENT)
    assert [torch.excused(text) for text in OWN] == [False] * len(OWN)
    assert not words("cpu", "others").excused(SILENT[0]), "there is no other index"


@pytest.mark.parametrize("extra", ["", "http://127.0.0.1:9/own"])
def test_pip_takes_the_extra_index_from_the_environment_beside_the_users_own(extra: str, tmp_path: Path) -> None:
    places = Places(sys.executable, (sys.executable, "-m", "pip"), str(tmp_path))
    secret = "http://user:s3cret@127.0.0.1:9/cpu"
    text = (ROOT / STACKS["npu"].requirements).read_text("utf-8")
    _, index, torch = install.steps("npu", places, {"TORCH_INDEX": secret}, "x86_64", text)[0].commands
    with Path(index.output).open("w") as stream:
        subprocess.run(index.words, stdout=stream, check=True)
    assert "s3cret" not in Path(index.output).read_text()
    variables = {"PIP_INDEX_URL": "http://127.0.0.1:9/first", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    variables |= {"PIP_EXTRA_INDEX_URL": extra} if extra else {}
    download = [*places.pip, "download", "--no-deps", "-d", str(tmp_path), "-r", index.output, "torch"]
    said = subprocess.run(download, env=torch.variables(variables), capture_output=True, text=True, check=False)
    indexes = ["http://127.0.0.1:9/first", *([extra] if extra else []), "http://user:****@127.0.0.1:9/cpu"]
    assert f"Looking in indexes: {', '.join(indexes)}\n" in said.stdout


def test_a_command_reads_as_a_shell_takes_it() -> None:
    command = Command(("pip", "wheel", "a b"), {"ARCHS": "80;90"}, "/env/my bin", "out.txt", "it is not there")
    assert command.text() == (
        "ARCHS='80;90' PATH='/env/my bin':\"$PATH\" pip wheel 'a b' > out.txt || echo 'it is not there'"
    )
    assert command.variables({"PATH": "/bin"})["PATH"] == "/env/my bin:/bin"


# --- as the Dockerfiles run it -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a Dockerfile copies, and nothing of the package."""
    shutil.copy(ROOT / "verlbox/setup/install.py", tmp_path)
    (tmp_path / "docker").mkdir()
    shutil.copy(ROOT / "docker/pick-pins.sh", tmp_path / "docker")
    for file in ROOT.glob("requirements-*.txt"):
        shutil.copy(file, tmp_path)
    return tmp_path


def _failing_torch(words: str) -> str:
    """A pip that fails with these words where it installs torch."""
    script = 'case "$*" in *torch==*) printf "%s\\n" "$0" >&2; exit 1;; esac; echo others'
    return shlex.join(["sh", "-c", script, words])


def _installs(folder: Path, *arguments: str, pip: str = "echo", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "install.py", "--pip", pip, "--work", str(folder), *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def test_the_file_runs_alone_and_leaves_out_the_accelerators_wheels_when_told(folder: Path) -> None:
    said = _installs(folder, "--partial", "npu")
    assert said.returncode == 0, said.stderr
    lines = [line for line in said.stdout.splitlines() if line.startswith("install ")]
    assert lines == [
        "install --no-deps --require-hashes -r requirements-npu.txt",
        f"install --no-deps --require-hashes -r {folder}/verl.txt",
    ]
    assert (folder / "verl.txt").read_text().startswith("verl==0.6.1")
    assert not (folder / "engines.txt").exists()


def test_single_steps_run_and_unknown_ones_are_refused(folder: Path) -> None:
    said = _installs(folder, "cuda", "flash-attn")
    assert [line for line in said.stdout.splitlines() if not line.startswith("+")] == [
        f"install --no-deps --no-index --find-links {folder}/flash-attn flash-attn==2.8.3"
    ]
    assert _installs(folder, "cuda", "verl").returncode == 2


def test_the_first_failure_ends_it_but_not_that_of_a_choice(folder: Path) -> None:
    assert _installs(folder, "npu", "others", "verl", pip="false").returncode == 1
    said = _installs(folder, "cpu", pip=_failing_torch(SILENT[0]))
    assert said.returncode == 0
    assert f"\n{install.TORCH_INDEX} does not answer; torch comes from the package index\n" in said.stdout
    assert "\nothers\n" in said.stdout


def test_a_full_disk_is_no_reason_for_a_build_that_is_3_gb_larger(folder: Path) -> None:
    said = _installs(folder, "cpu", pip=_failing_torch(OWN[0]))
    assert said.returncode == 1
    assert OWN[0] in said.stdout
    assert f"\n{install.TORCH_INDEX} does not answer" not in said.stdout
    assert "\nothers\n" not in said.stdout


def test_an_images_log_is_without_the_password_of_an_index(folder: Path) -> None:
    pip = "sh -c 'echo looking in $PIP_INDEX_URL; echo and in $PIP_INDEX_URL >&2' sh"
    said = _installs(folder, "cpu", "torch", pip=pip, TORCH_INDEX=SECRET)
    assert said.stdout.splitlines()[1:] == [f"looking in {HIDDEN}", f"and in {HIDDEN}"]
    assert "s3cr" not in said.stdout + said.stderr
