"""Throughput and accuracy of the answer check: a plain sequential math-verify grader against verlbox's, in one run.

    python benchmarks/reward_throughput.py --data DIRECTORY [--math N]

DIRECTORY holds math_model_answer_pairs.jsonl (prediction, gold, expected_equal) and math/train.jsonl, math/test.jsonl
(solution). Both graders get the same pairs in the same order: the model answers, and for N MATH problems the answer of
the problem itself and that of another problem. Nothing is cached before the measurement; start-up of the worker
processes is measured apart and counted in the total as well. Hostile answers are given to verlbox's grader alone,
because the plain one may never return from them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from verlbox.rewards import answers, equivalence, pool

HOSTILE = (
    "9^{9^{9^{9}}}",
    "\\sum_{k=1}^{1000000000} k^{k}",
    "\\int_0^1 x^{x^{x^{x}}} \\, dx",
    "100000!",
    "(" * 1900 + "1" + ")" * 1900,
    "x+" * 50_000,
)


@dataclass(frozen=True)
class Pair:
    """One comparison; `equal` is its label, None where only speed is measured."""

    gold: str
    answer: str
    equal: bool | None


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def load(data: Path, problems: int) -> list[Pair]:
    """The pairs, in a fixed order. Raises OSError when a file is missing."""
    pairs = [
        Pair(row["gold"], row["prediction"], bool(row["expected_equal"]))
        for row in read(data / "math_model_answer_pairs.jsonl")
    ]
    solutions = [row["solution"] for split in ("train", "test") for row in read(data / "math" / f"{split}.jsonl")]
    chosen = random.Random(0).sample(solutions, problems)
    golds = [found[0] for solution in chosen if (found := answers.committed(solution))]
    pairs += [Pair(gold, gold, True) for gold in golds]
    pairs += [Pair(gold, other, None) for gold, other in zip(golds, golds[1:] + golds[:1], strict=True)]
    random.Random(1).shuffle(pairs)
    return pairs


def plain(pairs: list[Pair]) -> tuple[list[bool], float, float]:
    """math-verify on one pair after the other, with its own time limits: verdicts, seconds, the slowest pair."""
    from math_verify import parse, verify

    verdicts: list[bool] = []
    slowest = 0.0
    start = time.perf_counter()
    for pair in pairs:
        begun = time.perf_counter()
        gold, answer = (parse(f"\\boxed{{{text}}}") for text in (pair.gold, pair.answer))
        verdicts.append(bool(verify(gold, answer)))
        slowest = max(slowest, time.perf_counter() - begun)
    return verdicts, time.perf_counter() - start, slowest


def ours(pairs: list[Pair], workers: int) -> tuple[list[bool], float, float]:
    """verlbox's grader on the whole batch: verdicts, seconds, the slowest pair."""
    start = time.perf_counter()
    verdicts = equivalence.judge([(pair.gold, pair.answer) for pair in pairs], workers=workers)
    seconds = time.perf_counter() - start
    return [verdict.reason == "ok" for verdict in verdicts], seconds, max(verdict.seconds for verdict in verdicts)


def accuracy(pairs: list[Pair], verdicts: list[bool]) -> tuple[int, int]:
    """(right, labelled)."""
    labelled = [(pair.equal, verdict) for pair, verdict in zip(pairs, verdicts, strict=True) if pair.equal is not None]
    return sum(label == verdict for label, verdict in labelled), len(labelled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--math", type=int, default=1000, metavar="N", help="MATH problems (default: 1000)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    arguments = parser.parse_args()
    pairs = load(arguments.data, arguments.math)
    packages = ("math-verify", "latex2sympy2-extended", "sympy")
    print(f"machine   {platform.machine()}, {pool.cores()} cores, load {os.getloadavg()[0]:.1f}, Python", end=" ")
    print(platform.python_version())
    print("versions  " + ", ".join(f"{name} {version(name)}" for name in packages))
    print(f"pairs     {len(pairs)}, {sum(pair.equal is not None for pair in pairs)} of them labelled")

    start = time.perf_counter()
    pool.shared(arguments.workers).ask_all([("1", "1")] * arguments.workers)
    start_up = time.perf_counter() - start
    our_verdicts, our_seconds, our_slowest = ours(pairs, arguments.workers)
    plain([Pair("1", "1", True)])  # its imports are not counted either
    plain_verdicts, plain_seconds, plain_slowest = plain(pairs)
    print(f"{'':22}{'math-verify':>12}{'verlbox':>12}")
    print(f"{'seconds':22}{plain_seconds:12.2f}{our_seconds:12.2f}")
    print(f"{'pairs a second':22}{len(pairs) / plain_seconds:12.0f}{len(pairs) / our_seconds:12.0f}")
    print(f"{'slowest pair, s':22}{plain_slowest:12.3f}{our_slowest:12.3f}")
    for name, verdicts in (("math-verify", plain_verdicts), ("verlbox", our_verdicts)):
        right, labelled = accuracy(pairs, verdicts)
        print(f"accuracy  {name}: {right} of {labelled}, {right / labelled:.4f}")
    differing = sum(
        a != b for pair, a, b in zip(pairs, plain_verdicts, our_verdicts, strict=True) if pair.equal is None
    )
    print(f"unlabelled pairs on which the two differ: {differing}")
    print(f"ratio     {plain_seconds / our_seconds:.1f} (with start-up {plain_seconds / (our_seconds + start_up):.1f})")

    slowest = 0.0
    for answer in HOSTILE:
        start = time.perf_counter()
        equivalence.judge([("72", answer)], workers=arguments.workers)
        slowest = max(slowest, time.perf_counter() - start)
    print(f"hostile   slowest of {len(HOSTILE)}: {slowest:.3f} s, limit {pool.TIMEOUT:.1f} s of processor time")


if __name__ == "__main__":
    main()
