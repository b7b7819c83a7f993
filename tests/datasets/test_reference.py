"""The full GSM8K and MATH against what verl v0.6.1's own preprocessing gives, and against the published counts.

The reference is restated here from examples/data_preprocess/{gsm8k,math_dataset}.py of v0.6.1: the columns that are not
consumed stay in front, the pattern for GSM8K and the extraction functions for MATH (taken from the installed verl).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet
import pytest

from verlbox.datasets import DATASETS, Split, convert, known, named, prepare, prompt_tokens, read, write_parquet
from verlbox.findings import Finding

# Rows where verl's ground truth is wrong; docs/datasets.md says why.
MATH_EXCEPTIONS = {("train", 252): ("{17}.", "17"), ("train", 5341): ("", "0"), ("train", 5343): ("", "0")}


def _rows(split: Split, folder: Path) -> list[dict[str, Any]]:
    write_parquet(split, folder / "split.parquet")
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / "split.parquet").to_pylist()
    return rows


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.fixture(scope="module")
def verl_math() -> ModuleType:
    """verl's own box extraction, loaded without importing the rest of verl."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("verl is not installed: no reference for the box extraction")
    file = Path(spec.submodule_search_locations[0]) / "utils" / "reward_score" / "math_reward.py"
    loaded = importlib.util.spec_from_file_location("verl_math_reward", file)
    assert loaded and loaded.loader
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("split", "count"), [("train", 7473), ("test", 1319)])
def test_gsm8k_is_row_for_row_what_verls_script_gives(split: str, count: int, shared: Path, tmp_path: Path) -> None:
    ours = convert(read(shared / "data" / "gsm8k", split), DATASETS["gsm8k"], named("gsm8k-hash"))
    rows = _rows(ours, tmp_path)
    assert ours.counts == {"read": count, "kept": count, "too_long": 0, "bad": 0}
    assert not ours.findings
    for index, record in enumerate(_records(shared / "data" / "gsm8k" / f"{split}.jsonl")):
        match = re.search(r"#### (\-?[0-9\.\,]+)", record["answer"])
        assert match
        assert rows[index] == {
            "data_source": "openai/gsm8k",
            "prompt": [
                {
                    "role": "user",
                    "content": record["question"]
                    + ' Let\'s think step by step and output the final answer after "####".',
                }
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": match.group(0).split("#### ")[1].replace(",", "")},
            "extra_info": {
                "split": split,
                "index": index,
                "answer": record["answer"],
                "question": record["question"],
            },
        }
        assert list(rows[index]) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]


