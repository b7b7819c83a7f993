"""Evaluate: base and trained model on the whole held-out set, same prompts, same grader, paired statistics."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from verlbox import process
from verlbox.generate import engine_settings
from verlbox.metrics import statistics
from verlbox.plan import base_model
from verlbox.recipe import Recipe, flat
from verlbox.run import Run, digest, record, replacing, write_atomic, write_json
from verlbox.stacks import STACKS
from verlbox.stages import Context, Outputs, command_failed
from verlbox.stages.download import cache_folder
from verlbox.stages.train import child_environment

NAME = "evaluate"
MODELS = ("base", "trained")
CHANGED_SHOWN = 50  # examples of answers that changed, for the report

Answer = Mapping[str, Any]
Scores = list[list[bool]]  # [prompt][draw]


def inputs(recipe: Recipe, run: Run) -> dict[str, Any]:
    execution = ("evaluate.batch_size",)  # how the answers are computed, not what they are
    settings = {**flat(recipe.evaluate, "evaluate"), **flat(recipe.reward, "reward")}
    return {"train.seed": recipe.train.seed, **{k: v for k, v in settings.items() if k not in execution}}


def run(context: Context) -> Outputs:
    recipe, run = context.recipe, context.run
    if not recipe.evaluate.enabled:
        context.console.line("evaluation is switched off in the recipe")
        return Outputs([], {"enabled": False})
    rows = _rows(run.data / "test.parquet")
    with replacing(run.evaluation) as folder:
        answers = _answers(context, folder)
        graded = {name: _grade(answers[name], rows, recipe.reward.name, recipe.reward.arguments) for name in MODELS}
        for name in MODELS:
            lines = (json.dumps(answer, ensure_ascii=False) for answer in graded[name])
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        summary = summarise(graded["base"], graded["trained"], rows)
        summary["engine"] = engine(context)
        write_json(folder / "summary.json", summary)
    for kind in ("greedy", "sampled"):
        if kind in summary:
            part = summary[kind]
            shown = (f"{part[m]['accuracy']:.3f} ± {part[m]['standard_error']:.3f}" for m in MODELS)
            context.console.line(f"{kind} accuracy on {summary['rows']} prompts: {' -> '.join(shown)}")
    return Outputs([run.evaluation], {"enabled": True, "summary": summary})


def engine(context: Context) -> dict[str, str]:
    """What generates the answers: its name, its version, and the precision it computes in."""
    if STACKS[context.recipe.stack].platform == "cpu":
        return {"name": "transformers", "version": metadata.version("transformers"), "dtype": "float32"}
    settings = engine_settings(context.plan.effective)
    return {"name": "vllm", "version": metadata.version("vllm"), "dtype": settings["dtype"]}


def _answers(context: Context, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The answers of both models, from the cache where the same engine was asked the same with the same model."""
    run, evaluate = context.run, context.recipe.evaluate
    asked = {
        "rows": record(run.data / "test.parquet").sha256,
        "draws": evaluate.draws,
        "temperature": evaluate.temperature,
        "seed": context.recipe.train.seed,
        "max_new_tokens": int(str(context.plan.effective.get("data.max_response_length", 512))),
        "engine": engine(context),
    }
    places = {"base": base_model(run), "trained": run.model}
    hashes = {"base": context.details["download"]["model"]["sha256"], "trained": digest(run.records([run.model]))}
    cached = {name: _cache_file({**asked, "model": hashes[name]}) for name in MODELS}
    wanted = [name for name in MODELS if not cached[name].is_file()]
    on_cpu = STACKS[context.recipe.stack].platform == "cpu"
    # One process for both models on the CPU, where importing takes longest; one each where vLLM keeps the memory.
    for names in [wanted] if on_cpu and wanted else [[name] for name in wanted]:
        command = [sys.executable, "-m", "verlbox.generate", "--rows", str(run.data / "test.parquet")]
        command += ["--out", str(folder), "--batch-size", str(evaluate.batch_size)]
        command += ["--engine", "hf" if on_cpu else "vllm"]
        if not on_cpu:
            command += ["--settings", json.dumps(engine_settings(context.plan.effective))]
        command += [part for name in names for part in ("--model", f"{name}={places[name]}")]
        for key in ("draws", "temperature", "seed", "max_new_tokens"):
            command += [f"--{key.replace('_', '-')}", str(asked[key])]
        log = run.logs / "evaluate.log"
        environment = child_environment(context.plan)
        code = process.run(command, log=log, tag=run.tag, environment=environment, cwd=run.path)
        if code != 0:
            raise command_failed("the evaluation", code, log)
        for name in names:
            write_atomic(cached[name], (folder / f"{name}.jsonl").read_bytes())
    return {name: _read(cached[name]) for name in MODELS}


