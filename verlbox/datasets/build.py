"""From records to the split that verl trains on: rows, what was left out and why, and the parquet file."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlbox.datasets import arithmetic, gsm8k, math_lighteval, prepared
from verlbox.datasets.files import EMPTY, RawSplit, read
from verlbox.datasets.prompts import Prompt
from verlbox.datasets.rows import BadRow, Row, excerpt
from verlbox.findings import EXIT_STAGE, Finding, FindingsError, Severity, register

if TYPE_CHECKING:
    import pyarrow

COLUMNS = register(
    "dataset-columns", "error", "A file does not have the columns of the data set that the recipe names."
)
BAD_ROWS = register("dataset-bad-rows", "error", "More rows than the recipe allows cannot be used.")
SKIPPED = register("dataset-rows-skipped", "warning", "Some rows cannot be used and were left out.")
TOO_LONG = register("dataset-prompts-too-long", "note", "Some prompts are longer than the recipe's max_prompt_length.")
TOKENIZER = register("dataset-tokenizer", "error", "The model's tokenizer cannot be loaded or has no chat template.")
CORRECTED = register("dataset-rows-corrected", "note", "Some rows were put right on the way.")
TWICE = register("dataset-duplicates", "warning", "Questions that stand more than once in a split.")
CONTRADICTION = register("dataset-contradiction", "warning", "The same question with different answers.")
LEAK = register("dataset-contamination", "warning", "Test questions that also stand in the training split.")
ANSWER_IN_QUESTION = register(
    "dataset-answer-in-question", "warning", "Questions that hold an answer block themselves."
)

ToRow = Callable[[Mapping[str, object], int, str, Prompt], Row | BadRow]


@dataclass(frozen=True)
class Dataset:
    """A data set that verlbox knows: its name in recipes, verl's data source, the columns it needs, its converter."""

    name: str
    data_source: str
    columns: tuple[str, ...]
    to_row: ToRow
    default_prompt: str


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset("gsm8k", gsm8k.DATA_SOURCE, ("question", "answer"), gsm8k.to_row, "gsm8k-hash"),
        Dataset(
            "math_lighteval", math_lighteval.DATA_SOURCE, ("problem", "solution"), math_lighteval.to_row, "math-boxed"
        ),
        Dataset("arithmetic", arithmetic.DATA_SOURCE, ("question", "answer"), arithmetic.to_row, "gsm8k-hash"),
    )
}


@dataclass(frozen=True)
class Split:
    """A split ready for verl.

    `too_long` and `bad` carry indices into the split as read; `lengths` are the kept rows' prompt tokens (empty when no
    tokenizer was given).
    """

    name: str
    dataset: str
    prompt: Prompt
    files: tuple[Path, ...]
    rows: tuple[Row, ...]
    bad: tuple[BadRow, ...]
    too_long: tuple[int, ...]
    lengths: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def read(self) -> int:
        return len(self.rows) + len(self.bad) + len(self.too_long)

    @property
    def counts(self) -> dict[str, int]:
        """Rows by what became of them: read, kept, too_long, and bad with one entry a reason."""
        reasons = Counter(row.reason for row in self.bad)
        bad = {f"bad: {reason}": count for reason, count in sorted(reasons.items())}
        return {"read": self.read, "kept": len(self.rows), "too_long": len(self.too_long), "bad": len(self.bad), **bad}


def convert(
    raw: RawSplit,
    dataset: Dataset,
    prompt: Prompt,
    *,
    tokenizer_path: Path | None = None,
    max_prompt_length: int | None = None,
    max_bad_share: float = 0.01,
) -> Split:
    """Converts a split and collects everything there is to say about it in `findings`, errors included.

    With a tokenizer every prompt is measured (chat template and generation prompt included, as verl 0.6.1 counts), and
    those of more than `max_prompt_length` tokens are left out; None leaves out none. Raises FindingsError only when the
    tokenizer cannot be loaded.
    """
    findings = _column_findings(raw, dataset)
    known_sources = frozenset(known.data_source for known in DATASETS.values())
    rows: list[Row] = []
    bad: list[BadRow] = []
    for index, record in enumerate(raw.records):
        row: Row | BadRow
        if isinstance(record, BadRow):
            row = record
        elif prepared.is_prepared(set(record)) and not set(dataset.columns) <= set(record):
            row = prepared.to_row(record, index, raw.name, dataset.data_source, known_sources)
        else:
            row = dataset.to_row(record, index, raw.name, prompt)
        if isinstance(row, BadRow):
            bad.append(replace(row, where=raw.places[index]))
        else:
            rows.append(row)
    too_long: list[int] = []
    lengths: list[int] = []
    if tokenizer_path is not None and rows:
        rows, lengths, too_long, failed = _within(rows, tokenizer_path, max_prompt_length)
        bad = sorted([*bad, *(replace(row, where=raw.places[row.index]) for row in failed)], key=lambda row: row.index)
    split = Split(
        raw.name, dataset.name, prompt, raw.files, tuple(rows), tuple(bad), tuple(too_long), tuple(lengths), ()
    )
    if not findings:
        findings += _row_findings(split, max_prompt_length, max_bad_share)
    return replace(split, findings=tuple(findings))


