"""What a plan needs of an accelerator's memory, for people: one card in detail, or a line on each that is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from verlbox import findings, hydra_overrides, memory
from verlbox.findings import Finding, FindingsError
from verlbox.hub import bundled
from verlbox.plan import Plan, base_model, set_settings
from verlbox.stacks import STACKS

UNKNOWN_CARD = findings.register("card-unknown", "error", "No accelerator of this name is in the planner's table.")
NO_CONFIG = findings.register("memory-no-config", "note", "The model's config.json is not here yet.")

VENDORS = {"npu": "ascend", "cuda": "nvidia"}


def describe(plan: Plan, card_name: str | None, propose: bool) -> tuple[str, list[Finding]]:
    """Text and findings on memory: of one card, with settings that fit when asked to `propose`; else of all cards.

    Raises FindingsError for a card that is not known.
    """
    stack = STACKS[plan.recipe.stack]
    vendor = VENDORS.get(stack.platform)
    card = None if card_name is None else memory.find_card(card_name)
    if card_name is not None and card is None:
        raise FindingsError(
            UNKNOWN_CARD.finding(
                f"no card {card_name}",
                why="Its memory is not known.",
                fix=f"Cards: {', '.join(memory.CARDS)}.",
            )
        )
    if vendor is None and card is None:
        return "", []
    config = model_config(plan)
    if config is None:
        note = NO_CONFIG.finding(
            f"memory cannot be estimated before {plan.recipe.model.name} is downloaded",
            why="The estimate needs the model's config.json.",
            fix="Run with --until download first.",
        )
        return "", [note]
    shape, settings = memory.shape(config), set_settings(plan.settings, plan.recipe.overrides)
    if card is None:
        cards = [c for c in memory.CARDS.values() if c.vendor == vendor]
        verdicts = {c.name: memory.estimate(shape, settings, c, verl=stack.verl).verdict for c in cards}
        return "memory   " + "; ".join(f"{name}: {verdict}" for name, verdict in verdicts.items()), []
    if not propose:
        made = memory.estimate(shape, settings, card, verl=stack.verl)
        return memory.to_text(made), list(made.findings)
    changes, made = memory.fit(shape, settings, card, verl=stack.verl)
    lines = [hydra_overrides.format_override(key, value) for key, value in changes.items()]
    shown = "\n".join(lines) if lines else "nothing has to change"
    return f"{memory.to_text(made)}\n\n# settings that fit, the algorithm unchanged:\n{shown}", list(made.findings)


def model_config(plan: Plan) -> Mapping[str, object] | None:
    """The config.json of a plan's model, where it is here or known by the model's hub name."""
    model = plan.recipe.model
    places = [base_model(plan.run)]
    if model.source == "bundled":
        places.append(bundled.path("model", model.name))
    elif model.path is not None:
        places.append(Path(model.path))
    for place in places:
        if (place / "config.json").is_file():
            config: Mapping[str, object] = json.loads((place / "config.json").read_text(encoding="utf-8"))
            return config
    return memory.known_config(model.name)
