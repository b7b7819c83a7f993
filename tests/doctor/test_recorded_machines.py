"""Healthy recorded machines yield no finding; each planted fault yields its own, and no other."""

# mypy: disable-error-code="func-returns-value"
# (a plant is one expression; several are a tuple of calls made for what they do)

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doctor.recorded import Recorded
from verlbox.doctor import checks, software
from verlbox.doctor.machine import Reply
from verlbox.findings import Finding
from verlbox.recipe import Cluster, Recipe

GIB = 2**30
TOOLKIT = "/usr/local/Ascend/ascend-toolkit/latest"
Plant = Callable[[Recorded], object]


def look(machine: Recorded) -> list[Finding]:
    return [finding for _, checked in checks.run(machine.subject()) for finding in checked.findings]


def recipe(stack: str, **model: object) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "test",
            "description": "",
            "stack": stack,
            "model": {"name": "Qwen/Qwen2.5-1.5B-Instruct", **model},
            "dataset": {"format": "gsm8k", "name": "openai/gsm8k"},
            "reward": {"name": "gsm8k"},
            "train": {},
        }
    )


@pytest.mark.parametrize("tree", ["ascend-910b3", "cuda-h200", "docker-host-a100"])
def test_a_healthy_machine_yields_no_finding(tree: str, tmp_path: Path) -> None:
    assert look(Recorded(tree, tmp_path)) == []


@pytest.mark.parametrize("tree", ["ascend-910b3", "cuda-h200", "docker-host-a100"])
def test_a_healthy_machine_with_a_recipe_of_eight_devices_or_one(tree: str, tmp_path: Path) -> None:
    machine = Recorded(tree, tmp_path)
    machine.devices = {"ascend-910b3": 8, "cuda-h200": 1, "docker-host-a100": 2}[tree]
    machine.recipe = recipe(machine.stack.name)
    assert look(machine) == []
    assert machine.asked, "the sources of a hub model are asked"


def test_a_recipe_of_several_nodes_may_name_its_cluster_in_the_environment(tmp_path: Path) -> None:
    machine = Recorded("cuda-h200", tmp_path)
    machine.environment["RAY_ADDRESS"] = "10.0.0.1:6379"
    machine.recipe = recipe(machine.stack.name)
    assert [finding.code for finding in look(machine)] == ["ray-address"]
    machine.recipe = machine.recipe.model_copy(update={"cluster": Cluster(nodes=2)})
    assert look(machine) == []


def busy(m: Recorded) -> None:
    m.programs["npu-smi"] = {"file": "npu-smi-info-busy.txt"}


def alarm(m: Recorded) -> None:
    m.programs["npu-smi"] = {"file": "npu-smi-info-alarm.txt"}


def in_container(m: Recorded) -> None:
    m.write("/.dockerenv", "")


def version_one(m: Recorded, name: str, value: str) -> None:
    """A container whose control groups are of version 1."""
    controller = name.split(".", maxsplit=1)[0]
    m.write(
        "/proc/self/cgroup", f"5:{controller}:/docker/0123456789abcdef\n1:name=systemd:/docker/0123456789abcdef\n0::/\n"
    )
    m.write(f"/sys/fs/cgroup/{controller}/{name}", value)


