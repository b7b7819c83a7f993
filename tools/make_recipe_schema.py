"""Writes recipes/recipe.schema.json, with which editors complete and check recipes.

usage: python tools/make_recipe_schema.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "recipes" / "recipe.schema.json"
sys.path.insert(0, str(ROOT))

from verlbox.recipe import Recipe  # noqa: E402 - found through the line above


def schema() -> str:
    return json.dumps(Recipe.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema(), encoding="utf-8")
