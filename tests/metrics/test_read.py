"""Metrics are read whole, from every spelling that verl has used, and what is wrong with a file is said."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from tests.metrics.events import write_events
from verlbox.findings import FindingsError
from verlbox.metrics.read import Metrics, parse_line, ranges, read


def codes(metrics: Metrics) -> set[str]:
    return {finding.code for finding in metrics.findings}


# Of each real log: training steps, metrics, values in all (counted independently: see count_tokens), validations.
LOGS = {
    "Qwen2.5-0.5B-bsz256_2-prompt1024-resp512-0.567.log": (435, 42, 17_486),
    "Qwen2.5-0.5B-bsz256_2-prompt512-resp256-0.538.log": (435, 42, 17_486),
    "gemma-2-2b-it-ppo-bsz512_4-prompt1024-resp-512-0.640.log": (106, 43, 4_260),
    "gpg_qwen2-7b_math.log": (210, 57, 11_269),
    "play-verl_verl_grpo_qwen2.5b_8gpu.log": (435, 60, 24_070),
}


def count_tokens(file: Path) -> int:
    """The values on the metrics lines of a log, counted by the separators alone."""
    total = 0
    for line in file.read_bytes().splitlines():
        at = line.find(b"step:")
        if at >= 0 and b" - " in line[at:] and line[at + 5 : at + 6].isdigit():
            total += line[at:].count(b" - ")
    return total


@pytest.mark.parametrize("name", LOGS)
def test_every_metric_of_every_step_of_the_real_logs_is_read(shared: Path, name: str) -> None:
    file = shared / "data" / "verl_logs" / name
    metrics = read(file)
    steps, names, values = LOGS[name]
    assert len(metrics.steps()) == steps
    assert len(metrics.series) == names
    assert sum(map(len, metrics.series.values())) == values
    cut = "metrics-line-cut" in codes(metrics)  # gemma's log ends inside a line: its last value is not trusted
    assert count_tokens(file) == values + cut
    assert cut == name.startswith("gemma")
    assert codes(metrics) <= {"metrics-line-cut"}


@pytest.mark.parametrize(
    ("name", "low", "high", "mean", "best"),
    [
        ("Qwen2.5-0.5B-bsz256_2-prompt512-resp256-0.538.log", 0.48, 0.56, 0.5298, 0.538),
        ("Qwen2.5-0.5B-bsz256_2-prompt1024-resp512-0.567.log", 0.52, 0.58, 0.5502, 0.579),
    ],
)
def test_the_last_five_validations_lie_in_the_known_band(
    shared: Path, name: str, low: float, high: float, mean: float, best: float
) -> None:
    points = read(shared / "data" / "verl_logs" / name).series["val/test_score/openai/gsm8k"]
    assert len(points) == 43
    assert sum(points.values[-5:]) / 5 == pytest.approx(mean, abs=1e-9)
    assert low <= sum(points.values[-5:]) / 5 <= high
    assert max(points.values) == best


@pytest.mark.parametrize(("run", "steps", "extra"), [("grpo_061", 6, 6), ("grpo_091", 6, 0), ("ppo_061", 4, 6)])
def test_event_files_and_console_log_of_one_run_agree(shared: Path, run: str, steps: int, extra: int) -> None:
    events = read(shared / "data" / "verl_cpu_runs" / run / "tensorboard")
    log = read(shared / "data" / "verl_cpu_runs" / run / "console_full.log")
    assert len(events.steps()) == len(log.steps()) == steps
    assert (
        len(events.series) == len(log.series) + extra
    )  # global_seqlen/* are tensors in verl 0.6.1, which its console logger leaves out
    for name, points in log.series.items():
        assert list(events.series[name].steps) == list(points.steps)
        assert list(events.series[name].values) == pytest.approx(list(points.values), rel=1e-6)


def test_the_collected_metrics_lines_parse_as_expected(shared: Path, tmp_path: Path) -> None:
    cases = [json.loads(line) for line in (shared / "cases" / "log_cases.jsonl").read_text("utf-8").splitlines()]
    lines = [case for case in cases if case["kind"] == "metrics-line"]
    assert len(lines) >= 4
    for case in lines:
        expected = case["expected_metrics"]
        if "steps" in expected:
            file = tmp_path / "resumed.log"
            file.write_text(case["excerpt"] + "\n")
            metrics = read(file)
            assert metrics.steps() == expected["steps"], case["id"]
            assert "metrics-repeated-steps" in codes(metrics)
            assert metrics.series["critic/score/mean"].values[0] == 0.9999, "the later value stands"
            continue
        parsed = parse_line(case["excerpt"])
        assert parsed is not None, case["id"]
        assert parsed[0] == expected.pop("step"), case["id"]
        for name, value in expected.items():
            assert parsed[1][name] == pytest.approx(float(value), nan_ok=True), case["id"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step:3 - a/b:1 - c:2.5", (3, {"a/b": 1.0, "c": 2.5})),
        ("\x1b[36m(TaskRunner pid=7)\x1b[0m step:3 - lr(1e-4):0.010", (3, {"lr(1e-4)": 0.01})),
        ("step: 3, a/b: 1e-05, c: -2", (3, {"a/b": 1e-05, "c": -2.0})),
        ("step:0 - x:np.float64(0.25) - y:np.int32(2) - z:np.True_", (0, {"x": 0.25, "y": 2.0, "z": 1.0})),
        (
            "step:1 - val-core/My set - v2/reward/mean@1:0.5 - b:1",
            (1, {"val-core/My set - v2/reward/mean@1": 0.5, "b": 1}),
        ),
        ("step:1 - val-core/hf:org/set/reward/mean@1:0.5", (1, {"val-core/hf:org/set/reward/mean@1": 0.5})),
        ("Training:  5%|x | 1/28\rstep:1 - a:1", (1, {"a": 1.0})),
        ("step:1 - a:1\x1b[32m [repeated 7x across cluster]\x1b[0m", (1, {"a": 1.0})),
        ("training/global_step:7 - a:1", None),
        ("Setting global step to 20", None),
        ("step:7", None),
        ("step:7 - loading shards", None),
        ("", None),
    ],
)
def test_a_line_is_parsed_in_every_spelling(line: str, expected: tuple[int, dict[str, float]] | None) -> None:
    assert parse_line(line) == expected


def test_nan_and_infinite_values_are_kept_and_reported(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text("step:1 - actor/grad_norm:nan - a:1\nstep:2 - actor/grad_norm:inf - a:2\n")
    metrics = read(file)
    points = metrics.series["actor/grad_norm"]
    assert math.isnan(points.values[0])
    assert math.isinf(points.values[1])
    assert len(points.finite()) == 0
    finding = next(f for f in metrics.findings if f.code == "metrics-not-finite")
    assert "2 value(s) of 1 metric(s)" in finding.what


def test_a_value_cut_at_the_end_of_a_log_is_not_taken_for_a_number(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text("step:1 - a:0.25 - b:0.5\nstep:2 - a:0.75 - b:0.0")  # 0.05 without its last digit
    metrics = read(file)
    assert list(metrics.series["a"].values) == [0.25, 0.75]
    assert list(metrics.series["b"].values) == [0.5]
    assert codes(metrics) == {"metrics-line-cut"}


def test_event_files_of_a_resumed_run_are_merged_by_time(tmp_path: Path) -> None:
    write_events(tmp_path / "events.out.tfevents.2.b.1.0", {"score": {3: 30.0, 4: 40.0}}, began=2000)
    write_events(tmp_path / "events.out.tfevents.1.a.1.0", {"score": {1: 1.0, 2: 2.0, 3: 3.0}}, began=1000)
    metrics = read(tmp_path)
    assert list(metrics.series["score"].steps) == [1, 2, 3, 4]
    assert list(metrics.series["score"].values) == [1.0, 2.0, 30.0, 40.0]
    assert codes(metrics) == {"metrics-repeated-steps"}
    assert metrics.starts == {1, 3}


@pytest.mark.parametrize(
    ("between", "step", "starts"),
    [
        # verl 0.6.1 and 0.9.1: the next step follows on the last one.
        ("Setting global step to 2\nResuming from /runs/a/checkpoints/global_step_2\n", 3, {1, 3}),
        (
            "Resuming from /a/global_step_2, setting global step to 2\nstep:2 - val-core/a:0.5\n",
            3,
            {1, 3},
        ),
        ("", 2, {1, 2}),  # a log without that line: steps that begin again
        ("", 1, {1}),
        ("step:2 - val-core/a/acc:0.5\n", 3, {1}),  # a validation is no step
    ],
)
def test_a_log_tells_where_its_attempts_began(tmp_path: Path, between: str, step: int, starts: set[int]) -> None:
    file = tmp_path / "train.log"
    file.write_text(f"step:0 - val-core/a/acc:0.1\nstep:1 - a:1.0\nstep:2 - a:1.0\n{between}step:{step} - a:2.0\n")
    assert read(file).starts == starts


def test_last_steps_of_an_abandoned_attempt_are_named(tmp_path: Path) -> None:
    write_events(tmp_path / "events.out.tfevents.1.a.1.0", {"score": dict.fromkeys(range(1, 6), 1.0)}, began=1000)
    write_events(tmp_path / "events.out.tfevents.2.b.1.0", {"score": {3: 9.0}}, began=2000)
    metrics = read(tmp_path)
    assert list(metrics.series["score"].values) == [1.0, 1.0, 9.0, 1.0, 1.0]
    finding = next(f for f in metrics.findings if f.code == "metrics-superseded-steps")
    assert "4-5" in finding.what
    assert metrics.starts == {1, 3}
    write_events(tmp_path / "events.out.tfevents.3.c.1.0", {"score": {2: 8.0, 3: 8.0}}, began=3000)
    assert read(tmp_path).starts == {1, 2}, "step 3 is one of the third attempt's now, and not its first"


def test_more_than_ten_thousand_points_are_all_read(tmp_path: Path) -> None:
    write_events(tmp_path / "events.out.tfevents.1.a.1.0", {"score": {step: float(step) for step in range(1, 12_001)}})
    points = read(tmp_path).series["score"]
    assert len(points) == 12_000
    assert points.values[-1] == 12_000


@pytest.mark.parametrize("keep", [0, 5, 40, -1, -6])
def test_a_truncated_event_file_gives_what_precedes(shared: Path, tmp_path: Path, keep: int) -> None:
    source = next((shared / "data" / "verl_cpu_runs" / "ppo_061" / "tensorboard").iterdir())
    whole = source.read_bytes()
    file = tmp_path / source.name
    file.write_bytes(whole[: keep if keep >= 0 else len(whole) + keep])
    metrics = read(tmp_path)
    if keep > 0:
        assert "metrics-file-damaged" in codes(metrics)
    if keep >= 0:
        assert "metrics-none" in codes(metrics)
    else:
        assert len(metrics.steps()) == 4


def test_a_changed_byte_in_an_event_file_is_noticed(shared: Path, tmp_path: Path) -> None:
    source = next((shared / "data" / "verl_cpu_runs" / "ppo_061" / "tensorboard").iterdir())
    content = bytearray(source.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / source.name).write_bytes(content)
    assert "metrics-file-damaged" in codes(read(tmp_path))


def test_a_run_directory_takes_from_the_log_what_the_event_files_lack(shared: Path, tmp_path: Path) -> None:
    run = shared / "data" / "verl_cpu_runs" / "grpo_061"
    (tmp_path / "logs").mkdir()
    (tmp_path / "tensorboard").mkdir()
    shutil.copyfile(run / "console_full.log", tmp_path / "logs" / "train-1.log")
    source = next((run / "tensorboard").iterdir())
    content = source.read_bytes()
    (tmp_path / "tensorboard" / source.name).write_bytes(content[: len(content) // 2])
    metrics = read(tmp_path)
    assert metrics.kind == "run"
    assert metrics.steps() == [1, 2, 3, 4, 5, 6]
    assert "metrics-file-damaged" in codes(metrics)


def test_a_directory_of_several_runs_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_events(tmp_path / name / "events.out.tfevents.1.h.1.0", {"score": {1: 1.0}})
    with pytest.raises(FindingsError) as caught:
        read(tmp_path)
    assert caught.value.findings[0].code == "metrics-several-runs"
    assert "a, b" in caught.value.findings[0].what


@pytest.mark.parametrize("make", [lambda p: p / "missing", lambda p: p])
def test_a_path_without_metrics_is_a_finding(tmp_path: Path, make: object) -> None:
    with pytest.raises(FindingsError) as caught:
        read(make(tmp_path))  # type: ignore[operator]
    assert caught.value.findings[0].code == "metrics-no-source"


def test_a_log_of_something_else_has_no_metrics(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_bytes(b"\x00\xff\xfe binary \n hello\n")
    assert codes(read(tmp_path / "other.log")) == {"metrics-none"}


def test_missing_steps_are_named(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text("".join(f"step:{step} - a:1\n" for step in (1, 2, 5, 7)))
    finding = next(f for f in read(file).findings if f.code == "metrics-gap")
    assert "3-4, 6" in finding.what


def test_ranges_fold_neighbours() -> None:
    assert ranges([5, 1, 2, 3, 9, 10]) == "1-3, 5, 9-10"
    assert ranges(range(0, 100, 2), most=2) == "0, 2, ..."


def test_reading_a_line_imports_nothing_heavy() -> None:
    script = (
        "import sys; from verlbox.metrics.read import parse_line; parse_line('step:1 - a:1');"
        "print([m for m in ('numpy', 'pandas', 'scipy', 'matplotlib', 'tensorboard', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_layout_of_a_record_gives_what_the_parser_of_protocol_buffers_gives(tmp_path: Path) -> None:
    def scalar(tag: str, value: float) -> Summary.Value:
        return Summary.Value(tag=tag, simple_value=value)

    odd = ["a", "t" * 127, "t" * 128, "t" * 300, "名字/x", "a\x15b", "\n\x05inner\x15abcd"]
    events = [Event(wall_time=5.0, file_version="brain.Event:2")]
    events += [
        Event(wall_time=6.0, step=step, summary=Summary(value=[scalar(tag, step + 0.5)]))
        for step in (0, 1, 127, 128, 16383, 16384, 2**31, 2**53)
        for tag in odd
    ]
    events += [
        Event(wall_time=6.0, step=3, summary=Summary(value=[scalar("two", 1.0), scalar("values", 2.0)])),
        Event(wall_time=6.0, step=4, summary=Summary(value=[scalar("nan", math.nan)])),
        Event(wall_time=6.0, summary=Summary(value=[scalar("no-step", 7.0)])),
        Event(step=5, summary=Summary(value=[scalar("no-time", 8.0)])),
    ]
    expected: dict[str, dict[int, float]] = {}
    for event in events:
        for value in event.summary.value:
            expected.setdefault(value.tag, {})[event.step] = value.simple_value
    with (tmp_path / "events.out.tfevents.1").open("wb") as stream:
        writer = RecordWriter(stream)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()
    found = {
        name: dict(zip(points.steps, points.values, strict=True)) for name, points in read(tmp_path).series.items()
    }
    assert repr(dict(sorted(found.items()))) == repr(dict(sorted(expected.items())))
