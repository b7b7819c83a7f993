"""Shell scripts are read as the shell would read them, and never run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from verlbox import lint_command
from verlbox.findings import FindingsError
from verlbox.lints.script import UNKNOWN, find_calls

CALL = "python3 -m verl.trainer.main_ppo"


def overrides(text: str, arguments: list[str] | None = None) -> list[str]:
    (call,) = find_calls(text, arguments or [])
    return list(call.overrides)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"{CALL} a.b=1 c.d=2", ["a.b=1", "c.d=2"]),
        (f"{CALL} \\\n  a.b=1 \\\n  c.d=2\n", ["a.b=1", "c.d=2"]),
        (f"{CALL} a.b=1 # a comment c.d=2\n", ["a.b=1"]),
        (f"{CALL} 'a.b=[\"x\",\"y\"]' a.c='x y'", ['a.b=["x","y"]', "a.c=x y"]),
        (f'N=8\n{CALL} a.n=$N a.m=${{N}} a.o="${{N}}x"', ["a.n=8", "a.m=8", "a.o=8x"]),
        (f"{CALL} a.n=${{N:-1}} a.m=${{M-2}}", ["a.n=1", "a.m=2"]),
        (f"N=${{N:-3}}\n{CALL} a.n=$N", ["a.n=3"]),
        (f'D=${{D:-"/root/x"}}\n{CALL} a.n="${{P:-"$D/y"}}"', ["a.n=/root/x/y"]),
        (f"{CALL} a.n=$NOT_SET", [f"a.n={UNKNOWN}"]),
        (f"X=$(date)\n{CALL} a.n=$X", [f"a.n={UNKNOWN}"]),
        (f"A=4\n{CALL} a.n=$((A * 2 + 1))", ["a.n=9"]),
        (f"ARGS=(a.b=1\n  'a.c=x y' # why\n)\nARGS+=(a.d=2)\n{CALL} \"${{ARGS[@]}}\"", ["a.b=1", "a.c=x y", "a.d=2"]),
        (f'EXTRA="a.b=1 a.c=2"\n{CALL} $EXTRA', ["a.b=1", "a.c=2"]),
        (f'EXTRA="a.b=1 a.c=2"\n{CALL} "$EXTRA"', ["a.b=1 a.c=2"]),
        (f'for n in 1 2; do\n  {CALL} a.n=$n\ndone', [f"a.n={UNKNOWN}"]),
        (f"cat <<EOF\n{CALL} not.this=1\nEOF\n{CALL} a.b=1", ["a.b=1"]),
        (f"if true; then\n {CALL} a.b=1 2>&1 | tee log.txt\nfi", ["a.b=1"]),
        (f"HYDRA_FULL_ERROR=1 nohup {CALL} a.b=1 > log 2>&1 &", ["a.b=1"]),
        ("ray job submit -- python3 -m verl.trainer.main_ppo a.b=1", ["a.b=1"]),
        ("torchrun verl/trainer/main_ppo.py a.b=1", ["a.b=1"]),
        (f"{CALL} +a.b=1 ++a.c=2 ~a.d", ["+a.b=1", "++a.c=2", "~a.d"]),
        (f"{CALL} a.b=1 \\\r\n a.c=2\r\n", ["a.b=1", "a.c=2"]),
    ],
)  # fmt: skip
def test_settings_of_a_call(script: str, expected: list[str]) -> None:
    assert overrides(script) == expected


def test_arguments_of_the_script_take_their_place() -> None:
    assert overrides(f'{CALL} a.b=1 "$@" c.d=2', ["x.y=3", "z.w=4"]) == ["a.b=1", "x.y=3", "z.w=4", "c.d=2"]
    assert overrides(f"{CALL} a.b=${{1:-7}}", []) == ["a.b=7"]


def test_several_calls_each_with_what_is_exported_by_then() -> None:
    first, second = find_calls(
        f"export WANDB_MODE=offline\nX=1\nA=2 {CALL} a.b=$X\nunset WANDB_MODE\nexport Y=3\n{CALL} a.b=2\n"
    )
    assert (first.line, dict(first.environment)) == (3, {"WANDB_MODE": "offline", "A": "2"})
    assert (second.line, dict(second.environment)) == (6, {"Y": "3"})


def test_the_configuration_that_is_asked_for() -> None:
    assert find_calls(f"{CALL} --config-name=ppo_megatron_trainer.yaml a.b=1")[0].options == (
        "--config-name=ppo_megatron_trainer.yaml",
    )
    assert find_calls(f"{CALL} -cn mine a.b=1")[0].options == ("--config-name=mine",)


@pytest.mark.parametrize("cut", ["a.b=1 \\\n  # why \\\n  c.d=2 \\\n  e.f=3\n", "a.b=1 \\ \n  c.d=2 e.f=3\n"])
def test_settings_that_never_reach_verl_are_named(cut: str) -> None:
    (call,) = find_calls(f"{CALL} {cut}echo done c.d=5")
    assert call.cut_off == ("c.d=2", "e.f=3")


def write(folder: Path, text: str) -> Path:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return path


SCRIPT = """#!/usr/bin/env bash
set -euxo pipefail
MODEL=${MODEL:-/models/qwen}
N_GPUS=1
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=/data/train.parquet data.val_files=/data/test.parquet \\
    data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=1024 data.seed=1 \\
    data.filter_overlong_prompts=True \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    trainer.logger=['console','tensorboard'] \\
    trainer.n_gpus_per_node=$N_GPUS trainer.save_freq=10 trainer.test_freq=10 $@ 2>&1 | tee log
