"""Ground truths and rows of single records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verlbox.datasets import (
    DATASETS,
    PROMPTS,
    BadRow,
    RawSplit,
    Row,
    convert,
    named,
    overlap,
    write_bad_rows,
    write_parquet,
)
from verlbox.datasets.gsm8k import number_after_marker
from verlbox.datasets.math_lighteval import last_boxed
from verlbox.findings import FindingsError


@pytest.mark.parametrize(
    ("tail", "number"),
    [
        ("#### 72", "72"),
        ("####72", "72"),
        ("#### 70,000", "70000"),
        ("#### 109,200,000", "109200000"),
        ("#### 1,080.50", "1080.50"),
        ("#### 70 000", "70000"),
        ("#### 1 000 000.5 m", "1000000.5"),
        ("#### **72**", "72"),
        ("#### $72$", "72"),
        ("#### -7", "-7"),
        ("#### − 7", "-7"),
        ("#### +7", "7"),
        ("#### $18", "18"),
        ("#### -$18", "-18"),
        ("#### \\$18", "18"),
        ("#### €1,5 00", None),
        ("#### 18.", "18"),
        ("#### 18 dollars", "18"),
        ("#### 50%", "50"),
        ("#### .5", "0.5"),
        ("#### 1/2", "1/2"),
        ("#### 2 1/2 cups", "2 1/2"),
        ("#### ７２", "72"),
        ("#### 5\nso 6\n#### 7\n", "7"),
        ("#### ", None),
        ("#### ,", None),
        ("#### N/A", None),
        ("#### 3 or 4", None),
        ("####\n72", "72"),
        ("the answer is 72", None),
    ],
)
def test_the_number_behind_the_marker(tail: str, number: str | None) -> None:
    assert number_after_marker(f"2 + 70 = 72\n{tail}") == number


@given(st.integers(-(10**12), 10**12))
def test_every_integer_is_read_back_however_it_is_grouped(value: int) -> None:
    assert number_after_marker(f"…\n#### {value}") == number_after_marker(f"…\n#### {value:,}.") == str(value)


@pytest.mark.parametrize(
    ("solution", "content"),
    [
        ("so $\\boxed{2}$.", "2"),
        ("$\\boxed{1}$ and $\\boxed{2}$", "2"),
        ("$\\boxed {17}.$ or $\\boxed{17}$.", "17"),
        ("$\\boxed {17}.$", "17"),
        ("$\\boxed{\\frac{1}{2}}$", "\\frac{1}{2}"),
        ("$\\boxed 5$.", "5"),
        ("the answer is \\boxed 42.", "42"),
        ("\\fbox{7}.", "7"),
        ("\\fbox{1} then \\boxed{7}", "7"),
        ("$\\boxed{\\left\\{1,2\\right.}$", "\\left\\{1,2\\right."),
        ("$\\boxed{\\boxed{3}}$", "3"),
        ("$\\boxed{\n\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}\n}$", "\n\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}\n"),
        ("first \\boxed{1}, then \\boxed{2", None),
        ("no box", None),
        ("\\boxedvalue{3}", None),
    ],
)
def test_the_content_of_the_last_box(solution: str, content: str | None) -> None:
    assert last_boxed(solution) == content


@given(st.text(alphabet="ab{}\\$ boxed", max_size=60))
def test_box_extraction_never_fails_on_any_text(text: str) -> None:
    content = last_boxed("\\boxed{" + text)
    assert content is None or content in text or not content


def _convert(name: str, record: dict[str, object]) -> Row | BadRow:
    return DATASETS[name].to_row(record, 3, "train", named("none"))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"question": "", "answer": "#### 1"}, "empty-field"),
        ({"question": " \n", "answer": "#### 1"}, "empty-field"),
        ({"question": "a\0b", "answer": "#### 1"}, "damaged-text"),
        ({"question": "a\ud800b", "answer": "#### 1"}, "damaged-text"),
        ({"question": ["a"], "answer": "#### 1"}, "wrong-type"),
        ({"question": "a", "answer": float("nan")}, "wrong-type"),
        ({"question": "a"}, "missing-field"),
        ({"question": "a", "answer": "#### one"}, "answer-not-a-number"),
    ],
)
def test_a_record_that_cannot_be_used_says_why(record: dict[str, object], reason: str) -> None:
    row = _convert("gsm8k", record)
    assert isinstance(row, BadRow)
    assert (row.reason, row.index) == (reason, 3)
    row.excerpt.encode("utf-8")


def test_an_empty_box_is_a_bad_row_but_for_the_two_published_ones(shared: Path) -> None:
    bad = _convert("math_lighteval", {"problem": "p", "solution": "so $\\boxed{}$."})
    assert isinstance(bad, BadRow)
    lines = (shared / "data" / "math" / "train.jsonl").read_text(encoding="utf-8").split("\n")
    for index in (5341, 5343):
        row = _convert("math_lighteval", json.loads(lines[index]))
        assert isinstance(row, Row)
        assert (row.ground_truth, row.remarks) == ("0", ("empty-box-corrected",))


def test_latex_alignment_is_not_taken_for_html(tmp_path: Path) -> None:
    row = _convert("math_lighteval", {"problem": "$a &lt; b$, $x&y;z$", "solution": "\\boxed{a & b\\\\ c &d;}"})
    assert isinstance(row, Row)
    assert row.question == "$a < b$, $x&y;z$"
    assert row.ground_truth == "a & b\\\\ c &d;"


def _raw(records: Sequence[Mapping[str, object]], split: str = "train") -> RawSplit:
    places = tuple(f"{split}.jsonl:{n}" for n in range(1, len(records) + 1))
    return RawSplit(split, (Path(f"{split}.jsonl"),), tuple(records), places)


def _good(count: int) -> list[dict[str, object]]:
    return [{"question": f"How much is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(count)]


def test_the_share_of_bad_rows_decides_and_the_finding_names_the_first() -> None:
    records: list[dict[str, object]] = [*_good(99), {"question": "q", "answer": "none"}]
    split = convert(_raw(records), DATASETS["gsm8k"], named("none"))
    assert [f.severity for f in split.findings] == ["warning"]
    assert split.counts == {"read": 100, "kept": 99, "too_long": 0, "bad": 1, "bad: no-answer": 1}
    split = convert(_raw([*records, {"question": "q", "answer": "none"}]), DATASETS["gsm8k"], named("none"))
    assert split.findings[0].severity == "error"
    assert "2 of 101 rows (1.98%)" in split.findings[0].what
    assert split.findings[0].where == "train.jsonl:100"


def test_nothing_left_is_an_error_even_when_every_bad_row_is_allowed() -> None:
    split = convert(_raw([{"question": "q", "answer": 72}]), DATASETS["gsm8k"], named("none"), max_bad_share=1.0)
    assert ("dataset-empty", "error") in {(f.code, f.severity) for f in split.findings}


def test_repeats_are_a_note_when_few_and_a_warning_when_many() -> None:
    for count, severity in ((2000, "note"), (100, "warning")):
        train = convert(_raw([*_good(count), _good(1)[0]]), DATASETS["gsm8k"], named("none"))
        assert [(f.code, f.severity) for f in train.findings] == [("dataset-duplicates", severity)]
        test = convert(
            _raw(_good(1) + [{"question": f"new {n}", "answer": "#### 1"} for n in range(count)], "test"),
            DATASETS["gsm8k"],
            named("none"),
        )
        assert [f.severity for f in overlap(train, test)] == [severity]


def test_a_tokenizer_that_fails_is_not_called_too_long(shared: Path, tmp_path: Path) -> None:
    source = shared / "data" / "qwen2.5-tokenizer"
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(source / name)
    config = json.loads((source / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% for m in messages %}{% if 'bomb' in m.content %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    records: list[dict[str, object]] = [
        *_good(2),
        {"question": "a bomb", "answer": "#### 1"},
        {"question": "long " * 50, "answer": "#### 1"},
    ]
    split = convert(
        _raw(records), DATASETS["gsm8k"], named("none"), tokenizer_path=tmp_path, max_prompt_length=20, max_bad_share=1
    )
    assert ([bad.reason for bad in split.bad], split.too_long, len(split.rows)) == (["tokenizer-error"], (3,), 2)


def test_a_tokenizer_without_a_chat_template_is_an_error(shared: Path, tmp_path: Path) -> None:
    source = shared / "data" / "qwen2.5-tokenizer"
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(source / name)
    config = json.loads((source / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for path, part in ((tmp_path, "no chat template"), (tmp_path / "nowhere", "no tokenizer loads")):
        with pytest.raises(FindingsError) as error:
            convert(_raw(_good(1)), DATASETS["gsm8k"], named("none"), tokenizer_path=path, max_prompt_length=9)
        assert part in error.value.findings[0].what


def test_the_same_rows_give_the_same_bytes_without_metadata_of_a_datasets_version(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_parquet(convert(_raw(_good(10)), DATASETS["arithmetic"], named("none")), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    schema = pyarrow.parquet.read_schema(tmp_path / "a")
    assert not schema.metadata
    assert pyarrow.parquet.read_table(tmp_path / "a").column("data_source")[0].as_py() == "verlbox/arithmetic"


def test_prompts_are_hashed_by_what_the_model_sees() -> None:
    assert len({prompt.sha256 for prompt in PROMPTS.values()}) == len(PROMPTS)
    assert all(name == prompt.name for name, prompt in PROMPTS.items())
    assert named("math-think-answer").sha256 == "2b3e52bf4abeccfece38b6707d7e1ade05c5e3cefa1baabc4d294b8a6338cd68"
    assert named("none").messages("q") == [{"role": "user", "content": "q"}]
    with pytest.raises(FindingsError, match="math-think-anwser"):
        named("math-think-anwser")


def test_the_corrected_prompt_differs_from_the_published_one_only_in_its_newlines() -> None:
    published, corrected = named("math-think-answer"), named("math-think-answer-newlines")
    assert published.system and corrected.system
    assert "\\n" in published.system and "\n" not in published.system
    assert published.system.replace("\\n", "\n") == corrected.system


def _prepared(**changes: object) -> dict[str, object]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        "reward_model": {"style": "rule", "ground_truth": "1"},
        "extra_info": {"index": 9, "answer": "#### 1", "level": 3},
        **changes,
    }


def test_a_prepared_file_keeps_its_conversation_and_says_what_was_changed(tmp_path: Path) -> None:
    records = [
        _prepared(),
        _prepared(data_source="data/gsm8k", reward_model={"ground_truth": 72.0}),
        _prepared(extra_info={"tools": ["a"]}),
    ]
    split = convert(_raw(records), DATASETS["gsm8k"], named("gsm8k-hash"))
    write_parquet(split, tmp_path / "out")
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert [row["prompt"] for row in rows] == [records[0]["prompt"]] * 3
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["1", "72", "1"]
    assert {row["data_source"] for row in rows} == {"openai/gsm8k"}
    assert rows[0]["extra_info"] == {"index": 0, "answer": "#### 1", "level": "3", "split": "train"}
    told = " ".join(f.what for f in split.findings)
    for part in (
        "3 rows (0, 1, 2) are in verl's schema",
        "(1) have a ground truth",
        "(1) had another data_source",
        "(2) had fields",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_source": "DigitalLearningGmbH/MATH-lighteval"}, "wrong-data-source"),
        ({"prompt": [{"role": "user"}]}, "wrong-prompt"),
        ({"prompt": []}, "wrong-prompt"),
        ({"reward_model": {"style": "rule", "ground_truth": None}}, "no-answer"),
        ({"reward_model": "72"}, "no-answer"),
    ],
)
def test_a_prepared_row_that_verl_could_not_use_is_bad(changes: dict[str, object], reason: str) -> None:
    split = convert(_raw([_prepared(), _prepared(**changes)]), DATASETS["gsm8k"], named("none"), max_bad_share=1)
    assert [bad.reason for bad in split.bad] == [reason]


def test_bad_rows_are_listed_one_a_line(tmp_path: Path) -> None:
    split = convert(_raw([*_good(1), {"question": "q\n2"}]), DATASETS["gsm8k"], named("none"), max_bad_share=1)
    write_bad_rows([split], tmp_path / "bad.jsonl")
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    listed = json.loads(line)
    assert (listed["split"], listed["index"], listed["reason"]) == ("train", 1, "missing-field")
    assert listed["where"] == "train.jsonl:2"