# (what is planted, tree, how, {code: severity} expected, words that the fix or the text must hold)
FAULTS: list[tuple[str, str, Plant, dict[str, str], str]] = [
    # host
    ("musl instead of glibc", "cuda-h200", lambda m: setattr(m, "glibc", None), {"host-system": "error"}, "glibc"),
    ("old glibc", "ascend-910b3", lambda m: setattr(m, "glibc", "2.27"), {"host-system": "error"}, "2.28"),
    ("other Python", "ascend-910b3", lambda m: setattr(m, "python", "3.10.12"), {"host-python": "error"}, "python3.11"),
    (
        "CUDA stack on aarch64",
        "cuda-h200",
        lambda m: setattr(m, "architecture", "aarch64"),
        {"host-system": "error"},
        "x86_64",
    ),
    (
        "cgroup v2 memory limit",
        "cuda-h200",
        lambda m: m.write("/sys/fs/cgroup/memory.max", str(4 * GIB)),
        {"host-memory": "error"},
        "--memory",
    ),
    (
        "cgroup v1 memory limit",
        "ascend-910b3",
        lambda m: version_one(m, "memory.limit_in_bytes", str(20 * GIB)),
        {"host-memory": "warning"},
        "20.0 GiB",
    ),
    (
        "cgroup v1 without a limit",
        "ascend-910b3",
        lambda m: version_one(m, "memory.limit_in_bytes", "9223372036854771712"),
        {},
        "",
    ),
    (
        "memory used by others",
        "cuda-h200",
        lambda m: m.replace("/proc/meminfo", "MemAvailable:   131488512 kB", "MemAvailable:   16488512 kB"),
        {"host-memory": "warning"},
        "ps aux",
    ),
    (
        "fewer processors than devices",
        "ascend-910b3",
        lambda m: (setattr(m, "devices", 8), m.write("/sys/fs/cgroup/cpu.max", "400000 100000")),
        {"host-processors": "error"},
        "--cpus",
    ),
    ("clock in the past", "cuda-h200", lambda m: setattr(m, "now", 1_000_000_000.0), {"host-clock": "warning"}, "ntp"),
    # storage
    (
        "disk full",
        "ascend-910b3",
        lambda m: m.spaces.update({"/data": [500 * GIB, 3 * GIB]}),
        {"disk-space": "error"},
        "RUNS",
    ),
    (
        "runs folder of another user",
        "ascend-910b3",
        lambda m: m.modes.update({"/data/results": "0755"}),
        {"folder-unusable": "error"},
        "chown",
    ),
    (
        "runs on NFS",
        "ascend-910b3",
        lambda m: m.write(
            "/proc/self/mountinfo",
            (m.root / "proc/self/mountinfo").read_text() + "40 27 0:50 / /data/results rw - nfs4 s:/x rw\n",
        ),
        {"disk-kind": "note"},
        "nfs4",
    ),
    (
        "runs inside a container",
        "cuda-h200",
        lambda m: m.replace(
            "/proc/self/mountinfo",
            "/ / rw,relatime - ext4 /dev/vda rw,discard",
            "/ / rw,relatime - overlay overlay rw\n40 27 254:1 / /data/cache rw - ext4 /dev/vdb rw",
        ),
        {"disk-kind": "note"},
        "docker run -v",
    ),
    (
        "Docker's default shared memory",
        "cuda-h200",
        lambda m: m.spaces.update({"/dev/shm": [64 * 2**20, 64 * 2**20]}),
        {"shared-memory-small": "warning"},
        "--shm-size",
    ),
    (
        "small shared memory and several devices",
        "ascend-910b3",
        lambda m: (m.spaces.update({"/dev/shm": [64 * 2**20, 64 * 2**20]}), setattr(m, "devices", 2)),
        {"shared-memory-small": "error"},
        "remount",
    ),
    (
        "long RAY_TMPDIR",
        "ascend-910b3",
        lambda m: m.environment.update(RAY_TMPDIR="/home/developer/projects/reinforcement/ray-temporary"),
        {"temporary-folder": "warning"},
        "RAY_TMPDIR=/tmp",
    ),
    ("/tmp read-only", "cuda-h200", lambda m: m.modes.update({"/tmp": "0755"}), {"temporary-folder": "error"}, "1777"),
    (
        "/tmp nearly full",
        "cuda-h200",
        lambda m: m.spaces.update({"/tmp": [100 * GIB, 2 * GIB]}),
        {"temporary-folder": "error"},
        "95 %",
    ),
    # limits
    (
        "few open files",
        "ascend-910b3",
        lambda m: m.replace("/proc/self/limits", "1048576              1048576 ", "1024                 1048576 "),
        {"limit-low": "warning"},
        "ulimit -n 65536",
    ),
    (
        "very few open files in a container",
        "cuda-h200",
        lambda m: m.replace("/proc/self/limits", "1048576              1048576 ", "256                  256     "),
        {"limit-low": "error"},
        "--ulimit nofile",
    ),
    (
        "few processes",
        "ascend-910b3",
        lambda m: m.replace(
            "/proc/self/limits", "515506               515506               processes", "1024 1024 processes"
        ),
        {"limit-low": "warning"},
        "ulimit -u",
    ),
    (
        "pids control group v2",
        "cuda-h200",
        lambda m: m.write("/sys/fs/cgroup/pids.max", "256"),
        {"limit-low": "error"},
        "--pids-limit",
    ),
    (
        "pids control group v2 of a parent",
        "docker-host-a100",
        lambda m: m.write("/sys/fs/cgroup/user.slice/pids.max", "2000"),
        {"limit-low": "warning"},
        "2000",
    ),
    ("pids control group v1", "cuda-h200", lambda m: version_one(m, "pids.max", "100"), {"limit-low": "error"}, "100"),
    # network
    (
        "Ray port taken",
        "ascend-910b3",
        lambda m: m.replace("/proc/net/tcp", "0100007F:0277", "00000000:18EB"),
        {"ray-port-taken": "note"},
        "6379",
    ),
    (
        "RAY_ADDRESS set",
        "cuda-h200",
        lambda m: m.environment.update(RAY_ADDRESS="10.0.0.1:6379"),
        {"ray-address": "warning"},
        "unset RAY_ADDRESS",
    ),
    # containers
    (
        "no NVIDIA runtime",
        "docker-host-a100",
        lambda m: m.programs.update({"docker info": {"out": '{"runc":{"path":"runc"}}'}}),
        {"container-runtime": "error"},
        "nvidia-ctk",
    ),
    (
        "old compose",
        "docker-host-a100",
        lambda m: m.programs.update({"docker compose": {"out": "2.17.3\n"}}),
        {"compose-old": "error"},
        "docker-compose-plugin",
    ),
    (
        "no compose plugin",
        "ascend-910b3",
        lambda m: m.programs.update(
            {"docker compose": {"code": 1, "err": "docker: 'compose' is not a docker command."}}
        ),
        {"compose-old": "warning"},
        "not installed",
    ),
    (
        "no right to Docker's socket, stack installed",
        "ascend-910b3",
        lambda m: m.programs.update(
            {
                "docker version": {
                    "code": 1,
                    "out": "null\n",
                    "err": "permission denied while trying to connect to the Docker daemon",
                }
            }
        ),
        {"docker-absent": "note"},
        "usermod -aG docker",
    ),
    (
        "engine not running, stack not installed",
        "docker-host-a100",
        lambda m: m.programs.update(
            {"docker version": {"code": 1, "out": "null\n", "err": "Cannot connect to the Docker daemon"}}
        ),
        {"docker-absent": "note", "host-python": "error", "packages-missing": "error"},
        "systemctl start docker",
    ),
    # NVIDIA
    (
        "no GPU passed into the container",
        "cuda-h200",
        lambda m: m.remove("/dev/nvidia0"),
        {"platform-absent": "error"},
        "--gpus all",
    ),
    (
        "no unified memory device",
        "docker-host-a100",
        lambda m: m.remove("/dev/nvidia-uvm"),
        {"nvidia-device": "error"},
        "nvidia-modprobe -u",
    ),
    (
        "GPU of another user",
        "docker-host-a100",
        lambda m: m.modes.update({"/dev/nvidia0": "0600"}),
        {"nvidia-device": "error"},
        "/dev/nvidia0",
    ),
    (
        "driver too old for CUDA 13",
        "cuda-h200",
        lambda m: m.replace("/proc/driver/nvidia/version", "580.159.04", "570.133.20"),
        {"nvidia-driver": "error"},
        "nvidia-driver-580",
    ),
    (
        "driver older than the toolkit",
        "docker-host-a100",
        lambda m: m.replace("/proc/driver/nvidia/version", "570.133.20", "535.129.03"),
        {"nvidia-driver": "warning"},
        "570",
    ),
    (
        "driver updated without a restart",
        "cuda-h200",
        lambda m: m.programs.update(
            {"nvidia-smi": {"code": 18, "out": "Failed to initialize NVML: Driver/library version mismatch\n"}}
        ),
        {"nvidia-smi-fails": "error"},
        "reboot",
    ),
    (
        "GPU in use, another is free",
        "docker-host-a100",
        lambda m: m.programs.update(
            {
                "nvidia-smi": {
                    "out": "0, NVIDIA A100-PCIE-40GB, 40960, 33012, 570.133.20, 8.0\n"
                    "1, NVIDIA A100-PCIE-40GB, 40960, 4, 570.133.20, 8.0\n"
                }
            }
        ),
        {"device-busy": "warning"},
        "CUDA_VISIBLE_DEVICES=1",
    ),
    (
        "GPU without bfloat16",
        "docker-host-a100",
        lambda m: m.programs.update({"nvidia-smi": {"out": "0, Tesla T4, 15360, 2, 570.133.20, 7.5\n"}}),
        {"nvidia-card": "warning"},
        "7.5",
    ),
    (
        "more GPUs asked for",
        "cuda-h200",
        lambda m: setattr(m, "devices", 2),
        {"platform-absent": "error"},
        "train.devices",
    ),
    # Ascend
    (
        "no NPU",
        "ascend-910b3",
        lambda m: [m.remove(f"/dev/davinci{n}") for n in range(8)],
        {"platform-absent": "error"},
        "npu-smi",
    ),
    (
        "no devmm_svm",
        "ascend-910b3",
        lambda m: m.remove("/dev/devmm_svm"),
        {"platform-absent": "error"},
        "/dev/devmm_svm",
    ),
    (
        "user not in the device group",
        "ascend-910b3",
        lambda m: (
            setattr(m, "groups", frozenset()),
            m.modes.update(dict.fromkeys(("/data/results", "/data/cache"), "0777")),
        ),
        {"ascend-device": "error"},
        "HwHiAiUser",
    ),
    ("no npu-smi", "ascend-910b3", lambda m: m.programs.pop("npu-smi"), {"npu-smi-fails": "warning"}, "PATH"),
    (
        "driver does not answer",
        "ascend-910b3",
        lambda m: m.programs.update({"npu-smi": {"file": "npu-smi-info-no-driver.txt", "code": 255}}),
        {"npu-smi-fails": "error"},
        "-8005",
    ),
    ("NPU with a fault", "ascend-910b3", alarm, {"npu-health": "error"}, "NPU 0"),
    (
        "a fault on an NPU that is not used",
        "ascend-910b3",
        lambda m: (alarm(m), m.environment.update(ASCEND_RT_VISIBLE_DEVICES="3")),
        {"npu-health": "warning"},
        "NPU 0",
    ),
    ("NPU in use", "ascend-910b3", busy, {"device-busy": "warning"}, "ASCEND_RT_VISIBLE_DEVICES=1"),
    (
        "in use, but another one chosen",
        "ascend-910b3",
        lambda m: (busy(m), m.environment.update(ASCEND_RT_VISIBLE_DEVICES="5")),
        {},
        "",
    ),
    (
        "driver libraries not mounted",
        "ascend-910b3",
        lambda m: (in_container(m), m.remove("/usr/local/Ascend/driver/lib64")),
        {"ascend-driver": "error"},
        "lib64:ro",
    ),
    (
        "firmware outside the driver's range",
        "ascend-910b3",
        lambda m: m.replace("/usr/local/Ascend/firmware/version.info", "7.8.0.2.212", "6.3.0.1.241"),
        {"ascend-driver": "error"},
        "7.0.0 to 8.9.9",
    ),
    (
        "driver from before CANN",
        "ascend-910b3",
        lambda m: m.write(
            "/usr/local/Ascend/driver/version.info",
            "Version=23.0.rc1\nInnerversion=V100R001C12SPC001B220\ncompatible_version=[V100R001C11],[V100R001C12]\n"
            "compatible_version_fw=[6.0.0,7.9.99]\npackage_version=23.0.rc1\n",
        ),
        {"cann-driver": "error"},
        "driver",
    ),
    (
        "driver that CANN's release note does not name",
        "ascend-910b3",
        lambda m: (
            m.write("/usr/local/Ascend/driver/version.info", "Version=24.1.rc1\npackage_version=24.1.rc1\n"),
            m.replace(f"{TOOLKIT}/aarch64-linux/ascend_toolkit_install.info", "innerversion=", "nothing="),
        ),
        {"cann-driver": "warning"},
        "25.3",
    ),
    (
        "no CANN",
        "ascend-910b3",
        lambda m: (m.remove("/usr/local/Ascend/ascend-toolkit"), m.environment.pop("ASCEND_HOME_PATH")),
        {"cann-toolkit": "error", "matrix-unknown": "warning"},
        "set_env.sh",
    ),
    (
        "CANN's environment not set",
        "ascend-910b3",
        lambda m: (m.environment.pop("ASCEND_HOME_PATH"), m.environment.pop("ASCEND_OPP_PATH")),
        {"cann-toolkit": "error"},
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh",
    ),
    (
        "NNAL's environment not set",
        "ascend-910b3",
        lambda m: m.environment.pop("ATB_HOME_PATH"),
        {"nnal-atb": "error"},
        "source /usr/local/Ascend/nnal/atb/set_env.sh",
    ),
    (
        "no NNAL",
        "ascend-910b3",
        lambda m: (m.environment.pop("ATB_HOME_PATH"), m.remove("/usr/local/Ascend/nnal")),
        {"nnal-atb": "error"},
        "Ascend-cann-nnal",
    ),
    (
        "ATB of the old C++ ABI",
        "ascend-910b3",
        lambda m: m.environment.update(ATB_HOME_PATH="/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_0"),
        {"nnal-atb": "error"},
        "--cxx_abi=1",
    ),
    (
        "NZ weights",
        "ascend-910b3",
        lambda m: m.environment.update(VLLM_ASCEND_ENABLE_NZ="1"),
        {"ascend-variable": "warning"},
        "VLLM_ASCEND_ENABLE_NZ=0",
    ),
    ("NZ not set: runs set it", "ascend-910b3", lambda m: m.environment.pop("VLLM_ASCEND_ENABLE_NZ"), {}, ""),
    # software
    (
        "torch for another torch-npu",
        "ascend-910b3",
        lambda m: m.install("torch", "2.8.0"),
        {"torch-npu-mismatch": "error", "packages-off-pins": "warning", "matrix-unknown": "warning"},
        "torch==2.7.1",
    ),
    (
        "torch-npu for another CANN",
        "ascend-910b3",
        lambda m: (
            m.install("torch-npu", "2.7.1.post2"),
            m.install("vllm-ascend", "0.11.0", "torch-npu==2.7.1"),  # the conflict that the stack accepts
        ),
        {"torch-npu-mismatch": "warning", "matrix-unknown": "warning"},
        "torch-npu==2.7.1",
    ),
    (
        "the published run's pair",
        "ascend-910b3",
        lambda m: (
            m.install("torch-npu", "2.7.1.post2"),
            m.install("vllm-ascend", "0.11.0", "torch-npu==2.7.1"),
            m.replace(f"{TOOLKIT}/aarch64-linux/ascend_toolkit_install.info", "8.3.RC1", "8.5.0"),
        ),
        {},
        "",
    ),
    (
        "an accepted conflict that is gone",
        "ascend-910b3",
        lambda m: (
            m.install("torch-npu", "2.7.1.post2"),
            m.replace(f"{TOOLKIT}/aarch64-linux/ascend_toolkit_install.info", "8.3.RC1", "8.5.0"),
        ),
        {"pins-conflict-gone": "error"},
        "pins.yaml",
    ),
    (
        "CUDA wheel of vllm on Ascend",
        "ascend-910b3",
        lambda m: (m.site / "vllm" / "_C.abi3.so").touch(),
        {"vllm-device": "warning"},
        "VLLM_TARGET_DEVICE=empty",
    ),
    (
        "empty vllm on CUDA",
        "cuda-h200",
        lambda m: (m.site / "vllm" / "_C_stable_libtorch.abi3.so").unlink(),
        {"vllm-device": "error"},
        "vllm==0.24.0",
    ),
    (
        "another verl",
        "cuda-h200",
        lambda m: m.install("verl", "0.8.0"),
        {"packages-off-pins": "error", "matrix-unknown": "warning"},
        "verl==0.9.1",
    ),
    (
        "another transformers",
        "cuda-h200",
        lambda m: m.install("transformers", "5.10.4"),
        {"packages-off-pins": "warning"},
        "5.9.0",
    ),
    (
        "a side package off the pins",
        "cuda-h200",
        lambda m: m.install("tqdm", "4.0.0"),
        {"packages-off-pins": "note"},
        "tqdm",
    ),
    (
        "a pinned package missing",
        "cuda-h200",
        lambda m: m.uninstall("tensordict"),
        {"packages-off-pins": "warning"},
        "tensordict",
    ),
    (
        "an unexpected conflict",
        "cuda-h200",
        lambda m: m.install("tensordict", "0.10.0", "torch<2.10"),
        {"pins-conflict": "error"},
        "torch<2.10",
    ),
    (
        "a conflict of a package of the user's own",
        "cuda-h200",
        lambda m: m.install("my-tool", "1.0", "numpy<1"),
        {"pins-conflict": "note"},
        "my-tool",
    ),
    (
        "a requirement of another Python is none",
        "cuda-h200",
        lambda m: m.install("my-tool", "1.0", 'tomli; python_version < "3.11"', 'pywin32; sys_platform == "win32"'),
        {},
        "",
    ),
    (
        "vllm not installed",
        "ascend-910b3",
        lambda m: (m.uninstall("vllm"), m.uninstall("vllm-ascend")),
        {"packages-missing": "error"},
        "docs/pins.md",
    ),
    (
        "the error behind `failed to be inspected`",
        "cuda-h200",
        lambda m: m.imports.update(
            {
                "vllm.model_executor.models.qwen2": [
                    "RuntimeError: Failed to import transformers.generation",
                    "ImportError: cannot import name 'GenerationMixin' from 'transformers.generation'",
                ]
            }
        ),
        {"import-fails": "error"},
        "cannot import name 'GenerationMixin'",
    ),
    (
        "NumPy of another ABI",
        "ascend-910b3",
        lambda m: m.imports.update(
            {"pyarrow": ["ImportError: A module that was compiled using NumPy 1.x cannot be run"]}
        ),
        {"import-fails": "error"},
        "numpy==1.26.4",
    ),
    (
        "an import that crashes",
        "cuda-h200",
        lambda m: setattr(m, "import_death", ("vllm._C_stable_libtorch", -11)),
        {"import-fails": "error"},
        "signal 11",
    ),
]