"""


def test_a_script_that_is_right_has_neither_error_nor_warning(tmp_path: Path) -> None:
    found = lint_command.lint([], ["visible_accelerators=1"], write(tmp_path, SCRIPT), complete=False)
    assert [f for f in found if f.severity != "note"] == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("name=vllm", "name=vlm"), "rollout-unknown"),
        (("actor_rollout_ref.rollout.name=vllm \\\n", "\\\n"), "rollout-name-missing"),
        (("n=8 \\", "n=1 \\"), "group-of-one"),
        (("ppo_micro_batch_size_per_gpu=8", "ppo_micro_batch_size_per_gpu=20"), "micro-batch-not-divisor"),
        (("${MODEL:-/models/qwen}", "~/models/qwen"), ""),
        (("=$MODEL", "=~/models/qwen"), "override-syntax"),
        (("set -euxo pipefail", "set -eux"), "script-hides-exit-code"),
        (("rollout.n=8 \\", "rollout.n=8 \\\n    # many \\"), "script-cuts-command"),
        (("trainer.save_freq=10", "trainer.save_freqs=10"), "key-unknown"),
    ],
)
def test_a_fault_in_a_script_is_found_at_its_line(tmp_path: Path, change: tuple[str, str], code: str) -> None:
    assert change[0] in SCRIPT
    path = write(tmp_path, SCRIPT.replace(*change))
    found = [f for f in lint_command.lint([], [], path, complete=False) if f.severity != "note"]
    assert (code in {f.code for f in found}) if code else found == []
    assert all(f.where == f"{path}:5" for f in found)


def test_settings_given_beside_a_script_are_added_to_its_call(tmp_path: Path) -> None:
    found = lint_command.lint(["actor_rollout_ref.rollout.n=1"], [], write(tmp_path, SCRIPT), complete=False)
    assert {f.code for f in found if f.severity == "error"} == {"group-of-one"}
    assert "key-set-twice" in {f.code for f in found}


def test_a_configuration_of_ones_own_is_not_judged_by_the_keys_of_verl(tmp_path: Path) -> None:
    path = write(tmp_path, f"{CALL} --config-name=mine my.key=1 trainer.test_freq=-1\n")
    found = {f.code for f in lint_command.lint([], [], path, complete=False)}
    assert found == {"own-config", "no-validation"}


def test_a_script_without_a_call_or_without_a_file_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(FindingsError, match="script-without-call"):
        lint_command.lint([], [], write(tmp_path, "echo hello\n"), complete=False)
    with pytest.raises(FindingsError, match="script-unreadable"):
        lint_command.lint([], [], tmp_path / "none.sh", complete=False)


def test_nothing_in_a_script_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    lint_command.lint([], [], write(tmp_path, f"X=$(touch {mark})`touch {mark}`\n{CALL} a.b=$X\n"), complete=False)
    assert not mark.exists()


def test_the_reward_file_is_read_when_it_is_here(tmp_path: Path) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text("def score(solution_str, ground_truth):\n    return 0\n", encoding="utf-8")
    found = lint_command.lint([f"custom_reward_function.path={reward}"], [], None, complete=False)
    assert [f.code for f in found] == ["reward-function-missing"]
    named = [f"custom_reward_function.path={reward}", "custom_reward_function.name=score"]
    assert [f.code for f in lint_command.lint(named, [], None, complete=False)] == ["reward-signature-wrong"]


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["trainer.test_freq=-1"], "no-validation", 0),
        (["actor_rollout_ref.rollout.name=<absent>"], "rollout-name-missing", 2),
        (["--fact", "platform=npu", "trainer.device=cuda"], "device-mismatch", 2),
        (["--fact", "colour=red", "trainer.test_freq=10"], "fact-unknown", 0),
        (["data.train_files=a,b"], "override-syntax", 2),
        (["transformers=5.1.0", "verl=0.6.1"], "versions-conflict", 2),
    ],
)
def test_the_command_answers_with_findings_and_an_exit_code(arguments: list[str], code: str, exit_code: int) -> None:
    program = "\n".join(
        [
            "import argparse, sys",
            "from verlbox import lint_command",
            "parser = argparse.ArgumentParser()",
            "lint_command.add_arguments(parser)",
            "arguments, arguments_rest = parser.parse_known_args(sys.argv[1:])",
            "arguments.overrides = arguments_rest",
            "sys.exit(lint_command.run(arguments))",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert code in {finding["code"] for finding in json.loads(done.stdout)}, done.stderr
    assert done.returncode == exit_code
