"""The verb `setup STACK`: makes the environment of a stack without Docker, from the same pins as its image.

What it guarantees: each command is printed before it runs, a step that is done is not done again, an interrupted setup
goes on with the same command, and nothing outside the environment's folder is changed (pip's own cache apart).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from verlbox import findings, pins, process
from verlbox.console import Console, standard
from verlbox.doctor import ascend, matrix
from verlbox.doctor.machine import Machine, gib, here, run_program
from verlbox.findings import EXIT_INTERRUPTED, EXIT_OK, EXIT_PREFLIGHT, EXIT_TERMINATED, Finding, FindingsError
from verlbox.setup import activate, install
from verlbox.setup.install import Command, Places, Step
from verlbox.stacks import STACKS, Stack

PYTHON = findings.register("setup-python", "error", "No Python of the stack's version, with venv and pip, is here.")
FOLDER = findings.register("setup-folder", "error", "The folder for the environment holds something else.")
MACHINE = findings.register("setup-machine", "error", "The stack has no packages for this kind of machine.")
SPACE = findings.register("setup-space", "error", "The disk is too small for the environment.")
COMPILER = findings.register("setup-compiler", "error", "flash-attn is compiled, and its compiler is not here.")
INDEX = findings.register("setup-index", "error", "The package index does not answer, or lacks a pinned package.")
BUSY = findings.register("setup-busy", "error", "Another setup is at work in the same folder.")
HASH = findings.register("setup-hash", "error", "An index served a file that is not the pinned one.")
FAILED = findings.register("setup-failed", "error", "A command of the setup failed.")

ROOT = Path(__file__).parents[2]

# Gigabytes of a stack's wheels, as the index gave their sizes (2026-11). They lie in pip's cache and are unpacked to
# about twice their size (cpu: 0.5 GB of wheels, 2.4 GB unpacked in all).
WHEELS = {"npu": 1.0, "cuda": 4.6, "cuda-061": 5.1, "cpu": 0.9, "cpu-091": 0.9}
SHARE = 3

# In the environment's folder, where it is the first file: before the environment, and before pip can write into it.
LOCK = ".setup.lock"

# CANN's set_env.sh, which many shells on Ascend machines source at start, puts packages of its own there.
FOREIGN = ("PYTHONPATH", "PYTHONHOME")


@dataclass(frozen=True)
class Setup:
    """What is set up where. `python` is the interpreter that makes the environment; empty where there is none."""

    stack: Stack
    folder: Path
    python: str
    machine: Machine

    @property
    def own(self) -> str:
        """The environment's interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def work(self) -> Path:
        """What setup itself keeps: picked pins, a log, which steps are done."""
        return self.folder / "setup"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("stack", choices=tuple(STACKS), metavar="STACK", help=", ".join(STACKS))
    parser.add_argument("--path", default=".venv", help="folder of the environment (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print every command and change nothing")


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code of `doctor`, which has the last word. Raises FindingsError (3)."""
    setup, problems = prepare(STACKS[arguments.stack], Path(arguments.path).absolute(), here())
    if arguments.dry_run:
        print("\n".join(as_text(setup)))
        findings.show(problems)
        return EXIT_PREFLIGHT if findings.has_errors(problems) else EXIT_OK
    if findings.has_errors(problems):
        raise FindingsError(problems, EXIT_PREFLIGHT)
    try:
        with process.interruptible(), _alone(setup.folder):
            return _do(setup, standard())
    except process.Interrupted as stop:
        print("interrupted; the same command goes on", file=sys.stderr)
        return {2: EXIT_INTERRUPTED, 15: EXIT_TERMINATED}[stop.signum]
    except OSError as error:
        raise FindingsError(_unwritable(setup, error), EXIT_PREFLIGHT) from error


def prepare(stack: Stack, folder: Path, machine: Machine) -> tuple[Setup, list[Finding]]:
    """What is to be set up, and all that is against it on this machine."""
    problems, python = _python(stack, folder)
    if busy := _busy(folder):
        return Setup(stack, folder, python, machine), [busy]  # what it has made so far says nothing
    setup = Setup(stack, folder, python, machine)
    try:
        problems += _folder(setup)
    except OSError as error:
        problems.append(_unwritable(setup, error))
    return setup, [*problems, *_space(setup), *_platform(setup)]


def steps(setup: Setup) -> tuple[Step, ...]:
    """All that is done once: the environment's folder, then the steps of install.py."""
    places = Places(setup.own, (setup.own, "-m", "pip"), str(setup.work))
    text = (ROOT / setup.stack.requirements).read_text("utf-8")
    make = (
        Command((setup.python or f"python{setup.stack.python}", "-m", "venv", str(setup.folder))),
        Command(("mkdir", "-p", str(setup.work))),
    )
    environment = {**os.environ, "TORCH_NPU": _torch_npu(setup)}
    own = install.steps(setup.stack.name, places, environment, setup.machine.architecture, text)
    return (Step("environment", make), *own)


