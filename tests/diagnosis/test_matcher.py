"""The first cause before its consequences, what a run survives, noise of a finished run, and the unknown."""

from __future__ import annotations

import io

import pytest

from verlbox.diagnosis.matcher import Watcher, diagnose, diagnose_stream

OOM = "(WorkerDict pid=4411) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB."
DIED = "(raylet) A worker died or was killed while executing a task by an unexpected system error."
STEP = (
    "(TaskRunner pid=1) step:{} - actor/grad_norm:0.4 - critic/score/mean:0.3 - critic/score/max:1.0"
    " - critic/score/min:0.0"
)
FINAL = "(TaskRunner pid=1) \"Final validation metrics: {'val-core/openai/gsm8k/reward/mean@1': 0.52}\""


def codes(lines: list[str]) -> list[str]:
    return [f.code for f in diagnose(lines).findings]


def test_consequences_printed_before_their_cause_stay_behind_it() -> None:
    diagnosis = diagnose([DIED, "[rank1]: Watchdog caught collective operation timeout", OOM])
    assert [f.code for f in diagnosis.findings] == ["log-cuda-out-of-memory"]
    assert diagnosis.findings[0].where == "line 3 (WorkerDict pid=4411)"
    assert {c.entry.id for c in diagnosis.consequences} == {"worker-vanished", "nccl-watchdog-timeout"}


def test_without_a_cause_the_nearest_thing_to_it_comes_first() -> None:
    diagnosis = diagnose([DIED, "[rank1]: Watchdog caught collective operation timeout"])
    assert [f.code for f in diagnosis.findings] == ["log-nccl-watchdog-timeout"]
    assert [c.entry.id for c in diagnosis.consequences] == ["worker-vanished"]


def test_a_hub_is_not_blamed_for_what_other_libraries_do_not_find() -> None:
    assert codes(["modelscope.hub.errors.NotExistError: The model: Qwen/Qwen9 was not found"]) == ["log-hub-not-found"]
    for name in ("FileNotExistError", "errors.TableNotExistError", "oss2.exceptions.BucketNotExistError"):
        assert codes([f"{name}: nothing is there"]) == ["log-unknown"]


def test_two_independent_causes_are_both_said_the_earlier_first() -> None:
    full = "OSError: [Errno 28] No space left on device: 'checkpoints/global_step_10'"
    assert codes([full, OOM]) == ["log-disk-full", "log-cuda-out-of-memory"]
    assert codes([OOM, full]) == ["log-cuda-out-of-memory", "log-disk-full"]


def test_a_fault_that_the_run_survived_is_no_finding() -> None:
    unreachable = "requests.exceptions.ConnectionError: Max retries exceeded with url: /api (Network is unreachable)"
    diagnosis = diagnose([unreachable, STEP.format(1), STEP.format(2)])
    assert diagnosis.findings == ()
    assert [(c.entry.id, c.survived) for c in diagnosis.harmless] == [("hub-unreachable", True)]


def test_a_survived_fault_that_comes_back_is_found_where_it_stopped_the_run() -> None:
    diagnosis = diagnose([OOM, STEP.format(1), OOM])
    assert diagnosis.failure == "device-oom"
    assert diagnosis.findings[0].where.startswith("line 3")


def test_rewards_that_are_worthless_are_not_excused_by_further_steps() -> None:
    line = "ValueError: signal only works in main thread of the main interpreter"
    assert codes([line, STEP.format(1), STEP.format(2), FINAL]) == ["log-reward-timeout-not-in-main-thread"]


def test_workers_that_die_after_the_work_is_done_are_no_failure() -> None:
    noise = [DIED, "Fatal Python error: Segmentation fault", "*** SIGTERM received at time=1766800000 on cpu 12 ***"]
    diagnosis = diagnose([STEP.format(28), FINAL, *noise])
    assert (diagnosis.outcome, diagnosis.findings, diagnosis.unknown) == ("finished", (), False)
    watcher = Watcher()
    assert [f for line in [STEP.format(28), FINAL, *noise] for f in watcher.feed(line)] == []


def test_a_second_run_in_the_same_log_is_not_excused_by_the_end_of_the_first() -> None:
    lines = [
        STEP.format(28),
        FINAL,
        "(TaskRunner pid=9) Training from scratch",
        "Fatal Python error: Segmentation fault",
    ]
    assert codes(lines) == ["log-segmentation-fault"]


def test_a_cause_after_the_work_is_done_still_counts() -> None:
    merge = "FileNotFoundError: Config file ckpt/global_step_101/actor/fsdp_config.json does not exist."
    assert codes([STEP.format(28), FINAL, merge]) == ["log-merge-not-an-actor-folder"]


def test_an_unknown_failure_says_so_and_shows_the_first_exception() -> None:
    lines = [
        STEP.format(3),
        "(WorkerDict pid=9) Traceback (most recent call last):",
        '(WorkerDict pid=9)   File "/opt/verl/x.py", line 3, in f',
        "(WorkerDict pid=9) GizmoError: the gizmo is upside down",
        "Traceback (most recent call last):",
        "ray.exceptions.RayTaskError(GizmoError): ray::TaskRunner.run()",
    ]
    diagnosis = diagnose(lines)
    assert diagnosis.unknown and diagnosis.outcome == "failed"
    assert [f.code for f in diagnosis.findings] == ["log-unknown"]
    assert diagnosis.worth_reading[0].text == "GizmoError: the gizmo is upside down"
    assert diagnosis.findings[0].where == "line 4 (WorkerDict pid=9)"


def test_an_exception_that_training_outlives_is_not_an_unknown_failure() -> None:
    assert codes(["Traceback (most recent call last):", "GizmoError: retried", STEP.format(1)]) == []


