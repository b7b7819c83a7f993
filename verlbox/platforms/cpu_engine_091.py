"""Real verl 0.9.1 on a machine without an accelerator.

`VERL_USE_EXTERNAL_MODULES=verlbox.platforms.cpu_engine_091` makes verl import this module in every process that it
starts. Importing it applies `CHANGES` below, makes the CPU verl's platform, and registers `CpuReplica` and
`CpuAdapter` as verl's rollout `hf`. `VERL_ENGINE_DEVICE=cuda` must be set as well: verl registers its FSDP engines for
cuda and npu by name, and they run on a CPU as they are.

What is covered
- verl's own trainer (v1, synchronous), agent loop, TransferQueue, reward workers, FSDP2 workers, checkpoints and
  merger, with gloo in place of nccl: actor, rollout, reference policy and critic, in float32.
- Rollout by Hugging Face `generate` in a server of its own, token in, token out, as verl's vLLM server is called:
  greedy and sampled, `temperature`, `top_p`, `top_k`, `val_kwargs`, `ignore_eos`, `calculate_log_probs`;
  `max_num_batched_tokens` and `max_num_seqs` bound a batch.
- Sampling noise that depends on `VERLBOX_SEED`, the step, the prompt and the number of the request for it, and not on
  the order in which requests arrive. The trainer's own batches follow that order, so that two runs agree closely, not
  to the last bit.

What is not covered
- Asynchronous trainers, several turns and tools, vision models, LoRA, FSDP1, Megatron.
- More than one worker: nothing here forbids it, nothing has tried it.
- Speed. This is for models that a CPU can sample from, which is how a recipe is proven where there is no accelerator.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from verl.plugin.platform import PlatformBase, set_platform
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from verlbox.platforms import cpu_common

QUIET = 0.05  # seconds without a new request after which the waiting ones are generated together


class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """verl's view of the CPU (plugin/platform/platform_base.py): one device, torch.cpu, gloo."""

    device_name = vendor_name = "cpu"
    device_module = torch.cpu

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"  # an index would mean cuda to torch

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"  # a logical one, which the platform's verl settings give to Ray

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def make_platform_cpu() -> None:
    """Set the platform before verl asks for it; its own detection would fall back to nvidia."""
    set_platform(CpuPlatform())


def register_rollout() -> None:
    """Add `hf` to the registries of workers/rollout/replica.py and base.py, which list vllm, sglang and trtllm."""
    RolloutReplicaRegistry.register("hf", lambda: CpuReplica)
    base._ROLLOUT_REGISTRY[("hf", "async")] = f"{CpuAdapter.__module__}.{CpuAdapter.__qualname__}"


CHANGES = (
    make_platform_cpu,
    cpu_common.complete_torch_cpu,
    cpu_common.leave_memory_unpinned,
    cpu_common.use_gloo,
    cpu_common.stay_in_float32,
    cpu_common.load_value_head_with_sdpa,
    register_rollout,
)


# The rollout.


