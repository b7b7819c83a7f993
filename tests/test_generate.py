"""Answers of a model: the engine's settings, and how vLLM is asked and read (vLLM itself needs an accelerator)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from verlbox.generate import Sampling, engine_settings, vllm_answers

TINY = Path(__file__).parents[1] / "verlbox" / "assets" / "tiny-qwen2-arithmetic"
ROLLOUT = "actor_rollout_ref.rollout."
PROMPTS = [[{"role": "user", "content": f"What is {i} plus {i}?"}] for i in range(3)]


def test_the_engine_is_set_up_as_the_rollout_is() -> None:
    settings = {
        ROLLOUT + "tensor_model_parallel_size": 4,
        ROLLOUT + "gpu_memory_utilization": 0.8,
        ROLLOUT + "enforce_eager": True,
        "trainer.n_gpus_per_node": 8,
    }
    assert engine_settings(settings) == {
        "tensor_parallel_size": 4,
        "gpu_memory_utilization": 0.8,
        "enforce_eager": True,
        "dtype": "bfloat16",
    }


def test_what_a_recipe_leaves_out_is_verls_default_on_the_devices_there_are() -> None:
    # tensor_model_parallel_size 2, gpu_memory_utilization 0.5, enforce_eager False, dtype bfloat16: rollout.yaml.
    found = engine_settings({"trainer.n_gpus_per_node": 1})
    assert found == {
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": False,
        "dtype": "bfloat16",
    }
    assert engine_settings({"trainer.n_gpus_per_node": 4})["tensor_parallel_size"] == 2


@dataclass
class SamplingParams:
    """The fields of vLLM's SamplingParams (0.11.0 and 0.24.0) that are used, with its defaults."""

    n: int = 1
    temperature: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    detokenize: bool = True


@dataclass
class Completion:
    index: int
    token_ids: list[int]
    text: str = ""  # empty, as with detokenize=False


@dataclass
class Request:
    outputs: list[Completion]


@dataclass
class LLM:
    """Stands in for vLLM's LLM: answers each prompt with the end of it, and the end-of-sequence token."""

    model: str
    max_model_len: int
    seed: int
    tensor_parallel_size: int
    gpu_memory_utilization: float
    enforce_eager: bool
    dtype: str
    asked: list[Any] = field(default_factory=list)

    def generate(
        self, prompts: Sequence[dict[str, list[int]]], sampling_params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Request]:
        engines.append((self, sampling_params))
        each = [sampling_params] * len(prompts) if isinstance(sampling_params, SamplingParams) else sampling_params
        assert len(each) == len(prompts)
        return [
            Request([Completion(i, [*prompt["prompt_token_ids"][-4:-1], EOS]) for i in range(params.n)])
            for prompt, params in zip(prompts, each, strict=True)
        ]


engines: list[tuple[LLM, Any]] = []
EOS = 0


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Any:
    transformers = pytest.importorskip("transformers")
    global EOS  # noqa: PLW0603 - the stand-in ends its answers as this tokenizer does
    found = transformers.AutoTokenizer.from_pretrained(TINY)
    EOS = found.eos_token_id
    engines.clear()
    stand_in = ModuleType("vllm")
    stand_in.LLM, stand_in.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    return found


def test_vllm_is_asked_greedily_first_and_with_a_seed_of_its_own_for_each_prompt(tokenizer: Any) -> None:
    settings = engine_settings({"trainer.n_gpus_per_node": 1})
    rows = list(vllm_answers(TINY, PROMPTS, Sampling(draws=2, seed=7, max_new_tokens=20, settings=settings)))
    assert [(row["index"], row["draw"]) for row in rows] == [
        *((i, 0) for i in range(3)),
        *((i, draw) for i in range(3) for draw in (1, 2)),
    ]
    (engine, greedy), (_, drawn) = engines
    assert greedy == SamplingParams(temperature=0.0, max_tokens=20, detokenize=False)
    # vLLM counts up from a prompt's seed for its draws: no two draws of the evaluation share random numbers.
    used = [params.seed + draw for params in drawn for draw in range(params.n)]
    assert len(set(used)) == 6
    longest = max(len(tokenizer.apply_chat_template(p, add_generation_prompt=True)) for p in PROMPTS)
    assert engine.max_model_len == longest + 20
    assert engine.dtype == "bfloat16"


def test_an_answer_is_what_precedes_the_end_token(tokenizer: Any) -> None:
    settings = engine_settings({"trainer.n_gpus_per_node": 1})
    (row, *_) = vllm_answers(TINY, PROMPTS, Sampling(max_new_tokens=20, settings=settings))
    assert row["tokens"] == 3
    assert row["response"] == "\nassistant"
