"""`ask RUN "question"`: one greedy answer from a run's trained (or base) model, asked as training asked."""

from __future__ import annotations

import argparse

from verlbox import findings
from verlbox.findings import EXIT_OK, FindingsError

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
    from verlbox.plan import base_model
    from verlbox.run import open_run, runs_folder

    opened = open_run(arguments.run, runs_folder(arguments.runs))
    loaded = pipeline.stored_recipe(opened)
    effective = pipeline.make_plan(loaded, opened).effective
    tokens = arguments.max_new_tokens or int(str(effective.get("data.max_response_length", 512)))
    models = {"base": base_model(opened), "trained": opened.model}
    names = ["base", "trained"] if arguments.compare else ["base" if arguments.base else "trained"]
    missing = [name for name in names if not (models[name] / "config.json").is_file()]
    if missing:
        raise FindingsError(
            NO_MODEL.finding(
                f"{opened.path} has no {' and no '.join(missing)} model",
                why="There is nothing to ask.",
                fix=f"Finish the run: python entrypoint.py run {opened.path / 'recipe.resolved.yaml'}",
            )
        )
    messages = named(loaded.recipe.dataset.prompt).messages(arguments.question)
    for name in names:
        (answer,) = answers(models[name], [messages], Sampling(max_new_tokens=tokens))
        print(f"{name}: {answer['response']}" if arguments.compare else answer["response"])
    return EXIT_OK
