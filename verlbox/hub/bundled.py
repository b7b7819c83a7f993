"""Models and data sets that come with verlbox, for runs without a network."""

from __future__ import annotations

from pathlib import Path

from verlbox.findings import FindingsError, register
from verlbox.hub.spec import Kind

UNKNOWN = register("bundled-unknown", "error", "The recipe names a bundled model or data set that does not exist.")

ASSETS = Path(__file__).parents[1] / "assets"


def names(kind: Kind) -> list[str]:
    """What is bundled: folders of verlbox/assets with a config.json are models, with a train split data sets."""
    mark = "config.json" if kind == "model" else "train.jsonl"
    return sorted(folder.name for folder in ASSETS.glob("*") if (folder / mark).is_file())


def path(kind: Kind, name: str) -> Path:
    """The folder of a bundled model or data set. Raises FindingsError (`bundled-unknown`)."""
    known = names(kind)
    if name in known:
        return ASSETS / name
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    raise FindingsError(
        UNKNOWN.finding(
            f"there is no bundled {kind} {name!r}",
            why="source: bundled takes only what comes with verlbox",
            fix=(f"did you mean {near[0]}? " if near else "") + f"Bundled: {', '.join(known) or 'none'}",
        )
    )
