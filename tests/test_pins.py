"""Pins: the requirement files, the accepted conflicts, the check, and the resolution against the real index."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.doctor.recorded import describe
from verlbox import pins, pins_command
from verlbox.findings import FindingsError
from verlbox.pins import Conflict, Package
from verlbox.setup import install
from verlbox.stacks import STACKS, Stack

ROOT = Path(__file__).parents[1]
NPU = STACKS["npu"]
LOCKED_WITH_HASHES = ["npu", "cuda", "cuda-061"]
# The folder of the collected pins -> the stack that is made of them.
COLLECTED = {"npu-reproduce": "npu", "cuda-current": "cuda", "cuda-default": "cuda-061"}


def packages(*described: tuple[str, str, tuple[str, ...]]) -> dict[str, Package]:
    return {name: Package(name, version, requires) for name, version, requires in described}


def npu_set(*extra: tuple[str, str, tuple[str, ...]]) -> dict[str, Package]:
    """The two packages whose conflict the stack npu accepts on x86_64, and others."""
    return packages(("xgrammar", "0.1.25", ('triton; platform_machine == "x86_64"',)), *extra)


def check(found: dict[str, Package], machine: str) -> pins.Verdict:
    conflicts = pins.conflicts(found, {"platform_machine": machine})
    return pins.judge(conflicts, pins.load()["npu"], found, machine)


# --- the data ----------------------------------------------------------------------------------------------------


def test_every_stack_has_its_pins_data_and_files() -> None:
    assert set(pins.load()) == set(STACKS)
    for name, data in pins.load().items():
        for file in (data.roots, STACKS[name].requirements, *data.files):
            assert (ROOT / file).is_file(), f"{name}: {file}"


def test_every_accepted_conflict_has_a_reason_and_reads_as_one() -> None:
    for data in pins.load().values():
        for entry in data.conflicts:
            assert len(entry.reason) > 20
            assert re.fullmatch(r"[\w.-]+==[\w.+]+", entry.requirer)
            assert entry.machine in (None, *data.machines)


def test_pins_data_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pins.yaml"
    file.write_text("npu:\n  roots: a.in\n  machines: [x86_64]\n  overides: []\n")
    with pytest.raises(ValidationError, match="overides"):
        pins.load(file)


@pytest.mark.parametrize("name", LOCKED_WITH_HASHES)
def test_every_pin_has_a_version_and_hashes_and_stands_once(name: str) -> None:
    stack, data = STACKS[name], pins.load()[name]
    for machine in data.machines:
        seen: set[str] = set()
        for file in (*data.files, stack.requirements):
            for pin in pins.parse((ROOT / file).read_text(), data.machines):
                assert pin.sha256, f"{file}: {pin.name} has no hash"
                if not pin.machines or machine in pin.machines:
                    assert pin.name not in seen, f"{name} on {machine}: {pin.name} stands twice"
                    seen.add(pin.name)


@pytest.mark.parametrize("name", list(STACKS))
def test_a_requirement_file_names_no_index_and_no_url(name: str) -> None:
    for line in (ROOT / STACKS[name].requirements).read_text().splitlines():
        assert not re.search(r"://|^-|@", line), line


@pytest.mark.parametrize(("folder", "name"), COLLECTED.items())
def test_the_stacks_are_the_collected_pins_and_verlboxs_own_needs(folder: str, name: str, shared: Path) -> None:
    lock = (shared / "pins" / folder / "requirements.lock.txt").read_text()
    collected = {pin.name: pin.version for pin in pins.parse(lock)}
    if name == "cuda-061":
        collected["click"] = "8.2.1"  # 8.4.1 there breaks `ray start` on Python 3.10
    own = {"matplotlib", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing", "docker", "modelscope", "scipy"}
    own |= {"google-crc32c"}
    apart = {package for packages_ in pins.load()[name].files.values() for package in packages_}
    here = pins.pinned(STACKS[name], "x86_64")
    assert {n: v for n, v in here.items() if n not in own | apart} == {
        n: v for n, v in collected.items() if n not in own
    }


@pytest.mark.parametrize("name", list(STACKS))
def test_what_verlbox_itself_imports_is_pinned_in_every_stack(name: str) -> None:
    own = {
        "pydantic",
        "pyyaml",
        "rich",
        "jinja2",
        "matplotlib",
        "scipy",
        "psutil",
        "docker",
        "tensorboard",
        "google-crc32c",
        "modelscope",
    }
    own |= {"huggingface-hub", "math-verify", "sympy", "latex2sympy2-extended", "pyarrow", "numpy", "verl"}
    assert own <= set(pins.pinned(STACKS[name], pins.load()[name].machines[0]))


def test_traps_are_pinned_around() -> None:
    for name in ("npu", "cuda-061", "cpu"):
        pinned = pins.pinned(STACKS[name], "x86_64")
        assert pinned["transformers"].startswith("4.57"), "transformers 5 breaks verl 0.6.1"
        assert int(pinned["pyarrow"].split(".")[0]) < 26, "pyarrow 26 does not import with numpy 1"
    npu = pins.pinned(NPU, "x86_64")
    assert int(npu["setuptools"].split(".")[0]) < 80, "torchair imports pkg_resources"
    assert not {"triton", "torchaudio", "xformers"} & set(npu)
    assert not [package for package in npu if package.startswith("nvidia-")]
    assert tuple(map(int, pins.pinned(STACKS["cuda-061"], "x86_64")["click"].split(".")[:2])) < (8, 3)
    assert "pyairports" not in {package for stack in STACKS.values() for package in pins.pinned(stack, "x86_64")}


def test_torch_of_the_npu_stack_is_the_cpu_build_on_both_machines() -> None:
    assert pins.pinned(NPU, "x86_64")["torch"] == "2.7.1+cpu", "what torch-npu's x86_64 wheel asks for"
    assert pins.pinned(NPU, "aarch64")["torch"] == "2.7.1", "PyPI's aarch64 wheel is the CPU build"
    assert pins.pinned(NPU, "aarch64")["torch-npu"] == pins.pinned(NPU, "x86_64")["torch-npu"] == "2.7.1"


# --- the check ---------------------------------------------------------------------------------------------------


def test_an_accepted_conflict_passes_with_its_reason() -> None:
    verdict = check(npu_set(), "x86_64")
    assert [(str(c), bool(a.reason)) for c, a in verdict.accepted] == [
        ("xgrammar==0.1.25 asks for triton, which is missing", True)
    ]
    assert not verdict.unexpected
    assert not verdict.gone


def test_a_conflict_that_is_not_listed_is_unexpected() -> None:
    verdict = check(npu_set(("vllm", "0.11.0", ("torch==2.8.0",)), ("torch", "2.7.1+cpu", ())), "x86_64")
    assert verdict.unexpected == (Conflict("vllm==0.11.0", "torch==2.8.0", "2.7.1+cpu"),)


def test_the_same_conflict_with_another_version_installed_is_unexpected() -> None:
    verdict = check(packages(("xgrammar", "0.1.26", ("triton",))), "x86_64")
    assert [c.requirer for c in verdict.unexpected] == ["xgrammar==0.1.26"]
    assert [entry.requirer for entry in verdict.gone] == ["xgrammar==0.1.25"]


def test_a_listed_conflict_that_is_gone_fails() -> None:
    verdict = check(npu_set(("triton", "3.3.1", ())), "x86_64")
    assert [entry.requirement for entry in verdict.gone] == ["triton"]
    assert [f.code for f in pins.findings_of(verdict, NPU)] == ["pins-conflict-gone"]


def test_an_entry_for_another_machine_says_nothing_here() -> None:
    verdict = check(npu_set(), "aarch64")
    assert verdict == pins.Verdict((), (), ())


def test_the_entry_of_the_published_runs_torch_npu_holds_only_beside_it() -> None:
    ascend = ("vllm-ascend", "0.11.0", ("torch-npu==2.7.1",))
    beside = check(packages(ascend, ("torch-npu", "2.7.1.post2", ())), "aarch64")
    assert [a.requirement for _, a in beside.accepted] == ["torch-npu==2.7.1"]
    other = check(packages(ascend, ("torch-npu", "2.7.1.post4", ())), "aarch64")
    assert [c.installed for c in other.unexpected] == ["2.7.1.post4"]
    fitting = check(packages(ascend, ("torch-npu", "2.7.1", ())), "aarch64")
    assert fitting == pins.Verdict((), (), ())


def test_requirements_are_read_as_pip_reads_them() -> None:
    found = packages(
        (
            "asks",
            "1",
            (
                'absent; extra == "dev"',
                'old; python_version < "3"',
                "Some_Thing.more>=2a1",
                "broken >== 1",
                "some-thing.more<3",
            ),
        ),
        ("some-thing-more", "2.0b1", ()),
    )
    assert pins.conflicts(found) == []
    found["some-thing-more"] = Package("some-thing-more", "3.0", ())
    assert [str(c) for c in pins.conflicts(found)] == ["asks==1 asks for some-thing-more<3, 3.0 is installed"]


def test_the_mend_of_a_pinned_package_is_its_pin() -> None:
    verdict = check(npu_set(("numpy", "2.0.0", ()), ("verl", "0.6.1", ("numpy<2.0.0",))), "x86_64")
    assert [f.fix for f in pins.findings_of(verdict, NPU)] == ["pip install --no-deps numpy==1.26.4"]


def test_installed_reads_headers_only_and_the_first_of_a_name(tmp_path: Path) -> None:
    describe(tmp_path / "first", "Some.Package", "1.0", "numpy<2")
    describe(tmp_path / "second", "some_package", "2.0")
    (tmp_path / "second" / "broken-1.dist-info").mkdir()
    found = pins.installed([str(tmp_path / "first"), str(tmp_path / "second")])
    assert found == {"some-package": Package("some-package", "1.0", ("numpy<2",))}


def test_the_check_agrees_with_the_collected_script(shared: Path, tmp_path: Path) -> None:
    """The same verdicts as the script that the mechanism comes from, on this very environment."""
    allow = tmp_path / "allow.txt"
    allow.write_text("")
    script = subprocess.run(
        [sys.executable, str(shared / "pins" / "check_conflicts.py"), str(allow)],
        capture_output=True,
        text=True,
        check=False,
    )
    theirs = {line.split()[1] for line in script.stdout.splitlines() if line.startswith("UNEXPECTED")}
    assert {conflict.requirer for conflict in pins.conflicts(pins.installed())} == theirs


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    pins_command.add_arguments(parser)
    return pins_command.run(parser.parse_args(arguments))


def test_the_verb_exits_3_on_a_conflict_and_0_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe(tmp_path, "verl", "0.6.1", "numpy<2.0.0")
    describe(tmp_path, "numpy", "1.26.4")
    assert call("check", "cpu", "--path", str(tmp_path)) == 0
    shutil.rmtree(tmp_path / "numpy-1.26.4.dist-info")
    describe(tmp_path, "numpy", "2.0.0")
    assert call("check", "cpu", "--path", str(tmp_path), "--json") == 3
    assert '"pins-conflict"' in capsys.readouterr().out


def test_the_verb_names_the_nearest_stack_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("vllm", "torch", "transformers"):
        describe(tmp_path, name, pins.pinned(STACKS["cuda"], "x86_64")[name])
    assert call("check", "--path", str(tmp_path)) == 0
    assert "stack cuda on" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("check", "no-such-stack"), ("lock", "no-such-stack")])
def test_an_unknown_stack_is_a_finding(arguments: tuple[str, str]) -> None:
    with pytest.raises(FindingsError, match="stack-unknown"):
        call(*arguments)


def test_a_folder_without_packages_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(FindingsError, match="pins-no-packages") as raised:
        call("check", "cpu", "--path", str(tmp_path))
    assert raised.value.exit_code == 3


# --- resolution --------------------------------------------------------------------------------------------------


@cache
def index_is_silent() -> str:
    """Why nothing can be resolved here; empty when it can. The index is the one that uv is configured for."""
    try:
        command = pins.uv()
    except FindingsError:
        return "uv is not installed"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root.in")
        root.write_text("packaging\n")
        said = subprocess.run(
            [*command, "pip", "compile", str(root), "--no-cache", "--quiet", "--no-deps", "-o", os.devnull],
            env={**os.environ, "UV_HTTP_TIMEOUT": "5"},
            capture_output=True,
            text=True,
            check=False,
        )
    return "" if said.returncode == 0 else f"the package index does not answer: {said.stderr.strip().splitlines()[-1:]}"


@pytest.fixture
def index() -> None:
    if reason := index_is_silent():
        pytest.skip(f"the resolution of the pins against the package index ({reason})")


network = pytest.mark.usefixtures("index")

PAIRS = [(name, machine) for name in LOCKED_WITH_HASHES for machine in pins.load()[name].machines]


@network
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("name", "machine"), PAIRS)
def test_the_pins_resolve_on_the_index_to_themselves(name: str, machine: str, tmp_path: Path) -> None:
    """Every pin exists, their requirements are met by each other, and nothing is left out: by metadata alone."""
    stack, data = STACKS[name], pins.load()[name].model_copy(update={"machines": [machine], "hashes": False})
    elsewhere = {entry.requirement for entry in data.elsewhere if entry.machine == machine}
    roots = tmp_path / "pins.in"
    pinned = pins.pinned(stack, machine)
    # A build of another index is looked for under the version that it is a build of.
    wanted = {n: v.split("+")[0] if f"{n}=={v}" in elsewhere else v for n, v in pinned.items()}
    roots.write_text("\n".join(f"{n}=={v}" for n, v in wanted.items()) + "\n")
    assert {pins.canonical(p.name): p.version for p in pins.resolve(stack, data, [roots])} == wanted


@network
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("name", "machine"), PAIRS)
def test_every_pin_has_a_wheel_with_its_hash_for_the_oldest_glibc(name: str, machine: str, tmp_path: Path) -> None:
    stack, data = STACKS[name], pins.load()[name]
    command = [*pins.uv(), "pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--target", str(tmp_path)]
    command += ["--python-version", stack.python]
    command += ["--python-platform", f"{machine}-manylinux_{data.glibc.replace('.', '_')}", "--only-binary", ":all:"]
    for source in ("antlr4-python3-runtime", "pylatexenc"):  # pure Python, and only a source on the index
        command += ["--no-binary", source]
    for file in (*data.files, stack.requirements):
        if not any(entry.machine == machine for entry in data.elsewhere) or "torch" not in file:
            command += ["--requirement", str(ROOT / file)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr


@network
@pytest.mark.timeout(180)
def test_locking_the_npu_stack_writes_what_is_there(tmp_path: Path) -> None:
    data = pins.load()["npu"]
    shutil.copy(ROOT / data.roots, tmp_path)
    written = pins.lock(NPU, tmp_path)
    assert [path.name for path in written] == [*data.files, NPU.requirements]
    for path in written:
        assert path.read_text() == (ROOT / path.name).read_text()


@network
def test_roots_without_a_solution_are_a_finding_with_uvs_words(tmp_path: Path) -> None:
    (tmp_path / "x.in").write_text("packaging<20\npackaging>21\n")
    data = pins.load()["cpu"]
    with pytest.raises(FindingsError, match="pins-not-resolved") as raised:
        pins.resolve(STACKS["cpu"], data, [tmp_path / "x.in"])
    assert "packaging" in raised.value.findings[0].why


def test_an_index_that_cannot_be_reached_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uv", reason="uv is not installed")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{unused.getsockname()[1]}/simple")
        monkeypatch.setenv("UV_NO_CACHE", "1")
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        (tmp_path / "x.in").write_text("packaging\n")
        with pytest.raises(FindingsError, match="pins-not-resolved"):
            pins.resolve(STACKS["cpu"], pins.load()["cpu"], [tmp_path / "x.in"])


# --- the whole sets, by metadata alone ---------------------------------------------------------------------------

PIP = "26.1.2"  # takes metadata from the index and, in a dry run, no wheel


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a pip of this time; and, for the empty build of vllm, what that imports."""
    folder = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, f"pip=={PIP}"], check=True)
    build = tmp_path_factory.mktemp("build") / "build.txt"
    with build.open("w") as stream:
        pick = ["sh", "docker/pick-pins.sh", "keep", install.NPU_BUILD, "requirements-npu.txt"]
        subprocess.run(pick, cwd=ROOT, stdout=stream, check=True)
    subprocess.run([*pip, "--requirement", str(build)], check=True)
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    for site in folder.glob("lib/python*/site-packages"):  # this environment's torch comes last
        (site / "torch.pth").write_text(f"{Path(torch.origin).parents[1]}\n")
    return folder


