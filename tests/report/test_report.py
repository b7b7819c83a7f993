"""The report of the published run says what its numbers carry; other reports survive any input."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from array import array
from decimal import Decimal
from pathlib import Path

import pytest

from tests.metrics.events import write_many
from tests.report.published import EVALUATION, FACTS, REFERENCE, ROOT, STEPS
from verlbox import report
from verlbox.metrics.acceptance import line
from verlbox.metrics.read import Metrics, Series, read
from verlbox.report import build, readings
from verlbox.report.facts import DataFlow, RunFacts
from verlbox.report.from_log import facts_of_log
from verlbox.report.language import Language


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published")
    report.write(dataclasses.replace(FACTS, evaluation=EVALUATION), read(STEPS), out)
    return out


def test_the_files_are_those_that_the_published_run_lists(published: Path) -> None:
    assert {file.name for file in published.iterdir()} == {
        "metrics_step1_28.csv",
        "metrics_summary_step1_28.csv",
        "policy_health.png",
        "reward_metrics.png",
        "stability_metrics.png",
        "efficiency_metrics.png",
        "report.md",
        "report.html",
        "report.json",
    }


def test_the_summary_reproduces_the_published_table_to_the_printed_digits(published: Path) -> None:
    with (REFERENCE / "npu-grpo-910b3-summary.csv").open(encoding="utf-8") as stream:
        expected = {row.pop("metric"): row for row in csv.DictReader(stream)}
    with (published / "metrics_summary_step1_28.csv").open(encoding="utf-8") as stream:
        ours = {row.pop("metric"): row for row in csv.DictReader(stream)}
    assert len(ours) == 9, "the nine metrics whose 28 rows were published"
    for metric, row in ours.items():
        for column, text in row.items():
            printed = Decimal(expected[metric][column])
            assert round(Decimal(text), -printed.as_tuple().exponent) == printed, (metric, column)  # type: ignore[operator]


def test_the_table_of_steps_has_every_published_value(published: Path) -> None:
    assert read(published / "metrics_step1_28.csv").series == read(STEPS).series


def test_the_verdict_on_the_published_run(published: Path) -> None:
    text = (published / "report.md").read_text(encoding="utf-8")
    assert "not significant (Fisher's exact test: p = 0.58, one-sided p = 0.29" in text
    assert "rises by +0.00187 a step; over 28 steps this trend is significant (t = 3.6, p = 0.001)" in text
    assert "planned for 140 steps and ended at 28" in text
    assert "actor/kl_loss divided by gradient accumulation, here 32" in text
    assert "0.000514 is really 0.0164" in text
    assert "advantage is the raw reward" in text
    assert "(r = 0.97)" in text
    assert "Validation during training graded 32 of 4,949 held-out rows" in text
    assert "213 kept train rows are not used" in text
    assert "other validation rows at each start" in text


def test_the_evaluation_leads_the_report(published: Path) -> None:
    text = (published / "report.md").read_text(encoding="utf-8")
    assert text.index("greedy accuracy went from 0.45 ") < text.index("What was demanded")
    assert "77 prompts became right and 4 became wrong; McNemar's exact test: p < 0.001" in text
    assert "+0.12 ± 0.02 (standard error clustered by prompt)" in text


def test_model_output_cannot_become_markup(published: Path) -> None:
    page = (published / "report.html").read_text(encoding="utf-8")
    assert "3 &amp; &lt;b&gt;4&lt;/b&gt;?" in page
    assert r"\| 3+4=7 \| #### 7" in (published / "report.md").read_text(encoding="utf-8")


def test_report_json_holds_the_verdict_and_the_metrics(published: Path) -> None:
    content = json.loads((published / "report.json").read_text(encoding="utf-8"))
    assert content["steps"] == {"count": 28, "first": 1, "last": 28, "planned": 140}
    score = content["metrics"]["critic/score/mean"]
    assert (score["first"], score["last"], score["count"]) == (0.2523, 0.2801, 28)
    assert content["verdict"]["overall"] == "pass"
    assert content["validation"][0]["n"] == 32
    assert content["validation"][0]["test"]["two_sided"] == pytest.approx(0.585, abs=1e-3)
    assert content["losses_multiplied_by"]["actor/kl_loss"]["factor"] == 32


def test_json_alone_is_one_file(tmp_path: Path) -> None:
    assert [f.name for f in report.write(FACTS, read(STEPS), tmp_path, formats=("json",))] == ["report.json"]
    assert [f.name for f in tmp_path.iterdir()] == ["report.json"]
    with pytest.raises(ValueError, match="pdf"):
        report.write(FACTS, read(STEPS), tmp_path, formats=("pdf",))


def test_a_failed_acceptance_is_said_first_and_as_a_finding(tmp_path: Path) -> None:
    facts = dataclasses.replace(FACTS, acceptance=(line("critic/score/mean", ">=", 0.9, reducer="max"),))
    made = build.build(facts, read(STEPS))
    assert made.verdict.exit_code == 5
    assert made.findings[0].code == "acceptance-failed"
    report.write_report(made, tmp_path, formats=("md",))
    assert "## ❌ Not accepted" in (tmp_path / "report.md").read_text(encoding="utf-8").splitlines()[2]


@pytest.mark.parametrize(
    ("overrides", "version", "factor"),
    [
        ({}, "0.6.1", 32),
        ({}, "0.9.1", None),
        ({}, "0.5.0", None),
        ({"actor_rollout_ref.rollout.n": 8}, "0.6.1", 256),
        ({"trainer.n_gpus_per_node": 8}, "0.6.1", 4),
        ({"trainer.n_gpus_per_node": 8, "trainer.nnodes": 2}, "0.6.1", 2),
        ({"trainer.n_gpus_per_node": 8, "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2}, "0.6.1", 8),
        ({"actor_rollout_ref.actor.ppo_mini_batch_size": 64}, "0.6.1", 8),
        ({"actor_rollout_ref.actor.strategy": "megatron"}, "0.6.1", None),
    ],
)
def test_losses_are_multiplied_back_as_verl_divided_them(
    overrides: dict[str, object], version: str, factor: int | None
) -> None:
    facts = dataclasses.replace(FACTS, versions={"verl": version}, verl_overrides={**FACTS.verl_overrides, **overrides})
    scale = readings.rescaling("actor/kl_loss", facts)
    assert (None if scale is None else scale.factor) == factor
    assert readings.rescaling("actor/grad_norm", facts) is None


def test_losses_of_dynamic_batches_are_left_and_it_is_said() -> None:
    dynamic = {**FACTS.verl_overrides, "actor_rollout_ref.actor.use_dynamic_bsz": True}
    scale = readings.rescaling("actor/pg_loss", dataclasses.replace(FACTS, verl_overrides=dynamic))
    assert scale == readings.Rescaling(None, "dynamic-batches")


def test_verl_divides_losses_as_the_report_assumes() -> None:
    spec = pytest.importorskip("importlib.util").find_spec("verl")
    if spec is None or spec.origin is None:
        pytest.skip("verl is not installed: its source cannot be looked at")
    from importlib.metadata import version

    source = (Path(spec.origin).parent / "workers" / "actor" / "dp_actor.py").read_text(encoding="utf-8")
    if not version("verl").startswith("0.6."):
        pytest.skip(f"verl {version('verl')} is installed, the report rescales 0.6")
    assert 'micro_batch_metrics["actor/pg_loss"] = pg_loss.detach().item() * loss_scale_factor' in source
    assert "loss_scale_factor = 1 / self.gradient_accumulation" in source


def test_clipping_is_called_trivial_only_where_it_is() -> None:
    metrics = read(STEPS)
    assert readings.clipping(FACTS, metrics) == "by-construction"
    four = {**FACTS.verl_overrides, "actor_rollout_ref.actor.ppo_mini_batch_size": 64}
    assert readings.clipping(dataclasses.replace(FACTS, verl_overrides=four), metrics) == ""
    twice = {**FACTS.verl_overrides, "actor_rollout_ref.actor.ppo_epochs": 2}
    assert readings.clipping(dataclasses.replace(FACTS, verl_overrides=twice), metrics) == ""


def test_every_second_of_a_step_is_accounted_for(shared: Path) -> None:
    spent = readings.step_time(read(shared / "data" / "verl_cpu_runs" / "ppo_061" / "tensorboard"))
    assert spent is not None
    assert math.fsum(phase.seconds for phase in spent.phases) == pytest.approx(spent.seconds)
    assert math.fsum(phase.share for phase in spent.phases) == pytest.approx(1)
    assert spent.phases[-1].name == "rest"
    assert 0 <= spent.phases[-1].share < 0.1
    assert {phase.name for phase in spent.phases} >= {"gen", "old_log_prob", "ref", "values", "update_critic"}
    assert [name for name, _, _ in spent.beside] == ["testing", "save_checkpoint"]
    assert not spent.inside, "verl 0.6.1 times the step without its validation"


@pytest.mark.parametrize(
    ("source", "inside", "rest"),
    [
        ("verl_cpu_runs/grpo_061/tensorboard", (), 0.01),
        ("verl_cpu_runs/grpo_091/tensorboard", ("save_checkpoint",), 0.02),
        ("verl_logs/gpg_qwen2-7b_math.log", ("testing", "save_checkpoint"), 0.01),
        ("verl_logs/play-verl_verl_grpo_qwen2.5b_8gpu.log", ("testing",), 0.01),
        ("verl_logs/Qwen2.5-0.5B-bsz256_2-prompt512-resp256-0.538.log", (), 0.01),
    ],
)
def test_what_each_version_counts_into_the_step_is_recognised(
    source: str, inside: tuple[str, ...], rest: float, shared: Path
) -> None:
    # verl 0.6.1, 0.9.1 (trainer_base.py saves within "step" and validates after it), 0.4, 0.4, and 2024.
    spent = readings.step_time(read(shared / "data" / source))
    assert spent is not None
    assert spent.inside == inside
    assert {*inside} <= {phase.name for phase in spent.phases}
    assert 0 <= spent.phases[-1].share < rest, "the named phases account for the step"


def test_the_first_step_is_left_out_where_others_tell_enough() -> None:
    steps = array("q", range(1, 4))
    recorded = {
        "timing_s/step": Series(steps, array("d", [35.0, 12.0, 14.0])),
        "timing_s/gen": Series(steps, array("d", [5.0, 11.0, 13.0])),
    }
    spent = readings.step_time(Metrics(recorded, "csv"))
    assert spent is not None
    assert (spent.steps, spent.seconds, spent.first) == (2, 13.0, 35.0)
    assert {phase.name: phase.seconds for phase in spent.phases} == {"gen": 12.0, "rest": 1.0}
    two = {name: Series(steps[:2], series.values[:2]) for name, series in recorded.items()}
    spent = readings.step_time(Metrics(two, "csv"))
    assert spent is not None
    assert (spent.steps, spent.seconds, spent.first) == (2, 23.5, None)


def test_the_first_steps_after_a_resume_are_left_out_too() -> None:
    # As on one H200 with verl 0.9.1, killed after step 3 and resumed from step 2 (docs/performance.md).
    recorded = {
        "timing_s/step": Series(array("q", range(1, 6)), array("d", [29.2, 25.3, 26.6, 23.6, 10.7])),
        "timing_s/gen": Series(array("q", range(1, 6)), array("d", [16.9, 11.6, 14.5, 9.9, 10.5])),
        "timing_s/save_checkpoint": Series(array("q", [2, 4]), array("d", [13.6, 13.4])),
    }
    spent = readings.step_time(Metrics(recorded, "run", starts=frozenset({1, 3})))
    assert spent is not None
    assert (spent.steps, spent.first, spent.resumed) == (3, 29.2, (26.6,))
    assert spent.seconds == pytest.approx(59.6 / 3)
    assert spent.inside == ("save_checkpoint",)
    few = {name: Series(series.steps[:3], series.values[:3]) for name, series in recorded.items()}
    spent = readings.step_time(Metrics(few, "run", starts=frozenset({1, 3})))
    assert spent is not None
    assert (spent.steps, spent.resumed) == (2, ()), "one step alone would tell less"


def test_a_long_rest_is_not_taken_for_a_checkpoint() -> None:
    # As on one H200 with verl 0.9.1: a third of the step in no phase; validation, 6 s, comes after the step's time.
    steps = array("q", range(1, 9))
    recorded = {
        "timing_s/step": Series(steps, array("d", [15.0, 15.2, 14.9, 18.0, 15.1, 15.0, 15.2, 18.1])),
        "timing_s/gen": Series(steps, array("d", [10.0, 10.1, 10.0, 10.0, 10.0, 10.1, 10.1, 10.0])),
        "timing_s/save_checkpoint": Series(array("q", [4, 8]), array("d", [3.0, 3.1])),
        "timing_s/testing": Series(array("q", [2, 4, 6, 8]), array("d", [4.0, 4.1, 4.0, 4.2])),
    }
    spent = readings.step_time(Metrics(recorded, "csv"))
    assert spent is not None
    assert spent.inside == ("save_checkpoint",)


def test_tokens_per_second_are_split(shared: Path) -> None:
    speed = readings.throughput(read(shared / "data" / "verl_cpu_runs" / "grpo_061" / "tensorboard"))
    assert speed is not None
    assert speed.prompt is not None
    assert speed.response is not None
    assert speed.prompt + speed.response == pytest.approx(speed.total)
    assert speed.prompt > speed.response, "prompts of 25 tokens, answers of 15"


@pytest.mark.parametrize(
    ("device", "tera"),
    [
        ("Ascend 910B3", 354),
        ("NVIDIA H200", 989),
        ("NVIDIA H20", 148),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA B200", 2250),
    ],
)
def test_the_peak_behind_mfu_is_that_of_verl(device: str, tera: float) -> None:
    assert FACTS.hardware is not None
    top = readings.peak(dataclasses.replace(FACTS, hardware=dataclasses.replace(FACTS.hardware, device=device)))
    assert top is not None
    assert top[1] == pytest.approx(tera * 1e12)


def test_the_change_of_a_validation_has_its_interval(published: Path) -> None:
    (change,) = json.loads((published / "report.json").read_text(encoding="utf-8"))["validation"]
    # Newcombe (1998), method 10, of 8/32 and 11/32: Wilson intervals 0.1325-0.4211 and 0.2041-0.5169.
    assert change["interval"]["difference"] == pytest.approx(3 / 32)
    assert change["interval"]["low"] == pytest.approx(-0.1271, abs=1e-4)
    assert change["interval"]["high"] == pytest.approx(0.3030, abs=1e-4)


def test_each_data_source_has_its_own_number_of_prompts() -> None:
    steps = array("q", [10, 20])
    curves = {
        f"val-core/{name}/acc/mean@1": Series(steps, array("d", values))
        for name, values in (("a/x", [0.5, 0.6]), ("b", [0.25, 0.5]))
    }
    flow = DataFlow("test", 120, 120, sources={"a/x": 100, "b": 20})
    facts = RunFacts(data=(flow,))
    metrics = Metrics(curves, "csv")
    assert readings.prompts_of(facts, metrics) == {"a/x": 100, "b": 20}
    assert [change.n for change in readings.changes(facts, metrics)] == [100, 20]
    # Drawn from both together, the part of each is not known.
    drawn = dataclasses.replace(facts, verl_overrides={"data.val_max_samples": 50})
    assert readings.prompts_of(drawn, metrics) == {"a/x": None, "b": None}
    unknown = RunFacts(data=(DataFlow("test", 120, 120),))
    assert readings.prompts_of(unknown, metrics) == {"a/x": None, "b": None}


def test_validation_by_whole_batches_is_counted_as_such(shared: Path, tmp_path: Path) -> None:
    log = shared / "data" / "verl_logs" / "Qwen2.5-0.5B-bsz256_2-prompt512-resp256-0.538.log"
    report.write(facts_of_log(log), read(log), tmp_path, formats=("md",))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "graded 1,312 of 1,319 held-out rows" in text
    assert "on 1,312 prompts" in text


def test_an_unknown_number_of_validation_prompts_gives_no_test(shared: Path, tmp_path: Path) -> None:
    metrics = read(shared / "data" / "verl_cpu_runs" / "grpo_061" / "tensorboard")
    report.write(RunFacts(name="bare"), metrics, tmp_path, formats=("md",))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "How many prompts it graded is not known" in text
    assert "made from metrics alone" in text


def lines(*values: str) -> bytes:
    return "".join(f"step:{i} - {v}\n" for i, v in enumerate(values, 1)).encode()


BROKEN = {
    "one step": lines("critic/score/mean:0.5 - actor/grad_norm:0.1"),
    "zero steps": b"",
    "only validation": b"step:0 - val-core/x/reward/mean@1:0.5\n",
    "all nan": lines(*["critic/score/mean:nan - actor/grad_norm:nan - val-core/x/reward/mean@1:nan"] * 4),
    "inf": lines(*["critic/score/mean:inf - perf/throughput:inf - timing_s/step:inf - timing_s/gen:-inf"] * 3),
    "duplicate steps": b"step:1 - critic/score/mean:0.5\n" * 5,
    "cut line": lines("critic/score/mean:0.5 - actor/grad_norm:0.1") + b"step:2 - critic/score/mea",
    "cut number": lines("critic/score/mean:0.5 - actor/grad_norm:0.1") + b"step:2 - critic/score/mean:0.",
    "zeros": lines(
        *["critic/score/mean:0 - actor/grad_norm:0 - perf/throughput:0 - timing_s/step:0 - timing_s/gen:0"] * 9
    ),
    "huge": lines(*["critic/score/mean:1e300 - actor/grad_norm:1e-300 - perf/mfu/actor:-1e308"] * 4),
    "extremes": lines("critic/score/mean:1e308", "critic/score/mean:-1e308", "critic/score/mean:0"),
    "negative time": lines(*["timing_s/step:1 - timing_s/gen:2 - actor/grad_norm:-1"] * 4),
    "binary": bytes(range(256)) * 9,
    "far steps": b"step:1 - a:1\nstep:999999999999 - a:2\n",
    "odd names": lines("a b/<script>:1 - val-core//reward/mean@1:0.5 - reason_:3 - x|y:2 - timing_s/:1"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_broken_input_gives_a_report(name: str, lang: Language, tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_bytes(BROKEN[name])
    metrics = read(file)
    written = report.write(dataclasses.replace(FACTS, evaluation={"greedy": {}}), metrics, tmp_path / "out", lang)
    assert len(written) == 9
    json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"), parse_constant=_no_constant)
    if name in ("zero steps", "zeros", "all nan", "binary", "only validation"):
        assert build.build(FACTS, metrics).verdict.overall == "fail"


def _no_constant(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


def test_a_truncated_event_file_gives_a_report_with_the_finding(shared: Path, tmp_path: Path) -> None:
    source = next((shared / "data" / "verl_cpu_runs" / "ppo_061" / "tensorboard").iterdir())
    content = source.read_bytes()
    (tmp_path / source.name).write_bytes(content[: int(len(content) * 0.7)])
    report.write(RunFacts(), read(tmp_path), tmp_path / "out")
    assert "metrics-file-damaged" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


CHILD = """
import sys
from pathlib import Path
from verlbox import report
from verlbox.metrics.read import Metrics, Series, read
from verlbox.report.facts import DataFlow, RunFacts
from verlbox.report.from_log import facts_of_log
from verlbox.report.language import Language
report.write(RunFacts(name="long"), read(Path(sys.argv[1])), Path(sys.argv[2]))
# Not ru_maxrss: that counts the parent's memory at the fork too.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_a_long_run_is_reported_in_seconds_and_whole(tmp_path: Path) -> None:
    # 20,000 steps x 60 metrics; processor time of the report's own process, so that a busy machine does not decide.
    names = ["critic/score/mean", "actor/grad_norm", "perf/throughput", "response_length/mean", "timing_s/step"]
    names += [f"extra/metric_{i}" for i in range(55)]
    write_many(tmp_path / "events.out.tfevents.1.h.1.0", names, 20_000)
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(tmp_path / "out")]
    before = os.times()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 20, "seconds"
    assert int(done.stdout) < 1024 * 1024, "KiB"
    rows = (tmp_path / "out" / "metrics_step1_20000.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 20_001
    assert all(row.count(",") == 60 and ",," not in row for row in rows)
    assert (tmp_path / "out" / "report.html").stat().st_size < 1_000_000


def test_no_line_of_the_markdown_breaks_a_table(published: Path) -> None:
    text = (published / "report.md").read_text(encoding="utf-8")
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
        assert len(widths) == 1, block
