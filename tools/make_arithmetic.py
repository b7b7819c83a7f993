"""Make the bundled arithmetic word problems: `python tools/make_arithmetic.py [FOLDER]`.

Writes train.jsonl and test.jsonl in the format of GSM8K's own files (question; answer with calculator annotations and a
last line `#### N`). The seed is fixed: the same bytes every time.

What is held out. For each operation a fifth of the number pairs belongs to the test set. A pair is an unordered set, so
3 + 8 in the test set keeps 8 + 3 out of training too. The questions differ as strings as a consequence. The bundled
model was pre-trained on training pairs only (tools/make_tiny_model.py uses `draw` with the same split).
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEED = 20251226
ROWS = {"train": 1024, "test": 300}
HELD_OUT = 0.2  # share of the number pairs of each operation that only the test set uses

NAMES = ("Ann", "Ben", "Eva", "Ivy", "Leo", "Mia", "Sam", "Tom")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps")


@dataclass(frozen=True)
class Operation:
    """One operation: its sign, the ranges of its two numbers, and (question, reasoning) templates."""

    sign: str
    first: range
    second: range
    templates: tuple[tuple[str, str], ...]

    def apply(self, a: int, b: int) -> int:
        return {"+": a + b, "-": a - b, "*": a * b}[self.sign]

    def pairs(self) -> list[tuple[int, int]]:
        """All (a, b) whose result is from 1 to 99, ordered as they are asked."""
        return [(a, b) for a in self.first for b in self.second if 1 <= self.apply(a, b) <= 99]


OPERATIONS = (
    Operation(
        "+",
        range(2, 41),
        range(2, 41),
        (
            ("{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?", "{name} has"),
            ("{name} has {a} {things} and finds {b} more. How many {things} are there?", "There are"),
            ("There are {a} {things} on the table and {b} in a bag. How many {things} in all?", "In all there are"),
            ("{name} has {a} {things}. A friend gives {name} {b} {things}. How many are there now?", "Now there are"),
        ),
    ),
    Operation(
        "-",
        range(3, 41),
        range(2, 41),
        (
            ("{name} has {a} {things} and loses {b}. How many {things} does {name} have now?", "{name} has"),
            ("{name} has {a} {things} and sells {b} of them. How many {things} are left?", "What is left is"),
            ("There are {a} {things} on the table. {name} takes {b} away. How many are left?", "What is left is"),
            ("{name} has {a} {things} and gives {b} to a friend. How many {things} are there now?", "Now there are"),
        ),
    ),
    Operation(
        "*",
        range(2, 6),
        range(11, 50),
        (
            ("{name} has {a} boxes with {b} {things} in each. How many {things} does {name} have?", "{name} has"),
            ("{name} fills {a} bags with {b} {things} each. How many {things} are there?", "There are"),
            ("{name} gets {b} {things} a day for {a} days. How many {things} in all?", "In all {name} gets"),
            ("There are {a} tables with {b} {things} on each. How many {things} in all?", "In all there are"),
        ),
    ),
)


@dataclass(frozen=True)
class Problem:
    """A question, its numbers as `a` and `b`, and the sentence that opens its reasoning."""

    question: str
    reasoning: str
    operation: Operation
    template: int
    a: int
    b: int

    @property
    def result(self) -> int:
        return self.operation.apply(self.a, self.b)

    def row(self) -> dict[str, str]:
        """The problem as a row of a GSM8K file."""
        sum_ = f"{self.a}{self.operation.sign}{self.b}"
        line = f"{self.reasoning} {sum_}=<<{sum_}={self.result}>>{self.result}."
        return {"question": self.question, "answer": f"{line}\n#### {self.result}"}


def pairs_of(split: str) -> dict[str, list[tuple[int, int]]]:
    """The number pairs of "train" or "test", by operation sign. No unordered pair is in both."""
    chosen = {}
    for operation in OPERATIONS:
        unordered = sorted({tuple(sorted(pair)) for pair in operation.pairs()})
        random.Random(f"{SEED} pairs {operation.sign}").shuffle(unordered)
        held_out = set(unordered[: round(HELD_OUT * len(unordered))])
        chosen[operation.sign] = [
            pair for pair in operation.pairs() if (tuple(sorted(pair)) in held_out) == (split == "test")
        ]
    return chosen


def draw(split: str, rng: random.Random) -> Iterator[Problem]:
    """Problems of "train" or "test" without end: operation, template and pair uniform, repetitions possible."""
    pairs = pairs_of(split)
    while True:
        operation = rng.choice(OPERATIONS)
        template = rng.randrange(len(operation.templates))
        a, b = rng.choice(pairs[operation.sign])
        words = {"a": a, "b": b, "name": rng.choice(NAMES), "things": rng.choice(THINGS)}
        question, reasoning = (text.format(**words) for text in operation.templates[template])
        yield Problem(question, reasoning, operation, template, a, b)


def rows(split: str) -> list[dict[str, str]]:
    """The rows of a file; each question once."""
    unique: dict[str, dict[str, str]] = {}
    for problem in draw(split, random.Random(f"{SEED} rows {split}")):
        unique.setdefault(problem.question, problem.row())
        if len(unique) == ROWS[split]:
            return list(unique.values())
    raise AssertionError("draw never ends")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ROWS:
        text = "".join(json.dumps(row) + "\n" for row in rows(split))
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    bundled = Path(__file__).resolve().parents[1] / "verlbox" / "assets" / "arithmetic"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else bundled)
