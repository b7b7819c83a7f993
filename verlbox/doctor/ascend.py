"""Checks of an Ascend host or container: device files, driver and firmware, npu-smi, CANN toolkit, NNAL."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verlbox import findings
from verlbox.doctor import matrix
from verlbox.doctor.machine import Machine, fields, in_container, version
from verlbox.doctor.nvidia import BUSY
from verlbox.doctor.subject import Checked, Repair, Subject
from verlbox.findings import Finding
from verlbox.platforms import npu

DEVICE = findings.register("ascend-device", "error", "An Ascend device file may not be opened by this user.")
DRIVER = findings.register("ascend-driver", "error", "The Ascend driver is missing or does not go with what is on it.")
SMI = findings.register("npu-smi-fails", "error", "npu-smi is missing or fails.")
HEALTH = findings.register("npu-health", "error", "An NPU reports a fault.")
CANN = findings.register("cann-toolkit", "error", "The CANN toolkit is missing, or its environment is not set.")
CANN_DRIVER = findings.register("cann-driver", "error", "CANN and the Ascend driver do not go together.")
NNAL = findings.register(
    "nnal-atb", "error", "NNAL's ATB library is missing, not in the environment, or the wrong build."
)
VARIABLE = findings.register(
    "ascend-variable", "warning", "An environment variable that RL on Ascend needs is not set so."
)

DRIVER_FOLDER = "/usr/local/Ascend/driver"
FIRMWARE = "/usr/local/Ascend/firmware/version.info"
WELL = ("OK", "NA")  # NA: a virtual card does not say
NNAL_ABI_SINCE = (2, 7)  # torch from 2.7 on is built with the new C++ ABI on every machine; 2.7.1 measured


# --- devices -----------------------------------------------------------------------------------------------------


def devices(subject: Subject) -> Checked:
    machine = subject.machine
    numbers = npu.devices(machine.root)
    problems = npu.problems(subject.devices, machine.root, machine.environment)
    fact = f"{len(numbers)} NPU(s): " + ", ".join(f"davinci{n}" for n in numbers) if numbers else "no /dev/davinci0"
    names = [*npu.CONTROL_DEVICES, *(f"davinci{number}" for number in numbers)] if numbers else []
    closed = [n for n in names if machine.exists(f"/dev/{n}") and not machine.may(f"/dev/{n}", 0b110)]
    if closed:
        problems.append(
            DEVICE.finding(
                f"this user may not open {', '.join('/dev/' + name for name in closed)}",
                why="The driver refuses (drvErr=87), and torch_npu finds no device.",
                fix="docker run --group-add $(stat -c %g /dev/davinci_manager), as compose.yaml does"
                if in_container(machine)
                else "sudo usermod -aG HwHiAiUser $USER, and log in again",
            )
        )
    return Checked(fact, problems)


# --- driver ------------------------------------------------------------------------------------------------------


def _driver_info(machine: Machine) -> dict[str, str]:
    return fields(machine.read(f"{DRIVER_FOLDER}/version.info") or "", "=")


def _driver_version(machine: Machine) -> str:
    info = _driver_info(machine)
    return info.get("package_version") or info.get("Version", "")


def _branches(text: str) -> list[str]:
    """The branches of a compatible_version line: [V100R001C19],[V100R001C20] -> C19, C20."""
    return re.findall(r"V\d+R\d+(C\d+)", text)


def driver(subject: Subject) -> Checked:
    """Driver version, its library, and the firmware range that it says it works with."""
    machine = subject.machine
    found = _driver_version(machine)
    mounts = (
        "docker run -v /usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64:ro"
        " -v /usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info:ro"
        " -v /etc/ascend_install.info:/etc/ascend_install.info:ro, as compose.yaml does"
    )
    install = "Install the driver and firmware of the card from https://www.hiascend.com/hardware/firmware-drivers"
    inside = in_container(machine)
    if not found or not machine.names(f"{DRIVER_FOLDER}/lib64"):
        if not npu.devices(machine.root):
            return Checked("no driver")  # without a device, that is not the first thing to say
        missing = "version.info" if not found else "lib64"
        problem = DRIVER.finding(
            f"{DRIVER_FOLDER}/{missing} is not there",
            why="CANN loads libascend_hal.so from the host's driver; without it `import torch_npu` fails.",
            fix=mounts if inside else install,
        )
        return Checked("driver is incomplete", [problem])
    firmware = fields(machine.read(FIRMWARE) or "", "=").get("Version", "")
    fact = f"driver {found}" + (f", firmware {firmware}" if firmware else "")
    bounds = re.search(r"\[([\d.]+),([\d.]+)\]", _driver_info(machine).get("compatible_version_fw", ""))
    if firmware and bounds and not version(bounds[1]) <= version(firmware)[:3] <= version(bounds[2]):
        problem = DRIVER.finding(
            f"firmware {firmware}, the driver {found} works with {bounds[1]} to {bounds[2]}",
            why="The driver says so itself (compatible_version_fw); cards then fail to start or drop out.",
            fix=f"Install the firmware of driver {found}'s release: ./Ascend-hdk-*-npu-firmware_*.run --upgrade",
        )
        return Checked(fact, [problem])
    return Checked(fact)


# --- npu-smi -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """An NPU as npu-smi lists it; device memory in MiB, processes on it by number."""

    number: int
    name: str
    health: str
    used: int
    total: int
    processes: tuple[int, ...]


def cards(text: str) -> list[Card]:
    """The NPUs of `npu-smi info`: two lines a card (NPU, name, health; chip, bus, memory), then the processes."""
    first = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*(\w+)\s*\|")
    second = re.compile(r"^\|\s*\d+(?:\s+\d+)?\s*\|\s*[0-9A-Fa-f]{4}:\S+\s*\|.*?(\d+)\s*/\s*(\d+)\s*\|\s*$")
    process = re.compile(r"^\|\s*(\d+)\s+\d+\s*\|\s*(\d+)\s*\|")
    heads: list[tuple[int, str, str]] = []
    memory: list[tuple[int, int]] = []
    running: dict[int, list[int]] = {}
    for line in text.splitlines():
        if found := second.match(line):
            memory.append((int(found[1]), int(found[2])))
        elif found := process.match(line):
            running.setdefault(int(found[1]), []).append(int(found[2]))
        elif found := first.match(line):
            heads.append((int(found[1]), found[2], found[3]))
    return [
        Card(number, name, health, used, total, tuple(running.get(number, ())))
        for (number, name, health), (used, total) in zip(heads, memory, strict=False)
    ]


def state(subject: Subject) -> Checked:
    """What npu-smi says: health and use of the cards."""
    machine = subject.machine
    if not npu.devices(machine.root):
        return Checked("no card to ask")
    said = machine.program(["npu-smi", "info"], 3.0)
    if said is None:
        problem = SMI.finding(
            "there is no npu-smi",
            why="verlbox reads the true peak of device memory with it; training itself does not need it.",
            fix="docker run -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro -v /usr/local/dcmi:/usr/local/dcmi:ro"
            if in_container(machine)
            else "export PATH=$PATH:/usr/local/sbin:/usr/local/bin",
            severity="warning",
        )
        return Checked("no npu-smi", [problem])
    found = cards(said.out)
    if said.code or not found:
        reason = next((line for line in (said.out + "\n" + said.err).splitlines() if line.strip()), "no output")
        problem = SMI.finding(
            f"npu-smi info: {reason.strip()}",
            why="The driver does not answer: not loaded, no right to its devices, or held by another container.",
            fix="sudo npu-smi info; when that fails as well: dmesg | grep -i davinci, and restart the host",
        )
        return Checked("npu-smi fails", [problem])
    problems = [
        HEALTH.finding(
            f"NPU {card.number} ({card.name}) reports {card.health}",
            why="A card with a fault stops in the middle of a run.",
            fix=f"npu-smi info -t health -i {card.number}; use another: export ASCEND_RT_VISIBLE_DEVICES=...",
            severity="warning" if card.health == "Warning" or _spare(subject, found) else "error",
        )
        for card in found
        if card.health not in WELL
    ]
    problems += _busy(subject, found)
    shown = ", ".join(f"{card.name} {card.total / 1024:.0f} GiB" for card in found)
    return Checked(shown, problems)


def _spare(subject: Subject, found: list[Card]) -> bool:
    """Whether enough cards without a fault are among those a run would use."""
    would_use = npu.visible(subject.machine.root, subject.machine.environment)[: subject.devices]
    return all(card.health in WELL for card in found if card.number in would_use)


def _busy(subject: Subject, found: list[Card]) -> list[Finding]:
    visible = npu.visible(subject.machine.root, subject.machine.environment)
    would_use = visible[: subject.devices]
    busy = [card for card in found if card.number in would_use and card.processes]
    if not busy:
        return []
    idle = [c.number for c in found if c.number in visible and not c.processes and c.health == "OK"]
    what = ", ".join(
        f"NPU {c.number} ({len(c.processes)} processes, {c.used / 1024:.1f} of {c.total / 1024:.0f} GiB used)"
        for c in busy
    )
    return [
        BUSY.finding(
            what,
            why="vLLM takes a share of the whole card's memory at start and fails when it is not free.",
            fix="export ASCEND_RT_VISIBLE_DEVICES=" + ",".join(map(str, idle[: subject.devices]))
            if len(idle) >= subject.devices
            else f"End what runs there (processes {', '.join(map(str, busy[0].processes))}), or wait for it.",
        )
    ]


# --- CANN --------------------------------------------------------------------------------------------------------


def toolkit(machine: Machine) -> str:
    """The CANN toolkit's folder: ASCEND_HOME_PATH, the user's own (CANNLab's user developer), /usr/local; else ""."""
    roots = [f"{machine.home.rstrip('/')}/Ascend", "/usr/local/Ascend"]
    candidates = [f"{root}/{name}" for root in roots for name in ("ascend-toolkit/latest", "cann")]
    chosen = machine.environment.get("ASCEND_HOME_PATH", "")
    return next((place for place in [chosen, *candidates] if place and machine.path(place).is_dir()), "")


def cann_info(machine: Machine, folder: str) -> dict[str, str]:
    """ascend_toolkit_install.info: version, innerversion, compatible_version."""
    for name in (f"{machine.architecture}-linux/ascend_toolkit_install.info", "ascend_toolkit_install.info"):
        if text := machine.read(f"{folder}/{name}"):
            return fields(text, "=")
    runtime = fields(machine.read(f"{folder}/runtime/version.info") or "", "=")
    return {"version": runtime["Version"]} if "Version" in runtime else {}


def set_env(machine: Machine, folder: str) -> str:
    """The script that sets CANN's environment: beside `latest`, or inside `cann`."""
    parent = folder.rsplit("/", 1)[0]
    inside = f"{folder}/set_env.sh"
    return inside if folder.endswith("/cann") or machine.exists(inside) else f"{parent}/set_env.sh"


def nnal_script(folder: str) -> str:
    """The script that sets NNAL's environment, where it lies beside the CANN toolkit in `folder`."""
    base = re.sub(r"/(ascend-toolkit/[^/]+|cann[^/]*)$", "", folder)
    return f"{base}/nnal/atb/set_env.sh"


def cann(subject: Subject) -> Checked:
    """CANN: present, its environment set, its version with the driver's."""
    machine = subject.machine
    folder = toolkit(machine)
    if not folder:
        if subject.from_image:
            return Checked("no CANN; the image brings it")
        problem = CANN.finding(
            "no CANN toolkit: ASCEND_HOME_PATH is not set, and neither $HOME/Ascend nor /usr/local/Ascend holds one",
            why="torch_npu is built on it.",
            fix=f"Use the image (`{subject.service}`), or install CANN and source its set_env.sh.",
        )
        return Checked("no CANN", [problem])
    info = cann_info(machine, folder)
    found = info.get("version", "unknown version")
    problems: list[Finding] = []
    repairs: list[Repair] = []
    opp = machine.environment.get("ASCEND_OPP_PATH", "")
    if machine.environment.get("ASCEND_HOME_PATH", "") != folder or not opp:
        line = f"source {set_env(machine, folder)}"
        problems.append(
            CANN.finding(
                f"CANN {found} lies in {folder}, but its environment is not set",
                why="`import torch_npu` fails: libhccl.so or ASCEND_OPP_PATH is not found.",
                fix=line,
            )
        )
        repairs.append(Repair(line=line))
    problems += _with_driver(machine, found, info)
    return Checked(f"CANN {found} in {folder}", problems, repairs)


def _with_driver(machine: Machine, found: str, info: dict[str, str]) -> list[Finding]:
    """Whether CANN and driver name each other as compatible; where the files do not say, by the release notes."""
    have = _driver_version(machine)
    if not have:
        return []
    driver_info = _driver_info(machine)
    own, theirs = _branches(info.get("innerversion", "")), _branches(driver_info.get("Innerversion", ""))
    accepts = _branches(info.get("compatible_version", "")), _branches(driver_info.get("compatible_version", ""))
    if own and theirs and any(accepts):
        fits = theirs[0] in accepts[0] or own[0] in accepts[1]
        source, wanted = "neither names the other's branch in compatible_version", "a driver of CANN's own release"
    else:
        row = next((r for r in matrix.load().cann_drivers if version(found)[:2] == version(r.cann)), None)
        if row is None:
            return []
        named = [version(name) for name in row.drivers]
        fits = version(have)[:2] in named or version(have) > max(named)
        source, wanted = f"{row.source} names {', '.join(row.drivers)}", f"driver {row.drivers[0]}"
    if fits:
        return []
    return [
        CANN_DRIVER.finding(
            f"CANN {found} on driver {have}: {source}",
            why="Operators fail to load, or return wrong results.",
            fix=f"Install {wanted} on the host: ./Ascend-hdk-*-npu-driver_*.run --upgrade; or a CANN for this driver.",
            severity="error" if own and theirs and any(accepts) else "warning",
        )
    ]


def nnal(subject: Subject) -> Checked:
    """ATB of NNAL, which vllm-ascend calls: present, in the environment, in the build that torch needs."""
    machine = subject.machine
    folder = toolkit(machine)
    if not folder:
        return Checked("no CANN, so no NNAL")
    script = nnal_script(folder)
    home = machine.environment.get("ATB_HOME_PATH", "")
    if not home:
        if not machine.exists(script):
            problem = NNAL.finding(
                f"no NNAL: {script} is not there, and ATB_HOME_PATH is not set",
                why="vllm-ascend calls its ATB library: `libatb.so: cannot open shared object file`.",
                fix="./Ascend-cann-nnal_*_linux-$(uname -m).run --install, of CANN's own version",
            )
            return Checked("no NNAL", [problem])
        line = f"source {script}"
        problem = NNAL.finding(
            "NNAL is installed, but its environment is not set",
            why="vllm-ascend calls its ATB library: `libatb.so: cannot open shared object file`.",
            fix=f"{line} (after torch is installed: the script asks torch which build it needs)",
        )
        return Checked("NNAL is not in the environment", [problem], [Repair(line=line)])
    abi = re.search(r"cxx_abi_([01])", home)
    torch = subject.packages.get("torch")
    if abi and torch and version(torch.version) >= NNAL_ABI_SINCE and abi[1] == "0":
        line = f"source {script} --cxx_abi=1"
        problem = NNAL.finding(
            f"ATB_HOME_PATH is the build cxx_abi_0, torch {torch.version} needs cxx_abi_1",
            why="The script was sourced when torch was not there; loading vllm_ascend_C then fails with an undefined"
            " symbol.",
            fix=line,
        )
        return Checked(f"NNAL in {home}", [problem], [Repair(line=line)])
    return Checked(f"NNAL in {home}")


def variables(subject: Subject) -> Checked:
    """VLLM_ASCEND_ENABLE_NZ, which verlbox sets to 0 in its own runs, and other programs must."""
    value = subject.machine.environment.get("VLLM_ASCEND_ENABLE_NZ")
    if value in (None, "0"):
        return Checked(f"VLLM_ASCEND_ENABLE_NZ {'is not set; runs set it to 0' if value is None else '= 0'}")
    line = "export VLLM_ASCEND_ENABLE_NZ=0"
    problem = VARIABLE.finding(
        f"VLLM_ASCEND_ENABLE_NZ={value}",
        why="The NZ weight format is for weights that never change; RL writes new ones each step, and the answers"
        " turn to garbage. verlbox sets 0 in its own runs, scripts of your own would not.",
        fix=line,
    )
    return Checked(f"VLLM_ASCEND_ENABLE_NZ = {value}", [problem], [Repair(line=line)])