def _torch_npu(setup: Setup) -> str:
    """The torch-npu for the CANN that is here, where it is not the pinned one but another that the stack accepts."""
    toolkit = ascend.toolkit(setup.machine) if setup.stack.platform == "npu" else ""
    found = ascend.cann_info(setup.machine, toolkit).get("version", "").lower() if toolkit else ""
    if not found:
        return ""
    pinned = pins.pinned(setup.stack, setup.machine.architecture)["torch-npu"]
    accepted = (entry.when.partition("==")[2] for entry in pins.load()[setup.stack.name].conflicts if entry.when)
    pairs = matrix.load().torch_npu_cann.pairs
    for release in (pinned, *accepted):
        if found in [name.lower() for name in pairs.get(release, [])]:
            return "" if release == pinned else release
    return ""


def last(setup: Setup) -> tuple[Command, ...]:
    """What is looked at each time: the pins of what is installed, and the machine with the environment activated."""
    entry = str(ROOT / "entrypoint.py")
    doctor = 'source "$1" && exec python "$2" doctor "$3"'
    script = str(setup.folder / "activate")
    return (
        Command((setup.own, entry, "pins", "check", setup.stack.name)),
        Command(("bash", "-c", doctor, "doctor", script, entry, setup.stack.name)),
    )


def as_text(setup: Setup) -> Iterator[str]:
    """Every command as a shell takes it, and the script that is written between them."""
    yield f"cd {shlex.quote(str(ROOT))}"
    yield f"unset {' '.join(FOREIGN)}"
    for step in steps(setup):
        yield f"# {step.name}"
        yield from (command.text() for command in step.commands)
    yield "# activate"
    yield f"cat > {shlex.quote(str(setup.folder / 'activate'))} <<'END'"
    yield activate.script(setup.stack, setup.folder, setup.machine) + "END"
    yield "# check"
    yield from (command.text() for command in last(setup))


# --- before ------------------------------------------------------------------------------------------------------


def _python(stack: Stack, folder: Path) -> tuple[list[Finding], str]:
    """An interpreter of the stack's version that can make environments: the one that made what is there, this one, or
    one in PATH.
    """
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    seen: list[str] = []
    # An environment is not made by its own interpreter.
    own = str(folder / "bin" / "python")
    for name in (own, sys.executable, f"python{stack.python}", "python3", "python"):
        place = shutil.which(name)
        if place is None:
            continue
        place = os.path.realpath(place) if Path(place).parent == folder / "bin" else place
        said = run_program([place, "-c", code], 20.0)
        if said and said.code == 0 and said.out.strip() == stack.python:
            return [], place
        words = said.out.strip() or said.err.strip() if said else ""
        seen.append(f"{place} ({words.splitlines()[0] if words else 'fails'})")
    problem = PYTHON.finding(
        f"no Python {stack.python} with venv and pip: {'; '.join(dict.fromkeys(seen)) or 'no python3 at all'}",
        why=f"The pins of {stack.name} are for Python {stack.python}; its wheels load in no other.",
        fix=f"sudo apt-get install -y python{stack.python} python{stack.python}-venv, or conda create -n verlbox"
        f" python={stack.python} && conda activate verlbox, and the same command again.",
    )
    return [problem], ""


