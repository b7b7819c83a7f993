"""Download: model and data set, verified, in the shared cache; the run keeps a link to its model."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verlbox import hub
from verlbox.datasets import files
from verlbox.hub import DatasetSpec, Fetched, ModelSpec, bundled
from verlbox.hub.spec import Kind
from verlbox.plan import base_model
from verlbox.recipe import Dataset, Model, Recipe, flat
from verlbox.run import Run, digest
from verlbox.stages import Context, Outputs

NAME = "download"
CACHE_VARIABLE = "VERLBOX_CACHE"
DATASET_KEYS = ("dataset.name", "dataset.source", "dataset.revision", "dataset.path")


def inputs(recipe: Recipe, run: Run) -> dict[str, Any]:
    dataset = {key: value for key, value in flat(recipe.dataset, "dataset").items() if key in DATASET_KEYS}
    return {**flat(recipe.model, "model"), **dataset, **_content(recipe, run)}


def _content(recipe: Recipe, run: Run) -> dict[str, str]:
    """Hashes of what is not in the cache, where content may change under the same name."""
    marker = run.marker(NAME)
    known = marker.outputs if marker else {}
    found: dict[str, str] = {}
    if (model := _own_path("model", recipe.model)) is not None:
        found["model.content"] = digest(run.records([model], known))
    if (dataset := _own_path("dataset", recipe.dataset)) is not None:
        found["dataset.content"] = digest(run.records(_split_files(dataset), known))
    return found


def _own_path(kind: Kind, section: Model | Dataset) -> Path | None:
    """The place of a model or data set that needs no download."""
    if section.source == "bundled":
        return bundled.path(kind, section.name)
    return Path(section.path) if section.path else None


def _split_files(path: Path) -> list[Path]:
    return sorted({file for split in ("train", "test") for file in files.find(path, split)})


def cache_folder() -> Path:
    """Where models and data sets are kept for all runs: $VERLBOX_CACHE, else verlbox in the user's cache folder."""
    own = os.environ.get(CACHE_VARIABLE)
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "verlbox"


def run(context: Context) -> Outputs:
    recipe, run, cache = context.recipe, context.run, cache_folder()
    model_spec = ModelSpec(recipe.model.name, *_where(recipe.model))
    dataset_spec = DatasetSpec(recipe.dataset.name, *_where(recipe.dataset))
    shown = _Shown(context)
    model = hub.fetch_model(model_spec, cache, offline=context.offline, progress=shown)
    dataset = hub.fetch_dataset(dataset_spec, cache, offline=context.offline, progress=shown)
    _link(base_model(run), model.path)
    for kind, fetched in (("model", model), ("dataset", dataset)):
        context.console.line(
            f"{kind}: {fetched.name} from {fetched.source}, {fetched.bytes:,} bytes, all files checked"
        )
    return Outputs(
        [model.path, *_split_files(dataset.path)],
        {"model": _facts(model), "dataset": _facts(dataset)},
        [*model.findings, *dataset.findings],
    )


def _where(section: Model | Dataset) -> tuple[tuple[hub.Source, ...], str | None, Path | None]:
    sources: Sequence[hub.Source] = [section.source] if isinstance(section.source, str) else section.source
    return tuple(sources), section.revision, Path(section.path) if section.path else None


class _Shown:
    """Prints the progress of a download, at most once a second and at its end."""

    def __init__(self, context: Context) -> None:
        self.console = context.console
        self.last = 0.0

    def __call__(self, progress: hub.Progress) -> None:
        now = time.monotonic()
        if now - self.last >= 1 or progress.done == progress.total:
            self.last = now
            if not progress.total:
                self.console.progress(f"{progress.name}: another run is downloading it; waiting")
                return
            share = progress.done / progress.total
            size = f"{progress.done / 1e6:,.1f} of {progress.total / 1e6:,.1f} MB"
            self.console.progress(f"{progress.name} from {progress.source}: {size} ({share:.0%})")


def _link(link: Path, target: Path) -> None:
    """Points a symbolic link to `target`, replacing an earlier one in one step."""
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.resolve())
    temporary.replace(link)


def _facts(fetched: Fetched) -> dict[str, Any]:
    return {
        "name": fetched.name,
        "source": fetched.source,
        "revision": fetched.revision,
        "path": str(fetched.path.resolve()),
        "sha256": fetched.digest,
        "files": dict(fetched.sha256),
    }
