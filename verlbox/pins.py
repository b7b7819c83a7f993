"""Pins: what each stack has installed, what its packages ask for, and the conflicts between the two that are accepted.

The accepted conflicts are data (pins.yaml at the repository's root). A conflict that is not listed there fails the
check, and so does a listed one that no longer exists. Covered: every requirement in the metadata of every installed
package, without extras. Not covered: whether what is installed works (`doctor` imports it).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import BaseModel, ConfigDict

from verlbox import findings
from verlbox.findings import EXIT_PREFLIGHT, EXIT_USAGE, Finding, FindingsError
from verlbox.stacks import STACKS, Stack

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
MISSING = "missing"

UNKNOWN_STACK = findings.register("stack-unknown", "error", "No stack has this name.")
UNEXPECTED = findings.register(
    "pins-conflict", "error", "An installed package asks for something else than what is installed, and no one said so."
)
GONE = findings.register("pins-conflict-gone", "error", "A conflict that the stack accepts no longer exists.")
NOT_RESOLVED = findings.register("pins-not-resolved", "error", "The roots of a stack have no solution on the index.")
NO_UV = findings.register("pins-no-uv", "error", "uv, which resolves the pins, is not installed.")
NO_PACKAGES = findings.register("pins-no-packages", "error", "A folder that should hold installed packages has none.")


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Accepted(_Data):
    """A conflict that a stack lives with. `installed` is a version or "missing"; the other fields narrow it down."""

    requirer: str
    requirement: str
    installed: str
    reason: str
    machine: str | None = None
    when: str | None = None


class Elsewhere(_Data):
    """A build that only another index serves, on one machine, and where its hash was read."""

    requirement: str
    machine: str
    index: str
    sha256: str
    source: str


class StackPins(_Data):
    """What one stack's requirement files are resolved for; the keys are explained at the top of pins.yaml."""

    roots: str
    machines: list[str]
    glibc: str = "2.28"
    snapshot: str | None = None
    hashes: bool = True
    overrides: list[str] = []
    excludes: list[str] = []
    files: dict[str, list[str]] = {}
    not_written: list[str] = []
    elsewhere: list[Elsewhere] = []
    conflicts: list[Accepted] = []


@dataclass(frozen=True)
class Package:
    """An installed package: its name in canonical form, its version, and the Requires-Dist lines of its metadata."""

    name: str
    version: str
    requires: tuple[str, ...]


@dataclass(frozen=True)
class Conflict:
    """`requirer` ("name==version") asks for `requirement`, and `installed` (a version, or "missing") is there."""

    requirer: str
    requirement: str
    installed: str

    def __str__(self) -> str:
        return f"{self.requirer} asks for {self.requirement}, {self.installed} is installed".replace(
            "missing is installed", "which is missing"
        )


@dataclass(frozen=True)
class Verdict:
    """Conflicts of an installed set, sorted by what the stack says of them."""

    accepted: tuple[tuple[Conflict, Accepted], ...]
    unexpected: tuple[Conflict, ...]
    gone: tuple[Accepted, ...]


def canonical(name: str) -> str:
    """The one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def load(file: Path = ROOT / "pins.yaml") -> Mapping[str, StackPins]:
    """The pins data of every stack, by the stack's name."""
    return {name: StackPins.model_validate(value) for name, value in yaml.safe_load(file.read_text("utf-8")).items()}


def stack_named(name: str) -> Stack:
    """The stack of that name. Raises FindingsError when there is none."""
    if name not in STACKS:
        raise FindingsError(
            UNKNOWN_STACK.finding(
                f"no stack {name}", why="There is nothing to compare with.", fix=f"Stacks: {', '.join(STACKS)}."
            )
        )
    return STACKS[name]


# --- what is pinned ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pin:
    """One line of a requirement file. `machines` empty: it holds for all of the stack's."""

    name: str
    version: str
    machines: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()

    def text(self) -> str:
        line = f"{self.name}=={self.version}" + (f" ; {_marker(self.machines)}" if self.machines else "")
        return " \\\n".join([line, *(f"    --hash=sha256:{digest}" for digest in self.sha256)])


