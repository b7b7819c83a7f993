"""Answers of one or more models to the same prompts, a child of the evaluate stage.

usage: python -m verlbox.generate --rows test.parquet --out FOLDER --model NAME=PATH [--model NAME=PATH ...]
       [--draws K] [--temperature T] [--seed S] [--batch-size B] [--max-new-tokens N] [--engine hf|vllm]

Writes FOLDER/NAME.jsonl for each model: {"index", "draw", "response", "tokens"}, draw 0 greedy, 1..K sampled. Tokens
are chosen from the whole distribution (no top_k, top_p or penalty), whatever the model's generation_config recommends,
as in training. Engine hf: Hugging Face generate in float32 on the CPU. Engine vllm: vLLM in bfloat16 on an accelerator,
one model a process, since vLLM does not give its memory back.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(prog="verlbox.generate")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--engine", choices=tuple(ENGINES), default="hf")
    arguments = parser.parse_args()

    import pyarrow.parquet

    prompts = pyarrow.parquet.read_table(arguments.rows, columns=["prompt"]).column("prompt").to_pylist()
    sampling = Sampling(
        arguments.draws, arguments.temperature, arguments.seed, arguments.max_new_tokens, arguments.batch_size
    )
    for named in arguments.model:
        name, _, path = named.partition("=")
        with (arguments.out / f"{name}.jsonl").open("w", encoding="utf-8") as stream:
            for answer in ENGINES[arguments.engine](Path(path), prompts, sampling):
                stream.write(json.dumps(answer, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn: `draws` sampled ones beside the greedy one; at most `max_new_tokens` tokens each."""

    draws: int = 0
    temperature: float = 1.0
    seed: int = 0
    max_new_tokens: int = 256
    batch_size: int = 256


def answers(path: Path, prompts: Sequence[list[dict[str, str]]], sampling: Sampling) -> Iterator[dict[str, Any]]:
    """The answers of one model to all prompts: greedy first, then each draw."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig()
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    texts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    # Prompts of like length together, so that little is padding.
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    whole = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
    for draw in range(sampling.draws + 1):
        config = GenerationConfig(
            **(whole if draw else {"do_sample": False}),
            max_new_tokens=sampling.max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        torch.manual_seed(sampling.seed * 1_000_003 + draw)
        for start in range(0, len(order), sampling.batch_size):
            chosen = order[start : start + sampling.batch_size]
            batch = tokenizer([texts[i] for i in chosen], add_special_tokens=False, padding=True, return_tensors="pt")
            output = model.generate(**batch, generation_config=config)
            for index, row in zip(chosen, output[:, batch["input_ids"].shape[1] :].tolist(), strict=True):
                end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
                response = tokenizer.decode(row[:end], skip_special_tokens=True)
                yield {"index": index, "draw": draw, "response": response, "tokens": end}
        print(f"{path}: draw {draw} of {sampling.draws} done", file=sys.stderr, flush=True)


def vllm_answers(path: Path, prompts: Sequence[list[dict[str, str]]], sampling: Sampling) -> Iterator[dict[str, Any]]:
    """The same by vLLM: greedy answers first, then all draws; the engine batches by itself."""
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    inputs = [{"prompt_token_ids": tokenizer(text, add_special_tokens=False)["input_ids"]} for text in texts]
    longest = max(len(item["prompt_token_ids"]) for item in inputs) + sampling.max_new_tokens
    engine = LLM(model=str(path), dtype="bfloat16", max_model_len=longest, seed=sampling.seed)
    length = {"max_tokens": sampling.max_new_tokens}
    for index, output in enumerate(engine.generate(inputs, SamplingParams(temperature=0.0, **length))):
        (answer,) = output.outputs
        yield {"index": index, "draw": 0, "response": answer.text, "tokens": len(answer.token_ids)}
    if sampling.draws:
        drawn = SamplingParams(n=sampling.draws, temperature=sampling.temperature, seed=sampling.seed, **length)
        for index, output in enumerate(engine.generate(inputs, drawn)):
            for draw, answer in enumerate(output.outputs, start=1):
                yield {"index": index, "draw": draw, "response": answer.text, "tokens": len(answer.token_ids)}


ENGINES: dict[str, Callable[[Path, Sequence[list[dict[str, str]]], Sampling], Iterator[dict[str, Any]]]] = {
    "hf": answers,
    "vllm": vllm_answers,
}


if __name__ == "__main__":
    main()