class Noise(LogitsProcessor):  # type: ignore[misc]
    """Gumbel noise on the scores, each row from a seed of its own: the greedy choice becomes a sample.

    argmax(log p + g) with independent standard Gumbel g is distributed as p (Gumbel 1954; "Gumbel-max trick"), and a
    row's choice does not depend on the other rows of its batch.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """`scores` (rows, vocabulary) with noise added; `input_ids` is not looked at."""
        rows = [torch.empty(scores.shape[1]).exponential_(generator=generator) for generator in self.generators]
        return scores - torch.stack(rows).log()


def processors(sampling: Mapping[str, Any], seeds: Sequence[int]) -> LogitsProcessorList:
    """What turns a greedy choice into the sampling that a request asks for; empty for temperature 0.

    `top_k` -1 and `top_p` 1 mean "all tokens", as in vLLM.
    """
    chain = LogitsProcessorList()
    if sampling["temperature"] == 0:
        return chain
    chain.append(TemperatureLogitsWarper(float(sampling["temperature"])))
    if sampling.get("top_k", -1) > 0:
        chain.append(TopKLogitsWarper(sampling["top_k"]))
    if sampling.get("top_p", 1.0) < 1:
        chain.append(TopPLogitsWarper(float(sampling["top_p"])))
    chain.append(Noise(seeds))
    return chain


class CpuServer:
    """A Ray actor with the model: requests that arrive together are generated together."""

    def __init__(self, config: Any, model_config: Any) -> None:
        self.config = config
        self.tokenizer = AutoTokenizer.from_pretrained(model_config.path)
        self.module = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(model_config.path), dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        # The model's recommended sampling (Qwen: top_k 20, repetition penalty) must not fill what a recipe leaves open.
        self.module.generation_config = GenerationConfig()
        self.step: int | None = None
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.waiting: list[tuple[list[int], dict[str, Any], asyncio.Future[TokenOutput]]] = []
        self.worker: asyncio.Task[None] | None = None

    async def load_weights(self, weights: Mapping[str, torch.Tensor], step: int | None) -> None:
        """Take over all weights. Raises ValueError when one is unknown or any is missing."""
        own = self.module.state_dict()
        tied = {"lm_head.weight"} if self.module.config.tie_word_embeddings else set()
        if unknown := set(weights) - set(own):
            raise ValueError(f"the rollout model has no weights {sorted(unknown)}")
        if missing := set(own) - set(weights) - tied:
            raise ValueError(f"weights that did not arrive: {sorted(missing)}")
        for name, tensor in weights.items():
            own[name].copy_(tensor)
        self.step = step
        self.asked.clear()

    async def generate(self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **_: Any) -> TokenOutput:
        """One answer, once the requests that came with this one are answered too."""
        future: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        self.waiting.append((list(prompt_ids), dict(sampling_params), future))
        if self.worker is None or self.worker.done():
            self.worker = asyncio.create_task(self.work())
        return await future

    async def work(self) -> None:
        """Answer the waiting requests, and those that come meanwhile, until there are none."""
        while self.waiting:
            before = 0
            while len(self.waiting) > before:
                before = len(self.waiting)
                await asyncio.sleep(QUIET)
            taken, self.waiting = self.waiting, []
            alike: dict[tuple[Any, ...], list[int]] = {}
            for number, (_, sampling, _) in enumerate(taken):
                alike.setdefault(tuple(sorted(sampling.items())), []).append(number)
            for numbers in alike.values():
                futures = [taken[number][2] for number in numbers]
                try:
                    outputs = self.answer([taken[number][0] for number in numbers], taken[numbers[0]][1])
                except Exception as error:  # goes to the callers, who raise it; whole to one of them, since they log it
                    futures[0].set_exception(error)
                    for future in futures[1:]:
                        future.set_exception(RuntimeError(f"in the batch of a request that failed: {error!r}"))
                else:
                    for future, output in zip(futures, outputs, strict=True):
                        future.set_result(output)

    def answer(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[TokenOutput]:
        """One output for each prompt, in order; `log_probs` are of the distribution before top_k and top_p."""
        seeds = []
        for prompt in prompts:
            key = tuple(prompt)
            seeds.append(cpu_common.seed_of("rollout", self.step, *key, self.asked[key]))
            self.asked[key] += 1
        new_tokens = sampling.get("max_tokens") or self.config.response_length
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        limits = self.config.max_num_batched_tokens, self.config.max_num_seqs
        outputs: dict[int, TokenOutput] = {}
        for batch in cpu_common.batches_by_length(lengths, new_tokens, *limits):
            rows = batch.tolist()
            chain = processors(sampling, [seeds[row] for row in rows])
            outputs.update(
                zip(rows, self.complete([prompts[r] for r in rows], new_tokens, sampling, chain), strict=True)
            )
        return [outputs[row] for row in range(len(prompts))]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def complete(
        self, prompts: list[Sequence[int]], new_tokens: int, sampling: Mapping[str, Any], chain: LogitsProcessorList
    ) -> Iterator[TokenOutput]:
        """Answers to one batch, each up to and with its end-of-text token."""
        pad, eos = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with_log_probs = bool(sampling.get("logprobs"))
        output = self.module.generate(
            input_ids=ids,
            attention_mask=mask,
            logits_processor=chain,
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=new_tokens,
                pad_token_id=pad,
                eos_token_id=None if self.config.ignore_eos else eos,
                return_dict_in_generate=True,
                output_logits=with_log_probs,
            ),
        )
        chosen = output.sequences[:, width:]
        log_probs: list[list[float]] | list[None] = [None] * len(prompts)
        if with_log_probs:
            logits = torch.stack(output.logits, 1) / (sampling["temperature"] or 1.0)
            log_probs = logits.log_softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1).tolist()
        for tokens, values in zip(chosen.tolist(), log_probs, strict=True):
            end = tokens.index(eos) + 1 if eos in tokens and not self.config.ignore_eos else len(tokens)
            yield TokenOutput(
                token_ids=tokens[:end],
                log_probs=values and values[:end],
                stop_reason="completed",
                num_preempted=0,
                extra_fields={"global_steps": self.step},
            )

    async def _nothing(self, *_: Any, **__: Any) -> None:
        """Host memory is neither given up nor taken back between steps, and there is no cache to clear."""

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = _nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


def server_name(replica: int) -> str:
    """The Ray name under which a worker finds the server of its replica."""
    return f"verlbox_hf_server_{replica}"


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """Starts the server; verl's agent loop calls it through this handle."""

    async def launch_servers(self) -> None:
        name = server_name(self.replica_rank)
        options = {"name": name, "num_cpus": 0, "max_concurrency": self.max_concurrency}
        server = ray.remote(CpuServer).options(**options).remote(self.config, self.model_config)
        await server.wake_up.remote()
        self.servers, self._server_handle, self._server_address = [server], server, name


class CpuAdapter(base.BaseRollout):  # type: ignore[misc]
    """The rollout's end inside the FSDP worker: hands the new weights to the server of its replica."""

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Host memory is not handed back between steps."""

    async def update_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], global_steps: int | None = None, **_: Any
    ) -> None:
        """Send (name, tensor) pairs, whole and in float32; `global_steps` is the step they are of."""
        whole = {name: tensor.detach().float().cpu() for name, tensor in weights}
        server = ray.get_actor(server_name(int(os.environ.get("RANK", "0"))))
        await server.load_weights.remote(whole, global_steps)


for change in CHANGES:
    change()