@pytest.mark.parametrize(("split", "count"), [("train", 7500), ("test", 5000)])
def test_math_is_row_for_row_what_verls_script_gives_but_for_the_listed_rows(
    split: str, count: int, shared: Path, tmp_path: Path, verl_math: ModuleType
) -> None:
    ours = convert(read(shared / "data" / "math", split), DATASETS["math_lighteval"], named("math-boxed"))
    rows = _rows(ours, tmp_path)
    assert len(rows) == ours.read == count
    for index, record in enumerate(_records(shared / "data" / "math" / f"{split}.jsonl")):
        truth = verl_math.remove_boxed(verl_math.last_boxed_only_string(record["solution"]))
        if (split, index) in MATH_EXCEPTIONS:
            wrong, right = MATH_EXCEPTIONS[split, index]
            assert (truth, rows[index]["reward_model"]["ground_truth"]) == (wrong, right)
            truth = right
        question = record["problem"] + " Let's think step by step and output the final answer within \\boxed{}."
        assert rows[index] == {
            "level": record["level"],
            "type": record["type"],
            "data_source": "DigitalLearningGmbH/MATH-lighteval",
            "prompt": [{"role": "user", "content": question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"split": split, "index": index},
        }


def test_the_file_has_the_schema_of_the_files_that_verls_scripts_write(shared: Path, tmp_path: Path) -> None:
    """As read from the files that both scripts of v0.6.1 wrote; Arrow sorts the fields of what it takes from dicts."""
    written = {
        "prompt": "list<element: struct<content: string, role: string>>",
        "ability": "string",
        "reward_model": "struct<ground_truth: string, style: string>",
    }
    for name, folder, columns in (
        (
            "gsm8k",
            "gsm8k",
            {
                "data_source": "string",
                **written,
                "extra_info": "struct<answer: string, index: int64, question: string, split: string>",
            },
        ),
        (
            "math_lighteval",
            "math",
            {
                "level": "string",
                "type": "string",
                "data_source": "string",
                **written,
                "extra_info": "struct<index: int64, split: string>",
            },
        ),
    ):
        split = convert(read(shared / "data" / folder, "test"), DATASETS[name], named("none"))
        write_parquet(split, tmp_path / f"{name}.parquet")
        schema = pyarrow.parquet.read_table(tmp_path / f"{name}.parquet").schema
        assert [(field.name, str(field.type)) for field in schema] == list(columns.items())


@cache
def _measured(data: Path, name: str, prompt: str) -> tuple[Split, Split, list[Finding]]:
    """A full data set with the real tokenizer at 512 tokens; half a minute each on a busy machine, so counted once."""
    folder = {"math_lighteval": "math"}.get(name, name)
    return prepare(
        data / folder,
        DATASETS[name],
        named(prompt),
        tokenizer_path=data / "qwen2.5-tokenizer",
        max_prompt_length=512,
    )


@pytest.mark.parametrize("rows", known.load().rows, ids=lambda rows: rows.prompt)
def test_the_rows_known_before_download_are_those_that_preprocess_keeps(rows: known.KnownRows, shared: Path) -> None:
    assert rows.max_prompt_length == 512
    train, test, _ = _measured(shared / "data", rows.format, rows.prompt)
    assert (len(train.rows), len(test.rows), train.prompt.sha256) == (rows.train, rows.test, rows.prompt_sha256)


def test_the_rows_known_were_counted_with_the_published_tokenizer(shared: Path) -> None:
    folder = shared / "data" / "qwen2.5-tokenizer"
    (tokenizer,) = known.load().tokenizers.values()
    files = ("tokenizer_config.json", "vocab.json", "merges.txt")
    assert [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files] == [
        tokenizer.tokenizer_config_sha256,
        tokenizer.vocab_sha256,
        tokenizer.merges_sha256,
    ]


def test_the_published_runs_row_counts_come_out(shared: Path) -> None:
    published = json.loads((shared / "data" / "math" / "train_kept_indices_recipe_tokenizer_512.json").read_text())
    for prompt, train_kept, train_longest, test_kept in (
        ("math-think-answer", 7381, 511, 4949),
        ("math-boxed", 7425, 508, 4972),
    ):
        train, test, findings = _measured(shared / "data", "math_lighteval", prompt)
        assert (len(train.rows), max(train.lengths), len(test.rows)) == (train_kept, train_longest, test_kept)
        assert {f.severity for f in findings} == {"note"}, findings
        if prompt == "math-think-answer":
            assert [row.extra_info["index"] for row in train.rows] == published["kept_indices"]
            assert list(train.too_long) == published["dropped_indices"]
            assert max(test.lengths) == 512


def test_gsm8k_loses_no_row_at_512_tokens(shared: Path) -> None:
    train, test, findings = _measured(shared / "data", "gsm8k", "gsm8k-hash")
    assert (len(train.rows), len(test.rows), findings) == (7473, 1319, [])


def test_an_explicit_system_message_gives_the_tokens_of_the_swapped_tokenizer_config(
    shared: Path, tmp_path: Path
) -> None:
    stock = shared / "data" / "qwen2.5-tokenizer"
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(stock / name)
    (tmp_path / "tokenizer_config.json").symlink_to(shared / "data" / "published-recipe" / "tokenizer_config.json")
    from transformers import AutoTokenizer

    swapped = AutoTokenizer.from_pretrained(str(tmp_path))
    plain = AutoTokenizer.from_pretrained(str(stock))
    prompt = named("math-think-answer")
    bare = [{"role": "user", "content": f"What is $1+1$? {prompt.instruction}"}]
    ours = plain.apply_chat_template(prompt.messages("What is $1+1$?"), add_generation_prompt=True)
    assert ours == swapped.apply_chat_template(bare, add_generation_prompt=True)


def test_our_count_is_the_length_that_verl_filters_by(shared: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer_path = shared / "data" / "qwen2.5-tokenizer"
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_path))
    records = _records(shared / "data" / "math" / "test.jsonl")[::250]
    prompts = [named("math-think-answer").messages(record["problem"]) for record in records]
    prompts.append(
        [{"role": "system", "content": named("math-think-answer").system or ""}, {"role": "user", "content": ""}]
    )
    expected = [len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True)) for prompt in prompts]
    assert prompt_tokens(prompts, tokenizer_path) == expected
    assert expected[-1] == 125
