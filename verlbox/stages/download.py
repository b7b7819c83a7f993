"""Download: model and data set, verified, in the shared cache; the run keeps a link to its model."""

from __future__ import annotations

from typing import Any

from verlbox.recipe import Recipe, flat

NAME = "download"


def inputs(recipe: Recipe) -> dict[str, Any]:
    dataset = ("dataset.name", "dataset.source", "dataset.revision", "dataset.path")
    settings = {
        **flat(recipe.model, "model"),
        **{k: v for k, v in flat(recipe.dataset, "dataset").items() if k in dataset},
    }
    return settings
