"""`compare RUN_A RUN_B [...]`: what two or more runs differ in, and whether their results differ by more than chance.

Runs may be of different platforms and verl versions, verlbox runs or bare logs. The first is what the others are held
against. Seeds: training is random, so two runs of one recipe differ too; a comparison of single runs says so.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verlbox.findings import EXIT_OK, EXIT_USAGE, Finding, FindingsError, register
from verlbox.metrics import statistics
from verlbox.metrics.read import Metrics, Series
from verlbox.report import readings
from verlbox.report.facts import RunFacts
from verlbox.report.language import LANGUAGES, Language, Say, speaker
from verlbox.report.model import (
    Block,
    Cell,
    Chart,
    Curve,
    Findings,
    Inline,
    Paragraph,
    Section,
    Table,
    number,
    p_equals,
    p_value,
    seconds,
    signed,
    text,
)

TOO_FEW = register("compare-too-few-runs", "error", "A comparison needs at least two runs.")
CANNOT_WRITE = register("compare-not-written", "error", "The comparison could not be written.")

# Settings that only say where things lie or how they are shown: a difference there is none of the experiment.
PLACES = ("trainer.default_local_dir", "trainer.experiment_name", "trainer.project_name", "hydra.run.dir")
PATHS = ("path", "train_files", "val_files", "_dir")
LAST = 5  # validations or steps whose mean is compared


Rows = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Compared:
    """One of the runs that are compared."""

    name: str
    facts: RunFacts
    metrics: Metrics


@dataclass(frozen=True)
class Contrast:
    """A value of a run against that of the first run. `p` is None where no test applies; `test` names it."""

    what: str
    run: str
    first: float
    other: float
    difference: float
    p: float | None
    test: str


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. `settings` are those that differ: key and the value in each run, "–" where it has none;
    `partial` are those that only some of the runs have, as verl's versions and algorithms differ in their keys."""

    runs: tuple[Compared, ...]
    settings: Rows
    partial: Rows
    versions: Rows
    contrasts: tuple[Contrast, ...]
    caveats: tuple[Paragraph, ...]
    findings: tuple[Finding, ...]


def compare(runs: Sequence[Compared]) -> Comparison:
    """Compares every run with the first. Raises FindingsError for fewer than two runs."""
    if len(runs) < 2:
        raise FindingsError(
            TOO_FEW.finding(
                f"{len(runs)} run was given.",
                why="There is nothing to compare it with.",
                fix="Name two or more run directories, TensorBoard directories or logs.",
            )
        )
    settings = _differing([run.facts.verl_overrides for run in runs], skip=_is_place)
    recipe = _differing([_flat(run.facts.recipe) for run in runs], skip=lambda key: key in ("name", "description"))
    differing = tuple(sorted({**dict(recipe), **dict(settings)}.items()))
    everywhere = tuple(row for row in differing if _is_known(row[1], runs))
    contrasts = [contrast for other in runs[1:] for contrast in _contrasts(runs[0], other)]
    return Comparison(
        tuple(runs),
        everywhere,
        tuple(row for row in differing if row not in everywhere),
        _differing([run.facts.versions for run in runs]),
        tuple(contrasts),
        tuple(_caveats(runs, everywhere)),
        tuple(
            Finding(f.severity, f.code, f.what, f.why, f.fix, f.where or run.name)
            for run in runs
            for f in run.metrics.findings
        ),
    )


def _is_known(values: Sequence[str], runs: Sequence[Compared]) -> bool:
    """Whether every run whose settings are known has a value."""
    return all(
        value != "–" or not (run.facts.verl_overrides or run.facts.recipe)
        for value, run in zip(values, runs, strict=True)
    )


def _is_place(key: str) -> bool:
    return key in PLACES or (key.endswith(PATHS) and not key.endswith("model.path"))


