"""`export opencompass RUN`: base and trained model, data and prompt of a run as a configuration for OpenCompass.

Written: `eval_RUN.py`, which OpenCompass runs as it is, and the data set in the files that OpenCompass's loader reads.
The evaluator and the extraction of answers are OpenCompass's own, taken from its configuration of the data set; prompt,
greedy decoding, length of answers and engine are the recipe's. Read from OpenCompass 0.5.4; docs/opencompass.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verlbox.export import of_recipe
from verlbox.findings import EXIT_OK

HELP = "base and trained model of a run for OpenCompass, with the run's prompt and data"


@dataclass(frozen=True)
class Harness:
    """What OpenCompass calls a data set: the configuration that is adapted, its variable, its folder and its files."""

    config: str
    variable: str
    question: str
    folder: str


HARNESSES: Mapping[str, Harness] = {
    # Zero-shot, MATHEvaluator v2 with math_postprocess_v2: its configuration for chat models.
    "math_lighteval": Harness("math.math_0shot_gen_393424", "math_datasets", "problem", "math"),
    # Gsm8kEvaluator with gsm8k_postprocess, the last number of the answer; its four examples are replaced.
    "gsm8k": Harness("gsm8k.gsm8k_gen_1d7fe4", "gsm8k_datasets", "question", "gsm8k"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `export opencompass`."""
    parser.add_argument("run", help="a run's folder or name")
    parser.add_argument("--out", type=Path, help="folder for the files (default: RUN/export/opencompass)")
    parser.add_argument("--runs", help="folder that holds the runs (default: $VERLBOX_RUNS, else ./runs)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the files; prints their paths and the command. Raises FindingsError when a model or the data is absent."""
    from verlbox import pipeline
    from verlbox.ask import models_of
    from verlbox.run import open_run, runs_folder, write_atomic

    opened = open_run(arguments.run, runs_folder(arguments.runs))
    loaded = pipeline.stored_recipe(opened)
    models = models_of(opened, ("base", "trained"))
    download = opened.marker("download")
    assert download is not None, "there is a base model, which that stage makes"
    raw = Path(download.details["dataset"]["path"])
    out = (arguments.out or opened.path / "export" / "opencompass").resolve()
    effective = pipeline.make_plan(loaded, opened, lint=False).effective
    recipe = loaded.recipe
    harness = HARNESSES[recipe.dataset.format]
    problems, files = data_files(raw, recipe.dataset.format, harness)
    config = out / f"eval_{re.sub(r'[^A-Za-z0-9]', '_', opened.name)}.py"
    text = configuration(opened.name, recipe, effective, models, harness, out / harness.folder)
    # File by file: OpenCompass puts its results into the same folder, which may be one of the user's own too.
    written = {**{out / harness.folder / name: content for name, content in files.items()}, config: text}
    try:
        for file, content in written.items():
            write_atomic(file, content)
            print(file)
    except OSError as error:
        raise of_recipe.not_written(out, error) from error
    print(f"# {problems} test problems; where OpenCompass is installed: opencompass {shlex.quote(str(config))}")
    return EXIT_OK


def data_files(raw: Path, format: str, harness: Harness) -> tuple[int, dict[str, str]]:
    """The number of test problems, and the data set as OpenCompass reads it, unfiltered: file name -> content.

    MATHDataset.load reads math.json, {"0": {"problem", "solution"}, ...}; GSM8KDataset.load reads train.jsonl and
    test.jsonl. Rows that no recipe could use (without an answer, say) are left out, over-long prompts are not. Raises
    FindingsError when the split cannot be read.
    """
    from verlbox.datasets import DATASETS, convert, named, read

    kept: dict[str, list[dict[str, Any]]] = {}
    for split in ("test",) if format == "math_lighteval" else ("train", "test"):
        records = read(raw, split)
        rows = convert(records, DATASETS[format], named("none")).rows
        answer = "solution" if format == "math_lighteval" else "answer"
        kept[split] = []
        for row in rows:
            record = records.records[int(str(row.extra_info["index"]))]
            assert isinstance(record, Mapping), "a bad row has no place among the rows"
            beside = {key: record[key] for key in ("level", "type") if key in record}
            kept[split].append({harness.question: row.question, answer: record[answer], **beside})
    if format == "math_lighteval":
        numbered = {str(index): row for index, row in enumerate(kept["test"])}
        files = {"math.json": json.dumps(numbered, ensure_ascii=False, indent=1) + "\n"}
    else:
        files = {
            f"{split}.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in listed)
            for split, listed in kept.items()
        }
    return len(kept["test"]), files


def configuration(
    run: str,
    recipe: Any,
    effective: Mapping[str, object],
    models: Mapping[str, Path],
    harness: Harness,
    data: Path,
) -> str:
    """The Python file that OpenCompass runs. `models` are folders by name, `data` the folder of the data set."""
    from verlbox.datasets import named
    from verlbox.generate import engine_settings
    from verlbox.stacks import STACKS

    messages = named(recipe.dataset.prompt).messages(f"{{{harness.question}}}")
    template: dict[str, Any] = {"round": [{"role": "HUMAN", "prompt": messages[-1]["content"]}]}
    if len(messages) > 1:
        template = {"begin": [{"role": "SYSTEM", "prompt": messages[0]["content"]}], **template}
    on_cpu = STACKS[recipe.stack].platform == "cpu"
    engine = engine_settings(effective)
    kind = "HuggingFacewithChatTemplate" if on_cpu else "VLLMwithChatTemplate"
    if on_cpu:
        arguments: dict[str, Any] = {"device_map": "cpu", "torch_dtype": "float32"}
        # A model's generation_config may hold a repetition penalty, which Hugging Face's generate would apply.
        decoding: dict[str, Any] = {"do_sample": False, "repetition_penalty": 1.0}
    else:
        arguments = dict(engine)
        decoding = {"temperature": 0}
    tokens = int(str(effective.get("data.max_response_length", 512)))
    devices = 0 if on_cpu else engine["tensor_parallel_size"]
    listed = "".join(
        f"""    dict(
        type={kind},
        abbr={f"{run}-{name}"!r},
        path={str(path)!r},
        model_kwargs=dict({_keywords(arguments)}),
        generation_kwargs=dict({_keywords(decoding)}),
        # OpenCompass gives a system message to the user by default; the training prompt has it as what it is.
        meta_template=dict(
            round=[dict(role="HUMAN", api_role="HUMAN"), dict(role="BOT", api_role="BOT", generate=True)],
            reserved_roles=[dict(role="SYSTEM", api_role="SYSTEM")],
        ),
        max_out_len={tokens},
        batch_size={recipe.evaluate.batch_size},
        run_cfg=dict(num_gpus={devices}),
    ),
"""
        for name, path in models.items()
    )
    return f'''"""Base and trained model of the verlbox run {run} on its test split, prompt {recipe.dataset.prompt}."""

from mmengine.config import read_base
from opencompass.models import {kind}

with read_base():
    from opencompass.configs.datasets.{harness.config} import {harness.variable}

datasets = [*{harness.variable}]
datasets[0]["path"] = {str(data)!r}
datasets[0]["infer_cfg"]["prompt_template"]["template"] = {template!r}
datasets[0]["infer_cfg"]["inferencer"]["max_out_len"] = {tokens}

models = [
{listed}]

work_dir = {str(data.parent / "outputs")!r}
'''


def _keywords(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
