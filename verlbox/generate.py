"""Answers of one or more models to the same prompts, a child of the evaluate stage.

usage: python -m verlbox.generate --rows test.parquet --out FOLDER --model NAME=PATH [--model NAME=PATH ...]
       [--draws K] [--temperature T] [--seed S] [--batch-size B] [--max-new-tokens N] [--engine hf|vllm]
       [--settings JSON]

Writes FOLDER/NAME.jsonl for each model: {"index", "draw", "response", "tokens"}, draw 0 greedy, 1..K sampled. Tokens
are chosen from the whole distribution (no top_k, top_p or penalty), whatever the model's generation_config recommends,
as in training. Engine hf: Hugging Face generate in float32 on the CPU. Engine vllm: vLLM on an accelerator as the
rollout of the recipe sets it up (`--settings`, see engine_settings), one model a process, since vLLM does not give its
memory back.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    parser.add_argument("--settings", type=json.loads, default={})
    arguments = parser.parse_args()

    import pyarrow.parquet

    prompts = pyarrow.parquet.read_table(arguments.rows, columns=["prompt"]).column("prompt").to_pylist()
    names = ("draws", "temperature", "seed", "max_new_tokens", "batch_size", "settings")
    sampling = Sampling(**{name: getattr(arguments, name) for name in names})
    for named in arguments.model:
        name, _, path = named.partition("=")
        with (arguments.out / f"{name}.jsonl").open("w", encoding="utf-8") as stream:
            for answer in ENGINES[arguments.engine](Path(path), prompts, sampling):
                stream.write(json.dumps(answer, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn: `draws` sampled ones beside the greedy one; at most `max_new_tokens` tokens each.

    `batch_size` is that of engine hf, `settings` those of engine vllm; neither is meant to change an answer.
    """

    draws: int = 0
    temperature: float = 1.0
    seed: int = 0
    max_new_tokens: int = 256
    batch_size: int = 256
    settings: Mapping[str, Any] = field(default_factory=dict)


def engine_settings(effective: Mapping[str, object]) -> dict[str, Any]:
    """vLLM's own arguments as the rollout of training has them, from verl's settings.

    Where a recipe is silent verl's defaults hold (trainer/config/rollout/rollout.yaml of 0.6.1 and 0.9.1), but never
    more devices than the run has.
    """
    rollout = "actor_rollout_ref.rollout."
    devices = int(str(effective.get("trainer.n_gpus_per_node", 8)))
    return {
        "tensor_parallel_size": min(devices, int(str(effective.get(rollout + "tensor_model_parallel_size", 2)))),
        "gpu_memory_utilization": float(str(effective.get(rollout + "gpu_memory_utilization", 0.5))),
        "enforce_eager": bool(effective.get(rollout + "enforce_eager", False)),
        "dtype": str(effective.get(rollout + "dtype", "bfloat16")),
    }


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
    """The same by vLLM: greedy answers first, then all draws; the engine batches by itself.

    Written against vLLM 0.11.0 and 0.24.0 (entrypoints/llm.py, sampling_params.py): prompts are token ids, so that the
    chat template is applied once and here; explicit sampling parameters leave out what generation_config.json
    recommends but for its end-of-sequence ids, as in verl's rollout; output tokens include the one that ended the
    answer.
    """
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    inputs = [{"prompt_token_ids": tokenizer(text, add_special_tokens=False)["input_ids"]} for text in texts]
    longest = max(len(item["prompt_token_ids"]) for item in inputs) + sampling.max_new_tokens
    engine = LLM(model=str(path), max_model_len=longest, seed=sampling.seed, **sampling.settings)

    def row(index: int, draw: int, output: Any) -> dict[str, Any]:
        tokens = list(output.token_ids)
        if tokens and tokens[-1] == tokenizer.eos_token_id:
            tokens.pop()
        # Decoded as verl decodes for its reward, not by the engine's incremental detokenizer.
        response = tokenizer.decode(tokens, skip_special_tokens=True)
        return {"index": index, "draw": draw, "response": response, "tokens": len(tokens)}

    # Explicit, as the defaults for text are other ones: nothing is needed but tokens.
    common = {"max_tokens": sampling.max_new_tokens, "detokenize": False}
    for index, request in enumerate(engine.generate(inputs, SamplingParams(temperature=0.0, **common))):
        (answer,) = request.outputs
        yield row(index, 0, answer)
    if sampling.draws:
        # A seed of its own for each prompt: with one for all, every prompt would be drawn by the same random numbers,
        # and the answers would not be independent. vLLM counts up from it for the draws of a prompt.
        drawn = [
            SamplingParams(
                n=sampling.draws,
                temperature=sampling.temperature,
                seed=sampling.seed * 1_000_003 + index * sampling.draws,
                **common,
            )
            for index in range(len(inputs))
        ]
        for index, request in enumerate(engine.generate(inputs, drawn)):
            for answer in request.outputs:
                yield row(index, answer.index + 1, answer)


ENGINES: dict[str, Callable[[Path, Sequence[list[dict[str, str]]], Sampling], Iterator[dict[str, Any]]]] = {
    "hf": answers,
    "vllm": vllm_answers,
}


if __name__ == "__main__":
    main()
