"""`report` works on logs, event directories and runs, and says what is wrong without a traceback."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tests.report.published import FACTS, STEPS
from verlbox.findings import FindingsError
from verlbox.report import command


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_a_bare_log_is_reported(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = shared / "data" / "verl_logs" / "play-verl_verl_grpo_qwen2.5b_8gpu.log"
    assert command.run(parse(str(log), "--out", str(tmp_path), "--format", "json,md")) == 0
    shown = capsys.readouterr().out
    assert "0.353 (step 15) to 0.516 (step 435) on 1,319 prompts" in shown
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert content["steps"] == {"count": 435, "first": 1, "last": 435, "planned": 435}
    assert content["validation"][0]["graded"] is False


def test_a_tensorboard_directory_is_reported_in_chinese(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "verl_cpu_runs" / "grpo_091" / "tensorboard"
    assert command.run(parse(str(folder), "--lang", "zh", "--out", str(tmp_path), "--format", "md")) == 0
    assert "训练得分" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_run_of_ours_gets_its_facts_from_the_loader(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    rows = STEPS.read_text(encoding="utf-8").splitlines()[1:]
    (tmp_path / "logs" / "train.log").write_text(
        "".join(
            f"step:{row.split(',')[0]} - critic/score/mean:{row.split(',')[2]} - actor/grad_norm:{row.split(',')[5]}\n"
            for row in rows
        )
    )
    code = command.run(parse(str(tmp_path), "--format", "json"), is_run=lambda path: True, load_run=lambda path: FACTS)
    assert code == 0
    assert json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))["steps"]["planned"] == 140


def test_a_run_that_learned_nothing_exits_with_five(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("step:1 - critic/score/mean:0.0 - actor/grad_norm:0.0\n" * 3)
    assert command.run(parse(str(log), "--out", str(tmp_path / "out"), "--format", "json")) == 5


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("missing.log",), "metrics-no-source"),
        ((str(STEPS), "--format", "pdf"), "report-unknown-format"),
        ((str(STEPS), "--format", ""), "report-unknown-format"),
        ((str(STEPS), "--out", "/proc/nowhere"), "report-not-written"),
    ],
)
def test_mistakes_are_findings(words: tuple[str, ...], code: str) -> None:
    with pytest.raises(FindingsError) as caught:
        command.run(parse(*words))
    assert [finding.code for finding in caught.value.findings] == [code]
    assert caught.value.exit_code == 2
