"""The verb `setup`: what it prints, what stops it, and the CPU stack for real."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.doctor.recorded import Recorded
from verlbox import pins
from verlbox.doctor.machine import Machine, Space, here
from verlbox.findings import FindingsError
from verlbox.setup import activate, command
from verlbox.stacks import STACKS

ROOT = Path(__file__).parents[2]
NPU, CPU, CUDA = STACKS["npu"], STACKS["cpu"], STACKS["cuda"]


def setup(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), "setup", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def codes(stack_name: str, folder: Path, machine: Machine) -> list[str]:
    return [finding.code for finding in command.prepare(STACKS[stack_name], folder, machine)[1]]


def printed(stack_name: str, folder: Path, machine: Machine) -> str:
    return "\n".join(command.as_text(command.prepare(STACKS[stack_name], folder, machine)[0]))


@pytest.fixture
def ascend(tmp_path: Path) -> Recorded:
    """The recorded 910B3, as CANNLab has it: CANN and NNAL in the home of its user."""
    recorded = Recorded("ascend-910b3", tmp_path / "machine")
    home = recorded.root / "home/developer/Ascend"
    home.mkdir()
    for name in ("ascend-toolkit", "nnal"):
        (recorded.root / "usr/local/Ascend" / name).rename(home / name)
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ATB_HOME_PATH"):
        recorded.environment.pop(name)
    return recorded


# --- what it would do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", list(STACKS))
def test_dry_run_prints_every_command_and_changes_nothing(stack: str, tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    said = setup(stack, "--path", str(folder), "--dry-run")
    assert said.returncode in (0, 3), said.stderr
    assert "Traceback" not in said.stderr
    assert list(tmp_path.iterdir()) == []
    lines = said.stdout.splitlines()
    for step in command.steps(command.prepare(STACKS[stack], folder, here())[0]):
        assert f"# {step.name}" in lines
        assert {c.text() for c in step.commands} <= set(lines)
    assert f"{folder}/bin/python {ROOT}/entrypoint.py pins check {stack}" in lines
    assert lines[-1].endswith(f"{ROOT}/entrypoint.py {stack}"), "the doctor comes last"
    assert subprocess.run(["bash", "-n"], input=said.stdout, text=True, check=False).returncode == 0


def test_an_npu_machine_without_cann_is_told_so_and_still_shown_the_commands(tmp_path: Path) -> None:
    if Path("/usr/local/Ascend").exists():
        pytest.skip("this machine has CANN")
    said = setup("npu", "--path", str(tmp_path / "e"), "--dry-run")
    assert said.returncode == 3
    assert "error[cann-toolkit]" in said.stderr
    assert "source /usr/local/Ascend/ascend-toolkit/set_env.sh" in said.stdout
    assert "VLLM_TARGET_DEVICE=empty" in said.stdout


def test_cannlabs_toolkit_is_sourced_from_the_users_home(ascend: Recorded, tmp_path: Path) -> None:
    text = printed("npu", tmp_path / "e", ascend.machine())
    assert "\nsource /home/developer/Ascend/ascend-toolkit/set_env.sh\n" in text
    assert "\nsource /home/developer/Ascend/nnal/atb/set_env.sh --cxx_abi=1\n" in text
    assert "--extra-index-url" not in text, "the recorded machine is aarch64"
    assert "cann-toolkit" not in codes("npu", tmp_path / "e", ascend.machine())


def test_cann_8_5_0_gets_its_own_torch_npu(ascend: Recorded, tmp_path: Path) -> None:
    assert "torch-npu==" not in printed("npu", tmp_path / "e", ascend.machine())
    info = "/home/developer/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info"
    ascend.replace(info, "8.3.RC1", "8.5.0")
    assert "install --no-deps torch-npu==2.7.1.post2\n" in printed("npu", tmp_path / "e", ascend.machine())


def test_the_script_sets_what_the_image_sets(ascend: Recorded, tmp_path: Path) -> None:
    dockerfile = (ROOT / "docker/npu.Dockerfile").read_text("utf-8")
    text = activate.script(NPU, tmp_path, ascend.machine())
    for line in (line for line in text.splitlines() if line.startswith("export ") and "LD_LIBRARY" not in line):
        assert line.removeprefix("export ") in dockerfile
    entrypoint = (ROOT / "docker/entrypoint.sh").read_text("utf-8")
    assert "nnal/atb/set_env.sh --cxx_abi=1" in entrypoint
    for place in ("driver", "common", ""):
        assert f"{activate.DRIVER}/{place}".rstrip("/") in text
        assert f"$driver/{place}".rstrip("/") in entrypoint


def test_the_script_sources_cann_and_nnal_and_then_the_environment(ascend: Recorded, tmp_path: Path) -> None:
    home = tmp_path / "Ascend"
    shutil.copytree(ascend.root / "home/developer/Ascend", home)
    (home / "ascend-toolkit/set_env.sh").write_text("export ASCEND_OPP_PATH=opp\n")
    (home / "nnal/atb/set_env.sh").write_text('export ATB_HOME_PATH="build$1"\n')
    folder = tmp_path / "my environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/activate").write_text("export VIRTUAL_ENV=mine\n")
    machine = replace(here(), home=str(tmp_path), environment={})
    (folder / "activate").write_text(activate.script(NPU, folder, machine))
    show = 'source "$1" && echo $ASCEND_OPP_PATH $ATB_HOME_PATH $VLLM_ASCEND_ENABLE_NZ $VIRTUAL_ENV'
    done = subprocess.run(
        ["bash", "-euc", show, "x", str(folder / "activate")], capture_output=True, text=True, check=False
    )
    assert done.stdout == "opp build--cxx_abi=1 0 mine\n", done.stderr


# --- what stops it -----------------------------------------------------------------------------------------------


def test_what_is_missing_of_ascends_own_is_named(ascend: Recorded, tmp_path: Path) -> None:
    ascend.remove("/home/developer/Ascend/nnal")
    assert "nnal-atb" in codes("npu", tmp_path / "e", ascend.machine())
    ascend.remove("/home/developer/Ascend/ascend-toolkit/set_env.sh")
    assert {"nnal-atb", "cann-toolkit"} <= set(codes("npu", tmp_path / "e", ascend.machine()))


def test_a_machine_that_the_stack_has_no_packages_for_is_refused(ascend: Recorded, tmp_path: Path) -> None:
    assert "setup-machine" in codes("cpu", tmp_path / "e", ascend.machine())
    assert "setup-machine" not in codes("npu", tmp_path / "e", ascend.machine())


def test_another_python_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == CUDA.python:
        pytest.skip("this is the Python of the cuda stack")
    (tmp_path / "bin").mkdir()
    for name in ("bash", "sh"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    said = setup("cuda", "--path", str(tmp_path / "e"), PATH=str(tmp_path / "bin"), CUDA_HOME=str(tmp_path))
    assert said.returncode == 3
    assert "error[setup-python] no Python 3.12" in said.stderr
    assert "error[setup-compiler]" in said.stderr, "all at once"
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"notes.txt": "mine"}, "is no Python environment"),
        ({"pyvenv.cfg": "home = /usr/bin\nversion = 3.9.2\n"}, "is an environment of Python 3.9"),
        (
            {
                "pyvenv.cfg": "home = /usr/bin\nversion = 3.11.2\n",
                "lib/python3.11/site-packages/torch-2.7.1.dist-info/METADATA": "Name: torch\nVersion: 2.7.1\n",
                "lib/python3.11/site-packages/vllm-0.11.0.dist-info/METADATA": "Name: vllm\nVersion: 0.11.0\n",
                "lib/python3.11/site-packages/verl-0.6.1.dist-info/METADATA": "Name: verl\nVersion: 0.6.1\n",
            },
            "holds the stack npu",
        ),
        (
            {"pyvenv.cfg": "home = /usr/bin\nversion = 3.11.2\n", "setup/stack": "cpu-091"},
            "holds the stack cpu-091",
        ),
    ],
)
def test_a_folder_that_holds_something_else_is_left_alone(content: dict[str, str], words: str, tmp_path: Path) -> None:
    for name, text in content.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    said = setup("cpu", "--path", str(tmp_path))
    assert said.returncode == 3
    assert "error[setup-folder]" in said.stderr
    assert words in said.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_in_the_folders_place_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "e").touch()
    said = setup("cpu", "--path", str(tmp_path / "e"))
    assert (said.returncode, "error[setup-folder]" in said.stderr) == (3, True)


def test_a_disk_that_is_too_small_is_told_before(tmp_path: Path) -> None:
    machine = replace(here(), space=lambda _: Space(10**9, 10**9))
    assert codes("cpu", tmp_path / "e", machine) == ["setup-space"]


def test_a_folder_that_cannot_be_made_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = setup("cpu", "--path", str(tmp_path / "file" / "e"))
    assert said.returncode == 3
    assert "error[setup-f" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.timeout(120)
def test_an_index_that_does_not_answer_is_a_finding_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}/simple"
        silent = {"PIP_INDEX_URL": nowhere, "TORCH_INDEX": nowhere, "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
        (tmp_path / "foreign").mkdir()
        (tmp_path / "foreign/pip.py").write_text("raise SystemExit('a foreign pip')")
        silent["PYTHONPATH"] = str(tmp_path / "foreign")
        silent |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_NO_CACHE_DIR": "1"}
        said = setup("cpu", "--path", str(tmp_path / "e"), **silent)
        again = setup("cpu", "--path", str(tmp_path / "e"), **silent)
    assert said.returncode == 3, said.stderr
    assert "error[setup-index] others: the package index does not answer" in said.stderr
    assert f"\n{nowhere} does not answer; torch comes from the package index\n" in said.stderr
    assert (tmp_path / "e/bin/python").exists()
    assert "environment: done already" in again.stderr
    assert "Connection refused" in (tmp_path / "e/setup/setup.log").read_text()


def test_a_second_setup_in_the_same_folder_is_refused_and_names_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    with command._alone(folder):
        (folder / "bin").mkdir()  # as venv begins: no pyvenv.cfg yet
        for words in ((), ("--dry-run",)):
            said = setup("cpu", "--path", str(folder), *words)
            assert said.returncode == 3
            assert f"error[setup-busy] {folder} is being set up by process {os.getpid()} on " in said.stderr
            assert said.stderr.count("error[") == 1, "what is half made is no finding"
        assert sorted(entry.name for entry in folder.iterdir()) == [command.LOCK, "bin"]
        with pytest.raises(FindingsError, match=f"process {os.getpid()}"), command._alone(folder):
            pass
    (folder / "bin").rmdir()
    assert codes("cpu", folder, here()) == codes("cpu", tmp_path / "new", here()), "the lock alone is an empty folder"
    with command._alone(folder):
        pass


@pytest.fixture
def pip_that(tmp_path: Path) -> Callable[[str], Path]:
    """Makes an environment of the cpu stack that is there already, whose pip is a script."""

    def make(script: str) -> Path:
        folder = tmp_path / "e"
        made, _ = command.prepare(CPU, folder, here())
        (folder / "bin").mkdir(parents=True)
        made.work.mkdir()
        (folder / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {CPU.python}.2\n")
        (folder / "bin/python").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin/python").chmod(0o755)
        command._stamp(made, command.steps(made)[0]).touch()
        return folder

    return make


def test_the_password_of_an_index_is_shown_logged_and_kept_nowhere(pip_that: Callable[[str], Path]) -> None:
    folder = pip_that(
        'echo "from $PIP_INDEX_URL"; case "$*" in *torch==*) exit 0;; esac; echo "error: $TORCH_INDEX"; exit 1'
    )
    secret = {"TORCH_INDEX": "https://user:s3cret@index.example/cpu"}
    said = setup("cpu", "--path", str(folder), **secret)
    dry = setup("cpu", "--path", str(folder), "--dry-run", **secret)
    assert "\nfrom https://[hidden]@index.example/cpu\n" in said.stderr
    assert "error[setup-failed] others: error: https://[hidden]@index.example/cpu" in said.stderr
    assert "PIP_INDEX_URL='https://[hidden]@index.example/cpu' " in dry.stdout
    written = [file for file in folder.rglob("*") if file.is_file()]
    assert {"setup.log", ".setup.lock"} <= {file.name for file in written}
    assert any(file.name.startswith("torch-") and file.suffix == ".done" for file in written)
    assert "from https://[hidden]@index.example/cpu\n" in (folder / "setup/setup.log").read_text()
    for text in (said.stdout, said.stderr, dry.stdout, dry.stderr, *(file.read_text() for file in written)):
        assert "s3cret" not in text
    again = setup("cpu", "--path", str(folder), TORCH_INDEX="https://user:an0ther@index.example/cpu")
    assert "torch: done already" in again.stderr, "another password is no other torch"


@pytest.mark.parametrize("code", ["setup-space", "setup-hash"])
def test_a_torch_that_fails_for_another_reason_than_its_index_stops_it(
    code: str, pip_that: Callable[[str], Path]
) -> None:
    folder = pip_that("cat <<'END'\n" + "\n".join(PIP_SAID[code]) + "\nEND\nexit 1")
    said = setup("cpu", "--path", str(folder))
    assert said.returncode == 3
    assert f"error[{code}]" in said.stderr
    assert "\nhttps://download.pytorch.org/whl/cpu does not answer" not in said.stderr
    assert "requirements-cpu.txt" not in said.stderr.partition("error[")[0], "nothing after it was begun"


PIP_SAID = {
    "setup-space": ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", ""],
    "setup-hash": [
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package",
        "    verl==0.6.1 from https://mirror.invalid/verl-0.6.1-py3-none-any.whl (from -r verl.txt (line 1)):",
        "        Expected sha256 3512c7529ad46321f1b9c0e448c2b336eb9f7d8d1af2c4948770f5adc9068c39",
    ],
    "setup-index": [
        "ERROR: Could not find a version that satisfies the requirement vllm-ascend==0.11.0 (from versions: none)",
        "ERROR: No matching distribution found for vllm-ascend==0.11.0",
    ],
    "setup-failed": [
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError(...)': /simple/cmake/",
        "  error: command 'cmake' failed: No such file or directory",
        "  [end of output]",
    ],
}


@pytest.mark.parametrize("code", list(PIP_SAID))
def test_what_pip_says_when_it_fails_becomes_a_finding(code: str, tmp_path: Path) -> None:
    made, _ = command.prepare(NPU, tmp_path / "e", here())
    finding = command.explain(made, "engines", PIP_SAID[code], 1, tmp_path / "setup.log")
    assert finding.code == code
    assert finding.fix
    assert {"setup-hash": "verl==0.6.1", "setup-index": "vllm-ascend==0.11.0"}.get(code, "") in finding.what


def test_an_index_that_refuses_the_password_is_told_so(tmp_path: Path) -> None:
    said = ["WARNING: 401 Error, Credentials not correct for https://index.example/torch/", *PIP_SAID["setup-index"]]
    made, _ = command.prepare(CPU, tmp_path / "e", here())
    finding = command.explain(made, "torch", said, 1, tmp_path / "setup.log")
    assert finding.code == "setup-index"
    assert finding.what == "torch: the package index refuses the user and password of its address"


# --- for real ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_cpu_stack_is_set_up_stopped_and_gone_on_with(tmp_path: Path) -> None:
    folder, output = tmp_path / "my environment", tmp_path / "first.txt"
    words = [sys.executable, str(ROOT / "entrypoint.py"), "setup", "cpu", "--path", str(folder)]
    with output.open("w") as stream:
        first = subprocess.Popen(words, stdout=stream, stderr=subprocess.STDOUT)
        # The first package of the last step, from an index or from a folder: more than a hundred are still to come.
        while not re.search(r"-r requirements-cpu\.txt\n(.*\n)*(Collecting|Processing) ", output.read_text()):
            assert first.poll() is None, output.read_text()
            time.sleep(0.2)
        first.send_signal(signal.SIGINT)
        assert first.wait(60) == 130, output.read_text()
    assert "the same command goes on" in output.read_text()

    second = setup("cpu", "--path", str(folder))
    # The doctor has the last word: it may find something of this machine, but nothing of what was installed.
    assert second.returncode == (3 if "\nERROR " in second.stderr else 0), second.stderr[-4000:]
    assert not re.search(r"^ERROR software|error\[(setup|pins)-", second.stderr, re.MULTILINE), second.stderr[-4000:]
    count = len(pins.pinned(CPU, "x86_64"))
    assert f"{count} of {count} packages on the pins" in second.stderr
    assert "environment: done already" in second.stderr
    assert "stack cpu on x86_64: 0 accepted, 0 unexpected conflicts" in second.stderr
    assert "stack cpu (verl 0.6.1, Python 3.11)" in second.stderr, "the doctor has looked"

    third = setup("cpu", "--path", str(folder))
    assert third.returncode in (0, 3)
    assert [line for line in third.stderr.splitlines() if line.endswith("done already")] == [
        "environment: done already",
        "torch: done already",
        "others: done already",
    ]
    listed = subprocess.run(
        ["bash", "-c", 'source "$1" && python "$2" list', "x", str(folder / "activate"), str(ROOT / "entrypoint.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "smoke" in listed.stdout, listed.stderr