def _cache_file(asked: Mapping[str, Any]) -> Path:
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "answers" / f"{key}.jsonl"


def _rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def _read(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def _grade(
    answers: list[dict[str, Any]], rows: Sequence[Mapping[str, Any]], reward: str, arguments: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The answers with score, acc and reason, by the reward function of training."""
    module = importlib.import_module(f"verlbox.rewards.{reward}")
    asked = [rows[answer["index"]] for answer in answers]
    graded = module.compute_score(
        [row["data_source"] for row in asked],
        [answer["response"] for answer in answers],
        [row["reward_model"]["ground_truth"] for row in asked],
        [row["extra_info"] for row in asked],
        **arguments,
    )
    kept = ("score", "acc", "reason")
    return [{**a, **{key: g[key] for key in kept if key in g}} for a, g in zip(answers, graded, strict=True)]


def _scores(answers: Sequence[Answer], rows: int, draws: Sequence[int]) -> Scores:
    table = {(a["index"], a["draw"]): bool(a["acc"]) for a in answers}
    return [[table[index, draw] for draw in draws] for index in range(rows)]


def summarise(base: Sequence[Answer], trained: Sequence[Answer], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracies with standard errors, paired gain and test, reasons, groups, and answers that changed.

    Answers hold index (of the row), draw (0 greedy, 1.. sampled), response, acc and reason. Greedy answers are compared
    by McNemar's exact test, sampled ones by the mean difference over prompts, since draws of a prompt are not
    independent (see metrics/statistics.py for the formulas).
    """
    n = len(rows)
    draws = sorted({a["draw"] for a in base} - {0})
    models = {"base": base, "trained": trained}
    greedy = {name: _scores(answers, n, [0]) for name, answers in models.items()}
    flat = {name: [row[0] for row in scores] for name, scores in greedy.items()}
    test = statistics.mcnemar(flat["base"], flat["trained"])
    gain = statistics.paired_gain(greedy["base"], greedy["trained"])
    summary: dict[str, Any] = {
        "rows": n,
        "greedy": {
            **{name: asdict(statistics.accuracy(scores)) for name, scores in flat.items()},
            **asdict(gain),
            "mcnemar_p": test.p,
            "base_only": test.base_only,
            "trained_only": test.trained_only,
        },
    }
    if draws:
        sampled = {name: _scores(answers, n, draws) for name, answers in models.items()}
        summary["sampled"] = {
            "draws": len(draws),
            **{name: asdict(statistics.clustered_accuracy(scores)) for name, scores in sampled.items()},
            **asdict(statistics.paired_gain(sampled["base"], sampled["trained"])),
        }
    summary["groups"] = _groups(flat, rows)
    summary["reasons"] = {
        name: dict(Counter(a["reason"] for a in answers if a["draw"] == 0)) for name, answers in models.items()
    }
    summary["changed"] = _changed(base, trained, rows)
    return summary


def _groups(flat: Mapping[str, Sequence[bool]], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Greedy accuracy by each grouping column of the data set (MATH: level and subject)."""
    groups: dict[str, Any] = {}
    for column in ("level", "subject", "type"):
        members: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            value = (row.get("extra_info") or {}).get(column) or row.get(column)
            if isinstance(value, str):
                members.setdefault(value, []).append(index)
        if members:
            groups[column] = {
                value: {name: asdict(statistics.accuracy([scores[i] for i in chosen])) for name, scores in flat.items()}
                for value, chosen in sorted(members.items())
            }
    return groups


def _changed(
    base: Sequence[Answer], trained: Sequence[Answer], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Greedy answers whose verdict changed: those that were lost first, since they are read first."""
    before, after = ({a["index"]: a for a in answers if a["draw"] == 0} for answers in (base, trained))
    changed = [i for i in before if bool(before[i]["acc"]) != bool(after[i]["acc"])]
    changed.sort(key=lambda i: (bool(after[i]["acc"]), i))
    return [
        {
            "index": i,
            "question": rows[i]["prompt"][-1]["content"],
            "ground_truth": rows[i]["reward_model"]["ground_truth"],
            "base": before[i]["response"],
            "trained": after[i]["response"],
            "trained_correct": bool(after[i]["acc"]),
        }
        for i in changed[:CHANGED_SHOWN]
    ]
