"""What a report says of the evaluation: base and trained model on the held-out set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from verlbox.metrics import statistics
from verlbox.report.model import (
    Block,
    Cell,
    Inline,
    Paragraph,
    Table,
    Tone,
    number,
    p_equals,
    p_value,
    plain,
    signed,
    text,
    with_error,
)


def sentences(evaluation: Mapping[str, Any]) -> Iterable[Paragraph]:
    greedy = evaluation.get("greedy")
    if isinstance(greedy, Mapping) and {"base", "trained", "gain"} <= greedy.keys():
        base, trained, p = greedy["base"], greedy["trained"], greedy.get("mcnemar_p")
        sure = isinstance(p, int | float) and p < statistics.SIGNIFICANT
        gain = float(greedy["gain"])
        tone: Tone = "info" if not sure else "good" if gain > 0 else "bad"
        yield plain(
            "headline.greedy" if sure else "headline.greedy-unsure",
            tone,
            base=number(base.get("accuracy"), 3),
            trained=number(trained.get("accuracy"), 3),
            gain=signed(gain),
            n=number(float(trained.get("n", 0))),
            base_error=number(base.get("standard_error"), 2),
            trained_error=number(trained.get("standard_error"), 2),
            base_only=str(greedy.get("base_only", "–")),
            trained_only=str(greedy.get("trained_only", "–")),
            p=p_equals(p),
        )
    sampled = evaluation.get("sampled")
    if isinstance(sampled, Mapping) and "gain" in sampled:
        gain = float(sampled["gain"])
        error = sampled.get("standard_error")
        sure = isinstance(error, int | float) and abs(gain) > 1.96 * error
        yield plain(
            "headline.sampled" if sure else "headline.sampled-unsure",
            "info" if not sure else "good" if gain > 0 else "bad",
            draws=str(sampled.get("draws", "–")),
            base=number(sampled.get("base", {}).get("accuracy"), 3),
            trained=number(sampled.get("trained", {}).get("accuracy"), 3),
            gain=signed(gain),
            error=number(error, 2),
        )


def blocks(evaluation: Mapping[str, Any]) -> Iterable[Block]:
    rows: list[tuple[Inline | Cell, ...]] = []
    for key in ("greedy", "sampled"):
        part = evaluation.get(key)
        if not isinstance(part, Mapping):
            continue
        base, trained = part.get("base") or {}, part.get("trained") or {}
        gain = part.get("gain")
        p = part.get("mcnemar_p")
        rows.append(
            (
                text(f"evaluation.{key}", draws=str(part.get("draws", 1))),
                str(trained.get("n", evaluation.get("rows", "–"))),
                with_error(base.get("accuracy"), base.get("standard_error")),
                with_error(trained.get("accuracy"), trained.get("standard_error")),
                (signed(float(gain)) if gain is not None else "–")
                + (f" ± {number(part['standard_error'], 2)}" if part.get("standard_error") is not None else ""),
                p_value(float(p)) if p is not None else "–",
            )
        )
    if rows:
        columns = tuple(text(f"column.{c}") for c in ("answers-by", "prompts", "base", "trained", "gain", "mcnemar-p"))
        yield Table(text("evaluation.table"), columns, tuple(rows), numeric=(1, 2, 3, 4, 5))
        yield plain("evaluation.note")
        if engine := evaluation.get("engine"):
            name, version, dtype = (str(engine.get(key, "–")) for key in ("name", "version", "dtype"))
            yield plain("evaluation.engine", name=name, version=version, dtype=dtype)
    for group, members in (evaluation.get("groups") or {}).items():
        listed: list[tuple[Inline | Cell, ...]] = []
        for name, part in sorted(members.items()) if isinstance(members, Mapping) else ():
            base, trained = part.get("base") or {}, part.get("trained") or {}
            gain = part.get("gain")
            if gain is None and base.get("accuracy") is not None and trained.get("accuracy") is not None:
                gain = trained["accuracy"] - base["accuracy"]
            listed.append(
                (
                    str(name),
                    str(trained.get("n", "–")),
                    with_error(base.get("accuracy"), base.get("standard_error")),
                    with_error(trained.get("accuracy"), trained.get("standard_error")),
                    signed(float(gain)) if gain is not None else "–",
                )
            )
        if listed:
            columns = tuple(text(f"column.{c}") for c in ("group", "prompts", "base", "trained", "gain"))
            yield Table(text("evaluation.group", group=str(group)), columns, tuple(listed), numeric=(1, 2, 3, 4))
    reasons = evaluation.get("reasons") or {}
    base_reasons, trained_reasons = reasons.get("base") or {}, reasons.get("trained") or {}
    codes = sorted({*base_reasons, *trained_reasons}, key=lambda c: -(trained_reasons.get(c) or 0))
    if codes:
        columns = (text("column.reason"), text("column.base"), text("column.trained"))
        counted = tuple((code, str(base_reasons.get(code, 0)), str(trained_reasons.get(code, 0))) for code in codes)
        yield Table(text("evaluation.reasons"), columns, counted, numeric=(1, 2))
    changed = evaluation.get("changed") or ()
    if changed:
        columns = tuple(text(f"column.{c}") for c in ("question", "ground-truth", "base", "trained"))
        examples = tuple(
            tuple(_excerpt(example.get(key, "")) for key in ("question", "ground_truth", "base", "trained"))
            for example in changed[:20]
        )
        yield Table(text("evaluation.changed"), columns, examples, folded=True)


def _excerpt(value: object, most: int = 600) -> str:
    shown = str(value)
    return shown if len(shown) <= most else shown[: most // 2] + " … " + shown[-most // 2 :]