@pytest.mark.parametrize(("tree", "plant", "expected", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_planted_fault_yields_its_own_finding_and_no_other(
    tree: str, plant: Plant, expected: dict[str, str], words: str, tmp_path: Path
) -> None:
    machine = Recorded(tree, tmp_path)
    plant(machine)
    found = look(machine)
    assert {finding.code: finding.severity for finding in found} == expected
    assert len(found) == len(expected)
    text = " ".join(f"{finding.what} {finding.why} {finding.fix}" for finding in found)
    assert words in text
    assert all(finding.fix for finding in found), "every finding has what mends it"


@pytest.mark.parametrize("module", ["_C", "_C_stable_libtorch"])
def test_the_core_of_vllm_is_found_under_the_name_of_its_release(module: str, tmp_path: Path) -> None:
    machine = Recorded("cuda-h200", tmp_path)
    for file in (machine.site / "vllm").iterdir():
        file.rename(file.with_name(f"{module}.abi3.so"))
    (machine.site / "vllm" / "_moe_C.abi3.so").touch()
    assert software.vllm_core(machine.subject()) == [f"vllm.{module}"]
    assert look(machine) == []
    machine.import_death = (f"vllm.{module}", -11)
    assert [finding.what.partition(":")[0] for finding in look(machine)] == [f"vllm.{module}"]


def test_cannlabs_toolkit_in_the_users_home_is_found(tmp_path: Path) -> None:
    machine = Recorded("ascend-910b3", tmp_path)
    (machine.root / "home/developer/Ascend").mkdir()
    (machine.root / "usr/local/Ascend/ascend-toolkit").rename(machine.root / "home/developer/Ascend/ascend-toolkit")
    (machine.root / "usr/local/Ascend/nnal").rename(machine.root / "home/developer/Ascend/nnal")
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ATB_HOME_PATH"):
        machine.environment.pop(name)
    found = look(machine)
    assert sorted(finding.code for finding in found) == ["cann-toolkit", "nnal-atb"]
    assert any("source /home/developer/Ascend/ascend-toolkit/set_env.sh" in finding.fix for finding in found)
    assert any("source /home/developer/Ascend/nnal/atb/set_env.sh" in finding.fix for finding in found)


def test_ascend_home_path_comes_before_other_places(tmp_path: Path) -> None:
    machine = Recorded("ascend-910b3", tmp_path)
    machine.write(
        "/home/developer/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info", "version=9.0.0\n"
    )
    assert look(machine) == []


@pytest.mark.parametrize("kind", ["local", "bundled", "cached"])
def test_no_source_is_asked_for_what_is_here(kind: str, tmp_path: Path) -> None:
    machine = Recorded("cuda-h200", tmp_path)
    given = {"source": "modelscope"} if kind == "cached" else {"source": kind}
    if kind == "local":
        given["path"] = "/data/model"
    content = recipe("cuda").model_dump()
    content["model"].update(given)
    content["dataset"].update(given)
    machine.recipe = Recipe.model_validate(content)
    if kind == "cached":
        machine.write("/data/cache/models/Qwen--Qwen2.5-1.5B-Instruct/abc/.verlbox-files.json", "{}")
        machine.write("/data/cache/datasets/openai--gsm8k/abc/.verlbox-files.json", "{}")
    assert look(machine) == []
    assert machine.asked == []


def test_sources_are_judged_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_ENDPOINT", "MODELSCOPE_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    machine = Recorded("cuda-h200", tmp_path)
    machine.recipe = recipe("cuda")
    look(machine)
    addresses = set(machine.asked)
    assert len(addresses) == len(machine.asked) == 3, "each source is asked once"
    mirror = next(address for address in addresses if "mirror" in address)

    machine.replies = {address: Reply(0, "timed out") for address in addresses - {mirror}}
    found = look(machine)
    assert {finding.code for finding in found} == {"source-silent"}
    assert found[0].fix == "model.source=mirror"

    machine.replies = {address: Reply(0, "Name or service not known") for address in addresses}
    found = look(machine)
    assert [finding.code for finding in found] == ["source-unreachable"] * 2
    assert all(finding.severity == "error" and "HF_ENDPOINT" in finding.fix for finding in found)

    machine.replies = {address: Reply(403, date=machine.now - 4000) for address in addresses}
    assert [finding.code for finding in look(machine)] == ["host-clock"], "any answer is an answer, with a clock in it"


def test_a_name_server_that_hangs_does_not_hold_up_the_doctor(tmp_path: Path) -> None:
    machine = Recorded("cuda-h200", tmp_path)
    machine.recipe = recipe("cuda")
    machine.answer_after = 20.0
    start = time.monotonic()
    found = look(machine)
    assert time.monotonic() - start < 10
    assert {finding.code for finding in found} == {"source-unreachable"}
    assert "no answer within" in found[0].what


def test_space_follows_from_the_models_size(tmp_path: Path) -> None:
    machine = Recorded("ascend-910b3", tmp_path)
    machine.recipe = recipe("npu")
    machine.spaces["/data"] = [500 * GIB, 30 * GIB]
    assert [finding.code for finding in look(machine)] == ["disk-space"], (
        "PPO saves two models: 12 bytes a parameter each, and two copies of 2 bytes make 39 GiB"
    )
    content = machine.recipe.model_dump()
    content["train"]["verl"] = {"ALGORITHM": {"algorithm.adv_estimator": "grpo"}}
    machine.recipe = Recipe.model_validate(content)
    assert look(machine) == [], "GRPO saves one: 22 GiB"


def test_a_check_that_raises_is_a_finding_about_itself(tmp_path: Path) -> None:
    machine = Recorded("cuda-h200", tmp_path)
    machine.write("/proc/meminfo", "MemTotal: many kB\n")
    found = look(machine)
    assert [finding.code for finding in found] == ["doctor-check-failed"]
    assert "host: memory" in found[0].what


def test_everything_missing_is_still_no_traceback(tmp_path: Path) -> None:
    machine = Recorded("ascend-910b3", tmp_path)
    for name in ("proc", "sys", "etc", "usr"):
        machine.remove(f"/{name}")
    machine.programs.clear()
    codes = {finding.code for finding in look(machine)}
    assert "doctor-check-failed" not in codes
    assert {"cann-toolkit", "ascend-driver", "npu-smi-fails"} <= codes
