"""The commands that install a stack from its pins, in their order: said once, for images and for `setup`.

    python3 install.py STACK [STEP ...] [--pip WORDS] [--python FILE] [--work FOLDER] [--partial]

The Dockerfiles run this file by itself, in a folder that holds the requirement files and docker/pick-pins.sh; so it
needs nothing but Python's standard library. PIP_INDEX_URL, PIP_FIND_LINKS and the like are pip's own. An address
with a password reaches pip in the environment, never as a word of a command, and is printed without it.

npu and cuda are installed with --no-deps from complete pins with hashes, torch first: a resolver would put another
torch beside torch-npu. vllm for npu is built empty from its source: its wheel holds CUDA binaries and asks for a CUDA
torch. It is built without isolation, with what its build imports installed before. flash-attn is published as source
only, and verl's critic asks for it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FLASH_ATTN = "2.8.3"
VLLM_EMPTY = "0.11.0"  # as requirements-npu-engines.txt pins it; a file's name has it too
# torch-npu for x86_64 asks for torch 2.7.1+cpu, which only this index has; aarch64 takes PyPI's. The CPU stacks take
# their CPU build of torch from here; where it does not answer, PyPI's does the same job and is 3 GB larger.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

# What pip prints when there is no answer; its exit code is 1 whatever happened. Without retries it says ABSENT only.
NETWORK = re.compile(
    r"Failed to establish a new connection|NameResolutionError|NewConnectionError|Temporary failure in name resolution"
    r"|Network is unreachable|ReadTimeoutError|ConnectTimeoutError|ProxyError|Connection refused|SSLError"
    r"|Connection (?:aborted|broken|reset)|IncompleteRead|incomplete-download"
)
ABSENT = re.compile(r"No matching distribution found for (\S+)")
# What is to be mended, not avoided, though pip may say ABSENT as well.
REFUSED = "401 Error, Credentials not correct"
OWN = re.compile(rf"No space left on device|DO NOT MATCH THE HASHES|{REFUSED}")

# Patterns of package names for pick-pins.sh.
NPU_BUILD = (  # torch's own needs, and what the build of vllm imports
    "cmake|filelock|fsspec|jinja2|markupsafe|mpmath|networkx|ninja|numpy|packaging|setuptools|setuptools-scm|sympy"
    "|typing-extensions|vcs-versioning|wheel"
)
CUDA_TORCH = "torch|torchvision|torchaudio|torchcodec|triton|xformers|cuda-.*|nvidia-.*"
CUDA_ENGINES = "vllm|cupy-.*|flashinfer-.*|quack-kernels|tilelang|torch-c-dlpack-ext|apache-tvm-ffi|tokenspeed-triton"


def redacted(text: str) -> str:
    """The text without the user, password or token of any address in it."""
    return re.sub(r"(://)[^\s/?#]+@", r"\1[hidden]@", text)


@dataclass(frozen=True)
class Command:
    """A command: its words, environment variables, a folder that comes first in PATH, a file for what it prints.

    `otherwise` is what is said when an index does not answer, where that is no reason to stop.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    output: str = ""
    otherwise: str = ""

    def text(self) -> str:
        """The command as it can be pasted into a shell, but for what `redacted` hides."""
        parts = [f"{name}={shlex.quote(redacted(value))}" for name, value in self.environment.items()]
        parts += [f'PATH={shlex.quote(self.path)}:"$PATH"'] if self.path else []
        parts.append(shlex.join(redacted(word) for word in self.words))
        parts += [f"> {shlex.quote(self.output)}"] if self.output else []
        parts += [f"|| echo {shlex.quote(self.otherwise)}"] if self.otherwise else []
        return " ".join(parts)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment that the command runs in."""
        own = {**environment, **self.environment}
        if self.path:
            own["PATH"] = f"{self.path}:{own.get('PATH', os.defpath)}"
        return own

    def excused(self, output: str) -> bool:
        """Whether a failure with this output is no reason to stop: there is another index, and this one is silent."""
        silent = NETWORK.search(output) or ABSENT.search(output)
        return bool(self.otherwise and silent and not OWN.search(output))


@dataclass(frozen=True)
class Step:
    """Commands that are done or not done as a whole. `accelerator`: a partial image, which tests the rest, skips it."""

    name: str
    commands: tuple[Command, ...]
    accelerator: bool = False


@dataclass(frozen=True)
class Places:
    """Where things are: the environment's interpreter, how pip is called for it, a folder for intermediate files."""

    python: str
    pip: tuple[str, ...]
    work: str


