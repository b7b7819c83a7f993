"""Finding and reading a split in the layouts that people have."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from verlbox.datasets import BadRow, read
from verlbox.findings import FindingsError

ROWS = [{"question": f"q{n}", "answer": f"#### {n}"} for n in range(4)]


def _jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _parquet(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _what(error: pytest.ExceptionInfo[FindingsError]) -> str:
    return " ".join(f"{f.code} {f.what} {f.fix}" for f in error.value.findings)


@pytest.mark.parametrize(
    "layout",
    [
        "train.jsonl",
        "train.parquet",
        "gsm8k_train.jsonl",
        "main/train-00000-of-00001.parquet",
        "data/train-00000-of-00001.parquet",
        "default/train.jsonl",
        "train/anything.jsonl",
        "snapshots/0123456789/main/train-00000-of-00001.parquet",
    ],
)
def test_a_directory_is_searched_the_way_people_lay_it_out(layout: str, tmp_path: Path) -> None:
    (_parquet if layout.endswith("parquet") else _jsonl)(tmp_path / layout, ROWS)
    (tmp_path / "train_kept_indices_512.json").write_text('{"kept": [1]}')
    (tmp_path / "README.md").write_text("about")
    raw = read(tmp_path, "train")
    assert list(raw.records) == ROWS
    assert raw.files == (tmp_path / layout,)


def test_gsm8k_snapshot_means_main_not_socratic(tmp_path: Path) -> None:
    _parquet(tmp_path / "main" / "train-00000-of-00001.parquet", ROWS)
    _parquet(tmp_path / "socratic" / "train-00000-of-00001.parquet", ROWS[:1])
    assert len(read(tmp_path, "train")) == 4


def test_shards_are_read_in_order_and_a_missing_one_stops(tmp_path: Path) -> None:
    for number in (0, 1):
        _parquet(tmp_path / f"train-{number:05}-of-00002.parquet", ROWS[2 * number : 2 * number + 2])
    assert list(read(tmp_path, "train").records) == ROWS
    (tmp_path / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(FindingsError) as error:
        read(tmp_path, "train")
    assert "1 of 2 shards missing" in _what(error)


def test_a_folder_for_each_subject_is_joined_by_name(tmp_path: Path) -> None:
    for number, subject in enumerate(("algebra", "geometry", "prealgebra")):
        _parquet(tmp_path / subject / "train-00000-of-00001.parquet", ROWS[number : number + 1])
    assert list(read(tmp_path, "train").records) == ROWS[:3]


def test_one_json_file_a_problem_is_read_in_the_order_of_the_hub(tmp_path: Path) -> None:
    for name in ("algebra/1.json", "algebra/10.json", "algebra/2.json", "geometry/0.json"):
        _jsonl(tmp_path / "train" / name, [{"question": name, "answer": "#### 1"}])
    order = [record["question"] for record in read(tmp_path, "train").records if not isinstance(record, BadRow)]
    assert order == ["algebra/1.json", "algebra/10.json", "algebra/2.json", "geometry/0.json"]


def test_json_may_be_a_list_or_hold_one(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(ROWS, indent=1))
    assert list(read(tmp_path, "train").records) == ROWS
    (tmp_path / "train.json").write_text(json.dumps({"version": 1, "data": ROWS}))
    assert list(read(tmp_path, "train").records) == ROWS
    (tmp_path / "train.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert list(read(tmp_path, "train").records) == ROWS


def test_one_json_file_may_hold_both_splits(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(json.dumps({"train": ROWS, "test": ROWS[:1]}))
    assert (len(read(tmp_path / "all.json", "train")), len(read(tmp_path / "all.json", "test"))) == (4, 1)


def test_gzipped_parquet_and_jsonl_are_read(tmp_path: Path) -> None:
    _parquet(tmp_path / "plain.parquet", ROWS)
    (tmp_path / "train.parquet.gz").write_bytes(gzip.compress((tmp_path / "plain.parquet").read_bytes()))
    assert list(read(tmp_path, "train").records) == ROWS
    (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress(json.dumps(ROWS[0]).encode()))
    assert list(read(tmp_path, "test").records) == ROWS[:1]


def test_a_cut_gzip_file_stops(tmp_path: Path) -> None:
    packed = gzip.compress("".join(json.dumps(row) for row in ROWS * 50).encode())
    (tmp_path / "train.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(FindingsError) as error:
        read(tmp_path, "train")
    assert "dataset-cut" in _what(error)


def test_a_file_is_the_split_its_name_says_and_the_other_lies_beside_it(tmp_path: Path) -> None:
    _jsonl(tmp_path / "my_train.jsonl", ROWS)
    _jsonl(tmp_path / "my_test.jsonl", ROWS[:1])
    assert len(read(tmp_path / "my_train.jsonl", "train")) == 4
    assert len(read(tmp_path / "my_train.jsonl", "test")) == 1


def test_a_file_without_a_split_in_its_name_is_train_and_nothing_else(tmp_path: Path) -> None:
    _jsonl(tmp_path / "problems.jsonl", ROWS)
    assert len(read(tmp_path / "problems.jsonl", "train")) == 4
    with pytest.raises(FindingsError) as error:
        read(tmp_path / "problems.jsonl", "test")
    assert "one file, hence one split" in _what(error)
    assert str(tmp_path / "test.jsonl") in _what(error)


def test_the_same_split_twice_is_no_silent_choice(tmp_path: Path) -> None:
    _jsonl(tmp_path / "train.jsonl", ROWS)
    _parquet(tmp_path / "train.parquet", ROWS)
    with pytest.raises(FindingsError) as error:
        read(tmp_path, "train")
    assert "dataset-ambiguous" in _what(error)


def test_a_missing_path_and_an_empty_folder_are_told_apart(tmp_path: Path) -> None:
    for path, part in ((tmp_path / "nowhere", "does not exist"), (tmp_path, "no data files here")):
        with pytest.raises(FindingsError) as error:
            read(path, "train")
        assert "dataset-not-found" in _what(error)
        assert part in _what(error)


def test_a_bad_line_keeps_the_index_of_every_other_row(tmp_path: Path) -> None:
    lines = [json.dumps(ROWS[0]), "{broken", '["a", "list"]', "NaN", json.dumps(ROWS[1])]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    raw = read(tmp_path, "train")
    assert [r.reason if isinstance(r, BadRow) else "" for r in raw.records] == [
        "",
        "not-json",
        "not-an-object",
        "not-an-object",
        "",
    ]
    assert raw.places[1].endswith("train.jsonl:2")


def test_a_line_separator_inside_a_question_does_not_end_the_line(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "a\u2028b", "answer": "#### 1"}\n', encoding="utf-8")
    assert read(tmp_path, "train").records == ({"question": "a\u2028b", "answer": "#### 1"},)


def test_utf16_and_web_pages_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(json.dumps(ROWS[0]).encode("utf-16"))
    (tmp_path / "test.jsonl").write_text("<!DOCTYPE html><html>login</html>")
    for split, part in (("train", "UTF-16"), ("test", "web page")):
        with pytest.raises(FindingsError) as error:
            read(tmp_path, split)
        assert part in _what(error)


def test_a_cut_json_document_and_a_cut_parquet_file_stop(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(ROWS)[:-20])
    _parquet(tmp_path / "test.parquet", ROWS)
    (tmp_path / "test.parquet").write_bytes((tmp_path / "test.parquet").read_bytes()[:-30])
    for split, code in (("train", "dataset-cut"), ("test", "dataset-unreadable")):
        with pytest.raises(FindingsError) as error:
            read(tmp_path, split)
        assert code in _what(error)