def _folder(setup: Setup) -> list[Finding]:
    """What the folder holds already: it may be new, empty, or an environment for the same stack."""
    folder, stack = setup.folder, setup.stack
    if not folder.exists() or (folder.is_dir() and {entry.name for entry in folder.iterdir()} <= {LOCK}):
        return []
    fix = "Name another folder with --path, or remove this one."
    if not (folder / "pyvenv.cfg").is_file():
        what = "is no Python environment" if folder.is_dir() else "is no folder"
        return [FOLDER.finding(f"{folder} {what}", why="What is in it is not overwritten.", fix=fix)]
    found = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", (folder / "pyvenv.cfg").read_text("utf-8"), re.MULTILINE)
    if found and found[1] != stack.python:
        why = f"The pins of {stack.name} are for Python {stack.python}."
        return [FOLDER.finding(f"{folder} is an environment of Python {found[1]}", why=why, fix=fix)]
    held = _held(setup)
    if held not in ("", stack.name):
        why = "Two stacks in one environment would overwrite each other's packages."
        return [FOLDER.finding(f"{folder} holds the stack {held}", why=why, fix=fix)]
    return []


def _held(setup: Setup) -> str:
    """The stack of an environment that is there: as setup noted it, else as its packages tell; "" for none."""
    if (setup.work / "stack").is_file():
        return (setup.work / "stack").read_text("utf-8").strip()
    installed = pins.installed([str(setup.folder / "lib" / f"python{setup.stack.python}" / "site-packages")])
    return pins.likely(installed, setup.machine.architecture).name if "verl" in installed else ""


def _space(setup: Setup) -> list[Finding]:
    needed = int(WHEELS[setup.stack.name] * SHARE * 1e9)
    space = setup.machine.space(str(setup.folder))
    if space is None or space.free >= needed or _done(setup, steps(setup)[-1]):
        return []
    return [_full(setup, f"{gib(space.free)} free at {setup.folder}, about {gib(needed)} needed")]


def _full(setup: Setup, what: str) -> Finding:
    return SPACE.finding(
        what,
        why=f"The wheels of {setup.stack.name} are {WHEELS[setup.stack.name]:.1f} GB, in pip's cache and unpacked.",
        fix="--path FOLDER on a larger disk; pip's cache and its temporary files follow PIP_CACHE_DIR and TMPDIR.",
    )


def _platform(setup: Setup) -> list[Finding]:
    """What of the vendor's own software has to be there before."""
    stack, machine = setup.stack, setup.machine
    problems: list[Finding] = []
    machines = pins.load()[stack.name].machines
    if machine.architecture not in machines:
        problems.append(
            MACHINE.finding(
                f"this machine is {machine.architecture}, {stack.name} is pinned for {' and '.join(machines)}",
                why="The pins were resolved for the wheels of those machines.",
                fix="Use such a machine.",
            )
        )
    if stack.platform == "npu":
        problems += _ascend(machine)
    if stack.platform == "cuda" and not shutil.which("nvcc", path=_cuda_path()):
        problems.append(
            COMPILER.finding(
                "nvcc is neither in PATH nor in CUDA_HOME",
                why="flash-attn, which verl's critic asks for, is published as source only.",
                fix="Install the CUDA toolkit of the stack's torch"
                f" ({'12.8' if stack.name == 'cuda-061' else '13.0'}) and export CUDA_HOME; or use the image.",
            )
        )
    return problems


def _cuda_path() -> str:
    folders = [os.environ.get("CUDA_HOME") or "/usr/local/cuda"]
    return os.pathsep.join([*(f"{folder}/bin" for folder in folders), os.environ.get("PATH", os.defpath)])