def prepare(
    path: Path,
    dataset: Dataset,
    prompt: Prompt,
    *,
    tokenizer_path: Path | None = None,
    max_prompt_length: int | None = None,
    max_bad_share: float = 0.01,
) -> tuple[Split, Split, list[Finding]]:
    """Train and test split of the data set at `path`, and all findings, those about both together included.

    Problems of reading either split are raised together, before anything is converted. Errors about content are among
    the findings returned, so that the caller can write the list of bad rows before it stops.
    """
    raws: list[RawSplit] = []
    problems: list[Finding] = []
    exit_code = EXIT_STAGE
    for name in ("train", "test"):
        try:
            raws.append(read(path, name))
        except FindingsError as error:
            problems += error.findings
            exit_code = error.exit_code
    if problems:
        raise FindingsError(list(dict.fromkeys(problems)), exit_code=exit_code)
    train, test = (
        convert(
            raw,
            dataset,
            prompt,
            tokenizer_path=tokenizer_path,
            max_prompt_length=max_prompt_length,
            max_bad_share=max_bad_share,
        )
        for raw in raws
    )
    return train, test, [*train.findings, *test.findings, *overlap(train, test)]


def overlap(train: Split, test: Split) -> list[Finding]:
    """Test questions that also stand in train (blanks and case aside): a warning above 0.1% of the test rows."""
    known = {_key(row.question) for row in train.rows}
    shared = [row.extra_info["index"] for row in test.rows if _key(row.question) in known]
    if not shared:
        return []
    return [
        LEAK.finding(
            f"{len(shared)} of {len(test.rows)} test questions also stand in train (test rows {_some(shared)})",
            why="the test score counts answers that training has shown",
            fix="leave these rows out of one of the splits, or read the test score with this in mind",
            severity=_calm(len(shared), len(test.rows)),
        )
    ]


def write_parquet(split: Split, path: Path) -> None:
    """Writes the split for verl: the same rows give the same bytes (with the same pyarrow).

    The file has no `huggingface` metadata, which would tie it to a version of `datasets`.
    """
    import pyarrow.parquet

    pyarrow.parquet.write_table(to_table(split), path, compression="snappy", row_group_size=1000)


