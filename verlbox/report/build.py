"""From the facts and the metrics of a run to its report, verdict first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from verlbox.findings import by_severity
from verlbox.metrics import acceptance, statistics
from verlbox.metrics.read import Metrics, Series, is_number
from verlbox.report import evaluation, figures, readings
from verlbox.report.facts import RunFacts
from verlbox.report.model import (
    Bar,
    Bars,
    Block,
    Cell,
    Code,
    Findings,
    Inline,
    Paragraph,
    Report,
    Section,
    Summary,
    Table,
    Tile,
    number,
    p_equals,
    p_value,
    percent,
    plain,
    seconds,
    signed,
    text,
    with_error,
)

# A rise to this many times the median over the run is worth a look; no bound of health, those belong to recipes.
SUDDEN = 5.0


def build(
    facts: RunFacts, metrics: Metrics, bands: Mapping[acceptance.BandKey, acceptance.Band] | None = None
) -> Report:
    """The report of a run. `bands` are those of the reference runs, read from recipes/reference when None.

    Raises FindingsError when an acceptance line names a reference run that has no such band.
    """
    if bands is None and any(isinstance(line.bound, str) for line in facts.acceptance):
        bands = acceptance.load_bands()
    verdict = acceptance.judge(facts.acceptance, metrics, facts.evaluation, bands)
    steps = metrics.steps()
    found = tuple(by_severity([*acceptance.findings(verdict), *facts.findings, *metrics.findings]))
    summary = summarise(metrics)
    changes = readings.changes(facts, metrics)
    sections = (
        _configuration(facts),
        _data(facts),
        _reward(facts, metrics, changes),
        _health(facts, metrics),
        _stability(facts, metrics),
        _efficiency(facts, metrics),
        Section("findings", text("findings.title"), (Findings(found),) if found else (plain("findings.none"),)),
        Section("limits", text("limits.title"), tuple(_limits(facts, metrics, changes))),
        _table(summary),
        _reproduce(facts, metrics),
    )
    return Report(
        title=facts.name or (metrics.files[0].name if metrics.files else "verl"),
        facts=facts,
        metrics=metrics,
        verdict=verdict,
        headline=tuple(_headline(facts, metrics, changes)),
        tiles=tuple(_tiles(facts, metrics, changes)),
        sections=tuple(section for section in sections if section.blocks),
        findings=found,
        summary=summary,
        first_step=steps[0] if steps else 0,
        last_step=steps[-1] if steps else 0,
    )


def summarise(metrics: Metrics) -> tuple[Summary, ...]:
    """First, last, minimum, maximum and mean of every metric, over its finite values."""
    rows = []
    for name in sorted(metrics.series):
        points = metrics.series[name]
        finite = points.finite()
        if not len(finite):
            nan = math.nan
            first, last = (points.steps[0], points.steps[-1]) if len(points) else (0, 0)
            rows.append(Summary(name, first, nan, last, nan, nan, nan, nan, 0, len(points)))
            continue
        values = finite.values
        rows.append(
            Summary(
                name,
                finite.steps[0],
                values[0],
                finite.steps[-1],
                values[-1],
                min(values),
                max(values),
                math.fsum(values) / len(values),
                len(values),
                len(points) - len(values),
            )
        )
    return tuple(rows)


# --- the top ---------------------------------------------------------------------------------------------------


def _headline(facts: RunFacts, metrics: Metrics, changes: list[readings.Change]) -> Iterable[Paragraph]:
    if facts.evaluation:
        yield from evaluation.sentences(facts.evaluation)
    yield from (_validation_sentence(change) for change in changes)
    yield from _score_sentences(facts, metrics)
    steps = metrics.steps()
    if facts.planned_steps and steps and steps[-1] < facts.planned_steps:
        yield plain("headline.stopped", "warn", last=str(steps[-1]), planned=str(facts.planned_steps))
    if len(steps) == 1:
        yield plain("headline.one-step", "warn")


def _validation_sentence(change: readings.Change) -> Paragraph:
    values: dict[str, Inline] = {
        "name": change.name,
        "first": number(change.first),
        "first_step": str(change.first_step),
        "last": number(change.last),
        "last_step": str(change.last_step),
        "gain": signed(change.gain),
        "n": number(float(change.n)) if change.n else "–",
        "error": number(change.last_error, 2),
        "p": p_equals(change.test.two_sided if change.test else None),
        "greater": p_equals(change.test.greater if change.test else None),
        "rounded": text("headline.counts-rounded") if change.graded else "",
    }
    if change.points == 1:
        return Paragraph(text("headline.validation-once", **values), "info")
    if change.n is None:
        return Paragraph(text("headline.validation-unknown-n", **values), "info")
    if change.test is None:
        return Paragraph(text("headline.validation-unbounded", **values), "info")
    if change.test.two_sided < statistics.SIGNIFICANT:
        return Paragraph(text("headline.validation-significant", **values), "good" if change.gain > 0 else "bad")
    return Paragraph(text("headline.validation-not-significant", **values), "warn")


def _score_sentences(facts: RunFacts, metrics: Metrics) -> Iterable[Paragraph]:
    points = metrics.get(*readings.SCORE)
    if points is None:
        return
    finite = points.finite()
    if len(finite) and not any(finite.values):
        yield plain("headline.score-zero", "bad")
        return
    line = statistics.trend(finite.steps, finite.values)
    if line is None:
        return
    sure = line.p_adjusted < statistics.SIGNIFICANT
    yield plain(
        ("headline.trend-up" if line.slope > 0 else "headline.trend-down") if sure else "headline.trend-none",
        "info" if not sure else "good" if line.slope > 0 else "bad",
        slope=signed(line.slope),
        t=number(line.t_adjusted, 2),
        p=p_equals(line.p_adjusted),
        n=number(float(line.n)),
        adjusted=text("headline.trend-adjusted", r=number(line.autocorrelation, 2)) if line.autocorrelation > 0 else "",
    )


def _tiles(facts: RunFacts, metrics: Metrics, changes: list[readings.Change]) -> Iterable[Tile]:
    greedy = (facts.evaluation or {}).get("greedy")
    if isinstance(greedy, Mapping) and "gain" in greedy:
        yield Tile(
            text("tile.accuracy"),
            f"{number(greedy['base'].get('accuracy'), 3)} → {number(greedy['trained'].get('accuracy'), 3)}",
            text("tile.held-out", n=str(greedy["trained"].get("n", "–"))),
        )
    for change in changes[:1]:
        yield Tile(
            text("tile.validation"),
            f"{number(change.first, 3)} → {number(change.last, 3)}" if change.points > 1 else number(change.last, 3),
            text("tile.rows", n=number(float(change.n))) if change.n else text("tile.rows-unknown"),
        )
    steps = metrics.steps()
    planned = f" / {facts.planned_steps}" if facts.planned_steps else ""
    yield Tile(text("tile.steps"), f"{len(steps):,}{planned}", f"{steps[0]} – {steps[-1]}" if steps else "")
    if (spent := readings.step_time(metrics)) is not None:
        yield Tile(text("tile.step-time"), seconds(spent.seconds), text("tile.mean"))
    if (speed := readings.throughput(metrics)) is not None:
        response = (
            text("tile.of-them-response", n=number(speed.response, 3))
            if speed.response is not None
            else text("tile.mean")
        )
        yield Tile(text("tile.throughput"), number(speed.total), response)


# --- configuration, data ---------------------------------------------------------------------------------------

_SETTINGS = (
    "algorithm.adv_estimator",
    "actor_rollout_ref.model.path",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.val_max_samples",
    "data.seed",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef",
    "algorithm.use_kl_in_reward",
    "algorithm.kl_ctrl.kl_coef",
    "critic.optim.lr",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.test_freq",
    "trainer.save_freq",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
)
_PACKAGES = (
    "verl",
    "torch",
    "torch-npu",
    "torch_npu",
    "vllm",
    "vllm-ascend",
    "transformers",
    "ray",
    "datasets",
    "numpy",
)


def _configuration(facts: RunFacts) -> Section:
    blocks: list[Block] = []
    rows: list[tuple[Inline | Cell, ...]] = []
    if facts.description:
        blocks.append(plain("configuration.description", text=facts.description))
    if facts.platform:
        rows.append((text("configuration.platform"), facts.platform))
    if facts.hardware is not None:
        memory = f", {number(facts.hardware.memory_gib, 3)} GiB" if facts.hardware.memory_gib else ""
        rows.append((text("configuration.devices"), f"{facts.hardware.count} × {facts.hardware.device}{memory}"))
        if facts.hardware.host:
            host: Inline = facts.hardware.host
            if facts.hardware.cores is not None:
                host = text("configuration.host-cores", host=host, cores=str(facts.hardware.cores))
            rows.append((text("configuration.host"), host))
    for key, label in (("model", "configuration.model"), ("dataset", "configuration.dataset")):
        section = facts.recipe.get(key)
        if isinstance(section, Mapping):
            named = section.get("name") or section.get("id") or section.get("path") or section.get("source")
            if named:
                rows.append((text(label), str(named)))
    if rows:
        blocks.append(Table(text("configuration.run"), (text("column.what"), text("column.value")), tuple(rows)))
    if facts.rollout:
        key = "configuration.rollout-cpu" if facts.platform == "cpu" else "configuration.rollout"
        blocks.append(plain(key, "info", engine=facts.rollout))
    known = [(key, _shown(facts.verl_overrides[key])) for key in _SETTINGS if key in facts.verl_overrides]
    if known:
        blocks.append(
            Table(text("configuration.settings"), (text("column.setting"), text("column.value")), tuple(known))
        )
        if len(facts.verl_overrides) > len(known):
            every = tuple((key, _shown(value)) for key, value in sorted(facts.verl_overrides.items()))
            columns = (text("column.setting"), text("column.value"))
            blocks.append(Table(text("configuration.all-settings"), columns, every, folded=True))
        if facts.from_log:
            blocks.append(plain("configuration.from-log", "info"))
    elif not facts.recipe:
        blocks.append(plain("configuration.unknown", "warn"))
    columns = (text("column.package"), text("column.version"))
    main = tuple((name, facts.versions[name]) for name in _PACKAGES if name in facts.versions)
    if main:
        blocks.append(Table(text("configuration.versions"), columns, main))
    if len(facts.versions) > len(main):
        every = tuple(sorted(facts.versions.items()))
        blocks.append(Table(text("configuration.all-versions"), columns, every, folded=True))
    if facts.durations:
        spent = tuple((stage, seconds(value)) for stage, value in facts.durations.items())
        blocks.append(
            Table(text("configuration.durations"), (text("column.stage"), text("column.time")), spent, numeric=(1,))
        )
    return Section("configuration", text("configuration.title"), tuple(blocks))


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    return str(value)


def _data(facts: RunFacts) -> Section:
    if not facts.data:
        return Section("data", text("data.title"), (plain("data.unknown", "info"),))
    rows: list[tuple[Inline | Cell, ...]] = []
    blocks: list[Block] = []
    for flow in facts.data:
        bad = sum(flow.bad.values())
        rows.append(
            (
                flow.split,
                f"{flow.read:,}",
                f"{bad:,}",
                f"{flow.too_long:,}",
                f"{flow.kept:,}",
                "–" if flow.used_per_epoch is None else f"{flow.used_per_epoch:,}",
            )
        )
    columns = tuple(text(f"column.{c}") for c in ("split", "read", "bad", "too-long", "kept", "used-per-epoch"))
    blocks.append(Table(text("data.rows"), columns, tuple(rows), numeric=(1, 2, 3, 4, 5)))
    reasons = tuple(
        (flow.split, reason, f"{count:,}") for flow in facts.data for reason, count in sorted(flow.bad.items()) if count
    )
    if reasons:
        columns = (text("column.split"), text("column.reason"), text("column.rows"))
        blocks.append(Table(text("data.bad"), columns, reasons, numeric=(2,)))
    for flow in facts.data:
        if flow.used_per_epoch is not None and flow.used_per_epoch < flow.kept:
            blocks.append(
                plain("data.remainder", "info", split=flow.split, rows=number(float(flow.kept - flow.used_per_epoch)))
            )
    rows_graded = readings.validation_rows(facts)
    held = readings.held_out(facts)
    if rows_graded is not None and held is not None and rows_graded < held.kept:
        key = "data.validation-batches" if rows_graded == held.graded else "data.validation-part"
        blocks.append(plain(key, "warn", n=number(float(rows_graded)), rows=number(float(held.kept))))
    return Section("data", text("data.title"), tuple(blocks))


# --- reward ----------------------------------------------------------------------------------------------------


def _reward(facts: RunFacts, metrics: Metrics, changes: list[readings.Change]) -> Section:
    blocks: list[Block] = []
    if facts.evaluation:
        blocks += evaluation.blocks(facts.evaluation)
    rows: list[tuple[Inline | Cell, ...]] = []
    for change in changes:
        test = "–"
        if change.test is not None:
            test = p_value(change.test.two_sided)
        rows.append(
            (
                change.name,
                with_error(change.first, change.first_error) + f" ({change.first_step})",
                with_error(change.last, change.last_error) + f" ({change.last_step})",
                signed(change.gain)
                + (f" ({signed(between.low, 2)} … {signed(between.high, 2)})" if (between := change.interval) else ""),
                "?" if change.n is None else f"{change.n:,}",
                test,
            )
        )
    if rows:
        columns = tuple(
            text(f"column.{c}") for c in ("metric", "first-step", "last-step", "change", "prompts", "fisher-p")
        )
        blocks.append(Table(text("reward.validation"), columns, tuple(rows), numeric=(1, 2, 3, 4, 5)))
        if any(change.graded and change.n for change in changes):
            blocks.append(plain("reward.graded", "info"))
        if any(change.n is None for change in changes):
            blocks.append(plain("reward.n-unknown", "warn"))
        small = [change for change in changes if change.n is not None and change.n < 200]
        for change in small[:1]:
            least = _least_detectable(change.n or 1)
            blocks.append(plain("reward.small", "warn", n=str(change.n), least=number(least, 2)))
    blocks += figures.charts(facts, metrics)["reward_metrics"]
    rows = []
    for label, names in (
        ("trend.score", readings.SCORE),
        ("trend.length", ("response_length/mean",)),
        ("trend.entropy", readings.ENTROPY),
        ("trend.throughput", ("perf/throughput",)),
    ):
        points = metrics.get(*names)
        line = None if points is None else statistics.trend((f := points.finite()).steps, f.values)
        if line is not None:
            rows.append(
                (
                    text(label),
                    signed(line.slope),
                    number(line.standard_error, 2),
                    number(line.t, 3),
                    p_value(line.p),
                    p_value(line.p_adjusted),
                    number(float(line.n)),
                )
            )
    if rows:
        columns = tuple(
            text(f"column.{c}") for c in ("metric", "slope", "standard-error", "t", "p", "p-adjusted", "steps")
        )
        blocks.append(Table(text("reward.trends"), columns, tuple(rows), numeric=(1, 2, 3, 4, 5, 6)))
        blocks.append(plain("reward.trend-note"))
    if metrics.get(*readings.SCORE) is not None:
        blocks.append(plain("reward.score-is"))
    elif not blocks:
        blocks.append(plain("reward.none", "warn"))
    total = sum(facts.training_reasons.values())
    if total:
        columns = (text("column.reason"), text("column.answers"), text("column.share"))
        counted = tuple(
            (code, f"{count:,}", percent(count / total))
            for code, count in sorted(facts.training_reasons.items(), key=lambda item: -item[1])
        )
        blocks.append(Table(text("reward.reasons-training"), columns, counted, numeric=(1, 2)))
    shares = readings.reason_series(metrics)
    if shares:
        columns = (text("column.reason"), text("column.first-step"), text("column.last-step"))
        listed = tuple(
            (
                code,
                f"{percent(points.values[0])} ({points.steps[0]})",
                f"{percent(points.values[-1])} ({points.steps[-1]})",
            )
            for code, points in shares.items()
        )
        blocks.append(Table(text("reward.reasons-validation"), columns, listed, numeric=(1, 2)))
    return Section("reward", text("reward.title"), tuple(blocks))


def _least_detectable(n: int) -> float:
    """The smallest difference of two proportions near 0.3 that n prompts each would show at 5 % with power 0.8.

    Source: (1.96 + 0.84) sqrt(2 p (1 - p) / n), Fleiss, Levin and Paik, Statistical Methods for Rates and
    Proportions (2003), section 4.2, without continuity correction.
    """
    return 2.80 * math.sqrt(2 * 0.3 * 0.7 / n)


# --- health, stability, efficiency -----------------------------------------------------------------------------


def _figures(metrics: Metrics, wanted: Iterable[tuple[str, tuple[str, ...], int]]) -> Table | None:
    """First, last, extremes and mean of metrics; each with what it is called and the factor it is shown with."""
    rows: list[tuple[Inline | Cell, ...]] = []
    for label, names, factor in wanted:
        name = next((n for n in names if n in metrics.series), None)
        if name is None:
            continue
        finite = metrics.series[name].finite()
        bad = len(metrics.series[name]) - len(finite)
        named: Inline = text("figure.times", name=name, factor=str(factor)) if factor != 1 else name
        if not len(finite):
            rows.append((text(label), named, *["–"] * 5, Cell(str(bad), "bad")))
            continue
        values = [v * factor for v in finite.values]
        rows.append(
            (
                text(label),
                named,
                number(values[0]),
                number(values[-1]),
                number(min(values)),
                number(max(values)),
                number(math.fsum(values) / len(values)),
                Cell(str(bad), "bad") if bad else "0",
            )
        )
    if not rows:
        return None
    columns = tuple(
        text(f"column.{c}") for c in ("what", "metric", "first", "last", "min", "max", "mean", "not-finite")
    )
    return Table(text("figure.caption"), columns, tuple(rows), numeric=(2, 3, 4, 5, 6, 7))


def _health(facts: RunFacts, metrics: Metrics) -> Section:
    blocks: list[Block] = []
    table = _figures(
        metrics,
        (
            ("curve.entropy", readings.ENTROPY, 1),
            ("curve.kl-loss", readings.KL_LOSS, figures.factor("actor/kl_loss", facts)),
            ("curve.kl-coefficient", ("actor/kl_coef", "actor/reward_kl_penalty_coeff", "critic/kl_coeff"), 1),
            ("curve.kl-reward", readings.KL_REWARD, 1),
            ("curve.policy-loss", ("actor/pg_loss",), figures.factor("actor/pg_loss", facts)),
            ("curve.value-loss", ("critic/vf_loss",), figures.factor("critic/vf_loss", facts)),
            ("curve.explained", ("critic/vf_explained_var",), 1),
        ),
    )
    if table is not None:
        blocks.append(table)
    for name in ("actor/pg_loss", "actor/kl_loss", "critic/vf_loss"):
        if name not in metrics.series:
            continue
        scale = readings.rescaling(name, facts)
        if scale is None:
            continue
        if scale.factor is None:
            blocks.append(plain(f"health.divided-{scale.why}", "warn", name=name))
        elif scale.factor > 1:
            finite = metrics.series[name].finite()
            top = max(finite.values, key=abs) if len(finite) else math.nan
            blocks.append(
                plain(
                    "health.rescaled",
                    "info",
                    name=name,
                    factor=str(scale.factor),
                    logged=number(top, 3),
                    real=number(top * scale.factor, 3),
                )
            )
    if {"actor/pg_loss", "actor/kl_loss"} & metrics.series.keys() and "verl" not in facts.versions:
        blocks.append(plain("health.version-unknown", "info"))
    if readings.is_group_of_one(facts):
        blocks.append(plain("health.group-of-one", "warn"))
    if (points := metrics.get(*readings.ENTROPY)) is not None and len(f := points.finite()) > 1 and f.values[0] > 0:
        share = f.values[-1] / f.values[0]
        blocks.append(
            plain(
                "health.entropy",
                "warn" if share < 0.1 else "",
                first=number(f.values[0], 3),
                last=number(f.values[-1], 3),
                share=percent(share, 0),
            )
        )
    blocks += figures.charts(facts, metrics)["policy_health"]
    if blocks:
        blocks.append(plain("health.bounds"))
    return Section("health", text("health.title"), tuple(blocks))


def _stability(facts: RunFacts, metrics: Metrics) -> Section:
    blocks: list[Block] = []
    table = _figures(
        metrics,
        (
            ("curve.gradient", ("actor/grad_norm",), 1),
            ("curve.critic-gradient", ("critic/grad_norm",), 1),
            ("curve.clipfrac", ("actor/pg_clipfrac",), 1),
            ("curve.ppo-kl", ("actor/ppo_kl",), 1),
            ("curve.mean-length", ("response_length/mean",), 1),
            ("curve.response-cut", ("response_length/clip_ratio",), 1),
            ("curve.aborted", ("response/aborted_ratio",), 1),
            ("curve.prompt-cut", ("prompt_length/clip_ratio",), 1),
        ),
    )
    if table is not None:
        blocks.append(table)
    why = readings.clipping(facts, metrics)
    if why and "actor/pg_clipfrac" in metrics.series:
        blocks.append(plain(f"stability.clip-{why}", "warn"))
    for name, names in (("actor/grad_norm", ("actor/grad_norm",)), ("response_length/mean", ("response_length/mean",))):
        points = metrics.get(*names)
        if points is not None and (jump := _jump(points)) is not None:
            step, value, times = jump
            blocks.append(
                plain(
                    "stability.jump", "warn", name=name, step=str(step), value=number(value, 3), times=number(times, 2)
                )
            )
    cut = metrics.get("response_length/clip_ratio")
    if cut is not None and len(f := cut.finite()) and f.values[-1] >= 0.1:
        blocks.append(plain("stability.cut", "warn", share=percent(f.values[-1])))
    blocks += figures.charts(facts, metrics)["stability_metrics"]
    return Section("stability", text("stability.title"), tuple(blocks))


def _jump(points: Series) -> tuple[int, float, float] | None:
    """The largest value when it is SUDDEN times the median or more: its step, itself, and the ratio."""
    from statistics import median

    finite = points.finite()
    if len(finite) < 5:
        return None
    middle = median(finite.values)
    top = max(finite.values)
    if middle <= 0 or top < SUDDEN * middle:
        return None
    return finite.steps[list(finite.values).index(top)], top, top / middle


def _efficiency(facts: RunFacts, metrics: Metrics) -> Section:
    blocks: list[Block] = []
    spent = readings.step_time(metrics)
    if spent is not None:
        parts = [phase for phase in spent.phases if phase.seconds > 0]
        title = text("efficiency.step", seconds=seconds(spent.seconds), n=number(float(spent.steps)))
        bars = tuple(Bar(text(f"phase.{phase.name}"), phase.seconds, phase.share) for phase in parts)
        blocks.append(Bars("step", title, bars))
        rows = tuple((text(f"phase.{p.name}"), number(p.seconds), percent(p.share)) for p in spent.phases)
        columns = (text("column.phase"), text("column.seconds"), text("column.share"))
        blocks.append(Table(title, columns, rows, numeric=(1, 2), folded=True))
        blocks.append(plain("efficiency.accounted", share=percent(1 - spent.phases[-1].share)))
        if spent.first is not None:
            blocks.append(plain("efficiency.first", seconds=seconds(spent.first)))
        if spent.resumed:
            longest = seconds(max(spent.resumed))
            blocks.append(plain("efficiency.resumed", n=number(float(len(spent.resumed))), seconds=longest))
        for name, value, times in spent.beside:
            blocks.append(
                plain(
                    "efficiency.beside-inside" if name in spent.inside else "efficiency.beside",
                    what=text(f"phase.{name}"),
                    seconds=seconds(value),
                    times=str(times),
                )
            )
    speed = readings.throughput(metrics)
    if speed is not None:
        if speed.response is not None and speed.prompt is not None:
            blocks.append(
                plain(
                    "efficiency.tokens",
                    total=number(speed.total),
                    prompt=number(speed.prompt),
                    response=number(speed.response),
                )
            )
        else:
            blocks.append(plain("efficiency.tokens-unsplit", "info", total=number(speed.total)))
        if speed.generation is not None:
            blocks.append(plain("efficiency.generation", rate=number(speed.generation)))
        blocks += _shorter_answers(metrics)
    table = _figures(
        metrics,
        (
            ("curve.step-time", readings.STEP_TIME, 1),
            ("curve.throughput", ("perf/throughput",), 1),
            ("curve.mfu-actor", ("perf/mfu/actor",), 1),
            ("curve.mfu-critic", ("perf/mfu/critic",), 1),
            ("curve.allocated", ("perf/max_memory_allocated_gb", "actor/perf/max_memory_allocated_gb"), 1),
            ("curve.reserved", ("perf/max_memory_reserved_gb", "actor/perf/max_memory_reserved_gb"), 1),
            ("curve.host-memory", ("perf/cpu_memory_used_gb", "actor/perf/cpu_memory_used_gb"), 1),
        ),
    )
    if table is not None:
        blocks.append(table)
    if "perf/mfu/actor" in metrics.series:
        top = readings.peak(facts)
        if top is None:
            blocks.append(plain("efficiency.mfu-unknown", "info"))
        elif top[0] == "CPU":
            blocks.append(plain("efficiency.mfu-cpu", "info"))
        else:
            blocks.append(plain("efficiency.mfu", device=top[0], peak=number(top[1] / 1e12, 4)))
    reserved = metrics.get("perf/max_memory_reserved_gb", "actor/perf/max_memory_reserved_gb")
    if reserved is not None and len(f := reserved.finite()):
        most = max(f.values)
        limit = facts.hardware.memory_gib if facts.hardware is not None else None
        if most == 0:
            blocks.append(plain("efficiency.memory-zero", "info"))
        elif limit and most > limit:
            blocks.append(plain("efficiency.memory-artefact", "warn", most=number(most, 3), limit=number(limit, 3)))
    blocks += figures.charts(facts, metrics)["efficiency_metrics"]
    return Section("efficiency", text("efficiency.title"), tuple(blocks))


def _shorter_answers(metrics: Metrics) -> Iterable[Paragraph]:
    """Throughput that moves with the length of answers is no change in speed: say so."""
    speed, length = metrics.get("perf/throughput"), metrics.get("response_length/mean")
    if speed is None or length is None:
        return
    lengths = dict(zip(length.steps, length.values, strict=True))
    pairs = [
        (v, lengths[s])
        for s, v in zip(speed.steps, speed.values, strict=True)
        if s in lengths and is_number(v) and is_number(lengths[s])
    ]
    r = statistics.correlation([a for a, _ in pairs], [b for _, b in pairs])
    if len(pairs) >= 10 and math.isfinite(r) and r > 0.7:
        yield plain("efficiency.length", "info", r=number(r, 2))


# --- the end ---------------------------------------------------------------------------------------------------


def _limits(facts: RunFacts, metrics: Metrics, changes: list[readings.Change]) -> Iterable[Paragraph]:
    yield plain("limits.one-run")
    if not facts.evaluation:
        yield plain("limits.no-evaluation")
    elif not facts.evaluation.get("sampled"):
        yield plain("limits.greedy-only")
    for change in changes:
        if change.n is None:
            yield plain("limits.validation-unknown")
            break
        if change.test is None or change.test.two_sided >= statistics.SIGNIFICANT:
            yield plain("limits.validation", n=number(float(change.n)), error=number(change.last_error, 2))
            break
    settings = facts.verl_overrides
    limit = settings.get("data.val_max_samples")
    if isinstance(limit, int) and limit > 0 and settings.get("data.seed") is None:
        yield plain("limits.redrawn")
    if metrics.get(*readings.SCORE) is not None:
        yield plain("limits.score")
    if readings.clipping(facts, metrics):
        yield plain("limits.clip")
    if facts.platform == "cpu":
        yield plain("limits.cpu")
    elif "perf/time_per_step" in metrics.series:
        yield plain("limits.times")
    yield plain("limits.one-task")


def _table(summary: tuple[Summary, ...]) -> Section:
    if not summary:
        return Section("metrics", text("metrics.title"), (plain("metrics.none", "warn"),))
    rows = tuple(
        (
            row.metric,
            f"{number(row.first)} ({row.first_step})",
            f"{number(row.last)} ({row.last_step})",
            number(row.minimum),
            number(row.maximum),
            number(row.mean),
            f"{row.count:,}",
            Cell(str(row.not_finite), "bad") if row.not_finite else "0",
        )
        for row in summary
    )
    columns = tuple(
        text(f"column.{c}") for c in ("metric", "first-step", "last-step", "min", "max", "mean", "count", "not-finite")
    )
    caption = text("metrics.caption", n=str(len(rows)))
    table = Table(caption, columns, rows, numeric=(1, 2, 3, 4, 5, 6, 7), folded=True)
    return Section("metrics", text("metrics.title"), (plain("metrics.as-logged"), table))


def _reproduce(facts: RunFacts, metrics: Metrics) -> Section:
    blocks: list[Block] = []
    if facts.command:
        blocks.append(Code(text("reproduce.command"), facts.command))
    if facts.commit:
        blocks.append(plain("reproduce.commit", commit=facts.commit))
    if facts.files:
        rows = tuple((file.path, "–" if file.size is None else f"{file.size:,}", file.sha256) for file in facts.files)
        columns = (text("column.file"), text("column.bytes"), text("column.sha256"))
        blocks.append(Table(text("reproduce.files"), columns, rows, numeric=(1,), folded=len(rows) > 12))
    if metrics.files:
        names = ", ".join(file.name for file in metrics.files)
        blocks.append(plain("reproduce.read-from", files=names))
    if not facts.command:
        blocks.append(plain("reproduce.unknown", "info"))
    return Section("reproduce", text("reproduce.title"), tuple(blocks))
