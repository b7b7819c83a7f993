"""The bundled tiny model: small, Qwen2's tokenizer and chat form, and neither ignorant nor perfect."""

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the CPU stack is not installed: transformers is missing")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "verlbox" / "assets" / "tiny-qwen2-arithmetic"
TEST = ROOT / "verlbox" / "assets" / "arithmetic" / "test.jsonl"

tokenizer = AutoTokenizer.from_pretrained(MODEL)


def test_the_folder_is_under_4_mb_and_holds_what_an_instruct_model_needs() -> None:
    files = {file.name: file.stat().st_size for file in MODEL.iterdir()}
    assert sum(files.values()) < 4_000_000
    assert set(files) >= {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_every_digit_is_one_token() -> None:
    assert tokenizer.is_fast
    assert tokenizer.tokenize("1234567890") == list("1234567890")


@pytest.mark.parametrize("text", ["Weng earns $12 an hour — für 50 min?\n\n  Ωμέγα 你好 \U0001f600\t", "a" * 300, ""])
def test_any_text_survives_encoding(text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_chat_form_is_qwens() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Sure?"},
    ]
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow many?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == expected
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_the_chat_form_equals_qwen25s_where_a_system_message_is_given(shared: Path) -> None:
    settings = json.loads((shared / "data" / "qwen2.5-tokenizer" / "tokenizer_config.json").read_text())
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    rendered = (
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, chat_template=chosen)
        for chosen in (None, settings["chat_template"])
    )
    assert next(rendered) == next(rendered)


def test_every_gsm8k_question_fits_the_context(shared: Path) -> None:
    longest = 0
    for split in ("train", "test"):
        for line in (shared / "data" / "gsm8k" / f"{split}.jsonl").read_text().splitlines():
            message = [{"role": "user", "content": json.loads(line)["question"]}]
            longest = max(longest, len(tokenizer.apply_chat_template(message, add_generation_prompt=True)))
    assert longest < 1024
    assert AutoModelForCausalLM.from_pretrained(MODEL).config.max_position_embeddings == 2048


def test_the_model_answers_some_but_not_most_held_out_problems() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    assert isinstance(model, Qwen2ForCausalLM)
    rows = [json.loads(line) for line in TEST.read_text().splitlines()]
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": row["question"]}], tokenize=False, add_generation_prompt=True
        )
        for row in rows
    ]
    batch = tokenizer(chats, return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(**batch, max_new_tokens=20, do_sample=False)
    texts = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    endings = ["#### " + row["answer"].split("#### ")[1] for row in rows]
    right = sum(text.endswith("\n" + ending) for text, ending in zip(texts, endings, strict=True)) / len(rows)
    assert 0.30 < right < 0.50
