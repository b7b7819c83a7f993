"""Every collected data case: what people's files really look like, with the right outcome."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from verlbox.datasets import DATASETS, Split, convert, named, overlap, read, write_parquet
from verlbox.findings import Finding, FindingsError, has_errors

CASES = Path(__file__).parents[3] / "shared" / "cases" / "data_cases.jsonl"
DATASET_OF = {"gsm8k": "gsm8k", "math": "math_lighteval"}
# What the finding of an error case must name, so that a user can act on it.
MUST_SAY = {
    "D-026": ["problem", "question, answer"],
    "D-029": ["train.jsonl", "position 16", "UTF-8"],
    "D-033": ["train.jsonl", "empty"],
    "D-037": ["line 2"],
    "D-040": ["git lfs pull"],
    "D-042": ["train.parquet", "empty"],
    "D-043": ["test.jsonl"],
    "D-045": ["list of {role, content}"],
    "D-047": ["reward_model"],
}
MUST_WARN = {
    "D-024": "HTML entities",
    "D-046": "not text",
    "D-051": "1 of 1 test questions",
    "D-052": "different answers",
    "D-053": "1 of 2 prompts have more than 512",
    "D-054": "answer block",
}
MUST_SKIP = {
    "D-002": {1: "no '####' line"},
    "D-011": {0: "answer must be text, it is int"},
    "D-012": {0: "question is null", 1: "answer is null"},
    "D-020": {0: "no \\boxed{}"},
    "D-023": {0: "solution is missing"},
    "D-031": {0: "not JSON"},
    "D-056": {0: "'question' stands twice"},
}


def _cases() -> list[Any]:
    if not CASES.exists():
        return [pytest.param(None, id="no-cases", marks=pytest.mark.skip("the collected cases are not here"))]
    lines = CASES.read_text(encoding="utf-8").splitlines()
    return [pytest.param(case, id=case["id"]) for case in map(json.loads, lines)]


def _lay_out(files: dict[str, dict[str, Any]], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if "text" in content:
            (folder / name).write_bytes(content["text"].encode("utf-8"))
        elif "base64" in content:
            (folder / name).write_bytes(base64.b64decode(content["base64"]))
        else:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content["parquet_rows"]), folder / name)


def _convert(case: dict[str, Any], folder: Path, tokenizer: Path) -> tuple[Split, list[Finding]]:
    dataset = DATASETS[DATASET_OF[case["dataset"]]]
    prompt = named(dataset.default_prompt)
    measured = tokenizer if case["id"] == "D-053" else None
    train = convert(read(folder, "train"), dataset, prompt, tokenizer_path=measured, max_bad_share=1.0)
    if measured:  # kept in the file, counted against the limit
        limited = convert(read(folder, "train"), dataset, prompt, tokenizer_path=measured, max_prompt_length=512)
        return train, list(limited.findings)
    findings = list(train.findings)
    if "test.jsonl" in case["files"] or case["id"] == "D-043":
        test = convert(read(folder, "test"), dataset, prompt)
        findings += [*test.findings, *overlap(train, test)]
    return train, findings


@pytest.mark.parametrize("case", _cases())
def test_case_has_its_outcome(case: dict[str, Any], tmp_path: Path, shared: Path) -> None:
    _lay_out(case["files"], tmp_path)
    name, outcome = case["id"], case["outcome"]
    if outcome == "error":
        with pytest.raises(FindingsError) as caught:
            split, findings = _convert(case, tmp_path, shared / "data" / "qwen2.5-tokenizer")
            if has_errors(findings):
                raise FindingsError(findings)
        text = str([(f.what, f.fix) for f in caught.value.findings])
        assert all(part in text for part in MUST_SAY.get(name, ())), text
        return
    split, findings = _convert(case, tmp_path, shared / "data" / "qwen2.5-tokenizer")
    assert len(split.rows) == case["rows_out"]
    assert [row.ground_truth for row in split.rows] == case["ground_truths"]
    assert {row.data_source for row in split.rows} <= {DATASETS[split.dataset].data_source}
    told = [f for f in findings if f.code != "dataset-empty"]
    if outcome == "ok":
        assert not told
    elif outcome == "skip":
        assert {bad.index for bad in split.bad} == set(MUST_SKIP[name])
        assert all(MUST_SKIP[name][bad.index] in bad.detail and bad.excerpt and bad.where for bad in split.bad)
        assert split.counts["bad"] == len(split.bad) == split.read - len(split.rows)
    else:
        assert any(MUST_WARN.get(name, "") in f.what for f in told), told
    if split.rows:
        write_parquet(split, tmp_path / "out.parquet")
        rows = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
        assert [row["reward_model"]["ground_truth"] for row in rows] == case["ground_truths"]
        assert all(row["prompt"][-1]["role"] == "user" for row in rows)