def _marker(machines: Sequence[str]) -> str:
    return " or ".join(f"platform_machine == '{machine}'" for machine in machines)


_LINE = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)\s*(?:;(?P<marker>[^\\]*))?")


def parse(text: str, machines: Sequence[str] = ()) -> list[Pin]:
    """The pins of a requirement file in the form that uv and `lock` write: name==version, marker, hashes.

    `machines`: those to evaluate markers for; a pin that holds for all of them keeps no marker.
    """
    pins: list[Pin] = []
    for line in text.splitlines():
        if match := _LINE.match(line):
            holding = tuple(m for m in machines if not match["marker"] or _holds(match["marker"], m))
            pins.append(Pin(match["name"], match["version"], () if len(holding) == len(machines) else holding))
        elif pins and (found := re.search(r"--hash=sha256:([0-9a-f]{64})", line)):
            last = pins.pop()
            pins.append(Pin(last.name, last.version, last.machines, (*last.sha256, found[1])))
    return pins


def _holds(marker: str, machine: str) -> bool:
    """Whether a marker holds on Linux on such a machine; its Python is the stack's own and is not looked at."""
    machines = re.findall(r"platform_machine == '(\w+)'", marker)
    if _marker(machines) == marker.strip():  # as written here; the doctor reads it where `packaging` is not installed
        return machine in machines
    from packaging.markers import Marker

    without_python = re.sub(r"python_(?:full_)?version\s*[<>=!]+\s*'[^']*'", "os_name == os_name", marker)
    return Marker(without_python.replace("os_name == os_name", "os_name == 'posix'")).evaluate(
        {"platform_machine": machine, "sys_platform": "linux", "os_name": "posix", "platform_system": "Linux"}
    )


def pinned(stack: Stack, machine: str, root: Path = ROOT) -> dict[str, str]:
    """The version that a stack pins for each package (canonical names) on such a machine."""
    data = load()[stack.name]
    versions: dict[str, str] = {}
    for file in (*data.files, stack.requirements):
        for pin in parse((root / file).read_text("utf-8"), data.machines):
            if not pin.machines or machine in pin.machines:
                versions[canonical(pin.name)] = pin.version
    return versions


# --- what is installed -------------------------------------------------------------------------------------------


