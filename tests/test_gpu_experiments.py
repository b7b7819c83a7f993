"""The experiments of benchmarks/gpu: each is a sound plan, and each of its settings differs from the recipe's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from verlbox import preflight, recipe
from verlbox.cli import RECIPES
from verlbox.findings import Finding
from verlbox.hydra_overrides import parse_override
from verlbox.plan import Plan, Rows, make
from verlbox.run import Run

DATA: dict[str, Any] = yaml.safe_load((RECIPES.parent / "benchmarks/gpu/experiments.yaml").read_text("utf-8"))


def planned(entry: dict[str, Any], folder: Path, settings: list[str]) -> tuple[Plan, list[Finding]]:
    common = [] if entry.get("real") else [text.replace("$VBX", str(folder)) for text in DATA["common"]]
    loaded = recipe.load(RECIPES / f"{entry['recipe']}.yaml", [*common, *settings], files_here=False)
    made = make(loaded, Run(folder / "run"), Rows(7473, 1319, "as published"), None)
    return made, preflight.lint(made, loaded.places)


@pytest.mark.parametrize("name", list(DATA["experiments"]))
def test_an_experiment_is_sound_and_none_of_its_settings_is_the_recipes_own(name: str, tmp_path: Path) -> None:
    entry = DATA["experiments"][name]
    settings = [*entry["set"], *entry.get("more", [])]
    assert [found for found in planned(entry, tmp_path, settings)[1] if found.severity == "error"] == []
    changes = [
        parse_override(text) for text in settings if text.lstrip("+").startswith(("actor_rollout_ref.", "critic."))
    ]
    raw = {change.raw for change in changes}
    before = planned(entry, tmp_path, [text for text in settings if text not in raw])[0].effective
    assert [change.raw for change in changes if before.get(change.key, "absent") == change.value] == []
