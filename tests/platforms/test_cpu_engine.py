"""The CPU rollout by itself, on the bundled model: no Ray, no trainer."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="the CPU stack is not installed: verl is missing")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl import DataProto
from verl.workers.config import HFModelConfig, RolloutConfig, SamplingConfig

from verlbox.platforms import cpu_common, cpu_engine

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "verlbox" / "assets" / "tiny-qwen2-arithmetic"
QUESTIONS = [
    json.loads(line)["question"]
    for line in (ROOT / "verlbox" / "assets" / "arithmetic" / "test.jsonl").read_text().splitlines()
]
PROMPT_LENGTH, RESPONSE_LENGTH = 40, 20

torch.set_num_threads(1)  # as in the workers; several threads on a busy machine wait for each other
tokenizer = AutoTokenizer.from_pretrained(MODEL)
PAD, EOS = tokenizer.pad_token_id, tokenizer.eos_token_id


def prompt_ids(question: str) -> list[int]:
    message = [{"role": "user", "content": question}]
    ids: list[int] = tokenizer.apply_chat_template(message, add_generation_prompt=True)
    return ids


def prompts(questions: list[str], **meta: Any) -> DataProto:
    """A batch as verl's trainer sends it: padded on the left to the prompt length."""
    ids = torch.full((len(questions), PROMPT_LENGTH), PAD)
    mask = torch.zeros_like(ids)
    for row, question in enumerate(questions):
        own = prompt_ids(question)
        ids[row, -len(own) :] = torch.tensor(own)
        mask[row, -len(own) :] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    batch = DataProto.from_dict(tensors={"input_ids": ids, "attention_mask": mask, "position_ids": positions})
    batch.meta_info = {"eos_token_id": EOS, "pad_token_id": PAD, **meta}
    return batch


def rollout(**config: Any) -> cpu_engine.CpuRollout:
    """The engine with the bundled model's weights, sent as verl's worker sends them."""
    engine = cpu_engine.CpuRollout(
        RolloutConfig(name="hf", prompt_length=PROMPT_LENGTH, response_length=RESPONSE_LENGTH, **config),
        HFModelConfig(path=str(MODEL), override_config={"attn_implementation": "sdpa"}),
        device_mesh=None,
    )
    weights = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).state_dict()
    asyncio.run(engine.update_weights(iter(weights.items())))
    return engine


@pytest.fixture(scope="module")
def engine() -> cpu_engine.CpuRollout:
    return rollout()


def answers(output: DataProto) -> list[str]:
    texts: list[str] = tokenizer.batch_decode(output.batch["responses"], skip_special_tokens=True)
    return texts


def test_greedy_answers_are_those_of_transformers_one_prompt_at_a_time(engine: cpu_engine.CpuRollout) -> None:
    questions = QUESTIONS[:24]
    output = engine.generate_sequences(prompts(questions, do_sample=False))
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    for question, response in zip(questions, output.batch["responses"], strict=True):
        ids = torch.tensor([prompt_ids(question)])
        alone = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=RESPONSE_LENGTH, do_sample=False
        )
        expected = alone[0, ids.shape[1] :].tolist()
        assert response.tolist() == expected + [PAD] * (RESPONSE_LENGTH - len(expected))


def test_small_batches_change_no_greedy_answer(engine: cpu_engine.CpuRollout) -> None:
    questions = QUESTIONS[:24]
    in_threes = rollout(max_num_seqs=3).generate_sequences(prompts(questions, do_sample=False))
    together = engine.generate_sequences(prompts(questions, do_sample=False))
    assert torch.equal(in_threes.batch["responses"], together.batch["responses"])


def test_layout_is_what_the_trainer_expects(engine: cpu_engine.CpuRollout) -> None:
    sent = prompts(QUESTIONS[:16], do_sample=True)
    batch = engine.generate_sequences(sent).batch
    assert torch.equal(batch["prompts"], sent.batch["input_ids"])
    assert torch.equal(batch["input_ids"], torch.cat([batch["prompts"], batch["responses"]], -1))
    for response, mask, position in zip(
        batch["responses"].tolist(), batch["attention_mask"].tolist(), batch["position_ids"].tolist(), strict=True
    ):
        length = response.index(EOS) + 1 if EOS in response else RESPONSE_LENGTH
        assert response[length:] == [PAD] * (RESPONSE_LENGTH - length)
        assert mask[PROMPT_LENGTH:] == [1] * length + [0] * (RESPONSE_LENGTH - length)
        prompt_tokens = sum(mask[:PROMPT_LENGTH])
        assert position[PROMPT_LENGTH:] == list(range(prompt_tokens, prompt_tokens + RESPONSE_LENGTH))
    assert torch.equal(batch["attention_mask"][:, :PROMPT_LENGTH], sent.batch["attention_mask"])