def described(paths: Sequence[str] | None = None) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name as its makers spell it, version and requirements of each package of this interpreter, or of folders that
    hold some; where two are of one name, the first counts, which is imported."""
    seen: set[str] = set()
    for distribution in metadata.distributions(path=list(paths)) if paths else metadata.distributions():
        # The headers alone: parsing whole READMEs as e-mail takes half a second.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        headers = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0].splitlines()
        fields = [line.partition(": ")[::2] for line in headers if not line.startswith((" ", "\t"))]
        values = dict(fields)
        if "Name" in values and "Version" in values and canonical(values["Name"]) not in seen:
            seen.add(canonical(values["Name"]))
            yield values["Name"], values["Version"], tuple(value for key, value in fields if key == "Requires-Dist")


def installed(paths: Sequence[str] | None = None) -> dict[str, Package]:
    """The packages that `described` finds, by the one spelling of their names."""
    return {canonical(name): Package(canonical(name), version, needs) for name, version, needs in described(paths)}


def conflicts(packages: Mapping[str, Package], environment: Mapping[str, str] | None = None) -> list[Conflict]:
    """Every requirement of an installed package that what is installed does not meet, in order of name.

    `environment`: marker variables that differ from this interpreter's (platform_machine, python_version, ...).
    """
    found: list[Conflict] = []
    for package in sorted(packages.values(), key=lambda p: p.name):
        for requirement in _requirements(package.requires, environment or {}):
            other = packages.get(canonical(requirement.name))
            if other and requirement.specifier.contains(other.version, prereleases=True):
                continue
            asked = f"{canonical(requirement.name)}{requirement.specifier}"
            conflict = Conflict(f"{package.name}=={package.version}", asked, other.version if other else MISSING)
            if conflict not in found:
                found.append(conflict)
    return found


def _requirements(lines: Iterable[str], environment: Mapping[str, str]) -> Iterator[Requirement]:
    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # old metadata that pip does not understand either
            continue
        if not requirement.marker or requirement.marker.evaluate({**environment, "extra": ""}):
            yield requirement


def judge(found: Sequence[Conflict], data: StackPins, packages: Mapping[str, Package], machine: str) -> Verdict:
    """What a stack says of the conflicts that were found in an installed set on such a machine."""
    from packaging.requirements import Requirement

    def key(requirer: str, requirement: str, version: str) -> tuple[str, str, str, str]:
        name, _, release = requirer.partition("==")
        asked = Requirement(requirement)
        return f"{canonical(name)}=={release}", canonical(asked.name), str(asked.specifier), version

    def applies(entry: Accepted) -> bool:
        if entry.machine not in (None, machine):
            return False
        name, _, version = (entry.when or "").partition("==")
        return not name or (name in packages and packages[name].version == version)

    listed = {key(e.requirer, e.requirement, e.installed): e for e in data.conflicts if applies(e)}
    seen = {key(c.requirer, c.requirement, c.installed): c for c in found}
    return Verdict(
        accepted=tuple((seen[k], listed[k]) for k in seen if k in listed),
        unexpected=tuple(seen[k] for k in seen if k not in listed),
        gone=tuple(entry for k, entry in listed.items() if k not in seen),
    )


def findings_of(verdict: Verdict, stack: Stack) -> list[Finding]:
    """The unexpected and the vanished conflicts of a verdict, as findings."""
    problems = [
        UNEXPECTED.finding(
            str(conflict),
            why="The two were never tried together by those who wrote them, and pins.yaml does not accept it.",
            fix=_mend(conflict, stack),
        )
        for conflict in verdict.unexpected
    ]
    problems += [
        GONE.finding(
            f"{entry.requirer} no longer conflicts over {entry.requirement}",
            why="An accepted conflict that is not there hides the next one of the same kind, or the wrong set is"
            " installed.",
            fix=f"Remove it from conflicts of {stack.name} in pins.yaml, or install what {stack.requirements} pins.",
        )
        for entry in verdict.gone
    ]
    return problems


def _mend(conflict: Conflict, stack: Stack) -> str:
    name = re.split(r"[<>=!~]", conflict.requirement, maxsplit=1)[0]
    wanted = pinned(stack, os.uname().machine).get(name)
    if wanted and wanted != conflict.installed:
        return f"pip install --no-deps {name}=={wanted}"
    return f"pip install '{conflict.requirement}', or accept it under {stack.name} in pins.yaml, with the reason."


def check(stack: Stack, paths: Sequence[str] | None = None) -> Verdict:
    """The conflicts of what is installed, here or in folders, against what a stack accepts.

    Raises FindingsError when a folder holds no packages.
    """
    packages = installed(paths)
    if not packages:
        raise FindingsError(
            NO_PACKAGES.finding(
                f"no installed packages in {', '.join(paths or sys.path)}",
                why="There is nothing to check.",
                fix="Name a site-packages folder.",
            ),
            EXIT_PREFLIGHT,
        )
    return judge(conflicts(packages), load()[stack.name], packages, os.uname().machine)


def likely(packages: Mapping[str, Package], machine: str) -> Stack:
    """The stack that most of the installed packages agree with, by name and version; the first of equals."""

    def agreeing(stack: Stack) -> int:
        return sum(name in packages and packages[name].version == v for name, v in pinned(stack, machine).items())

    return max(STACKS.values(), key=agreeing)


# --- resolving ---------------------------------------------------------------------------------------------------


def uv() -> list[str]:
    """The command that runs uv. Raises FindingsError when this Python has none."""
    command = [sys.executable, "-m", "uv"]
    if subprocess.run([*command, "--version"], capture_output=True, check=False).returncode:
        raise FindingsError(
            NO_UV.finding(
                "uv is not installed here",
                why="It resolves the pins for machines other than this one.",
                fix=f"pip install -r {ROOT / 'requirements-dev.txt'}",
            )
        )
    return command


def settings(stack: Stack, data: StackPins) -> str:
    """A pyproject.toml with uv's settings for a stack: its machines, moment, overrides and excludes."""
    major, minor = stack.python.split(".")
    environments = [
        f"sys_platform == 'linux' and platform_machine == '{machine}'"
        f" and python_full_version < '{major}.{int(minor) + 1}'"
        for machine in data.machines
    ]
    lines = [
        "[project]",
        f'name = "stack-{stack.name}"',
        'version = "0"',
        f'requires-python = "=={stack.python}.*"',
        "[tool.uv]",
        f"environments = {json.dumps(environments)}",
        f"override-dependencies = {json.dumps(data.overrides)}",
        f"exclude-dependencies = {json.dumps(data.excludes)}",
    ]
    if data.snapshot:
        lines.append(f"exclude-newer = {json.dumps(data.snapshot)}")
    return "\n".join(lines) + "\n"


