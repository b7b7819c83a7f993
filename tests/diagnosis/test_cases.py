"""The catalogue against collected cases, against other messages of the same programs, and against mutations of both."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from verlbox.diagnosis.catalogue import SEVERITIES, load
from verlbox.diagnosis.matcher import Diagnosis, diagnose, diagnose_stream

# The entry that says what each collected case's `root_cause` says; "" where a log is sound.
EXPECTED = {
    "L-001": "log-pip-vllm-and-vllm-ascend",
    "L-002": "log-pip-leftover-of-vllm-ascend",
    "L-003": "log-torch-npu-torch-mismatch",
    "L-004": "log-torch-replaced-by-vllm",
    "L-006": "log-atb-cann-mismatch",
    "L-009": "log-flash-attn-abi",
    "L-010": "log-flash-attn-abi",
    "L-011": "log-numpy-abi",
    "L-013": "log-pandas-needs-numpy-2",
    "L-014": "log-pip-core-conflict",
    "L-015": "log-transformers-too-new",
    "L-016": "log-datasets-too-old-for-file",
    "L-017": "log-tensordict-too-old",
    "L-019": "log-nvidia-driver-too-old",
    "L-020": "log-cuda-runtime-missing",
    "L-021": "log-cann-python-side",
    "L-025": "log-cann-not-loaded",
    "L-027": "log-ascend-driver-not-mounted",
    "L-028": "log-cann-not-loaded",
    "L-029": "log-npu-busy-or-forbidden",
    "L-031": "log-opp-firmware-mismatch",
    "L-032": "log-vllm-ascend-kernels-missing",
    "L-033": "log-cuda-code-on-other-device",
    "L-034": "log-npu-streams-exhausted",
    "L-036": "log-device-memory-held-by-others",
    "L-037": "log-npu-memory-outside-torch",
    "L-038": "log-cuda-out-of-memory",
    "L-039": "log-rollout-pool-cannot-wake",
    "L-040": "log-rollout-reservation-too-large",
    "L-041": "log-no-memory-for-kv-cache",
    "L-044": "log-host-memory-ray",
    "L-045": "log-worker-vanished",
    "L-047": "log-shm-full-nccl",
    "L-048": "log-shm-full-dataloader",
    "L-050": "log-disk-full",
    "L-052": "log-hccl-notify-timeout",
    "L-053": "log-hccl-connect-timeout",
    "L-054": "log-npu-stream-timeout",
    "L-057": "log-ray-asks-for-more-than-there-is",
    "L-058": "log-ray-asks-for-more-than-there-is",
    "L-059": "log-ray-has-no-accelerator",
    "L-060": "log-stopped-from-outside",
    "L-062": "log-hub-unreachable",
    "L-063": "log-hub-rate-limit",
    "L-064": "log-hub-gated",
    "L-065": "log-download-incomplete",
    "L-067": "log-dataset-config-missing",
    "L-068": "log-data-source-without-reward",
    "L-070": "log-all-rows-filtered",
    "L-071": "log-prompt-too-long",
    "L-073": "log-not-parquet",
    "L-074": "log-column-types-differ",
    "L-075": "log-gsm8k-row-without-answer",
    "L-076": "log-unknown-setting",
    "L-077": "log-plus-for-existing-setting",
    "L-078": "log-mandatory-setting-missing",
    "L-079": "log-batch-not-divisible-by-workers",
    "L-081": "log-batch-below-mini-batch",
    "L-083": "log-batched-tokens-below-length",
    "L-086": "log-prompt-beyond-engine-length",
    "L-088": "log-reward-file-missing",
    "L-089": "log-mini-batch-below-workers",
    "L-090": "log-row-without-key",
    "L-091": "log-reward-signature",
    "L-092": "log-tracker-without-key",
    "L-094": "log-tracker-loses-metrics",
    "L-095": "log-reward-timeout-not-in-main-thread",
    "L-097": "log-reward-function-raised",
    "L-098": "health-nan-weights",
    "L-100": "health-answers-cut",
    "L-101": "health-no-signal",
    "L-103": "health-nan-weights",
    "L-105": "log-merge-not-an-actor-folder",
    "L-106": "log-checkpoint-folder-missing",
    "L-107": "log-shards-missing",
    "L-108": "log-shard-damaged",
    "L-109": "log-merger-expects-dtensor",
    "L-111": "log-merger-call",
    "L-114": "log-vllm-kernels-absent",
    "L-115": "log-triton-absent",
    "L-116": "log-model-registered-twice",
    "L-117": "log-operator-on-cpu",
    "L-118": "log-hccl-substitute",
    "L-120": "log-deprecated-option",
    "L-121": "log-deprecated-option",
    "L-122": "log-pad-token-filled",
    "L-124": "log-two-kl-terms",
    "L-126": "log-cuda-out-of-memory",
    "L-127": "log-npu-out-of-memory",
    "L-128": "log-nnal-not-loaded",
    "L-129": "",
    "L-131": "",
    "L-134": "health-skipped-update",
    "L-135": "",
    "L-136": "",
}
# What the train stage acts on, where a case is about exhaustion.
FAILURES = {
    "device-oom": ["L-036", "L-037", "L-038", "L-039", "L-040", "L-126", "L-127"],
    "host-oom": ["L-044"],
    "shm": ["L-047", "L-048"],
    "disk-full": ["L-050"],
}


@pytest.fixture(scope="module")
def cases(shared: Path) -> list[dict[str, Any]]:
    lines = (shared / "cases" / "log_cases.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def messages() -> Iterator[tuple[str, str, str]]:
    """Severity, codes, message of the table beside this file."""
    table = yaml.safe_load((Path(__file__).parent / "messages.yaml").read_text(encoding="utf-8"))
    for severity, groups in table.items():
        for codes, texts in groups.items():
            yield from ((severity, codes, text) for text in texts)


def top(diagnosis: Diagnosis) -> tuple[str, str]:
    return (diagnosis.findings[0].code, diagnosis.findings[0].severity) if diagnosis.findings else ("", "note")


def wrong(cases: list[dict[str, Any]], change: Callable[[str], str]) -> list[str]:
    """The cases whose first finding is another one, or has the wrong severity, after `change` of the text."""
    found = []
    for case in cases:
        if case["id"] not in EXPECTED:
            continue
        code, severity = top(diagnose(change(case["excerpt"]).split("\n")))
        if code != EXPECTED[case["id"]] or (severity == "error") != (case["severity"] == "fatal"):
            found.append(f"{case['id']}: {code or 'nothing'} ({severity}), not {EXPECTED[case['id']] or 'nothing'}")
    return found


def test_every_collected_case_has_its_cause_first(cases: list[dict[str, Any]]) -> None:
    assert wrong(cases, str) == []


def test_no_sound_case_has_a_fatal_finding(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        if case["severity"] != "fatal":
            findings = diagnose(case["excerpt"].split("\n")).findings
            assert all(f.severity != "error" for f in findings), case["id"]


def test_the_key_line_of_a_case_decides(cases: list[dict[str, Any]]) -> None:
    """The finding rests on the line that the case calls decisive, or on the next one of the same message."""
    for case in cases:
        causes = diagnose(case["excerpt"].split("\n")).causes
        if causes and case["severity"] == "fatal":
            lines = case["excerpt"].split("\n")
            key = next(i for i, line in enumerate(lines, start=1) if case["key_line"] in line)
            assert any(abs(line.number - key) <= 1 for line in causes[0].deciding), case["id"]


def test_exhaustion_has_its_class_and_nothing_else_has(cases: list[dict[str, Any]]) -> None:
    expected = {case: failure for failure, ids in FAILURES.items() for case in ids}
    for case in cases:
        diagnosis = diagnose(case["excerpt"].split("\n"))
        assert diagnosis.failure == expected.get(case["id"]), case["id"]


def test_other_numbers_paths_and_pids_change_nothing(cases: list[dict[str, Any]]) -> None:
    def change(text: str) -> str:
        text = re.sub(r"pid=\d+", "pid=99887", text)
        text = text.replace("/opt/env/", "/home/someone/my venv/").replace("python3.11", "python3.12")
        return re.sub(r"\b20\d\d-\d\d-\d\d", "2031-01-02", text)

    assert wrong(cases, change) == []


@pytest.mark.parametrize(
    "prefix",
    [
        "(WorkerDict pid=4242) ",
        "\x1b[36m(WorkerDict pid=4242, ip=10.0.0.7)\x1b[0m ",
        "\x1b[2m\x1b[36m(VGNd5CWorkerDict_0:1 WorkerDict pid=66053)\x1b[0m ",
        "npu-grpo-1  | ",
        "[rank3]: ",
    ],
)
def test_a_worker_prefix_changes_nothing(cases: list[dict[str, Any]], prefix: str) -> None:
    assert wrong(cases, lambda text: "\n".join(prefix + line for line in text.split("\n"))) == []


def test_line_ends_of_windows_and_progress_bars_change_nothing(cases: list[dict[str, Any]]) -> None:
    bar = "\rFiltering prompts:  40%|####      | 3000/7473 [00:01<00:02, 2743.37 examples/s]\r"
    assert wrong(cases, lambda text: text.replace("\n", "\r\n")) == []
    assert wrong(cases, lambda text: "\n".join(bar + line for line in text.split("\n"))) == []


def test_lines_of_other_workers_in_between_change_nothing(cases: list[dict[str, Any]]) -> None:
    noise = [
        "(WorkerDict pid=1) INFO 06-18 16:50:58 loader.py:447] Loading weights took 0.61 seconds",
        "(TaskRunner pid=2) Size of train dataloader: 29, Size of val dataloader: 1",
        "(WorkerDict pid=3) Before building vllm rollout, memory allocated (GB): 0.0",
        "(TaskRunner pid=2) [prompt] user\nWhat is 3 + 4?\n(TaskRunner pid=2) [score] 1.0",
    ]

    def change(text: str) -> str:
        chosen = random.Random(len(text))
        return "\n".join(f"{chosen.choice(noise)}\n{chosen.choice(noise)}\n{line}" for line in text.split("\n"))

    assert wrong(cases, change) == []


def test_reading_a_file_gives_what_reading_lines_gives(cases: list[dict[str, Any]]) -> None:
    filler = b"(TaskRunner pid=2) nothing to see here, the answer is 42\n" * 40
    for case in cases:
        raw = filler + case["excerpt"].encode() + b"\n" + filler
        by_lines, by_stream = diagnose(raw.split(b"\n")), diagnose_stream(io.BytesIO(raw))
        assert by_stream.findings == by_lines.findings, case["id"]
        assert (by_stream.outcome, by_stream.harmless) == (by_lines.outcome, by_lines.harmless), case["id"]


def test_messages_that_no_case_holds_are_recognised() -> None:
    found = []
    for severity, codes, text in messages():
        code, shown = top(diagnose(text.split("\n")))
        if code.removeprefix("log-") not in codes.split("|") or shown != SEVERITIES[severity]:  # type: ignore[index]
            found.append(f"{codes}: {code} ({shown}): {text[:90]}")
    assert found == []


def test_a_message_cut_at_its_end_is_still_no_other_fault() -> None:
    """Logs are cut by terminals and by chat windows: half a line may say less, but nothing false and fatal."""
    known = {entry.code.name for entry in load()}
    for severity, _, text in messages():
        if severity == "benign":
            code, shown = top(diagnose([text[: len(text) * 2 // 3]]))
            assert shown != "error" or code not in known, text


@pytest.mark.parametrize("platform", ["npu", "cuda"])
def test_the_same_warning_of_vllm_is_harmless_on_one_platform_only(platform: str) -> None:
    line = "WARNING [_custom_ops.py:21] Failed to import from vllm._C with ImportError('libcudart.so.12: cannot open"
    code, severity = top(diagnose([line], platform))  # type: ignore[arg-type]
    assert (code, severity) == {
        "npu": ("log-vllm-kernels-absent", "note"),
        "cuda": ("log-cuda-runtime-missing-for-vllm", "error"),
    }[platform]


def logs(shared: Path) -> list[Path]:
    folder = shared / "data"
    return sorted([*folder.glob("verl_logs/*.log"), *folder.glob("verl_cpu_runs/*/console_full.log")])


def test_real_healthy_logs_have_no_finding_at_all(shared: Path) -> None:
    assert len(logs(shared)) == 8
    for path in logs(shared):
        with path.open("rb") as stream:
            diagnosis = diagnose_stream(stream)
        assert diagnosis.findings == (), path.name
        assert diagnosis.outcome == ("unclear" if "gemma" in path.name else "finished"), path.name  # that log is cut


def test_a_fault_at_the_end_of_a_real_log_is_found(shared: Path) -> None:
    planted = b"(WorkerDict pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 98.00 MiB.\n"
    for path in logs(shared):
        body = path.read_bytes()
        body = body[: body.rfind(b"step:")]
        body = body[: body.rfind(b"\n") + 1]
        diagnosis = diagnose_stream(io.BytesIO(body + planted))
        assert diagnosis.failure == "device-oom", path.name
        assert diagnosis.findings[0].where == f"line {body.count(10) + 1} (WorkerDict pid=7)"
