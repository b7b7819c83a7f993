"""The verb on the machine that runs the tests, which has no accelerator."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.doctor.recorded import Recorded
from verlbox.doctor import checks, command, probe
from verlbox.doctor.machine import run_program, version
from verlbox.doctor.subject import Check, Checked, Repair

ROOT = Path(__file__).parents[2]
CALL = """
import argparse, sys
from verlbox import findings
from verlbox.doctor import command
parser = argparse.ArgumentParser()
command.add_arguments(parser)
try:
    code = command.run(parser.parse_args())
except findings.FindingsError as error:
    findings.show(error.findings)
    code = error.exit_code
loaded = sorted(name for name in ("torch", "verl", "ray", "numpy", "transformers") if name in sys.modules)
print("heavy:", *loaded, file=sys.stderr)
sys.exit(code)
"""
stack_is_here = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="the CPU stack is not installed")
no_accelerator = pytest.mark.skipif(
    any(Path("/dev", name).exists() for name in ("davinci0", "nvidia0")), reason="this machine has an accelerator"
)


def doctor(*arguments: str, **environment: str) -> tuple[int, str, str, float]:
    start = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", CALL, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ended.returncode, ended.stdout, ended.stderr, time.monotonic() - start


@stack_is_here
def test_the_smoke_recipe_passes_and_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    code, out, err, seconds = doctor("recipes/smoke.yaml", VERLBOX_RUNS=str(tmp_path), VERLBOX_CACHE=str(tmp_path))
    assert code == 0, out + err
    assert "ERROR" not in out
    assert "heavy:\n" in err
    assert "author-tested" in out
    assert "no source is needed" in out
    assert seconds < 10, "under 3 s on an idle machine; tests run beside others"


@no_accelerator
def test_the_npu_stack_fails_with_the_reason() -> None:
    code, out, _, _ = doctor("npu", "--json")
    assert code == 3
    said = json.loads(out)
    assert said["stack"] == "npu"
    assert said["exit_code"] == 3
    codes = {finding["code"] for finding in said["findings"] if finding["severity"] == "error"}
    assert {"platform-absent", "cann-toolkit"} <= codes
    assert "no Ascend NPU" in next(f["what"] for f in said["findings"] if f["code"] == "platform-absent")
    assert not any(check["group"] == "nvidia" for check in said["checks"])


@no_accelerator
def test_the_npu_recipe_fails_from_the_command_line_and_takes_overrides(tmp_path: Path) -> None:
    command_line = [sys.executable, "entrypoint.py", "doctor", "npu-grpo", "--json", "train.devices=4"]
    command_line += ["model.source=local", f"model.path={tmp_path}", "dataset.source=local", f"dataset.path={tmp_path}"]
    ended = subprocess.run(command_line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 3, ended.stderr
    said = json.loads(ended.stdout)
    assert said["recipe"] == "npu-grpo"
    facts = {f"{check['group']} {check['name']}": check["fact"] for check in said["checks"]}
    assert facts["network sources"].startswith("no source is needed")
    assert facts["ascend devices"] == "no /dev/davinci0"


@no_accelerator
def test_without_a_recipe_the_stack_that_fits_the_machine_is_looked_at() -> None:
    _, out, _, _ = doctor("--json")
    said = json.loads(out)
    assert said["stack"].startswith("cpu")
    assert {check["group"] for check in said["checks"]} == {
        "host",
        "storage",
        "limits",
        "network",
        "containers",
        "software",
    }


def test_an_unknown_recipe_is_a_finding() -> None:
    code, out, err, _ = doctor("no-such-recipe")
    assert code == 2
    assert "recipe-unknown" in err
    assert "Traceback" not in out + err


def test_fix_makes_folders_and_says_so(tmp_path: Path) -> None:
    runs, cache = tmp_path / "new" / "runs", tmp_path / "cache"
    long = "/tmp/" + "x" * 60
    code, out, _, _ = doctor("cpu", "--fix", VERLBOX_RUNS=str(runs), VERLBOX_CACHE=str(cache), RAY_TMPDIR=long)
    assert runs.is_dir()
    assert cache.is_dir()
    assert f"made {runs}" in out
    assert (runs / "environment-cpu.sh").read_text() == "export RAY_TMPDIR=/tmp\n"
    assert "wrote 1 lines" in out
    assert code in (0, 3)


def test_without_fix_nothing_is_made(tmp_path: Path) -> None:
    doctor("cpu", VERLBOX_RUNS=str(tmp_path / "runs"), VERLBOX_CACHE=str(tmp_path / "cache"))
    assert list(tmp_path.iterdir()) == []


def test_repairs_of_a_recorded_machine_stay_in_its_folders(tmp_path: Path) -> None:
    machine = Recorded("ascend-910b3", tmp_path)
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ATB_HOME_PATH"):
        machine.environment.pop(name)
    subject = machine.subject()
    done = command.repair(checks.run(subject), subject)
    script = machine.root / "data/results/environment-npu.sh"
    assert script.read_text().splitlines() == [
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh",
        "source /usr/local/Ascend/nnal/atb/set_env.sh",
    ]
    assert str(script) in done[0]


def test_a_repair_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    machine = Recorded("cuda-h200", tmp_path)
    machine.write("/data/file", "")
    subject = machine.subject()
    offered = [(Check("x", "x", lambda _: Checked("")), Checked("", repairs=[Repair(folder="/data/file/inside")]))]
    assert command.repair(offered, subject) == [f"could not make {machine.root}/data/file/inside: Not a directory"]


def test_the_probe_names_the_first_cause(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(
        "try:\n    import nothing_like_it\nexcept ImportError as e:\n    raise RuntimeError('hidden') from e\n"
    )
    (tmp_path / "noisy.py").write_text("print('hello'); import os; os.write(1, b'noise')\n")
    (tmp_path / "network.py").write_text("MINE = True\n")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(5)\n")
    (tmp_path / "user.py").write_text("import network; assert network.MINE\n")
    names = ["outer", "noisy", "user", "leaves"]
    said = run_program([sys.executable, str(probe.__file__), *names], 30, {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert said is not None
    answers = {a["module"]: a["causes"] for a in map(json.loads, said.out.splitlines())}
    assert answers["outer"] == ["RuntimeError: hidden", "ModuleNotFoundError: No module named 'nothing_like_it'"]
    assert answers["noisy"] == []
    assert answers["user"] == [], "the probe's own folder does not hide packages of the same name"
    assert answers["leaves"] == ["SystemExit: 5"]


def test_a_probe_that_hangs_leaves_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text("")
    (tmp_path / "hangs.py").write_text("import time; time.sleep(60)\n")
    command_line = [sys.executable, str(probe.__file__), "quick", "hangs"]
    said = run_program(command_line, 3, {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert said is not None
    assert said.code == 124
    assert [json.loads(line)["module"] for line in said.out.splitlines()] == ["quick"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.7.1.post2", (2, 7, 1)),
        ("8.3.RC1", (8, 3)),
        ("580.159.04", (580, 159, 4)),
        ("v2.27.0", (2, 27, 0)),
        ("none", ()),
    ],
)
def test_versions_are_their_leading_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version(text) == numbers


def test_every_platform_has_its_group_of_checks() -> None:
    groups = {
        platform: {c.group for c in checks.CHECKS if platform in c.platforms} for platform in ("npu", "cuda", "cpu")
    }
    assert "ascend" in groups["npu"]
    assert "nvidia" not in groups["npu"]
    assert "nvidia" in groups["cuda"]
    assert "ascend" not in groups["cuda"]
    assert not groups["cpu"] & {"ascend", "nvidia"}


def test_the_parser_takes_a_recipe_or_none() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert parser.parse_args([]).recipe is None
    assert parser.parse_args(["smoke", "--fix"]).fix is True
