"""Checks of the installed software: pins, conflicts, builds that fit together, the matrix, imports."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from verlbox import findings, pins
from verlbox.doctor import ascend, matrix
from verlbox.doctor.machine import version
from verlbox.doctor.subject import ENGINES, Checked, Subject
from verlbox.findings import Finding

ABSENT = findings.register("packages-missing", "error", "The software of the stack is not installed here.")
OFF_PINS = findings.register("packages-off-pins", "warning", "Installed versions differ from the stack's pins.")
TORCH_NPU = findings.register("torch-npu-mismatch", "error", "torch-npu is built for another torch or another CANN.")
VLLM_DEVICE = findings.register("vllm-device", "error", "vllm is built for another device than the stack's.")
MATRIX = findings.register("matrix-unknown", "warning", "No one has recorded that these versions work together.")
IMPORT = findings.register("import-fails", "error", "A package that the run needs cannot be imported.")

# In order: what others are built on comes first. The last of vllm is what its own check imports when it says
# "Model architectures [...] failed to be inspected" and hides why. CORE stands for vllm's compiled extension.
CORE = "vllm._C*"
MODULES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "cpu": (
        ("numpy", "numpy"),
        ("pyarrow", "pyarrow"),
        ("torch", "torch"),
        ("ray", "ray"),
        ("transformers", "transformers"),
        ("verl", "verl"),
    ),
    "cuda": (
        ("numpy", "numpy"),
        ("pyarrow", "pyarrow"),
        ("torch", "torch"),
        ("flash-attn", "flash_attn"),
        ("vllm", CORE),
        ("vllm", "vllm.model_executor.models.qwen2"),
        ("ray", "ray"),
        ("verl", "verl"),
    ),
    "npu": (
        ("numpy", "numpy"),
        ("pyarrow", "pyarrow"),
        ("torch", "torch"),
        ("torch-npu", "torch_npu"),
        ("vllm", "vllm.model_executor.models.qwen2"),
        ("vllm-ascend", "vllm_ascend.vllm_ascend_C"),
        ("ray", "ray"),
        ("verl", "verl"),
    ),
}

# What an import error says -> what mends it. The first that matches counts.
REMEDIES: tuple[tuple[str, str], ...] = (
    (r"libcudart|libcublas|libnvidia|libcuda\.so", "pip install --no-deps --force-reinstall -r {requirements}"),
    (r"libascend_hal", "docker run -v /usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64:ro ..."),
    (r"libatb", "source /usr/local/Ascend/nnal/atb/set_env.sh"),
    (r"libhccl|libascendcl|libge_|libacl|ASCEND_OPP_PATH", "source /usr/local/Ascend/ascend-toolkit/set_env.sh"),
    (r"undefined symbol", "pip install --no-deps --force-reinstall -r {requirements}"),
    (r"libGL\.so", "sudo apt-get install -y libgl1"),
    (r"numpy\.core|_ARRAY_API|compiled using NumPy 1", "pip install --no-deps numpy=={numpy} pyarrow=={pyarrow}"),
    (r"GLIBCXX|GLIBC_", "Use the image, or a newer system."),
)


def _install(subject: Subject) -> str:
    """The command that installs a stack as it is pinned."""
    if subject.stack.name == "cpu":
        return "make install"
    setup = f"python entrypoint.py setup {subject.stack.name}"
    return setup if subject.platform == "cpu" else f"Use the image (`{subject.service}`), or `{setup}` (docs/pins.md)."


def packages(subject: Subject) -> Checked:
    """Whether the stack is installed, and in the versions that it pins."""
    stack, there = subject.stack, subject.packages
    missing = [name for name in ENGINES[subject.platform] if name not in there]
    if missing:
        if subject.from_image:
            return Checked("nothing of the stack is installed; the image brings it")
        problem = ABSENT.finding(
            f"not installed here: {', '.join(missing)}",
            why=f"The stack {stack.name} trains with verl {stack.verl}.",
            fix=_install(subject),
        )
        return Checked(f"{len(missing)} of {len(ENGINES[subject.platform])} main packages are missing", [problem])
    lock = subject.lock
    also = {entry.when for entry in pins.load()[stack.name].conflicts if entry.when}
    off = {
        name: there[name].version
        for name, wanted in lock.items()
        if name in there and not _same(there[name].version, wanted) and f"{name}=={there[name].version}" not in also
    }
    absent = [name for name in lock if name not in there]
    fact = f"{len(lock) - len(off) - len(absent)} of {len(lock)} packages on the pins"
    problems: list[Finding] = []
    if not _same(there["verl"].version, stack.verl):
        problems.append(
            OFF_PINS.finding(
                f"verl {there['verl'].version} is installed, the stack {stack.name} pins {stack.verl}",
                why="Settings mean different things in different versions of verl, and some are ignored silently.",
                fix=f"pip install --no-deps verl=={stack.verl}",
                severity="error",
            )
        )
    off.pop("verl", None)
    if off or absent:
        main = [name for name in off if name in ENGINES[subject.platform]]
        shown = [f"{name} {off[name]} (pinned {lock[name]})" for name in [*main, *(n for n in off if n not in main)]]
        shown += [f"{name} is missing" for name in absent]
        problems.append(
            OFF_PINS.finding(
                "; ".join(shown[:8]) + (f"; and {len(shown) - 8} more" if len(shown) > 8 else ""),
                why="The run will not be the one that was tried, and its result may differ.",
                fix=f"pip install --no-deps -r {stack.requirements}",
                severity="warning" if main or absent else "note",
            )
        )
    return Checked(fact, problems)


def _same(found: str, wanted: str) -> bool:
    """Whether a version is the pinned one; a local part (+cpu, +empty) counts only where the pin has one."""
    return found == wanted or ("+" not in wanted and found.split("+", maxsplit=1)[0] == wanted)


def conflicts(subject: Subject) -> Checked:
    """Requirements that what is installed does not meet, against those that the stack accepts."""
    if not subject.installed:
        return Checked("the stack is not installed")
    machine = subject.machine.architecture
    markers = {"platform_machine": machine, **subject.machine.markers}
    found = pins.conflicts(subject.packages, markers)
    verdict = pins.judge(found, pins.load()[subject.stack.name], subject.packages, machine)
    lock = subject.lock
    fact = f"{len(verdict.accepted)} accepted conflicts, {len(verdict.unexpected)} unexpected"
    problems = [
        # A package that the stack does not know is the user's own: worth a word, no reason to stop.
        finding
        if finding.code == pins.GONE.name or _requirer(finding.what) in lock
        else pins.UNEXPECTED.finding(finding.what, why=finding.why, fix=finding.fix, severity="note")
        for finding in pins.findings_of(verdict, subject.stack)
    ]
    return Checked(fact, problems)


def _requirer(what: str) -> str:
    return pins.canonical(what.split("==", maxsplit=1)[0])


def torch_npu(subject: Subject) -> Checked:
    """torch-npu against torch and CANN."""
    there = subject.packages
    torch, adapter = there.get("torch"), there.get("torch-npu")
    if torch is None or adapter is None:
        return Checked("torch and torch-npu are not both installed")
    fact = f"torch {torch.version}, torch-npu {adapter.version}"
    problems: list[Finding] = []
    if version(torch.version)[:3] != version(adapter.version)[:3]:
        release = ".".join(map(str, version(adapter.version)[:3]))
        problems.append(
            TORCH_NPU.finding(
                f"torch-npu {adapter.version} beside torch {torch.version}",
                why="torch-npu is built for the torch of its own release: the import fails with an undefined symbol.",
                fix=f"pip install --no-deps torch=={release}",
            )
        )
    folder = ascend.toolkit(subject.machine)
    found = ascend.cann_info(subject.machine, folder).get("version", "") if folder else ""
    wanted = matrix.load().torch_npu_cann.pairs.get(matrix.plain(adapter.version))
    if found and wanted and found.lower() not in [name.lower() for name in wanted]:
        fitting = [name for name, releases in matrix.load().torch_npu_cann.pairs.items() if found in releases]
        fitting = [name for name in fitting if version(name)[:3] == version(torch.version)[:3]]
        problems.append(
            TORCH_NPU.finding(
                f"torch-npu {adapter.version} on CANN {found}; it is built for CANN {' or '.join(wanted)}",
                why="Operators are missing or fail at run time.",
                fix=f"pip install --no-deps torch-npu=={fitting[0]}" if fitting else f"Install CANN {wanted[-1]}.",
                severity="error" if version(found)[0] != version(wanted[0])[0] else "warning",
            )
        )
    return Checked(fact, problems)


def vllm_core(subject: Subject) -> list[str]:
    """The module of vllm's compiled core, by its file: _C.abi3.so (0.11.0), _C_stable_libtorch.abi3.so (0.24.0).

    Empty for an empty build. Its other extensions (_moe_C, _flashmla_C, cumem_allocator) are not looked at.
    """
    sites = subject.machine.sites or tuple(sys.path)
    files = (path for site in sites for path in Path(site, "vllm").glob("_C*.so"))
    return sorted({f"vllm.{path.name.partition('.')[0]}" for path in files})


def vllm(subject: Subject) -> Checked:
    """The device that the installed vllm is built for: told by its compiled extension."""
    package = subject.packages.get("vllm")
    if package is None:
        return Checked("vllm is not installed")
    compiled = vllm_core(subject)
    fact = f"vllm {package.version}, " + ("built for CUDA" if compiled else "no extension of its own")
    if subject.platform == "npu" and compiled:
        release = ".".join(map(str, version(package.version)))
        problem = VLLM_DEVICE.finding(
            f"vllm {package.version} is the CUDA build",
            why="It asks for another torch than torch-npu, and warns on each start that libcudart.so.12 is missing."
            " vllm-ascend needs only its Python part; the published run trained with it all the same.",
            fix=f"pip download --no-deps --no-build-isolation --no-binary vllm vllm=={release} &&"
            f" VLLM_TARGET_DEVICE=empty pip install --no-deps --no-build-isolation --force-reinstall"
            f" ./vllm-{release}.tar.gz",
            severity="warning",
        )
        return Checked(fact, [problem])
    if subject.platform == "cuda" and not compiled:
        problem = VLLM_DEVICE.finding(
            f"vllm {package.version} is an empty build",
            why="Its CUDA extension (vllm/_C*.so) is missing, so it cannot generate on a GPU.",
            fix=f"pip install --no-deps --force-reinstall vllm=={package.version.split('+')[0]}",
        )
        return Checked(fact, [problem])
    return Checked(fact)


def combination(subject: Subject) -> Checked:
    """Where the installed versions stand in the compatibility matrix."""
    versions = {name: package.version for name, package in subject.packages.items()}
    if not subject.installed:
        return Checked("the stack is not installed")
    if subject.platform == "npu":
        folder = ascend.toolkit(subject.machine)
        versions["cann"] = ascend.cann_info(subject.machine, folder).get("version", "") if folder else ""
    row = matrix.standing(subject.platform, versions)
    if row:
        return Checked(f"{row.standing}: {row.source}")
    near = matrix.nearest(subject.platform, versions)
    differing = [
        f"{name} {versions.get(name) or 'none'} (there {wanted})"
        for name, wanted in near.versions.items()
        if matrix.plain(versions.get(name, "")) != wanted.lower()
    ]
    problem = MATRIX.finding(
        f"unknown combination; the nearest known one differs in {', '.join(differing)}",
        why="It may work; nobody who wrote the matrix has seen it work.",
        fix=_install(subject),
    )
    return Checked("unknown", [problem])


def imports(subject: Subject) -> Checked:
    """Imports what the run needs, in a child process with a time limit; says the real error."""
    listed = [module for package, module in MODULES[subject.platform] if package in subject.packages]
    wanted = [name for module in listed for name in (vllm_core(subject) if module == CORE else [module])]
    if not subject.installed:
        return Checked("the stack is not installed")
    seconds = max(0.5, subject.until - time.monotonic())
    probe = Path(__file__).with_name("probe.py")
    said = subject.machine.program([sys.executable, str(probe), *wanted], seconds)
    answers = [json.loads(line) for line in (said.out if said else "").splitlines() if line.startswith("{")]
    problems = [_import_finding(subject, a["module"], a["causes"]) for a in answers if a["causes"]]
    done = [a["module"] for a in answers]
    rest = wanted[len(done) :]
    if said is not None and said.code not in (0, 124) and rest:
        how = f"signal {-said.code}" if said.code < 0 else f"exit code {said.code}"
        last = said.err.strip().splitlines()[-1:]
        problems.append(_import_finding(subject, rest[0], [f"the process died ({how}) {' '.join(last)}".strip()]))
        rest = []
    fact = f"imported: {', '.join(a['module'] for a in answers if not a['causes']) or 'none'}"
    return Checked(fact + (f"; not finished in {seconds:.1f} s: {', '.join(rest)}" if rest else ""), problems)


def _import_finding(subject: Subject, module: str, causes: list[str]) -> Finding:
    first = causes[-1].strip().splitlines()[0]
    lock = subject.lock
    remedy = next((fix for pattern, fix in REMEDIES if re.search(pattern, " ".join(causes))), "")
    known = {"requirements": subject.stack.requirements, **{n: lock.get(n, "") for n in ("numpy", "pyarrow")}}
    why = f"`import {module}` fails" + (f"; the error before the last: {causes[0].splitlines()[0]}" * (len(causes) > 1))
    if module.startswith("vllm."):
        why += ". vllm shows it only as `Model architectures [...] failed to be inspected`"
    return IMPORT.finding(
        f"{module}: {first}",
        why=why + ".",
        fix=remedy.format(**known)
        if remedy
        else f"pip install --no-deps --force-reinstall -r {subject.stack.requirements}",
    )
