"""What verl's console log says of a run beside its metrics: the resolved configuration, the rows, the planned steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verlbox.metrics.read import plain
from verlbox.report.facts import DataFlow, RunFacts

_PREFIX = re.compile(r"^\((?P<actor>\w+)[^)]*pid=\d+[^)]*\) ?")
_GLUED = re.compile(r"\((?:[^()]* )?pid=\d+[^()]*\)\s*$")  # the next line's prefix, when two processes print at once
_ROWS = re.compile(r"^(?P<filtered>filter )?(?:original )?dataset len: (?P<rows>\d+)")
_PLANNED = re.compile(r"Total training steps: (\d+)")
_BATCHES = re.compile(r"Size of train dataloader: (\d+)")
_VALIDATION_BATCHES = re.compile(r"Size of val dataloader: (\d+)")
_MOST_LINES = 20_000  # the configuration and the rows come before the first step


def facts_of_log(file: Path) -> RunFacts:
    """The facts in the head of a log; those that it does not hold stay empty. Raises OSError when it cannot be read."""
    lines = list(_head(file))
    settings = _configuration(lines)
    lengths: list[list[int]] = []  # of each split: rows, then rows after verl's own filter
    planned = batches = validation_batches = None
    for _, line in lines:
        if match := _ROWS.match(line):
            if match["filtered"] and lengths:
                lengths[-1].append(int(match["rows"]))
            elif not match["filtered"]:
                lengths.append([int(match["rows"])])
        if match := _PLANNED.search(line):
            planned = int(match[1])
        if match := _BATCHES.search(line):
            batches = int(match[1])
        if match := _VALIDATION_BATCHES.search(line):
            validation_batches = int(match[1])
    batch = settings.get("data.train_batch_size")
    used = batches * batch if batches is not None and isinstance(batch, int) else None
    size = settings.get("data.val_batch_size")
    graded = validation_batches * size if validation_batches is not None and isinstance(size, int) else None
    flows = [
        DataFlow(
            split,
            rows[0],
            rows[-1],
            too_long=rows[0] - rows[-1],
            used_per_epoch=used if split == "train" else None,
            # Fewer than the rows there are only where the loader has drop_last (verl of 2024, ray_trainer.py).
            graded=graded if split == "test" and graded is not None and graded < rows[-1] else None,
        )
        for split, rows in zip(("train", "test"), lengths, strict=False)
    ]
    return RunFacts(
        name=file.stem, verl_overrides=settings, data=tuple(flows), planned_steps=planned, from_log=bool(settings)
    )


def _head(file: Path) -> Iterator[tuple[str, str]]:
    """The lines before the first metrics line, each as (Ray actor or empty, line without prefix and colours)."""
    with file.open("rb") as stream:
        for count, raw in enumerate(stream):
            line = plain(raw.decode("utf-8", "replace")).rstrip("\r\n")
            match = _PREFIX.match(line)
            actor, rest = (match["actor"], line[match.end() :]) if match else ("", line)
            if count > _MOST_LINES or re.match(r"step:\s?\d+( - |, )", rest):
                return
            yield actor, rest


def _configuration(lines: list[tuple[str, str]]) -> dict[str, Any]:
    """The configuration that verl's task runner pretty-prints, as dotted keys; empty when it is not there whole."""
    for start, (actor, line) in enumerate(lines):
        if not line.startswith("{'"):
            continue
        collected: list[str] = []
        for other, text in lines[start:]:
            if other != actor:
                continue
            collected.append(_GLUED.sub("", text))
            if collected[-1].endswith("}"):
                try:
                    found = ast.literal_eval("\n".join(collected))
                except (ValueError, SyntaxError):
                    continue
                if isinstance(found, dict) and "actor_rollout_ref" in found:
                    return dict(_flat(found))
                break
    return {}


def _flat(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif key != "_target_":
            yield f"{prefix}{key}", value