def _ascend(machine: Machine) -> list[Finding]:
    """CANN and NNAL, whose environment the activate script sets; their versions are the doctor's matter."""
    toolkit = ascend.toolkit(machine)
    if not toolkit:
        return [
            ascend.CANN.finding(
                "no CANN toolkit in ASCEND_HOME_PATH, $HOME/Ascend or /usr/local/Ascend",
                why="torch_npu is built on it.",
                fix="Install CANN 8.3.RC2 with NNAL, or export ASCEND_HOME_PATH to where it is; or use the image.",
            )
        ]
    problems: list[Finding] = []
    script, nnal = ascend.set_env(machine, toolkit), ascend.nnal_script(toolkit)
    if not machine.exists(script):
        problems.append(
            ascend.CANN.finding(
                f"CANN lies in {toolkit}, but {script} is not there",
                why="It sets the environment without which torch_npu cannot be imported.",
                fix="Install the CANN toolkit anew, or export ASCEND_HOME_PATH to a whole one.",
            )
        )
    if not machine.exists(nnal):
        problems.append(
            ascend.NNAL.finding(
                f"no NNAL: {nnal} is not there",
                why="vllm-ascend calls its ATB library: `libatb.so: cannot open shared object file`.",
                fix="./Ascend-cann-nnal_*_linux-$(uname -m).run --install, of CANN's own version",
            )
        )
    return problems


def _unwritable(setup: Setup, error: OSError) -> Finding:
    if error.errno == errno.ENOSPC:
        return _full(setup, f"the disk is full: {error}")
    return FAILED.finding(
        str(error),
        why=f"The environment is made in {setup.folder}.",
        fix="Name a folder of your own with --path.",
    )


# --- at work -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the folder for this process. Raises FindingsError when another process holds it, OSError when it cannot be
    made.

    The kernel releases the lock when the holder dies, however it dies; its pip dies with it (verlbox/process.py).
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FindingsError(_in_use(folder, stream), EXIT_PREFLIGHT) from error
        stream.truncate(0)
        stream.write(f"{os.getpid()} on {platform.node()}")
        stream.flush()
        yield


