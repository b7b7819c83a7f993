"""Why a response got its score: the reason codes, how verl's metrics carry them, and when they fail a run.

verl 0.6.1 and 0.9.1 average every numeric key that a reward returns over the validation set, as
`val-aux/<source>/<key>/mean@n`, skip strings, and log none of these keys for training steps. So every result carries
the reason as a string, for the dumped generations, and as one 0/1 column a code; `append_tally` keeps the reasons of
the training steps in a file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from verlbox.findings import Finding, register

Reason = Literal["ok", "wrong", "no_answer", "unparsable", "too_long", "timeout", "crash"]
Row = dict[str, float | str]  # what a reward returns for one response; the same keys in every row

REASONS: tuple[Reason, ...] = ("ok", "wrong", "no_answer", "unparsable", "too_long", "timeout", "crash")

# These say that the grader failed, not that the model did.
GRADER_FAILURES: tuple[Reason, ...] = ("timeout", "crash")

UNGRADED = register(
    "reward-ungraded",
    "error",
    "Too large a share of the responses could not be graded (timeout or crash), so their reward 0 means nothing.",
)


def reason_columns(reason: Reason) -> Row:
    """The reason as verl can carry it: `reason` as text and every `reason_<code>` as 1.0 or 0.0, in fixed order."""
    columns: Row = {"reason": reason}
    columns.update({f"reason_{code}": float(code == reason) for code in REASONS})
    return columns


def append_tally(path: str | Path, reasons: Iterable[Reason]) -> None:
    """Appends the counts of one graded batch to a JSONL file, as one write: several Ray workers may share the file.

    Raises OSError when the folder does not exist or is not writable.
    """
    line = json.dumps(dict(sorted(Counter(reasons).items()))) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read_tally(path: str | Path) -> Counter[str]:
    """Total count of each reason in a file of `append_tally`; a line cut off by a killed worker is not counted."""
    total: Counter[str] = Counter()
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                counts = json.loads(line)
            except ValueError:
                continue
            if isinstance(counts, dict):
                total.update({key: value for key, value in counts.items() if key in REASONS and isinstance(value, int)})
    return total


def reason_shares(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Data source -> reason -> share, from one validation's metrics (`val-aux/<source>/reason_<code>/mean@n`)."""
    shares: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        parts = name.split("/")
        if len(parts) >= 4 and parts[0] in ("val-aux", "val-core") and parts[-1].startswith("mean@"):
            code = parts[-2].removeprefix("reason_")
            if parts[-2].startswith("reason_") and code in REASONS:
                shares.setdefault("/".join(parts[1:-2]), {})[code] = float(value)
    return shares


def ungraded_finding(shares: Mapping[str, float], max_share: float, where: str = "") -> Finding | None:
    """An error when timeouts and crashes together exceed `max_share` (0..1) of the responses, else None.

    `shares` maps reasons to shares or to counts (a share is taken of their sum); an empty mapping gives None.
    """
    total = sum(shares.get(code, 0.0) for code in REASONS)
    if not total:
        return None
    failed = {code: shares.get(code, 0.0) / total for code in GRADER_FAILURES}
    if sum(failed.values()) <= max_share:
        return None
    detail = ", ".join(f"{code} {share:.2%}" for code, share in failed.items())
    return UNGRADED.finding(
        f"{sum(failed.values()):.2%} of the responses were not graded ({detail}); at most {max_share:.2%} is accepted",
        why="an answer that could not be graded scores 0 like a wrong one, so the policy is trained on noise",
        fix="grade the dumped generations with `entrypoint.py grade` to see which answers these are; raise the reward's"
        " `timeout` if the machine is overloaded, or give the grader more cores",
        where=where,
    )
