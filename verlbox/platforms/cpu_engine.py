"""Real verl 0.6.1 on a machine without an accelerator.

`VERL_USE_EXTERNAL_MODULES=verlbox.platforms.cpu_engine` makes verl import this module in every process that it starts
(`verl/__init__.py` does so last, so torch, ray and transformers are there already). Importing it changes what is listed
in `CHANGES` below and registers `CpuRollout` as verl's rollout `hf` in mode `sync`.

What is covered
- verl's own trainer, FSDP2 workers, checkpoints and merger, with gloo in place of nccl: actor, rollout, reference
  policy and critic, in float32.
- Rollout by Hugging Face `generate` on a second copy of the model: greedy and sampled, `temperature`, `top_p`, `top_k`,
  `val_kwargs`, `ignore_eos`, `calculate_log_probs`; `max_num_batched_tokens` and `max_num_seqs` bound a batch.
- Reproducible sampling: the noise of a step depends on `VERLBOX_SEED`, the step, training or validation, and the data
  rank. A run that was resumed at step k draws what an uninterrupted one draws at step k + 1.

What is not covered
- Rollout in mode `async` (agent loops, tools, several turns), vision models, LoRA, FSDP1, Megatron.
- More than one worker: nothing here forbids it, nothing has tried it.
- Speed. This is for models that a CPU can sample from, which is how a recipe is proven where there is no accelerator.
"""

from collections.abc import Iterator
from typing import Any

import torch
import verl.utils.memory_utils
from transformers import AutoModelForCausalLM, GenerationConfig
from verl import DataProto
from verl.utils.torch_functional import get_response_mask
from verl.workers.rollout import base

from verlbox.platforms.cpu_common import (
    batches_by_length,
    complete_torch_cpu,
    leave_memory_unpinned,
    load_value_head_with_sdpa,
    seed_of,
    stay_in_float32,
    use_gloo,
)

# The changes. Each names the place in verl that it mends; those that both versions of verl need are in cpu_common.py.


def skip_emptying_caches() -> None:
    """Replace `aggressive_empty_cache` of utils/memory_utils.py: a CPU has no device cache to empty.

    Its garbage collections, three a step, took 0.8 s of a step of 3 s (measured on two cores).
    """
    verl.utils.memory_utils.aggressive_empty_cache = lambda force_sync=True, max_retries=3: None


def register_rollout() -> None:
    """Put `CpuRollout` into the registry of workers/rollout/base.py, which lists vllm and sglang only."""
    base._ROLLOUT_REGISTRY[("hf", "sync")] = f"{CpuRollout.__module__}.{CpuRollout.__qualname__}"


CHANGES = (
    complete_torch_cpu,
    skip_emptying_caches,
    leave_memory_unpinned,
    use_gloo,
    stay_in_float32,
    load_value_head_with_sdpa,
    register_rollout,
)


# The rollout.


def sampling_of(meta: dict[str, Any], config: Any) -> dict[str, Any]:
    """The arguments of `generate` that decide how a token is chosen, for one batch.

    As verl's own engines read them: validation takes `val_kwargs`, training takes the batch's meta information and then
    the rollout's configuration. `top_k` -1 (none) is 0 in transformers, and temperature 0 means greedy.
    """
    if meta.get("validate", False):
        chosen: Any = config.val_kwargs
        do_sample = meta.get("do_sample", chosen.do_sample)
        temperature, top_p, top_k = chosen.temperature, chosen.top_p, chosen.top_k
    else:
        do_sample = meta.get("do_sample", config.do_sample)
        temperature, top_p, top_k = (meta.get(k, config.get(k)) for k in ("temperature", "top_p", "top_k"))
    if not do_sample or temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": float(temperature), "top_p": float(top_p), "top_k": max(0, int(top_k))}