def _flat(nested: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(nested, dict):
        return {prefix.removesuffix("."): nested}
    found: dict[str, Any] = {}
    for key, value in nested.items():
        found.update(_flat(value, f"{prefix}{key}."))
    return found


def _differing(of_runs: Sequence[Any], skip: Callable[[str], bool] = lambda key: False) -> Rows:
    """Keys whose value is not the same in all runs that know any."""
    known = [values for values in of_runs if values]
    if len(known) < 2:
        return ()
    rows = []
    for key in sorted({key for values in known for key in values}):
        if skip(key):
            continue
        shown = tuple(_shown(values[key]) if key in values else "–" for values in of_runs)
        if len({s for s, values in zip(shown, of_runs, strict=True) if values}) > 1:
            rows.append((key, shown))
    return tuple(rows)


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    return str(value)


# --- differences -----------------------------------------------------------------------------------------------


def _contrasts(first: Compared, other: Compared) -> Iterable[Contrast]:
    yield from _evaluations(first, other)
    yield from _validations(first, other)
    for what, names in (
        ("score", readings.SCORE),
        ("length", ("response_length/mean",)),
        ("entropy", readings.ENTROPY),
        ("gradient", ("actor/grad_norm",)),
        ("step-time", readings.STEP_TIME),
        ("throughput", ("perf/throughput",)),
    ):
        a, b = first.metrics.get(*names), other.metrics.get(*names)
        if a is None or b is None:
            continue
        yield from _means(what, other.name, a.finite(), b.finite())


def _means(what: str, name: str, a: Series, b: Series) -> Iterable[Contrast]:
    """Paired over the steps that both have: two runs of one course are compared step by step."""
    common = sorted(set(a.steps) & set(b.steps))
    if not common:
        return
    of_a = dict(zip(a.steps, a.values, strict=True))
    of_b = dict(zip(b.steps, b.values, strict=True))
    differences = [of_b[step] - of_a[step] for step in common]
    middle_a = math.fsum(of_a[step] for step in common) / len(common)
    middle_b = math.fsum(of_b[step] for step in common) / len(common)
    p = statistics.paired(differences)
    yield Contrast(what, name, middle_a, middle_b, middle_b - middle_a, p, "paired-t" if p is not None else "")


def _validations(first: Compared, other: Compared) -> Iterable[Contrast]:
    """The last validation of each run, and the mean of the last five."""
    in_a, in_b = readings.by_source(first.metrics), readings.by_source(other.metrics)
    prompts_a = readings.prompts_of(first.facts, first.metrics)
    prompts_b = readings.prompts_of(other.facts, other.metrics)
    for name in sorted(in_a.keys() & in_b.keys()):
        a, b = in_a[name][1].finite(), in_b[name][1].finite()
        n_a, n_b = prompts_a[name], prompts_b[name]
        if not (len(a) and len(b)):
            continue
        last_a, last_b = a.values[-1], b.values[-1]
        p = None
        if n_a and n_b and 0 <= last_a <= 1 and 0 <= last_b <= 1:
            p = statistics.fisher(round(last_a * n_a), n_a, round(last_b * n_b), n_b).two_sided
        yield Contrast(
            f"last {name}", other.name, last_a, last_b, last_b - last_a, p, "fisher" if p is not None else ""
        )
        if min(len(a), len(b)) >= LAST:
            mean_a = math.fsum(a.values[-LAST:]) / LAST
            mean_b = math.fsum(b.values[-LAST:]) / LAST
            yield Contrast(f"mean of last {LAST} {name}", other.name, mean_a, mean_b, mean_b - mean_a, None, "")


def _evaluations(first: Compared, other: Compared) -> Iterable[Contrast]:
    for mode in ("greedy", "sampled"):
        a = ((first.facts.evaluation or {}).get(mode) or {}).get("trained") or {}
        b = ((other.facts.evaluation or {}).get(mode) or {}).get("trained") or {}
        if a.get("accuracy") is None or b.get("accuracy") is None:
            continue
        p, test = None, ""
        if mode == "greedy" and a.get("n") and b.get("n"):
            p = statistics.fisher(int(a["correct"]), int(a["n"]), int(b["correct"]), int(b["n"])).two_sided
            test = "fisher"
        elif a.get("standard_error") and b.get("standard_error"):
            error = math.hypot(float(a["standard_error"]), float(b["standard_error"]))
            p = statistics.two_sided_normal((float(b["accuracy"]) - float(a["accuracy"])) / error)
            test = "normal"
        yield Contrast(
            f"evaluation.{mode}.trained",
            other.name,
            float(a["accuracy"]),
            float(b["accuracy"]),
            float(b["accuracy"]) - float(a["accuracy"]),
            p,
            test,
        )


def _seed(run: Compared) -> Any:
    train = run.facts.recipe.get("train")
    if isinstance(train, dict) and train.get("seed") is not None:
        return train["seed"]
    return run.facts.verl_overrides.get("data.seed")


def _caveats(runs: Sequence[Compared], differing: Rows) -> Iterable[Paragraph]:
    seeds = [_seed(run) for run in runs]
    if any(seed is None for seed in seeds):
        yield Paragraph(text("compare.seed-unknown"), "info")
    elif len(set(map(str, seeds))) == 1:
        yield Paragraph(text("compare.seed-same", seed=str(seeds[0])), "warn")
    else:
        yield Paragraph(text("compare.seed-different"), "info")
    platforms = {run.facts.platform for run in runs if run.facts.platform}
    if len(platforms) > 1:
        yield Paragraph(text("compare.platforms", platforms=", ".join(sorted(platforms))), "warn")
    engines = {run.facts.versions["verl"] for run in runs if "verl" in run.facts.versions}
    if len(engines) > 1:
        yield Paragraph(text("compare.verl", versions=", ".join(sorted(engines))), "warn")
    factors = {
        (scale.factor if scale is not None else 1)
        for run in runs
        for scale in [readings.rescaling("actor/pg_loss", run.facts)]
    }
    measures = {name.split("/")[-2] for run in runs for name, _ in readings.by_source(run.metrics).values()}
    if {"acc", "reward"} <= measures:
        yield Paragraph(text("compare.measures"), "warn")
    if len(factors) > 1:
        yield Paragraph(text("compare.losses"), "info")
    if len(differing) > 1:
        yield Paragraph(text("compare.several", n=str(len(differing))), "info")
    unknown = [run.name for run in runs if not run.facts.verl_overrides and not run.facts.recipe]
    if unknown:
        yield Paragraph(text("compare.settings-unknown", runs=", ".join(unknown)), "warn")
    lengths = {len(run.metrics.steps()) for run in runs}
    if len(lengths) > 1:
        yield Paragraph(text("compare.lengths"), "warn")


# --- the document ----------------------------------------------------------------------------------------------

_CURVES = (
    ("score", readings.SCORE),
    ("entropy", readings.ENTROPY),
    ("gradient", ("actor/grad_norm",)),
    ("response-length", ("response_length/mean",)),
    ("cut-answers", ("response_length/clip_ratio",)),
    ("step-time", readings.STEP_TIME),
    ("throughput", ("perf/throughput",)),
)


def charts(comparison: Comparison) -> list[Chart]:
    """The curves of all runs, one chart a metric that at least two of them have."""
    found = []
    validations = [readings.by_source(run.metrics) for run in comparison.runs]
    names = sorted({name for of_run in validations for name in of_run})
    for i, name in enumerate(names):
        curves = tuple(
            Curve(run.name, of_run[name][1], marks=True)
            for run, of_run in zip(comparison.runs, validations, strict=True)
            if name in of_run and len(of_run[name][1].finite())
        )
        if len(curves) > 1:
            found.append(Chart(f"validation-{i}", text("compare.validation", name=name), curves))
    for identity, wanted in _CURVES:
        curves = tuple(
            Curve(run.name, points)
            for run in comparison.runs
            if (points := run.metrics.get(*wanted)) is not None and len(points.finite())
        )
        if len(curves) > 1:
            found.append(Chart(identity, text(f"chart.{identity}"), curves))
    kl = []
    for run in comparison.runs:
        points = run.metrics.get(*readings.KL_LOSS)
        if points is not None and len(points.finite()):
            scale = readings.rescaling("actor/kl_loss", run.facts)
            factor = scale.factor if scale is not None and scale.factor is not None else 1
            kl.append(Curve(run.name, readings.scaled(points, factor)))
    if len(kl) > 1:
        found.append(Chart("kl-loss", text("chart.kl-loss"), tuple(kl), text("compare.kl-rescaled")))
    return found


def sections(comparison: Comparison) -> tuple[Section, ...]:
    """The comparison as a document, verdict first."""
    names = [run.name for run in comparison.runs]
    blocks: list[Block] = [_sentence(c) for c in comparison.contrasts if c.p is not None and _is_result(c)]
    blocks += comparison.caveats
    parts = [Section("result", text("compare.result"), tuple(blocks))]
    overview: list[tuple[Inline | Cell, ...]] = []
    for run in comparison.runs:
        spent = readings.step_time(run.metrics)
        device = f"{run.facts.hardware.count} × {run.facts.hardware.device}" if run.facts.hardware else "–"
        overview.append(
            (
                run.name,
                run.facts.platform or "–",
                device,
                run.facts.versions.get("verl", "–"),
                f"{len(run.metrics.steps()):,}",
                "–" if spent is None else seconds(spent.seconds),
            )
        )
    columns = tuple(text(f"column.{c}") for c in ("run", "platform", "devices", "verl", "steps", "step-time"))
    blocks = [Table(text("compare.runs"), columns, tuple(overview), numeric=(4, 5))]
    run_columns = tuple(text("column.named", name=name) for name in names)
    if comparison.settings:
        rows = tuple((key, *values) for key, values in comparison.settings)
        blocks.append(Table(text("compare.settings"), (text("column.setting"), *run_columns), rows))
    if comparison.partial:
        rows = tuple((key, *values) for key, values in comparison.partial)
        columns = (text("column.setting"), *run_columns)
        blocks.append(Table(text("compare.partial"), columns, rows, folded=True))
    if not (comparison.settings or comparison.partial) and not any(
        not run.facts.verl_overrides for run in comparison.runs
    ):
        blocks.append(Paragraph(text("compare.settings-same"), "info"))
    if comparison.versions:
        rows = tuple((key, *values) for key, values in comparison.versions)
        columns = (text("column.package"), *run_columns)
        blocks.append(Table(text("compare.versions"), columns, rows, folded=len(rows) > 15))
    parts.append(Section("differences", text("compare.differences"), tuple(blocks)))
    listed = tuple(
        (
            _what(c),
            c.run,
            number(c.first),
            number(c.other),
            signed(c.difference),
            "–" if c.p is None else p_value(c.p),
            text(f"compare.test.{c.test}") if c.test else "–",
        )
        for c in comparison.contrasts
    )
    blocks = []
    if listed:
        columns = tuple(
            text(f"column.{c}") for c in ("what", "run", "first-run", "this-run", "difference", "p", "test")
        )
        blocks.append(Table(text("compare.statistics", run=names[0]), columns, listed, numeric=(2, 3, 4, 5)))
        blocks.append(Paragraph(text("compare.statistics-note")))
    blocks += charts(comparison)
    if not blocks:
        blocks.append(Paragraph(text("compare.nothing-common"), "warn"))
    parts.append(Section("curves", text("compare.curves"), tuple(blocks)))
    if comparison.findings:
        parts.append(Section("findings", text("findings.title"), (Findings(comparison.findings),)))
    return tuple(parts)


def _is_result(contrast: Contrast) -> bool:
    return contrast.what.startswith(("evaluation.", "last ")) or contrast.what == "score"


def _what(contrast: Contrast) -> Inline:
    if contrast.what.startswith(f"mean of last {LAST} "):
        return text("compare.what.last-mean", n=str(LAST), name=contrast.what.removeprefix(f"mean of last {LAST} "))
    if contrast.what.startswith("last "):
        return text("compare.what.last", name=contrast.what.removeprefix("last "))
    if contrast.what.startswith("evaluation."):
        return contrast.what
    return text(f"compare.what.{contrast.what}")


def _sentence(contrast: Contrast) -> Paragraph:
    sure = contrast.p is not None and contrast.p < statistics.SIGNIFICANT
    return Paragraph(
        text(
            "compare.differs" if sure else "compare.does-not-differ",
            what=_what(contrast),
            run=contrast.run,
            first=number(contrast.first),
            other=number(contrast.other),
            difference=signed(contrast.difference),
            p=p_equals(contrast.p),
        ),
        "info",
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The content of compare.json."""
    return {
        "format": 1,
        "runs": [
            {"name": run.name, "platform": run.facts.platform, "steps": len(run.metrics.steps())}
            for run in comparison.runs
        ],
        "settings": {key: list(values) for key, values in comparison.settings},
        "settings_of_some": {key: list(values) for key, values in comparison.partial},
        "versions": {key: list(values) for key, values in comparison.versions},
        "differences": [
            {
                "what": c.what,
                "run": c.run,
                "first": c.first,
                "other": c.other,
                "difference": c.difference,
                "p": c.p,
                "test": c.test or None,
            }
            for c in comparison.contrasts
        ],
    }


def write(
    comparison: Comparison, out_dir: Path, lang: Language = "en", formats: Iterable[str] = ("md", "html", "json")
) -> list[Path]:
    """Writes compare.md, compare.html (with the curves) and compare.json. Raises OSError when it cannot."""
    from verlbox.report import html, markdown

    say: Say = speaker(lang)
    out_dir.mkdir(parents=True, exist_ok=True)
    title = say(text("compare.title", n=str(len(comparison.runs))))
    parts = sections(comparison)
    written = []
    for name in dict.fromkeys(formats):
        file = out_dir / f"compare.{name}"
        if name == "md":
            content = markdown.document(title, parts, lang)
        elif name == "html":
            content = html.document(title, parts, lang)
        elif name == "json":
            content = json.dumps(as_json(comparison), ensure_ascii=False, indent=2) + "\n"
        else:
            raise ValueError(f"unknown format {name!r}; there are md, html, json")
        file.write_text(content, encoding="utf-8")
        written.append(file)
    return written


# --- command ---------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `compare`."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories, TensorBoard directories or logs")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the comparison (default: en)")
    parser.add_argument("--out", default="comparison", help="directory for the files (default: ./comparison)")


def run(
    arguments: argparse.Namespace,
    is_run: Callable[[Path], bool] | None = None,
    load_run: Callable[[Path], RunFacts] | None = None,
) -> int:
    """Writes the comparison, prints its sentences and files, returns 0. `is_run` and `load_run` as for `report`.

    Raises FindingsError for fewer than two runs, a path without metrics, or a directory that cannot be written.
    """
    from verlbox.metrics.read import read
    from verlbox.report.command import facts_of

    compared: list[Compared] = []
    problems: list[Finding] = []
    for given in arguments.runs:
        path = Path(given)
        try:
            metrics = read(path)
        except FindingsError as error:
            problems += error.findings
            continue
        ours = load_run is not None and is_run is not None and is_run(path)
        facts = load_run(path) if ours and load_run is not None else facts_of(path)
        compared.append(Compared(facts.name or path.resolve().name, facts, metrics))
    if problems:
        raise FindingsError(problems)
    comparison = compare(_distinct(compared, arguments.runs))
    try:
        written = write(comparison, Path(arguments.out), arguments.lang)
    except OSError as error:
        raise FindingsError(
            CANNOT_WRITE.finding(
                f"Nothing can be written to {arguments.out}: {error.strerror or error}.",
                why="The comparison needs a directory of its own.",
                fix="Name another with --out DIR, or free some space.",
            ),
            EXIT_USAGE,
        ) from error
    say = speaker(arguments.lang)
    for block in sections(comparison)[0].blocks:
        if isinstance(block, Paragraph):
            print(f"- {say(block.text)}")
    for file in written:
        print(file)
    return EXIT_OK


def _distinct(runs: Sequence[Compared], given: Sequence[str]) -> list[Compared]:
    """Runs of one name get the path that they were given by."""
    names = [run.name for run in runs]
    return [
        Compared(path if names.count(run.name) > 1 else run.name, run.facts, run.metrics)
        for run, path in zip(runs, given, strict=True)
    ]