def test_a_failing_exit_code_without_a_word_shows_the_last_lines() -> None:
    watcher = Watcher()
    watcher.feed(STEP.format(1))
    watcher.feed("(TaskRunner pid=1) about to do something")
    diagnosis = watcher.finish(exit_code=1)
    assert diagnosis.unknown and diagnosis.worth_reading[-1].text == "about to do something"
    assert "exit code 1" in diagnosis.findings[0].what


def test_exit_code_0_excuses_nothing() -> None:
    watcher = Watcher()
    watcher.feed(OOM)
    assert watcher.finish(exit_code=0).failure == "device-oom"


def test_live_a_fatal_finding_is_said_with_its_line_and_once() -> None:
    watcher = Watcher()
    assert watcher.feed(STEP.format(1)) == []
    assert [f.code for f in watcher.feed(OOM)] == ["log-cuda-out-of-memory"]
    assert watcher.feed(OOM) == []
    assert watcher.feed(DIED) == []  # a wrapper: it would only repeat that something failed
    assert watcher.finish().causes[0].count == 2


def test_live_a_harmless_line_is_not_said() -> None:
    watcher = Watcher("npu")
    warning = "WARNING Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")"
    assert watcher.feed(warning) == []
    assert watcher.feed("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB")[0].severity == "error"


def test_ray_says_how_often_a_line_was_repeated() -> None:
    diagnosis = diagnose([OOM + " [repeated 7x across cluster]", OOM])
    assert diagnosis.causes[0].count == 8


def test_memory_held_by_another_process_is_told_from_our_own_use() -> None:
    text = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity; {own} already"
    text += " allocated; {own} current active; {free} free; {own} reserved in total by PyTorch)"
    ours = text.format(own="57.10 GiB", free="900.00 MiB")
    theirs = text.format(own="10.65 GiB", free="19.79 MiB")
    assert codes([ours]) == ["log-npu-out-of-memory"]
    assert codes([theirs]) == ["log-device-memory-held-by-others"]
    assert diagnose([theirs]).failure == "device-oom"


def test_a_full_shared_memory_is_not_a_full_disk() -> None:
    assert (
        diagnose(["NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE: No space left on device (28)"]).failure
        == "shm"
    )
    assert diagnose(["OSError: [Errno 28] No space left on device: '/ckpt'"]).failure == "disk-full"


def test_the_configuration_that_verl_prints_does_not_tell_the_platform() -> None:
    dump = "'tool_config': {'npu': {'_target_': 'verl.utils.profiler.config.NPUToolConfig'}, 'HCCL_PORT': 1}"
    assert diagnose([dump, OOM]).failure == "device-oom"


def test_a_log_of_one_line_without_end_is_read_in_pieces() -> None:
    raw = b"x" * 3_000_000 + b" torch.OutOfMemoryError: CUDA out of memory. " + b"y" * 3_000_000
    diagnosis = diagnose_stream(io.BytesIO(raw))
    assert (diagnosis.failure, diagnosis.lines) == ("device-oom", 1)


def test_an_empty_log_is_no_failure() -> None:
    for raw in (b"", b"\n\n"):
        diagnosis = diagnose_stream(io.BytesIO(raw))
        assert (diagnosis.outcome, diagnosis.findings) == ("unclear", ())


TRACEBACK = [
    "Error executing job with overrides: ['data.train_batch_size=256']",
    "Traceback (most recent call last):",
    '  File "/x/verl/trainer/main_ppo.py", line 42, in main',
    "    run_ppo(config)",
    "ValueError: frobnicate=3 does not go with gadget=4",
]


@pytest.mark.parametrize(
    "end", [[], ["", "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."]]
)
def test_the_error_that_hydra_wraps_is_named_and_not_the_wrapping(end: list[str]) -> None:
    found = diagnose([*TRACEBACK, *end])
    assert found.findings[0].code == "log-unknown" and found.outcome == "failed" and found.unknown
    assert "ValueError: frobnicate=3 does not go with gadget=4" in found.findings[0].what
    assert found.findings[0].where == "line 5"
    assert [f.code for f in found.findings] == ["log-unknown"]
    assert "hydra-wrapped-error" in {cause.entry.id for cause in found.consequences}


def test_without_the_error_itself_the_advice_is_to_ask_for_it() -> None:
    found = diagnose([TRACEBACK[0], "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."])
    assert [f.code for f in found.findings] == ["log-hydra-wrapped-error"]


def test_a_known_cause_is_named_although_another_exception_is_not_known() -> None:
    oom = "(WorkerDict pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 98.00 MiB."
    found = diagnose([*TRACEBACK, oom])
    assert found.findings[0].code == "log-cuda-out-of-memory" and not found.unknown


def test_an_exception_that_training_survived_is_not_the_error_that_ended_it() -> None:
    step = "step:{} - critic/score/mean:0.5 - response_length/mean:100"
    found = diagnose([*TRACEBACK[1:], step.format(1), "ray.exceptions.ActorDiedError: The actor died unexpectedly"])
    assert [f.code for f in found.findings] == ["log-worker-vanished"]


def test_what_stands_at_a_line_is_what_the_run_has_not_survived() -> None:
    watcher = Watcher("cuda")
    step = "step:{} - critic/score/mean:0.5 - response_length/mean:100"
    watcher.feed(step.format(1))
    watcher.feed("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 98.00 MiB.")
    assert [f.code for f in watcher.standing()] == ["log-cuda-out-of-memory"]
    watcher.feed(step.format(2))
    assert watcher.standing() == []
    watcher.feed("Traceback (most recent call last):")  # not yet a failure: it may be handled
    assert watcher.standing() == []
