"""The CPU rollout of verl 0.9.1 by itself, on the bundled model: no Ray, no trainer.

usage: python -m tests.platforms.engine_091, with an interpreter that has verl 0.9.1 (no pytest is needed);
tests/e2e/test_smoke_091.py runs it with that of .venv-091. Each check is a function; a failed one ends the script.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import verl
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from verl.utils.device import get_device_name, get_nccl_backend
from verl.workers.config import RolloutConfig
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import TokenOutput, get_rollout_replica_class

from tests.platforms import checks
from verlbox.platforms import cpu_engine_091 as engine

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "verlbox" / "assets" / "tiny-qwen2-arithmetic"
QUESTIONS = [
    json.loads(line)["question"]
    for line in (ROOT / "verlbox" / "assets" / "arithmetic" / "test.jsonl").read_text().splitlines()
]
NEW_TOKENS = 16
GREEDY = {"temperature": 0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": False}
SAMPLED = {**GREEDY, "temperature": 1.0}

torch.set_num_threads(1)  # as in the workers; several threads on a busy machine wait for each other
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="sdpa").eval()
model.generation_config = GenerationConfig()
WEIGHTS = {name: tensor.clone() for name, tensor in model.state_dict().items()}


def prompt(question: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


PROMPTS = [prompt(question) for question in QUESTIONS[:12]]


def server(step: int | None = 3, **config: Any) -> engine.CpuServer:
    """A server with the bundled model's weights, sent as verl's worker sends them."""
    made = engine.CpuServer(
        RolloutConfig(name="hf", prompt_length=64, response_length=NEW_TOKENS, **config), SimpleNamespace(path=MODEL)
    )
    asyncio.run(made.load_weights(WEIGHTS, step))
    return made


def tokens(outputs: list[TokenOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def check_verl_sees_a_cpu_and_the_rollout() -> None:
    assert verl.__version__ == "0.9.1"
    assert (get_device_name(), get_nccl_backend()) == ("cpu", "gloo")
    assert get_rollout_replica_class("hf").__name__ == "CpuReplica"
    assert get_rollout_class("hf").__name__ == "CpuAdapter"


def check_greedy_answers_are_those_of_transformers_one_prompt_at_a_time() -> None:
    expected = []
    for ids in PROMPTS:
        output = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            ),
        )
        expected.append(output[0, len(ids) :].tolist())
    assert tokens(server().answer(PROMPTS, GREEDY)) == expected
    assert tokens(server(max_num_seqs=5).answer(PROMPTS, GREEDY)) == expected


def check_a_sample_depends_on_step_and_prompt_and_not_on_its_company() -> None:
    together = tokens(server().answer(PROMPTS, SAMPLED))
    assert tokens(server().answer(PROMPTS[::-1], SAMPLED))[::-1] == together
    alone = server()
    assert [alone.answer([ids], SAMPLED)[0].token_ids for ids in PROMPTS] == together
    assert tokens(server(step=4).answer(PROMPTS, SAMPLED)) != together


def check_the_answers_to_one_prompt_differ_and_a_new_step_begins_anew() -> None:
    made = server()
    first = tokens(made.answer([PROMPTS[0]] * 8, {**SAMPLED, "temperature": 3.0}))
    assert len({tuple(answer) for answer in first}) > 1
    assert tokens(made.answer([PROMPTS[0]] * 8, {**SAMPLED, "temperature": 3.0})) != first
    asyncio.run(made.load_weights(WEIGHTS, 3))
    assert tokens(made.answer([PROMPTS[0]] * 8, {**SAMPLED, "temperature": 3.0})) == first


def check_noise_makes_greedy_choices_a_sample_of_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = 20_000
    noisy = engine.Noise(range(rows))(torch.empty(rows, 0), probabilities.log().repeat(rows, 1))
    shares = noisy.argmax(-1).bincount(minlength=4) / rows
    errors = (probabilities * (1 - probabilities) / rows).sqrt()
    assert ((shares - probabilities).abs() < 4 * errors).all(), shares


def check_top_k_of_one_is_greedy_and_top_p_keeps_the_likely_tokens() -> None:
    greedy = tokens(server().answer(PROMPTS, GREEDY))
    assert tokens(server().answer(PROMPTS, {**SAMPLED, "top_k": 1})) == greedy
    assert tokens(server().answer(PROMPTS, {**SAMPLED, "top_p": 1e-6})) == greedy


def check_log_probabilities_are_those_of_a_forward_pass() -> None:
    sampling = {**SAMPLED, "temperature": 0.7, "top_k": 5, "logprobs": True}
    for ids, output in zip(PROMPTS, server().answer(PROMPTS, sampling), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([ids + output.token_ids])).logits[0, len(ids) - 1 : -1] / 0.7
        chosen = logits.log_softmax(-1).gather(-1, torch.tensor(output.token_ids).unsqueeze(-1)).squeeze(-1)
        assert output.log_probs is not None
        assert torch.allclose(torch.tensor(output.log_probs), chosen, atol=1e-4)


def check_an_answer_ends_with_its_end_of_text_unless_that_is_ignored() -> None:
    for answer in tokens(server().answer(PROMPTS, GREEDY)):
        assert tokenizer.eos_token_id not in answer[:-1]
        assert len(answer) == NEW_TOKENS or answer[-1] == tokenizer.eos_token_id
    assert {len(a) for a in tokens(server(ignore_eos=True).answer(PROMPTS, GREEDY))} == {NEW_TOKENS}
    assert {len(a) for a in tokens(server().answer(PROMPTS, {**GREEDY, "max_tokens": 2}))} == {2}


def check_requests_that_come_together_are_answered_each_by_its_own_sampling() -> None:
    made = server()
    expected = tokens(server().answer(PROMPTS, GREEDY))

    async def ask() -> list[TokenOutput]:
        greedy = [made.generate(ids, GREEDY, request_id="a") for ids in PROMPTS]
        sampled = [made.generate(ids, SAMPLED, request_id="b") for ids in PROMPTS]
        return await asyncio.gather(*greedy, *sampled)

    outputs = asyncio.run(ask())
    assert tokens(outputs[: len(PROMPTS)]) == expected
    assert {output.extra_fields["global_steps"] for output in outputs} == {3}


def check_a_failure_reaches_every_caller_and_the_server_goes_on() -> None:
    made = server()

    async def ask() -> list[Any]:
        unknown = [made.generate([10**6], GREEDY), made.generate([10**6], GREEDY)]
        failed = await asyncio.gather(*unknown, return_exceptions=True)
        return [*failed, await made.generate(PROMPTS[0], GREEDY)]

    first, second, output = asyncio.run(ask())
    assert isinstance(first, Exception) and isinstance(second, Exception)
    assert output.token_ids == tokens(made.answer([PROMPTS[0]], GREEDY))[0]


def check_weights_that_are_missing_or_unknown_are_refused() -> None:
    made = server()
    name = "model.layers.0.mlp.up_proj.weight"
    for wrong in ({k: v for k, v in WEIGHTS.items() if k != name}, {**WEIGHTS, "model.extra.weight": torch.zeros(1)}):
        try:
            asyncio.run(made.load_weights(wrong, 1))
        except ValueError as error:
            assert name in str(error) or "model.extra.weight" in str(error)
        else:
            raise AssertionError("weights that do not fit were taken")


if __name__ == "__main__":
    checks.run(globals())
