"""`compare` says what differs, tests what can be tested, and warns of what single runs cannot show."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from pathlib import Path

import pytest

from tests.report.published import EVALUATION, FACTS, STEPS
from verlbox import compare
from verlbox.compare import Compared, Comparison
from verlbox.findings import FindingsError
from verlbox.metrics.read import Metrics, read, series
from verlbox.report.language import speaker

say = speaker("en")


def noisy(mean: float, seed: int, steps: int = 60) -> Metrics:
    rng = random.Random(seed)
    return Metrics(
        {
            "critic/score/mean": series((i, mean + rng.gauss(0, 0.02)) for i in range(1, steps + 1)),
            "actor/grad_norm": series((i, 0.3) for i in range(1, steps + 1)),
        },
        "log",
    )


def caveats(comparison: Comparison) -> str:
    return " ".join(say(paragraph.text) for paragraph in comparison.caveats)


def test_only_what_differs_is_listed() -> None:
    other = dataclasses.replace(
        FACTS,
        verl_overrides={
            **FACTS.verl_overrides,
            "actor_rollout_ref.rollout.n": 8,
            "actor_rollout_ref.actor.optim.lr": 1e-6,
            "trainer.default_local_dir": "elsewhere",
            "data.train_files": "/other/train.parquet",
        },
        versions={**FACTS.versions, "torch": "2.8.0"},
    )
    metrics = read(STEPS)
    made = compare.compare([Compared("a", FACTS, metrics), Compared("b", other, metrics)])
    assert made.settings == (("actor_rollout_ref.rollout.n", ("1", "8")),)
    assert made.partial == (("actor_rollout_ref.actor.optim.lr", ("–", "1e-06")),)
    assert made.versions == (("torch", ("2.7.1+cpu", "2.8.0")),)
    assert "different gradient accumulation" in caveats(made), "n = 8 means 256 micro-batches, not 32"


def test_scores_are_compared_step_by_step() -> None:
    def p_of(gap: float, seed: int) -> float:
        runs = [Compared("a", FACTS, noisy(0.3, seed)), Compared("b", FACTS, noisy(0.3 + gap, 1000 + seed))]
        score = next(contrast for contrast in compare.compare(runs).contrasts if contrast.what == "score")
        assert score.difference == pytest.approx(gap, abs=0.02)
        assert score.p is not None
        return score.p

    assert sum(p_of(0.0, seed) < 0.05 for seed in range(100)) <= 12, "about five in a hundred by chance"
    assert all(p_of(0.05, seed) < 0.001 for seed in range(20))


def test_evaluations_are_tested_with_their_counts() -> None:
    worse = {**EVALUATION, "greedy": {**EVALUATION["greedy"], "trained": {"correct": 90, "n": 200, "accuracy": 0.45}}}  # type: ignore[dict-item]
    runs = [
        Compared(name, dataclasses.replace(FACTS, evaluation=evaluation), noisy(0.3, 1))
        for name, evaluation in (("a", EVALUATION), ("b", worse))
    ]
    found = {contrast.what: contrast for contrast in compare.compare(runs).contrasts}
    assert found["evaluation.greedy.trained"].test == "fisher"
    assert found["evaluation.greedy.trained"].p == pytest.approx(2.5e-14, rel=1)
    assert found["evaluation.sampled.trained"].p == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ((1, 1), "All runs used seed 1"),
        ((1, 2), "different seeds"),
        ((1, None), "seed of at least one run is not known"),
    ],
)
def test_what_seeds_mean_is_said(seeds: tuple[int | None, int | None], words: str) -> None:
    runs = [
        Compared(str(i), dataclasses.replace(FACTS, recipe={"train": {"seed": seed}}), noisy(0.3, i))
        for i, seed in enumerate(seeds)
    ]
    assert words in caveats(compare.compare(runs))


def test_runs_of_two_platforms_and_versions_compare(shared: Path) -> None:
    folder = shared / "data" / "verl_cpu_runs"
    old = dataclasses.replace(FACTS, platform="cpu", versions={"verl": "0.6.1"})
    new = dataclasses.replace(FACTS, platform="npu", versions={"verl": "0.9.1"})
    made = compare.compare(
        [
            Compared("old", old, read(folder / "grpo_061" / "tensorboard")),
            Compared("new", new, read(folder / "grpo_091" / "tensorboard")),
        ]
    )
    text = caveats(made)
    assert "different platforms (cpu, npu)" in text
    assert "different verl versions (0.6.1, 0.9.1)" in text
    assert "validated accuracy and others reward" in text
    assert "last rlkit/tiny_add" in {contrast.what for contrast in made.contrasts}
    assert {"validation-0", "score", "kl-loss"} <= {chart.id for chart in compare.charts(made)}


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return parser.parse_args(words)


def test_logs_are_compared_by_the_command(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = shared / "data" / "verl_logs"
    names = ["Qwen2.5-0.5B-bsz256_2-prompt512-resp256-0.538", "Qwen2.5-0.5B-bsz256_2-prompt1024-resp512-0.567"]
    code = compare.run(parse(*(str(logs / f"{name}.log") for name in names), "--out", str(tmp_path)))
    assert code == 0
    assert "0.526 in the first run, 0.543 in" in capsys.readouterr().out
    content = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))
    assert content["settings"]["data.max_response_length"] == ["256", "512"]
    last = next(d for d in content["differences"] if d["what"] == "last openai/gsm8k")
    assert last["p"] == pytest.approx(0.41, abs=0.01)
    text = (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert "| data.max_response_length | 256 | 512 |" in text


@pytest.mark.parametrize(
    ("words", "code"), [(("one.csv",), "metrics-no-source"), ((str(STEPS),), "compare-too-few-runs")]
)
def test_mistakes_are_findings(words: tuple[str, ...], code: str, tmp_path: Path) -> None:
    with pytest.raises(FindingsError) as caught:
        compare.run(parse(*words, "--out", str(tmp_path)))
    assert caught.value.findings[0].code == code


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    copy = tmp_path / STEPS.name
    copy.write_bytes(STEPS.read_bytes())
    compare.run(parse(str(STEPS), str(copy), "--out", str(tmp_path / "out")))
    content = json.loads((tmp_path / "out" / "compare.json").read_text(encoding="utf-8"))
    assert [run["name"] for run in content["runs"]] == [str(STEPS), str(copy)]


def test_runs_with_nothing_in_common_still_compare(tmp_path: Path) -> None:
    empty = Metrics({}, "log")
    made = compare.compare([Compared("a", FACTS, empty), Compared("b", FACTS, noisy(0.3, 1))])
    written = compare.write(made, tmp_path)
    assert len(written) == 3
    assert "no metric in common" in written[0].read_text(encoding="utf-8")