@pytest.fixture(scope="module")
def empty_vllm(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """vllm of the npu stack, really built for no device, as `setup npu` and the image do it."""
    command = [sys.executable, "verlbox/setup/install.py", "npu", "engines", "--python", str(tools / "bin/python")]
    command += ["--pip", f"{tools}/bin/python -m pip", "--work", str(tmp_path_factory.mktemp("work"))]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    found = pins.installed([str(site) for site in tools.glob("lib/python*/site-packages")])["vllm"]
    assert found.version == f"{pins.pinned(NPU, 'x86_64')['vllm']}+empty"
    assert not any(line.startswith("torch") for line in found.requires)
    return found


def metadata_of_index(tools: Path, requirements: Sequence[str], stack: Stack, machine: str, folder: Path) -> None:
    """Writes the metadata of pins, as the index has it, into a folder, as if they were installed."""
    glibc = int(pins.load()[stack.name].glibc.partition(".")[2])
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(glibc, 4, -1)]
    platforms += [f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    report, wanted = folder / "report.json", folder / "wanted.txt"
    folder.mkdir(exist_ok=True)
    wanted.write_text("\n".join(requirements) + "\n")
    command = [str(tools / "bin/python"), "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet"]
    command += ["--report", str(report), "--target", str(folder / "nothing"), "--python-version", stack.python]
    command += [part for platform in platforms for part in ("--platform", platform)]
    said = subprocess.run([*command, "--requirement", str(wanted)], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    for entry in json.loads(report.read_text())["install"]:
        found = entry["metadata"]
        describe(folder, found["name"], found["version"], *found.get("requires_dist", []))
    report.unlink()


@network
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "machine"), PAIRS)
def test_the_whole_set_has_the_accepted_conflicts_and_no_other(
    name: str, machine: str, tools: Path, empty_vllm: Package, tmp_path: Path
) -> None:
    """Every package of an accelerator's stack, gigabytes of them, judged by its metadata as `pins check` does."""
    stack, data = STACKS[name], pins.load()[name]
    pinned = pins.pinned(stack, machine)
    # PyTorch's CPU builds for x86_64 are not on the index. Those for aarch64 are; their metadata is that of all wheels,
    # and what it asks for on x86_64 alone is CUDA.
    apart = {entry.requirement.partition("==")[0] for entry in data.elsewhere if entry.machine == machine}
    built = {"vllm": empty_vllm} if name == "npu" else {}
    wanted = [f"{n}=={v}" for n, v in pinned.items() if n not in apart | set(built)]
    metadata_of_index(tools, wanted, stack, machine, tmp_path / "set")
    if apart:
        other = [f"{n}=={pinned[n].partition('+')[0]}" for n in apart]
        metadata_of_index(tools, other, stack, "aarch64", tmp_path / "other")
        for n, package in pins.installed([str(tmp_path / "other")]).items():
            asks = [line for line in package.requires if "platform_machine" not in line]
            describe(tmp_path / "set", n, pinned[n], *asks)

    packages_ = {**pins.installed([str(tmp_path / "set")]), **built}
    assert set(packages_) == set(pinned)
    markers = {"platform_machine": machine, "python_version": stack.python, "python_full_version": f"{stack.python}.9"}
    verdict = pins.judge(pins.conflicts(packages_, markers), data, packages_, machine)
    assert verdict.unexpected == ()
    assert verdict.gone == ()
    expected = [entry for entry in data.conflicts if entry.machine in (None, machine) and not entry.when]
    assert [entry for _, entry in verdict.accepted] == expected