def steps(stack: str, places: Places, environment: Mapping[str, str], machine: str, pins: str) -> tuple[Step, ...]:
    """The steps that install a stack. `pins` is the text of the stack's requirement file; `environment` may hold
    TORCH_INDEX, TORCH_NPU, MAX_JOBS and FLASH_ATTN_CUDA_ARCHS; `machine` is x86_64 or aarch64.
    """
    index = environment.get("TORCH_INDEX") or TORCH_INDEX
    if stack == "npu":
        return (*_npu(places, index, machine), *_other_torch_npu(places, environment.get("TORCH_NPU", "")))
    if stack.startswith("cuda"):
        return _cuda(stack, places, environment)
    return _cpu(stack, places, index, pins)


def _npu(places: Places, index: str, machine: str) -> tuple[Step, ...]:
    pins, engines = "requirements-npu.txt", "requirements-npu-engines.txt"
    picked = _pick(places, "keep", NPU_BUILD, pins, "build.txt")
    files = ("-r", "requirements-npu-torch.txt", "-r", f"{places.work}/build.txt")
    torch: tuple[Command, ...] = (picked, _hashed(places, *files))
    if machine == "x86_64":
        # pip fills in the variable. PIP_EXTRA_INDEX_URL would take the place of the user's own, and of pip.conf's.
        file = f"{places.work}/index.txt"
        other_index = Command(("echo", "--extra-index-url ${TORCH_INDEX}"), output=file)
        torch = (picked, other_index, _hashed(places, "-r", file, *files, environment={"TORCH_INDEX": index}))
    return (
        Step("torch", torch, accelerator=True),
        Step("engines", (*_empty_vllm(places), *_picked(places, "vllm-ascend", engines)), accelerator=True),
        Step("others", (_hashed(places, "-r", pins),)),
        Step("verl", _picked(places, "verl", engines)),
    )


def _empty_vllm(places: Places) -> tuple[Command, ...]:
    """vllm's source, then its installation for no device.

    In two, since an empty build calls itself 0.11.0+empty, which pip refuses as an answer to vllm==0.11.0 (measured
    with pip 23.2 and 26.1); of a file it asks for no version. To be downloaded with its hash the source has to call
    itself 0.11.0, which it does where torch is a CPU build and VLLM_TARGET_DEVICE is not set (its setup.py).
    """
    # Without a driver torch_npu cannot be imported, and `import torch` would do that.
    alone, bin_folder = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, str(Path(places.python).parent)
    source = ("--require-hashes", "--no-binary", "vllm", "-d", places.work, "-r", f"{places.work}/vllm.txt")
    options = ("--no-deps", "--no-build-isolation")
    file = f"{places.work}/vllm-{VLLM_EMPTY}.tar.gz"
    return (
        _pick(places, "keep", "vllm", "requirements-npu-engines.txt", "vllm.txt"),
        Command(
            ("env", "--unset=VLLM_TARGET_DEVICE", *places.pip, "download", *options, *source), alone, path=bin_folder
        ),
        Command((*places.pip, "install", *options, file), {**alone, "VLLM_TARGET_DEVICE": "empty"}, path=bin_folder),
    )


def _picked(places: Places, name: str, file: str) -> tuple[Command, Command]:
    return _pick(places, "keep", name, file, f"{name}.txt"), _hashed(places, "-r", f"{places.work}/{name}.txt")


def _other_torch_npu(places: Places, version: str) -> tuple[Step, ...]:
    """Another torch-npu than the pinned one, for another CANN (2.7.1.post2 goes with 8.5.0): no pin has its hash."""
    if not version:
        return ()
    command = Command((*places.pip, "install", "--no-deps", f"torch-npu=={version}"))
    return (Step("torch-npu", (command,), accelerator=True),)