def resolve(stack: Stack, data: StackPins, roots: Sequence[Path], keep: Path | None = None) -> list[Pin]:
    """Resolves requirement files for all of a stack's machines from the index's metadata; downloads no wheel.

    `keep`: a file whose versions are kept where they can be. Raises FindingsError when there is no solution, with
    uv's explanation.
    """
    command = [*uv(), "pip", "compile", *map(str, roots), "--quiet", "--no-header", "--no-annotate"]
    command += ["--python-version", stack.python]
    if len(data.machines) == 1:
        command += ["--python-platform", f"{data.machines[0]}-unknown-linux-gnu"]
    else:
        command += ["--universal"]
    command += ["--generate-hashes"] if data.hashes else []
    with tempfile.TemporaryDirectory(prefix="verlbox-pins-") as folder:
        output = Path(folder, "out.txt")
        Path(folder, "pyproject.toml").write_text(settings(stack, data), "utf-8")
        if keep and keep.exists():
            output.write_text(keep.read_text("utf-8"), "utf-8")
        command += ["--output-file", str(output)]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise FindingsError(
                NOT_RESOLVED.finding(
                    f"{stack.name}: {', '.join(path.name for path in roots)} cannot be resolved",
                    why=ended.stderr.strip(),
                    fix="Change the roots, or overrides and excludes in pins.yaml. Another index: UV_DEFAULT_INDEX.",
                ),
                EXIT_USAGE,
            )
        return parse(output.read_text("utf-8"), data.machines)


def lock(stack: Stack, root: Path = ROOT) -> list[Path]:
    """Resolves a stack's roots and writes its requirement files; returns those it wrote. Raises FindingsError."""
    data = load()[stack.name]
    file = root / stack.requirements
    pins = resolve(stack, data, [root / data.roots], None if data.snapshot else file)
    pins = [pin for pin in pins if canonical(pin.name) not in data.not_written]
    written: list[Path] = []
    apart = {name for names in data.files.values() for name in names}
    for target, names in data.files.items():
        chosen = [pin for name in names for pin in pins if canonical(pin.name) == name]
        written.append(_write(root / target, _with_elsewhere(chosen, data), data.elsewhere))
    return [*written, _write(file, [pin for pin in pins if canonical(pin.name) not in apart])]


def _with_elsewhere(pins: Iterable[Pin], data: StackPins) -> list[Pin]:
    """Pins with the builds of other indexes in their machine's place."""
    result: list[Pin] = []
    for pin in pins:
        others = [e for e in data.elsewhere if canonical(e.requirement.partition("==")[0]) == canonical(pin.name)]
        left = tuple(m for m in (pin.machines or data.machines) if m not in {e.machine for e in others})
        if left:
            result.append(Pin(pin.name, pin.version, left if others else pin.machines, pin.sha256))
        for other in others:
            version = other.requirement.partition("==")[2]
            result.append(Pin(pin.name, version, (other.machine,), (other.sha256,)))
    return result


def _write(path: Path, pins: Sequence[Pin], elsewhere: Sequence[Elsewhere] = ()) -> Path:
    names = {(canonical(pin.name), pin.version) for pin in pins}
    used = [
        e for e in elsewhere if (canonical(e.requirement.partition("==")[0]), e.requirement.partition("==")[2]) in names
    ]
    comments = [f"# {e.requirement} on {e.machine}: from {e.index} (hash: {e.source})" for e in used]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join([*comments, *(pin.text() for pin in pins)]) + "\n", "utf-8")
    temporary.replace(path)
    return path