def test_every_row_gets_one_response_and_rows_of_one_prompt_differ(engine: cpu_engine.CpuRollout) -> None:
    sent = prompts(QUESTIONS[:4], do_sample=True).repeat(repeat_times=8, interleave=True)
    sent.meta_info.update(prompts(QUESTIONS[:1], do_sample=True).meta_info)
    output = engine.generate_sequences(sent)
    assert len(output.batch["responses"]) == 32
    assert torch.equal(output.batch["prompts"], sent.batch["input_ids"])
    for group in output.batch["responses"].view(4, 8, -1):
        assert len({tuple(row) for row in group.tolist()}) > 1


def test_a_step_draws_the_same_again_after_a_restart_and_another_step_does_not(
    engine: cpu_engine.CpuRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(engine: cpu_engine.CpuRollout, step: int, validate: bool = False) -> list[str]:
        return answers(engine.generate_sequences(prompts(QUESTIONS[:32], global_steps=step, validate=validate)))

    monkeypatch.setenv(cpu_common.SEED_VARIABLE, "1")
    first, second = draw(engine, 1), draw(engine, 2)
    assert first != second
    restarted = rollout()
    assert draw(restarted, 2) == second
    monkeypatch.setenv(cpu_common.SEED_VARIABLE, "2")
    assert draw(rollout(), 2) != second


def test_two_calls_within_one_step_draw_differently(engine: cpu_engine.CpuRollout) -> None:
    same = prompts(QUESTIONS[:32], global_steps=5)
    assert answers(engine.generate_sequences(same)) != answers(engine.generate_sequences(same))


def test_log_probabilities_are_those_of_a_forward_pass_over_prompt_and_response() -> None:
    engine = rollout(calculate_log_probs=True, temperature=0.7)
    batch = engine.generate_sequences(prompts(QUESTIONS[:16])).batch
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=batch["position_ids"])
    scaled = logits.logits[:, PROMPT_LENGTH - 1 : -1] / 0.7
    expected = scaled.log_softmax(-1).gather(-1, batch["responses"].unsqueeze(-1)).squeeze(-1)
    said = batch["attention_mask"][:, PROMPT_LENGTH:].bool()
    assert torch.allclose(batch["rollout_log_probs"][said], expected[said], atol=1e-4)
    assert (batch["rollout_log_probs"][~said] == -1).all()


def test_validation_uses_its_own_sampling() -> None:
    config = RolloutConfig(
        name="hf", temperature=0.9, top_k=-1, val_kwargs=SamplingConfig(temperature=0.6, top_p=0.95, top_k=20)
    )
    training = {"do_sample": True, "temperature": 0.9, "top_p": 1.0, "top_k": 0}
    assert cpu_engine.sampling_of({}, config) == training
    assert cpu_engine.sampling_of({"temperature": 0.5}, config) == training | {"temperature": 0.5}
    validating = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert cpu_engine.sampling_of({"validate": True, "do_sample": True}, config) == validating
    assert cpu_engine.sampling_of({"validate": True, "do_sample": False}, config) == {"do_sample": False}
    assert cpu_engine.sampling_of({"temperature": 0}, config) == {"do_sample": False}


def test_batches_hold_similar_lengths_and_keep_to_the_limits() -> None:
    lengths = torch.tensor([30, 5, 31, 6, 29, 200])
    batches = [b.tolist() for b in cpu_common.batches_by_length(lengths, new_tokens=10, max_tokens=90, max_rows=3)]
    assert batches == [[1, 3], [4, 0], [2], [5]]


def test_ignore_eos_fills_the_whole_response() -> None:
    batch = rollout(ignore_eos=True).generate_sequences(prompts(QUESTIONS[:4], do_sample=False)).batch
    assert batch["attention_mask"][:, PROMPT_LENGTH:].all()
    assert (batch["responses"] == EOS).any()


def test_weights_that_are_missing_or_unknown_are_refused(engine: cpu_engine.CpuRollout) -> None:
    weights = dict(engine.module.state_dict())
    with pytest.raises(ValueError, match="no weight 'head'"):
        asyncio.run(engine.update_weights(iter({**weights, "head": torch.zeros(1)}.items())))
    del weights["model.norm.weight"]
    with pytest.raises(ValueError, match=r"did not arrive.*model\.norm\.weight"):
        asyncio.run(engine.update_weights(iter(weights.items())))


def test_importing_verl_with_the_module_named_registers_the_engine_and_the_value_head() -> None:
    script = f"""
import verl
from verl.workers.rollout.base import get_rollout_class
print(get_rollout_class("hf", "sync").__name__)
import torch, transformers
from verl.utils.model import load_valuehead_model
config = transformers.AutoConfig.from_pretrained({str(MODEL)!r}, num_labels=1)
first, second = (load_valuehead_model({str(MODEL)!r}, torch.float32, config, False).score.weight for _ in range(2))
print(torch.equal(first, second), first.abs().sum().item() > 0)
with torch.autocast("cpu", dtype=torch.bfloat16):
    print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
"""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "VERL_USE_EXTERNAL_MODULES": cpu_engine.__name__,
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["CpuRollout", "True True", "torch.float32"]
