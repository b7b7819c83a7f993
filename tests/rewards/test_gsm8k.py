"""GSM8K's reward on real solutions and collected cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verlbox.rewards import gsm8k, reasons


@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
def test_every_published_solution_earns_its_own_answer(shared: Path, split: str, rows: int) -> None:
    lines = (shared / "data/gsm8k" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    solutions = [json.loads(line)["answer"] for line in lines]
    results = gsm8k.compute_score([""] * rows, solutions, [text.rpartition("#### ")[2] for text in solutions])
    assert [row["acc"] for row in results] == [1.0] * rows


def test_every_row_has_the_same_numeric_keys_for_verl() -> None:
    rows = gsm8k.compute_score(["a"] * 3, ["#### 1,000", "#### 2", "no"], ["1000", "1", "1"], [{}, {}, {}])
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert [row["reason"] for row in rows] == ["ok", "wrong", "no_answer"]
    assert [sum(float(row[f"reason_{code}"]) for code in reasons.REASONS) for row in rows] == [1.0, 1.0, 1.0]