def _cuda(stack: str, places: Places, environment: Mapping[str, str]) -> tuple[Step, ...]:
    pins = f"requirements-{stack}.txt"
    building = {
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",  # else its setup looks for a wheel on GitHub
        # Compute capabilities: A100 and H100/H200. Each takes minutes; 120 is the RTX 50 series.
        "FLASH_ATTN_CUDA_ARCHS": environment.get("FLASH_ATTN_CUDA_ARCHS") or "80;90",
        "MAX_JOBS": environment.get("MAX_JOBS") or "4",  # each job takes several gigabytes of memory
    }
    built, wanted = f"{places.work}/flash-attn", f"flash-attn=={FLASH_ATTN}"
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--no-binary", "flash-attn", "--wheel-dir", built, wanted)
    bin_folder = str(Path(places.python).parent)

    def part(name: str, mode: str, names: str, accelerator: bool) -> Step:
        picked = _pick(places, mode, names, pins, f"{name}.txt")
        return Step(name, (picked, _hashed(places, "-r", f"{places.work}/{name}.txt")), accelerator)

    return (
        part("torch", "keep", CUDA_TORCH, accelerator=True),
        part("engines", "keep", CUDA_ENGINES, accelerator=True),
        part("others", "drop", f"{CUDA_TORCH}|{CUDA_ENGINES}", accelerator=False),
        Step("flash-attn-wheel", (Command((*places.pip, *wheel), building, bin_folder),), accelerator=True),
        Step(
            "flash-attn",
            (Command((*places.pip, "install", "--no-deps", "--no-index", "--find-links", built, wanted)),),
            accelerator=True,
        ),
    )


def _cpu(stack: str, places: Places, index: str, pins: str) -> tuple[Step, ...]:
    torch = re.search(r"^torch==\S+", pins, re.MULTILINE)
    assert torch, f"the pins of {stack} name no torch"
    impatient = ("--no-deps", "--retries", "0", "--timeout", "10")
    otherwise = f"{redacted(index)} does not answer; torch comes from the package index"
    first = Command((*places.pip, "install", *impatient, torch[0]), {"PIP_INDEX_URL": index}, otherwise=otherwise)
    return (
        Step("torch", (first,)),
        Step("others", (Command((*places.pip, "install", "-r", f"requirements-{stack}.txt")),)),
    )


def _pick(places: Places, mode: str, names: str, file: str, target: str) -> Command:
    return Command(("sh", "docker/pick-pins.sh", mode, names, file), output=f"{places.work}/{target}")


def _hashed(places: Places, *options: str, environment: Mapping[str, str] | None = None) -> Command:
    return Command((*places.pip, "install", "--no-deps", "--require-hashes", *options), environment or {})


def _ended(command: Command) -> tuple[int, str]:
    """Runs a command, its output printed as it comes; its exit code and its last lines."""
    variables = command.variables(os.environ)
    if command.output:
        with Path(command.output).open("wb") as stream:
            return subprocess.run(command.words, env=variables, stdout=stream, check=False).returncode, ""
    said: deque[str] = deque(maxlen=200)
    # No input: pip would ask for a password in a line that never ends.
    with subprocess.Popen(
        command.words,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as child:
        assert child.stdout
        for line in child.stdout:
            said.append(redacted(line))
            print(said[-1], end="", flush=True)
    return child.returncode, "".join(said)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the steps of a stack, in this folder; ends with the exit code of the first command that fails."""
    parser = argparse.ArgumentParser(description="Installs a stack from its pins.")
    parser.add_argument("stack")
    parser.add_argument("step", nargs="*", help="only these (default: all)")
    parser.add_argument("--python", default="/opt/venv/bin/python", help="the environment's interpreter")
    parser.add_argument("--pip", default="/opt/pip/bin/pip --python /opt/venv/bin/python", help="how pip is called")
    parser.add_argument("--work", default="/tmp/pins", help="folder for intermediate files")
    parser.add_argument("--partial", action="store_true", help="leave out what is for the accelerator: gigabytes")
    arguments = parser.parse_args(argv)
    places = Places(arguments.python, tuple(shlex.split(arguments.pip)), arguments.work)
    text = Path(f"requirements-{arguments.stack}.txt").read_text("utf-8")
    found = steps(arguments.stack, places, os.environ, os.uname().machine, text)
    if unknown := set(arguments.step) - {step.name for step in found}:
        parser.error(f"{arguments.stack} has no step {', '.join(sorted(unknown))}")
    for step in found:
        if (arguments.step and step.name not in arguments.step) or (arguments.partial and step.accelerator):
            continue
        for command in step.commands:
            print(f"+ {command.text()}", flush=True)
            code, said = _ended(command)
            if code and not command.excused(said):
                return code
            if code:
                print(command.otherwise, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