def write_bad_rows(splits: Sequence[Split], path: Path) -> None:
    """Lists every row that was left out as unusable, one JSON object a line: split, index, reason, detail, excerpt."""
    lines = [
        json.dumps({"split": split.name, **asdict(row)}, ensure_ascii=False) for split in splits for row in split.bad
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def to_table(split: Split) -> pyarrow.Table:
    """The split as an Arrow table with the schema of verl's scripts: their columns in order, struct fields by name."""
    import pyarrow as pa

    text = pa.string()
    extra = {key: None for row in split.rows for key in row.extra_info} or {"split": None, "index": None}
    columns = {key: None for row in split.rows for key in row.columns}
    schema = pa.schema(
        [
            *((name, text) for name in columns),
            ("data_source", text),
            ("prompt", pa.list_(pa.struct([("content", text), ("role", text)]))),
            ("ability", text),
            ("reward_model", pa.struct([("ground_truth", text), ("style", text)])),
            ("extra_info", pa.struct([(key, pa.int64() if key == "index" else text) for key in sorted(extra)])),
        ]
    )
    return pa.Table.from_pylist([row.as_verl() for row in split.rows], schema=schema)


def prompt_tokens(conversations: Sequence[list[dict[str, str]]], tokenizer_path: Path) -> list[int | str]:
    """Tokens of each conversation with the model's chat template and generation prompt, or why it has none.

    The same number as `len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True))` of transformers 4, which
    is what verl 0.6.1 filters by. Raises FindingsError when the tokenizer does not load or has no chat template.
    """
    tokenizer = _tokenizer(tokenizer_path)
    try:
        return _batch_tokens(tokenizer, conversations)
    except Exception:  # a template may raise anything; find the rows that it raises for
        counts: list[int | str] = []
        for conversation in conversations:
            try:
                counts += _batch_tokens(tokenizer, [conversation])
            except Exception as error:
                counts.append(f"{type(error).__name__}: {error}")
        return counts


def _batch_tokens(tokenizer: Any, conversations: Sequence[list[dict[str, str]]]) -> list[int | str]:
    texts = tokenizer.apply_chat_template(list(conversations), tokenize=False, add_generation_prompt=True)
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def _tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, and what its backends raise
        raise FindingsError(
            TOKENIZER.finding(
                f"no tokenizer loads from {path}: {excerpt(str(error))}",
                why="prompts are measured with the model's own tokenizer",
                fix="point model.path at a folder with tokenizer.json and tokenizer_config.json",
            ),
            exit_code=EXIT_STAGE,
        ) from error
    if not tokenizer.chat_template:
        raise FindingsError(
            TOKENIZER.finding(
                f"the tokenizer at {path} has no chat template",
                why="verl would fail on every single row, and drop each of them as too long",
                fix="use an instruct model, or add chat_template.jinja beside tokenizer_config.json",
            ),
            exit_code=EXIT_STAGE,
        )
    return tokenizer


def _within(
    rows: list[Row], tokenizer_path: Path, limit: int | None
) -> tuple[list[Row], list[int], list[int], list[BadRow]]:
    """Rows of at most `limit` prompt tokens, their lengths, the indices of the longer ones, the ones that fail."""
    kept: list[Row] = []
    lengths: list[int] = []
    too_long: list[int] = []
    failed: list[BadRow] = []
    for row, tokens in zip(rows, prompt_tokens([row.prompt for row in rows], tokenizer_path), strict=True):
        index = row.extra_info["index"]
        assert isinstance(index, int)
        if isinstance(tokens, str):
            failed.append(BadRow(index, "tokenizer-error", excerpt(tokens), excerpt(row.question)))
        elif limit is not None and tokens > limit:
            too_long.append(index)
        else:
            kept.append(row)
            lengths.append(tokens)
    return kept, lengths, too_long, failed


def _column_findings(raw: RawSplit, dataset: Dataset) -> list[Finding]:
    """Whether this is the data set that the recipe names at all; judged by the columns of all records together."""
    found: dict[str, None] = {}
    for record in raw.records:
        if not isinstance(record, BadRow):
            found.update(dict.fromkeys(record))
    if not found:
        return []  # not one record could be read: the bad rows say why
    listed = excerpt(", ".join(found))
    files = ", ".join(str(file) for file in raw.files[:3])
    missing = [name for name in dataset.columns if name not in found]
    if not missing:
        return []
    if not prepared.is_prepared(set(found)):
        other = next((d for d in DATASETS.values() if d.name != "arithmetic" and set(d.columns) <= set(found)), None)
        hint = f"these are the columns of {other.name}: set dataset.format={other.name}, or " if other else ""
        return [
            COLUMNS.finding(
                f"{files}: no column {' or '.join(missing)}; found: {listed}",
                why=f"{dataset.name} needs the columns {', '.join(dataset.columns)}",
                fix=f"{hint}point dataset.path at the right files",
            )
        ]
    absent = [name for name in prepared.REQUIRED if name not in found]
    first = next(record for record in raw.records if not isinstance(record, BadRow))
    text_prompt = isinstance(first.get("prompt"), str)
    if not absent and not text_prompt:
        return []
    problems = [f"no column {', '.join(absent)}"] if absent else []
    problems += ["prompt is plain text, verl needs a list of {role, content}"] if text_prompt else []
    return [
        COLUMNS.finding(
            f"{files}: {'; '.join(problems)}; found: {listed}",
            why="a file with a prompt column must be complete in verl's schema, or the first reward stage fails",
            fix=f"give it all of {', '.join(prepared.REQUIRED)}, or the raw columns {', '.join(dataset.columns)}",
        )
    ]


def _row_findings(split: Split, limit: int | None, max_bad_share: float) -> list[Finding]:
    findings: list[Finding] = []
    place = f"{split.dataset} {split.name}"
    if split.bad:
        reasons = Counter(row.reason for row in split.bad)
        listed = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        first = split.bad[0]
        share = len(split.bad) / split.read
        code = BAD_ROWS if share > max_bad_share else SKIPPED
        findings.append(
            code.finding(
                f"{place}: {len(split.bad)} of {split.read} rows ({share:.2%}) cannot be used: {listed}; the first is"
                f" row {first.index}: {first.detail}: {first.excerpt}",
                why=f"the recipe allows {max_bad_share:.2%} (dataset.max_bad_share)"
                if code is BAD_ROWS
                else "they are left out of training, and all listed with the run's data",
                fix="mend the rows, or raise dataset.max_bad_share knowingly" if code is BAD_ROWS else "",
                where=first.where,
            )
        )
    if not split.rows:
        counted = ", ".join(f"{name} {count}" for name, count in split.counts.items() if count)
        findings.append(
            EMPTY.finding(
                f"{place}: no row is left ({counted})",
                why="there is nothing to train or test on",
                fix="raise data.max_prompt_length" if split.too_long and not split.bad else "mend the data set",
            )
        )
    if split.too_long:
        findings.append(
            TOO_LONG.finding(
                f"{place}: {len(split.too_long)} of {split.read} prompts have more than {limit} tokens;"
                f" they are left out, {len(split.rows)} rows remain",
                why="verl drops them when it starts; leaving them out here makes the number of steps known",
                fix="",
            )
        )
    return findings + _remark_findings(split, place) + _question_findings(split, place)


def _remark_findings(split: Split, place: str) -> list[Finding]:
    """What converters did to rows beyond copying, one finding a kind."""
    texts: dict[str, tuple[str, str, Severity]] = {
        "html-entities": (
            "hold HTML entities (&lt;), now resolved",
            "the file is a copy scraped from the web",
            "warning",
        ),
        "several-answers": (
            "hold '####' more than once; the last one counts",
            "the earlier ones may be steps",
            "warning",
        ),
        "prepared": (
            "are in verl's schema already; the recipe's prompt is not applied to them",
            "the file holds whole conversations",
            "warning",
        ),
        "ground-truth-cast": (
            "have a ground truth that is not text; it is now",
            "a number never equals the text that a reward extracts",
            "warning",
        ),
        "data-source-corrected": (
            f"had another data_source; it is {DATASETS[split.dataset].data_source} now",
            "verl finds rewards and names metrics by it",
            "warning",
        ),
        "fields-dropped": ("had fields that are neither text nor numbers; they are left out", "", "warning"),
        "empty-box-corrected": (
            "have an empty \\boxed{} in the published set; their answer is filled in",
            "without an answer no response could ever be right",
            "note",
        ),
    }
    indices: dict[str, list[object]] = defaultdict(list)
    for row in split.rows:
        for remark in row.remarks:
            indices[remark].append(row.extra_info["index"])
    return [
        CORRECTED.finding(f"{place}: {len(rows)} rows ({_some(rows)}) {what}", why=why, fix="", severity=severity)
        for remark, rows in indices.items()
        for what, why, severity in [texts[remark]]
    ]


def _question_findings(split: Split, place: str) -> list[Finding]:
    golds: dict[str, set[str]] = defaultdict(set)
    times: Counter[str] = Counter()
    hints: list[object] = []
    for row in split.rows:
        key = _key(row.question)
        golds[key].add(row.ground_truth)
        times[key] += 1
        if any(tag in row.question for tag in ("<answer>", "</answer>", "<think>", "</think>", "####")):
            hints.append(row.extra_info["index"])
    findings: list[Finding] = []
    repeated = sum(count - 1 for count in times.values())
    if repeated:
        findings.append(
            TWICE.finding(
                f"{place}: {repeated} of {len(split.rows)} rows repeat an earlier question",
                why="they count more than others in training and in the score",
                fix="remove them if they are not meant",
                severity=_calm(repeated, len(split.rows)),
            )
        )
    torn = sum(len(answers) > 1 for answers in golds.values())
    if torn:
        findings.append(
            CONTRADICTION.finding(
                f"{place}: {torn} questions stand there with different answers",
                why="one of the answers is wrong, and the reward pays for both",
                fix="look at them and remove the wrong ones",
            )
        )
    if hints:
        findings.append(
            ANSWER_IN_QUESTION.finding(
                f"{place}: {len(hints)} questions (rows {_some(hints)}) hold an answer block or '####' themselves",
                why="a model that repeats the question could be paid by graders that look for such a block",
                fix="remove the block from the question",
            )
        )
    return findings


def _key(question: str) -> str:
    return " ".join(question.casefold().split())


def _calm(count: int, of: int) -> Severity:
    """A handful of repeats is the nature of published sets (MATH has one): worth a note, no alarm."""
    return "note" if count <= 0.001 * of else "warning"


def _some(indices: Sequence[object]) -> str:
    return ", ".join(map(str, indices[:5])) + (", …" if len(indices) > 5 else "")
