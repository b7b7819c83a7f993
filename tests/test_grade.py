"""`entrypoint.py grade`: nothing lost, nothing reordered, bad lines named."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest

from verlbox import grade
from verlbox.findings import FindingsError


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def graded(
    path: Path, text: str | bytes, dataset: grade.Dataset, **options: Any
) -> tuple[list[dict[str, Any]], Any, Any]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    out = io.StringIO()
    summary, findings = grade.grade_file(path, dataset, out=out, **options)
    return lines(out), summary, findings


def test_rows_come_out_in_order_with_their_other_fields(tmp_path: Path) -> None:
    rows = [{"id": i, "response": f"#### {i}", "ground_truth": str(i - i % 2), "score": "old"} for i in range(600)]
    found, summary, findings = graded(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)), "gsm8k")
    assert [row["id"] for row in found] == list(range(600))
    assert [row["line"] for row in found] == list(range(1, 601))
    assert found[1] | {"seconds": 0} == {
        **{
            "id": 1,
            "response": "#### 1",
            "ground_truth": "0",
            "input_score": "old",
            "line": 2,
            "score": 0.0,
            "acc": 0.0,
        },
        **{"reason": "wrong", "parts": {"format": 1.0}, "seconds": 0},
    }
    assert (summary.rows, summary.acc, summary.reasons, findings) == (600, 0.5, {"ok": 300, "wrong": 300}, [])


def test_bad_lines_are_named_and_cost_no_other_line(tmp_path: Path) -> None:
    text = (
        b'\xef\xbb\xbf{"response": "#### 1", "ground_truth": 1}\nnot json\n\n[1]\n{"response": "x"}\n'
        b'{"response": null, "ground_truth": "1"}\n\xff\xfe\n' + b"[" * 100_000 + b"\n"
        b'{"response": "\\ud800 #### 7", "ground_truth": "7"}\n{"output": "\\\\boxed{3}", "gts": "3"}'
    )
    found, summary, findings = graded(tmp_path / "a.jsonl", text, "gsm8k")
    assert [(row["line"], row["acc"]) for row in found] == [(1, 1.0), (9, 1.0), (10, 1.0)]
    assert [finding.where.rpartition(":")[2] for finding in findings] == ["2", "4", "5", "6", "7", "8"]
    assert {finding.code for finding in findings} == {"grade-bad-line"}
    assert (summary.rows, summary.bad_lines) == (3, 6)


def test_math_rows_show_their_parts(tmp_path: Path) -> None:
    response = "<think>\nso\n</think>\n<answer>\n\\boxed{\\frac12}\n</answer>"
    text = json.dumps({"response": response, "ground_truth": "0.5"})
    (row,), _, _ = graded(tmp_path / "a.jsonl", text, "math")
    assert row["score"] == pytest.approx(0.9)
    assert row["parts"] == {"accuracy": 0.7, "format": pytest.approx(0.2), "steps": 0.0}


def test_bare_answers(tmp_path: Path) -> None:
    rows = [
        {"prediction": "$\\frac{1}{2}$", "gold": "0.5"},
        {"prediction": "The final answer is $(0, 1)$. I hope it is correct.", "gold": "[0,1)"},
        {"prediction": "", "gold": "5"},
    ]
    text = "\n".join(map(json.dumps, rows))
    found, _, _ = graded(tmp_path / "a.jsonl", text, "math", answers=True)
    assert [row["reason"] for row in found] == ["ok", "wrong", "unparsable"]
    text = json.dumps({"prediction": "$1,000.00", "gold": "1000"}) + "\n" + json.dumps({"prediction": "", "gold": "1"})
    found, _, _ = graded(tmp_path / "a.jsonl", text, "gsm8k", answers=True)
    assert [row["reason"] for row in found] == ["ok", "no_answer"]


def test_a_missing_file_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(FindingsError, match="grade-no-file"):
        grade.grade_file(tmp_path / "none.jsonl", "math")


def test_the_command_writes_rows_then_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"response": "#### 5", "ground_truth": "5"}\nbroken\n')
    parser = argparse.ArgumentParser()
    grade.add_arguments(parser)
    assert grade.run(parser.parse_args([str(path), "--dataset", "gsm8k", "--json"])) == 2
    shown = capsys.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert rows[0]["acc"] == 1.0
    assert rows[-1]["summary"]["rows"] == 1 and rows[-1]["summary"]["bad_lines"] == 1
    assert "grade-bad-line" in shown.err
    path.write_text('{"response": "#### 5", "ground_truth": "5"}\n')
    assert grade.run(parser.parse_args([str(path), "--dataset", "gsm8k"])) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1 and "acc 1.0000" in shown.err