class CpuRollout(base.BaseRollout):  # type: ignore[misc]
    """Hugging Face `generate` behind verl's rollout interface.

    verl's own HFRollout no longer fits that interface, passes `position_ids` to `generate` (which with
    transformers 4.57 freezes the position, so that the answers are garbage and every score is 0) and samples in
    bfloat16. Weights live in a second, unsharded copy of the model, refreshed before each generation.
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.module = AutoModelForCausalLM.from_config(
            self.model_config.hf_config, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        # The model's recommended sampling (Qwen: top_k 20, repetition penalty) must not fill what a recipe leaves open.
        self.module.generation_config = GenerationConfig()
        self.data_rank = 0 if device_mesh is None else device_mesh["dp"].get_local_rank()
        self.calls: tuple[object, int] = (None, 0)

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Host memory is not handed back between steps."""

    async def update_weights(self, weights: Iterator[tuple[str, torch.Tensor]], **_: Any) -> None:
        """Copy (name, tensor) pairs into the model. Raises ValueError when one is unknown or any is missing."""
        own = self.module.state_dict()
        missing = set(own)
        for name, tensor in weights:
            if name not in own:
                raise ValueError(f"the rollout model has no weight {name!r}")
            own[name].copy_(tensor.detach())
            missing.discard(name)
        if self.module.config.tie_word_embeddings:
            missing.discard("lm_head.weight")
        if missing:
            raise ValueError(f"weights that did not arrive: {sorted(missing)}")

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """One response for each row; verl has repeated the rows n times before.

        `prompts.batch` holds input_ids, attention_mask, position_ids (rows, prompt_length), padded on the left. The
        result holds, besides prompts and responses (rows, response_length), the three of them for prompt and response
        together: after the first end-of-text token come padding tokens with attention 0, and positions count on. With
        `calculate_log_probs`, rollout_log_probs (rows, response_length) are of the distribution at the sampling
        temperature before top_p and top_k, and -1 at padding, as verl's vllm rollout leaves them.
        """
        ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        positions = prompts.batch["position_ids"]
        meta = prompts.meta_info
        pad, eos = meta["pad_token_id"], meta["eos_token_id"]
        new_tokens = meta.get("response_length", self.config.response_length)
        sampling = sampling_of(meta, self.config)

        rows = len(ids)
        responses = torch.full((rows, self.config.response_length), pad, dtype=ids.dtype)
        log_probs = torch.full((rows, self.config.response_length), -1.0)
        generation = GenerationConfig(
            **sampling,
            max_new_tokens=new_tokens,
            pad_token_id=pad,
            eos_token_id=None if self.config.ignore_eos else eos,
            return_dict_in_generate=True,
            output_logits=self.config.calculate_log_probs,
        )
        torch.manual_seed(self.next_seed(meta))
        limits = self.config.max_num_batched_tokens, self.config.max_num_seqs
        for batch in batches_by_length(mask.sum(-1), new_tokens, *limits):
            width = int(mask[batch].sum(-1).max())
            # No position_ids: generate derives them from the attention mask, and advances them.
            output = self.module.generate(
                input_ids=ids[batch, -width:],
                attention_mask=mask[batch, -width:],
                generation_config=generation,
                use_model_defaults=False,
            )
            response = output.sequences[:, width:]
            responses[batch, : response.shape[1]] = response
            if self.config.calculate_log_probs:
                logits = torch.stack(output.logits, 1) / sampling.get("temperature", 1.0)
                chosen = logits.log_softmax(-1).gather(-1, response.unsqueeze(-1)).squeeze(-1)
                log_probs[batch, : response.shape[1]] = chosen

        response_mask = get_response_mask(responses, [] if self.config.ignore_eos else eos, mask.dtype)
        steps = torch.arange(1, responses.shape[1] + 1, dtype=positions.dtype)
        tensors = {
            "prompts": ids,
            "responses": responses,
            "input_ids": torch.cat([ids, responses], -1),
            "attention_mask": torch.cat([mask, response_mask], -1),
            "position_ids": torch.cat([positions, positions[:, -1:] + steps], -1),
        }
        if self.config.calculate_log_probs:
            tensors["rollout_log_probs"] = torch.where(response_mask.bool(), log_probs, -1.0)
        return DataProto.from_dict(tensors=tensors, non_tensors=prompts.non_tensor_batch)

    def next_seed(self, meta: dict[str, Any]) -> int:
        """The seed of this call: by step, by training or validation, and by the number of the call within these."""
        purpose = (meta.get("global_steps", 0), "validate" if meta.get("validate", False) else "train")
        last, count = self.calls
        count = count + 1 if purpose == last else 0
        self.calls = (purpose, count)
        return seed_of("rollout", *purpose, count, self.data_rank)


for change in CHANGES:
    change()
