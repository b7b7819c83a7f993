"""`ask RUN "question"`: one greedy answer from a run's trained (or base) model, asked as training asked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from verlbox import findings
from verlbox.findings import EXIT_OK, FindingsError
from verlbox.run import Run

NO_MODEL = findings.register("ask-no-model", "error", "The run has no trained model yet.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ask`."""
    parser.add_argument("run", help="a run's folder or name")
    parser.add_argument("question")
    parser.add_argument("--base", action="store_true", help="ask the model that the run started from")
    parser.add_argument("--compare", action="store_true", help="ask both models")
    parser.add_argument("--max-new-tokens", type=int, help="length of the answer (default: as in training)")
    parser.add_argument("--runs", help="folder that holds the runs (default: $VERLBOX_RUNS, else ./runs)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer, or both. Raises FindingsError when the run or its model is not there."""
    from verlbox import pipeline
    from verlbox.datasets import named
    from verlbox.generate import Sampling, answers
    from verlbox.run import open_run, runs_folder

    opened = open_run(arguments.run, runs_folder(arguments.runs))
    loaded = pipeline.stored_recipe(opened)
    effective = pipeline.make_plan(loaded, opened, lint=False).effective
    tokens = arguments.max_new_tokens or int(str(effective.get("data.max_response_length", 512)))
    names = ["base", "trained"] if arguments.compare else ["base" if arguments.base else "trained"]
    models = models_of(opened, names)
    messages = named(loaded.recipe.dataset.prompt).messages(arguments.question)
    for name in names:
        (answer,) = answers(models[name], [messages], Sampling(max_new_tokens=tokens))
        print(f"{name}: {answer['response']}" if arguments.compare else answer["response"])
    return EXIT_OK


def models_of(run: Run, names: Sequence[str]) -> dict[str, Path]:
    """The folders of a run's models, of "base" and "trained". Raises FindingsError when one is not there yet."""
    from verlbox.plan import base_model

    places = {"base": base_model(run), "trained": run.model}
    missing = [name for name in names if not (places[name] / "config.json").is_file()]
    if missing:
        raise FindingsError(
            NO_MODEL.finding(
                f"{run.path} has no {' and no '.join(missing)} model",
                why="There is nothing to ask.",
                fix=f"Finish the run: python entrypoint.py run {run.path / 'recipe.resolved.yaml'}",
            )
        )
    return {name: places[name] for name in names}
