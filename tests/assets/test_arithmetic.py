"""The bundled word problems: made by tools/make_arithmetic.py, held-out pairs really held out."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "verlbox" / "assets" / "arithmetic"
SUM = re.compile(r"<<(\d+)([-+*])(\d+)=(\d+)>>(\d+)\.\n#### (\d+)$")


def rows(split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (BUNDLED / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def pairs(split: str) -> set[tuple[str, frozenset[int]]]:
    """The (operation, unordered numbers) that a file's answers use."""
    sums = (SUM.search(row["answer"]) for row in rows(split))
    return {(s[2], frozenset((int(s[1]), int(s[3])))) for s in sums if s}


def test_the_script_makes_the_bundled_files_byte_for_byte(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "make_arithmetic.py", tmp_path], check=True, timeout=60)
    for split in ("train", "test"):
        assert (tmp_path / f"{split}.jsonl").read_bytes() == (BUNDLED / f"{split}.jsonl").read_bytes()


def test_rows_are_gsm8k_rows_with_right_sums() -> None:
    assert (len(rows("train")), len(rows("test"))) == (1024, 300)
    for row in rows("train") + rows("test"):
        assert set(row) == {"question", "answer"}
        match = SUM.search(row["answer"])
        assert match is not None
        a, sign, b, result = int(match[1]), match[2], int(match[3]), int(match[4])
        assert result == {"+": a + b, "-": a - b, "*": a * b}[sign] > 0
        assert match[4] == match[5] == match[6]
        assert sorted(map(int, re.findall(r"\d+", row["question"]))) == sorted((a, b))


def test_no_question_and_no_number_pair_of_the_test_set_is_in_training() -> None:
    assert not pairs("train") & pairs("test")
    questions = [row["question"] for row in rows("train") + rows("test")]
    assert len(set(questions)) == len(questions)


def test_every_operation_is_asked_in_four_ways() -> None:
    words = re.compile(r"\d+|\b(Ann|Ben|Eva|Ivy|Leo|Mia|Sam|Tom|apples|books|cards|coins|eggs|pens|shells|stamps)\b")
    ways: dict[str, set[str]] = {"+": set(), "-": set(), "*": set()}
    for row in rows("test"):
        match = SUM.search(row["answer"])
        assert match is not None
        ways[match[2]].add(words.sub("_", row["question"]))
    assert {sign: len(asked) for sign, asked in ways.items()} == {"+": 4, "-": 4, "*": 4}


def test_number_pairs_differ_from_one_test_row_to_the_next() -> None:
    assert len(pairs("test")) > 150
