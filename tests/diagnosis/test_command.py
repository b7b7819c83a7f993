"""`diagnose` on the command line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from verlbox.diagnosis import command
from verlbox.findings import EXIT_USAGE, FindingsError

OOM = "(WorkerDict pid=4411) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.\n"
DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"


def run(*arguments: str) -> int:
    parser = ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_a_cause_is_printed_with_its_place_and_the_command_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(OOM + DIED)
    assert run(str(log)) == 0
    printed = capsys.readouterr().out
    assert f"{log}, line 1 (WorkerDict pid=4411)" in printed
    assert "error[log-cuda-out-of-memory]" in printed and "followed from it: line 2" in printed


def test_json_holds_what_a_program_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text(OOM + DIED)
    run("--json", str(log))
    [diagnosis] = json.loads(capsys.readouterr().out)
    assert (diagnosis["outcome"], diagnosis["failure"], diagnosis["lines"]) == ("failed", "device-oom", 2)
    assert diagnosis["findings"][0]["code"] == "log-cuda-out-of-memory"
    assert diagnosis["causes"][0]["line"] == 1
    assert [c["code"] for c in diagnosis["consequences"]] == ["log-worker-vanished"]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OOM.encode())))
    assert run("-", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["failure"] == "device-oom"


def test_logs_that_cannot_be_read_are_all_named_and_the_others_still_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(OOM)
    with pytest.raises(FindingsError) as caught:
        run(str(tmp_path / "no.log"), str(log), str(tmp_path))
    assert caught.value.exit_code == EXIT_USAGE
    assert [f.code for f in caught.value.findings] == ["log-unreadable", "log-unreadable"]
    assert "log-cuda-out-of-memory" in capsys.readouterr().out


def test_a_healthy_log_says_so_in_one_line(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = shared / "data" / "verl_cpu_runs" / "grpo_061" / "console_full.log"
    run(str(log))
    assert "finished" in capsys.readouterr().out.splitlines()[0]


def test_diagnosis_imports_no_torch_ray_or_verl() -> None:
    check = "import sys, verlbox.diagnosis.command as c; import verlbox.diagnosis.matcher as m; m.load()"
    check += "; print([n for n in ('torch', 'ray', 'verl', 'pandas', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