def _busy(folder: Path) -> Finding | None:
    """Whether another setup is at work in the folder, without changing anything."""
    with contextlib.suppress(OSError), (folder / LOCK).open(encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _in_use(folder, stream)
    return None


def _in_use(folder: Path, stream: TextIO) -> Finding:
    stream.seek(0)
    return BUSY.finding(
        f"{folder} is being set up by process {stream.read().strip() or 'unknown'}",
        why="Two pips in one environment would overwrite each other's files.",
        fix="Wait until it has ended, or name another folder with --path.",
    )


def _do(setup: Setup, console: Console) -> int:
    for step in steps(setup):
        if _done(setup, step):
            console.line(f"{step.name}: done already")
            continue
        for command in step.commands:
            _run(setup, step.name, command, console)
        _stamp(setup, step).write_text("\n".join(c.text() for c in step.commands) + "\n", "utf-8")
        (setup.work / "stack").write_text(setup.stack.name, "utf-8")
    (setup.folder / "activate").write_text(activate.script(setup.stack, setup.folder, setup.machine), "utf-8")
    console.line(f"wrote {setup.folder / 'activate'}; in bash: source {setup.folder / 'activate'}")
    check, doctor = last(setup)
    if _ended(setup, check, console, deque())[0]:
        raise FindingsError(
            FAILED.finding(
                f"{setup.folder} is not what {setup.stack.name} pins",
                why="The findings above name the packages.",
                fix=f"Mend them as they say, or remove {setup.folder} and run the same command again.",
            ),
            EXIT_PREFLIGHT,
        )
    code = _ended(setup, doctor, console, deque())[0]
    if code:
        console.line("the environment is complete; what the doctor names keeps this machine from running recipes")
    return code


def _stamp(setup: Setup, step: Step) -> Path:
    """The file that says that a step was done with these commands and these pins.

    The environment's own says only for which Python: the interpreter that made it may be called by another name.
    """
    content = [setup.stack.python]
    if step.name != "environment":
        files = [setup.stack.requirements, *pins.load()[setup.stack.name].files]
        content = [*(c.text() for c in step.commands), *((ROOT / file).read_text("utf-8") for file in files)]
    digest = hashlib.sha256("\0".join(content).encode()).hexdigest()
    return setup.work / f"{step.name}-{digest[:16]}.done"


def _done(setup: Setup, step: Step) -> bool:
    return _stamp(setup, step).is_file() and Path(setup.own).exists()


def _run(setup: Setup, name: str, command: Command, console: Console) -> None:
    """Runs a command of a step. Raises FindingsError when it fails and that matters."""
    said: deque[str] = deque(maxlen=200)
    code, log = _ended(setup, command, console, said)
    if code == 0:
        return
    if command.excused("\n".join(said)):
        console.line(command.otherwise)
        return
    raise FindingsError(explain(setup, name, list(said), code, log), EXIT_PREFLIGHT)


def _ended(setup: Setup, command: Command, console: Console, said: deque[str]) -> tuple[int, Path]:
    """Runs a command with its output shown and logged; its exit code (127 where it cannot be started) and the log.

    What is shown, logged and put into `said` is without the passwords of addresses.
    """
    console.line(f"+ {command.text()}")
    log = setup.work / "setup.log" if setup.work.exists() else Path(os.devnull)
    tag, unread = f"setup:{setup.folder}", Path(os.devnull)  # the log is written here, line by line, for it is redacted
    variables = command.variables({name: value for name, value in os.environ.items() if name not in FOREIGN})
    try:
        if command.output:
            with Path(command.output).open("wb") as stream:
                done = subprocess.run(
                    command.words, cwd=ROOT, env=variables, stdout=stream, stderr=subprocess.PIPE, check=False
                )
            said.extend(install.redacted(done.stderr.decode("utf-8", "replace")).splitlines())
            return done.returncode, log
        with log.open("a", encoding="utf-8", buffering=1) as record:

            def hear(line: str) -> None:
                line = install.redacted(line)
                said.append(line)
                console.line(line)
                record.write(line + "\n")

            return process.run(command.words, log=unread, tag=tag, environment=variables, cwd=ROOT, on_line=hear), log
    except OSError as error:
        said.append(str(error))
        return 127, log


def explain(setup: Setup, step: str, output: list[str], code: int, log: Path) -> Finding:
    """What a failed command's last lines say."""
    text = "\n".join(output)
    errors = [line.strip() for line in output if re.search(r"error", line, re.IGNORECASE)] or output[-1:]
    last_words = errors[-1] if errors else f"exit code {code}"
    if "No space left on device" in text:
        return _full(setup, f"the disk is full: {last_words}")
    if "DO NOT MATCH THE HASHES" in text:
        return HASH.finding(
            f"{step}: {next((line.strip() for line in output if '==' in line and 'from' in line), last_words)}",
            why="A mirror serves another file under the same name, or a download broke off.",
            fix="Run the same command again; if it comes back, use another index (PIP_INDEX_URL).",
        )
    absent = install.ABSENT.search(text)
    # A warning about a retry is no failure by itself; and without retries pip does not say that there was no answer.
    silent = install.NETWORK.search(text if absent else last_words)
    if absent or silent:
        what = f"does not answer ({silent[0]})" if silent else f"does not answer, or has no {absent[1]}"  # type: ignore[index]
        what = "refuses the user and password of its address" if install.REFUSED in text else what
        return INDEX.finding(
            f"{step}: the package index {what}",
            why="Everything that is pinned comes from it.",
            fix="Check the network and proxies; a mirror: export PIP_INDEX_URL=https://...; PyTorch's CPU builds:"
            " TORCH_INDEX; wheels at hand: PIP_FIND_LINKS. The same command goes on.",
        )
    return FAILED.finding(
        f"{step}: {last_words}",
        why=f"Its command ended with exit code {code}.",
        fix=f"Read {log}; the same command goes on with this step."
        if log != Path(os.devnull)
        else "Read the output above.",
    )
