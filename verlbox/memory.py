"""Memory planner: the peak of each phase of a step, from the model's config.json and verl's settings alone.

Covered: dense decoder models (Llama, Mistral, Qwen2, Qwen2.5, Qwen3, Gemma) trained whole with FSDP or FSDP2, one
process a device, the rollout engine in the same process (verl's hybrid engine). Not covered: LoRA, mixtures of experts,
vision towers, Megatron, reward models. Nothing is measured here: the parts that are exact (weights, optimizer states,
the engine's share) and those that are estimates (activations, logits, contexts) are told apart in docs/memory.md.

All sizes are GB of 10^9 bytes, except a card's capacity, which is given in GiB as the framework reports it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from verlbox import findings
from verlbox.findings import Finding
from verlbox.lints.settings import ACTOR, MODEL, REF, ROLLOUT, Facts, Settings, make
from verlbox.stacks import CRITIC_BUDGET_091, CRITIC_BY_TOKENS_091, CRITIC_TOKENS_091

DOES_NOT_FIT = findings.register("memory-exceeded", "warning", "A phase needs more memory than the device has.")
TIGHT = findings.register("memory-tight", "note", "A phase needs almost all of the device's memory.")
SHAPE_UNKNOWN = findings.register("model-shape-unknown", "error", "The model's config.json cannot be planned with.")

GB, GIB = 1e9, 2**30
Verdict = Literal["fits", "tight", "does not fit"]

# Parts of a phase that are arithmetic; the others are estimates.
_ARITHMETIC = frozenset(
    {"engine", *(f"{role} {part}" for role in ("actor", "critic") for part in ("weights", "optimizer", "gradients"))}
)
# Below this share of the capacity a plan fits; above it the estimate's own error decides (docs/memory.md).
FITS_BELOW = 0.90


@dataclass(frozen=True)
class Card:
    """An accelerator. `capacity_gib` is what torch reports as total, less than the number on the box."""

    name: str
    vendor: Literal["nvidia", "ascend"]
    box_gb: int
    capacity_gib: float

    @property
    def capacity(self) -> float:
        """GB of 10^9 bytes."""
        return self.capacity_gib * GIB / GB


# capacity_gib: the total in torch's out-of-memory messages as users report them; 910B4: by the ratio of the 910B3.
CARDS: Mapping[str, Card] = {
    card.name: card
    for card in (
        Card("910B2", "ascend", 64, 61.28),
        Card("910B3", "ascend", 64, 61.28),
        Card("910B4", "ascend", 32, 30.6),
        Card("A100-40", "nvidia", 40, 39.4),
        Card("A100-80", "nvidia", 80, 79.1),
        Card("A800-80", "nvidia", 80, 79.1),
        Card("H100-80", "nvidia", 80, 79.1),
        Card("H800-80", "nvidia", 80, 79.1),
        Card("H20-96", "nvidia", 96, 95.0),
        Card("H200", "nvidia", 141, 139.7),
        Card("L40S", "nvidia", 48, 44.4),
        Card("RTX4090", "nvidia", 24, 23.5),
        Card("RTX3090", "nvidia", 24, 23.6),
        Card("A10", "nvidia", 24, 22.1),
        Card("L4", "nvidia", 24, 22.0),
        Card("V100-32", "nvidia", 32, 31.7),
        Card("T4", "nvidia", 16, 14.7),
    )
}


def find_card(name: str) -> Card | None:
    """The card meant by a name such as `NVIDIA A100-SXM4-40GB`, `Ascend910B3`, `4090`; None when that is not clear."""
    found = []
    for card in CARDS.values():
        model, _, size = card.name.upper().removeprefix("RTX").partition("-")
        match = re.search(rf"(?<![0-9]){model}(?![0-9A-Z])", name.upper())
        if not match:
            continue
        sizes = [int(number) for number in re.findall(r"[0-9]+", name[match.end() :]) if int(number) >= 16]
        if not size or not sizes or int(size) in sizes:
            found.append(card)
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class ModelShape:
    """What the planner needs of a decoder. Counts; `head` is the size of one attention head."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    tied: bool
    attention_bias: tuple[bool, bool]  # of q, k, v; of o
    mlp_bias: bool
    norms: int  # RMS norms of the hidden size in a layer
    head_norms: bool  # RMS norms of q and k
    context: int | None = None


_QWEN = {"model_type": "qwen2", "max_position_embeddings": 32768}
# config.json of Qwen2.5-*-Instruct (the fields that matter here), for plans made before anything is downloaded.
KNOWN_CONFIGS: Mapping[str, Mapping[str, object]] = {
    "Qwen2.5-0.5B": {
        **_QWEN,
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-1.5B": {
        **_QWEN,
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-3B": {
        **_QWEN,
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-7B": {
        **_QWEN,
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}


def known_config(name: str) -> Mapping[str, object] | None:
    """The config.json of a model by its hub name (`Qwen/Qwen2.5-1.5B-Instruct`), for the models in KNOWN_CONFIGS."""
    last = name.rstrip("/").rpartition("/")[2]
    for known, config in KNOWN_CONFIGS.items():
        if last == known or last.startswith(known + "-"):
            return config
    return None


# (q/k/v bias, o bias, norms in a layer, norms of q and k), where the class fixes them (transformers 4.57, models/*).
_FAMILIES: Mapping[str, tuple[bool | None, bool | None, int, bool]] = {
    "llama": (None, None, 2, False),
    "mistral": (False, False, 2, False),
    "qwen2": (True, False, 2, False),
    "qwen3": (None, None, 2, True),
    "gemma": (None, None, 2, False),
    "gemma2": (None, None, 4, False),
}


def shape(config: Mapping[str, object]) -> ModelShape:
    """Reads a config.json. Raises FindingsError (model-shape-unknown) for a family or a field that is not known."""
    family = str(config.get("model_type", ""))
    if family not in _FAMILIES:
        raise findings.FindingsError(
            SHAPE_UNKNOWN.finding(
                f"model_type '{family}' is not one the planner knows",
                why=f"It counts parameters by family: {', '.join(_FAMILIES)}.",
                fix="plan without a memory estimate",
            )
        )
    qkv, o, norms, head_norms = _FAMILIES[family]
    try:
        hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
        bias = bool(config.get("attention_bias", False))
        context = config.get("max_position_embeddings")
        return ModelShape(
            vocabulary=_whole(config, "vocab_size"),
            hidden=hidden,
            layers=_whole(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=_whole(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads,
            head=_whole(config, "head_dim") if config.get("head_dim") else hidden // heads,
            intermediate=_whole(config, "intermediate_size"),
            tied=bool(config.get("tie_word_embeddings", family.startswith("gemma"))),
            attention_bias=(bias if qkv is None else qkv, bias if o is None else o),
            mlp_bias=bool(config.get("mlp_bias", False)),
            norms=norms,
            head_norms=head_norms,
            context=context if isinstance(context, int) else None,
        )
    except KeyError as missing:
        raise findings.FindingsError(
            SHAPE_UNKNOWN.finding(
                f"config.json has no whole number for {missing.args[0]}",
                why="The parameter count depends on it.",
                fix="check the model's config.json",
            )
        ) from missing


def _whole(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise KeyError(name)
    return value


def layer_parameters(m: ModelShape) -> int:
    """Parameters of one decoder layer: attention, gated MLP (three matrices), norms, biases.

    Source: transformers 4.57, models/qwen2/modeling_qwen2.py and models/llama/modeling_llama.py.
    """
    queries, keys = m.heads * m.head, m.kv_heads * m.head
    attention = m.hidden * (queries + 2 * keys) + queries * m.hidden
    attention += (queries + 2 * keys) * m.attention_bias[0] + m.hidden * m.attention_bias[1]
    mlp = 3 * m.hidden * m.intermediate + (2 * m.intermediate + m.hidden) * m.mlp_bias
    return attention + mlp + m.norms * m.hidden + 2 * m.head * m.head_norms


def embedding_parameters(m: ModelShape) -> int:
    """Input embedding, output head unless tied, last norm: what FSDP keeps in its root unit."""
    return m.vocabulary * m.hidden * (1 if m.tied else 2) + m.hidden


def parameters(m: ModelShape) -> int:
    """All parameters of the causal language model."""
    return embedding_parameters(m) + m.layers * layer_parameters(m)


def critic_parameters(m: ModelShape) -> int:
    """Parameters of the value model: the same body with one output in place of the vocabulary.

    Source: verl 0.6.1, utils/model.py load_valuehead_model() (AutoModelForTokenClassification, one label).
    """
    return m.vocabulary * m.hidden + m.hidden + m.layers * layer_parameters(m) + m.hidden + 1


@dataclass(frozen=True)
class Phase:
    """One phase of a step: its parts in GB on one device."""

    name: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Estimate:
    """The plan for one device. `kv_tokens`: tokens the engine can cache; `host`: GB of a node's memory by part."""

    card: Card
    devices: int
    parameters: int
    phases: tuple[Phase, ...]
    host: Mapping[str, float]
    kv_tokens: int
    longest: int
    findings: tuple[Finding, ...] = field(default=())

    @property
    def deciding(self) -> Phase:
        """The phase with the highest peak."""
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def verdict(self) -> Verdict:
        share = self.deciding.total / self.card.capacity
        if share > 1 or self.kv_tokens < self.longest:
            return "does not fit"
        return "fits" if share <= FITS_BELOW else "tight"


# Device memory of a process before anything is allocated: CUDA or CANN context, kernels, workspaces; estimate.
CONTEXT = 0.8
# vLLM captures graphs after it has sized its cache, outside gpu_memory_utilization (vLLM 0.11, gpu_model_runner.py
# capture_model: the log line "Graph capturing finished ... took X GiB", 0.3 to 1 GiB for small models); estimate.
GRAPHS = 0.8
# Bytes for each token and vocabulary entry while log-probabilities are taken. verl 0.6.1, dp_actor.py:
# logits in 16 bit (autocast) 2. Without padding the entropy is compiled and flash-attn's cross entropy reads the logits
# where they are (utils/torch_functional.py): 2 more for a transient copy.
# With padding entropy_from_logits() runs as it is, and autocast makes softmax and logsumexp work in fp32: a copy 4, the
# probabilities 4, the exponentials 4, on the response part only.
LOGITS_16 = 2
LOGITS_COPY = 2
ENTROPY_FP32 = 12
# verl 0.9.1 without padding makes no copy (measured), and takes the entropy in slices of tokens, in fp32, if told to.
CHUNK_FP32 = 4
# In the update: flash-attn's cross entropy writes the gradient over the logits (inplace_backward) and needs no more,
# measured. Elsewhere log_softmax in fp32 is kept for backward (4), its gradient is fp32 (4), the logits' 16 bit (2).
UPDATE_PLAIN = 12
# Saved for backward for each token and layer, without checkpointing: bytes for each hidden and each intermediate unit.
# Measured: sizes of saved tensors of transformers 4.57.6 Qwen2 under bf16 autocast, 7 shapes; docs/memory.md.
SAVED_HIDDEN, SAVED_INTERMEDIATE = 26, 8


@dataclass(frozen=True)
class _Context:
    """Settings and shape, in the numbers the formulas want."""

    s: Settings
    m: ModelShape
    card: Card
    devices: int

    @property
    def longest(self) -> int:
        s = self.s
        return (s.integer("data.max_prompt_length") or 512) + (s.integer("data.max_response_length") or 512)

    def shards(self, section: str) -> int:
        size = self.s.integer(f"{section}.fsdp_size") or -1
        return self.devices if size <= 0 or size >= self.devices else size


def _bytes_of(dtype: object) -> int:
    return 4 if str(dtype) in ("fp32", "float32", "float", "32") else 2


def _critic_fsdp(s: Settings) -> str:
    return "critic.model.fsdp_config" if s.is_old else "critic.fsdp"


def _states(c: _Context, count: int, section: str) -> tuple[float, float, float]:
    """GB on one device of master weights, AdamW's two moments and gradients, sharded.

    Source: FSDP keeps the flat parameter in model_dtype (fp32 by default, verl 0.6.1 fsdp_workers.py), AdamW two
    moments of the same type, gradients in the type of the parameter.
    """
    each = _bytes_of(c.s.get(f"{section}.model_dtype")) * count / c.shards(section) / GB
    return each, 2 * each, each


def _gathered(c: _Context, section: str, *, backward: bool) -> float:
    """GB of 16-bit weights that FSDP has gathered at a time: its root unit, and two layers (one is prefetched).

    In backward the unsharded gradients of a layer come on top. Source: torch.distributed.fsdp
    (FullyShardedDataParallel, limit_all_gathers); wrapped by layer (verl 0.6.1, fsdp_utils.py get_fsdp_wrap_policy).
    Without wrapping it is the whole model, whose gradients come when the activations are gone.
    """
    if c.s.flag(f"{section}.wrap_policy.disable"):
        return 2 * parameters(c.m) / GB
    units = embedding_parameters(c.m) + 2 * layer_parameters(c.m)
    gradients = embedding_parameters(c.m) + layer_parameters(c.m) if backward else 0
    return 2 * (units + gradients) / GB


def _tokens(c: _Context, micro: str, budget: str, dynamic: str, parallel: str) -> tuple[int, int]:
    """(all, response) tokens of one micro-batch on one device, in the worst case.

    Source: verl 0.6.1, dp_actor.py: micro-batches of rows padded to prompt + response, or of at most
    max_token_len_per_gpu tokens each (utils/seqlen_balancing.py).
    """
    s = c.s
    response_share = (s.integer("data.max_response_length") or 512) / c.longest
    sequence_parallel = max(1, s.integer(parallel) or 1)
    if s.flag(dynamic):
        tokens = max(s.integer(budget) or 0, math.ceil(c.longest / sequence_parallel))
    else:
        tokens = (s.integer(micro) or 1) * c.longest // sequence_parallel
    return tokens, math.ceil(tokens * response_share)


_ACTOR_TOKENS = (
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{ACTOR}.use_dynamic_bsz",
    f"{ACTOR}.ulysses_sequence_parallel_size",
)
_LOG_PROB_TOKENS = (
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz",
    f"{ACTOR}.ulysses_sequence_parallel_size",
)
_REF_TOKENS = (
    f"{REF}.log_prob_micro_batch_size_per_gpu",
    f"{REF}.log_prob_max_token_len_per_gpu",
    f"{REF}.log_prob_use_dynamic_bsz",
    f"{ACTOR}.ulysses_sequence_parallel_size",
)
_CRITIC_TOKENS = (
    "critic.ppo_micro_batch_size_per_gpu",
    "critic.ppo_max_token_len_per_gpu",
    "critic.use_dynamic_bsz",
    "critic.ulysses_sequence_parallel_size",
)
_VALUES_TOKENS = (
    "critic.forward_micro_batch_size_per_gpu",
    "critic.forward_max_token_len_per_gpu",
    "critic.use_dynamic_bsz",
    "critic.ulysses_sequence_parallel_size",
)


def _critic_packs(s: Settings) -> bool:
    """Whether the critic packs micro-batches up to one budget of its own, whatever its other keys say (verl 0.9.1)."""
    return not s.is_old and s.get(CRITIC_BY_TOKENS_091) is not False


def _critic_tokens(c: _Context, names: tuple[str, str, str, str]) -> int:
    """Tokens of one micro-batch of the critic on one device, in the worst case; as _tokens."""
    if _critic_packs(c.s):
        return max(c.s.integer(CRITIC_BUDGET_091) or CRITIC_TOKENS_091, c.longest)
    return _tokens(c, *names)[0]


def _forward(c: _Context, tokens: int) -> float:
    """GB of activations of one layer without gradients: input, queries, keys, values and the MLP's two branches."""
    return 2 * tokens * (6 * c.m.hidden + 3 * c.m.intermediate) / GB


def _saved(c: _Context, tokens: int, checkpointing: bool) -> float:
    """GB of activations kept for backward (see SAVED_HIDDEN); with checkpointing the layers' inputs and one layer."""
    layer = tokens * (SAVED_HIDDEN * c.m.hidden + SAVED_INTERMEDIATE * c.m.intermediate) / GB
    if not checkpointing:
        return c.m.layers * layer
    return c.m.layers * tokens * 2 * c.m.hidden / GB + 1.5 * layer


def _log_prob_logits(c: _Context, tokens: int, response: int, *, entropy: bool) -> float:
    """GB of the logits and what is made of them in one forward pass without gradients (see LOGITS_16)."""
    if c.s.flag(f"{MODEL}.use_fused_kernels"):
        return 0.0
    padded = not c.s.flag(f"{MODEL}.use_remove_padding")
    compiled = f"{ACTOR}.use_torch_compile" if c.s.is_old else f"{ACTOR}.fsdp_config.use_torch_compile"
    eager = padded or c.s.get(compiled) is False or c.card.vendor == "ascend"
    each = LOGITS_16 * tokens + (LOGITS_COPY * response if padded or c.s.is_old else 0)
    if entropy and c.s.flag(f"{ACTOR}.entropy_from_logits_with_chunking"):
        each += CHUNK_FP32 * min(tokens, c.s.integer(f"{ACTOR}.entropy_from_logits_chunk_size") or 2048)
    elif entropy and eager:
        each += ENTROPY_FP32 * response
    return c.m.vocabulary * each / GB


def _without_gradients(c: _Context, section: str, tokens: int, logits: float = 0.0) -> dict[str, float]:
    """GB of a forward pass without gradients: a layer's activations are gone when the logits are there."""
    working = _larger({"activations": _forward(c, tokens)}, {"logits": logits})
    return {"gathered weights": _gathered(c, section, backward=False), **working}


def _update_logits(c: _Context, tokens: int, response: int) -> float:
    """GB of the logits in the actor's update (see UPDATE_PLAIN)."""
    if c.s.flag(f"{MODEL}.use_fused_kernels"):
        return 0.0
    part = response if not c.s.flag(f"{MODEL}.use_remove_padding") else tokens
    each = LOGITS_16 * tokens
    if c.card.vendor != "nvidia":
        each += UPDATE_PLAIN * part
    if c.s.number(f"{ACTOR}.entropy_coeff"):
        each += ENTROPY_FP32 * part
    return c.m.vocabulary * each / GB


def _engine_weights(c: _Context) -> float:
    tensor_parallel = max(1, c.s.integer(f"{ROLLOUT}.tensor_model_parallel_size") or 1)
    return _bytes_of(c.s.get(f"{ROLLOUT}.dtype")) * parameters(c.m) / tensor_parallel / GB


def _engine_peak(c: _Context) -> float:
    """GB the engine needs beside weights and cache: one step of max_num_batched_tokens, and the sampler.

    Source: vLLM 0.11, v1/worker/gpu_worker.py determine_available_memory() profiles exactly this;
    the sampler's logits are fp32, and sorted for top-p (v1/sample/sampler.py).
    """
    batched = c.s.integer(f"{ROLLOUT}.max_num_batched_tokens") or 8192
    sequences = c.s.integer(f"{ROLLOUT}.max_num_seqs") or 1024
    return _forward(c, batched) + 10 * min(sequences, batched) * c.m.vocabulary / GB


def kv_bytes(c: _Context) -> float:
    """Bytes of cache for one token on one device: keys and values of all layers in 16 bit.

    Source: vLLM 0.11, v1/kv_cache_interface.py FullAttentionSpec.page_size_bytes.
    """
    tensor_parallel = max(1, c.s.integer(f"{ROLLOUT}.tensor_model_parallel_size") or 1)
    return 2 * 2 * c.m.layers * max(1, c.m.kv_heads / tensor_parallel) * c.m.head


def _counted_by_the_engine(c: _Context, resident: float) -> float:
    """GB of other roles that the engine takes off its share when it sizes its cache.

    vLLM counts from the memory in use when it starts (0.11, utils memory_profiling): nothing. vllm-ascend counts all
    that the process holds (0.11.0, worker/worker_v1.py determine_available_memory): what is resident, the context.
    """
    return resident + CONTEXT if c.card.vendor == "ascend" else 0.0


def _phases(c: _Context) -> tuple[tuple[Phase, ...], int]:
    s, m = c.s, c.m
    actor_section, critic_section = f"{ACTOR}.fsdp_config", _critic_fsdp(s)
    weights, moments, gradients = _states(c, parameters(m), actor_section)
    offload = s.flag(f"{actor_section}.param_offload"), s.flag(f"{actor_section}.optimizer_offload")
    with_critic = s.critic_is_used()
    c_weights, c_moments, c_gradients = _states(c, critic_parameters(m), critic_section) if with_critic else (0.0,) * 3
    c_offload = s.flag(f"{critic_section}.param_offload"), s.flag(f"{critic_section}.optimizer_offload")

    # What stays on the device while somebody else works.
    actor_rest = {"actor weights": 0.0 if offload[0] else weights, "actor optimizer": 0.0 if offload[1] else moments}
    critic_rest = {
        "critic weights": 0.0 if c_offload[0] else c_weights,
        "critic optimizer": 0.0 if c_offload[1] else c_moments,
    }
    share = s.number(f"{ROLLOUT}.gpu_memory_utilization") or 0.5
    resident = actor_rest["actor weights"] + critic_rest["critic weights"]
    engine = share * c.card.capacity - _counted_by_the_engine(c, resident)
    graphs = 0.0 if s.flag(f"{ROLLOUT}.enforce_eager") else GRAPHS
    sleeps = s.flag(f"{ROLLOUT}.free_cache_engine")
    base = {"context": CONTEXT, "engine's graphs": graphs, **({} if sleeps else {"engine": engine})}
    checkpointing = s.flag(f"{MODEL}.enable_gradient_checkpointing")
    is_vllm = s.text(f"{ROLLOUT}.name") in (None, "vllm", "???")

    cache = engine - _engine_weights(c) - _engine_peak(c)
    kv_tokens = max(0, int(cache * GB / kv_bytes(c)))
    copies_all = c.devices == 1 and s.get(f"{ACTOR}.strategy") == "fsdp"
    copy = 4 * (parameters(m) if copies_all else m.vocabulary * m.hidden) / GB
    phases = [
        # The engine is built last, before the first optimizer step: ray_trainer.py init_workers().
        Phase(
            "engine start",
            {
                "context": CONTEXT,
                "actor weights": actor_rest["actor weights"],
                "critic weights": critic_rest["critic weights"],
                "engine": engine,
            },
        ),
        # fsdp_workers.py rollout_mode(): FSDP1 on one device copies the whole fp32 state, else one tensor at a time.
        Phase(
            "weight update",
            {
                **base,
                "actor weights": weights,
                "actor optimizer": actor_rest["actor optimizer"],
                **critic_rest,
                "copy of the weights": copy,
                "engine's weights": _engine_weights(c) if sleeps else 0.0,
            },
        ),
        Phase(
            "rollout",
            {
                "context": CONTEXT,
                "engine's graphs": graphs,
                **actor_rest,
                **critic_rest,
                "engine": engine,
            },
        ),
    ]
    if not is_vllm:
        phases, kv_tokens = [], c.longest  # another engine (verlbox's on the CPU stack) follows none of these rules
    tokens, response = _tokens(c, *_LOG_PROB_TOKENS)
    phases.append(
        Phase(
            "log-probabilities",
            {
                **base,
                **actor_rest,
                **critic_rest,
                "actor weights": weights,
                **_without_gradients(c, actor_section, tokens, _log_prob_logits(c, tokens, response, entropy=True)),
            },
        )
    )
    if s.reference_is_used():
        tokens, response = _tokens(c, *_REF_TOKENS)
        logits = _log_prob_logits(c, tokens, response, entropy=False)
        forward = _without_gradients(c, f"{REF}.fsdp_config", tokens, logits)
        gathered = forward["gathered weights"]
        phases.append(
            # Its weights are on the host: fsdp_workers.py, CPUOffload(offload_params=True) for role "ref". A unit comes
            # in fp32, and is made 16 bit before its forward pass.
            Phase(
                "reference",
                {
                    **base,
                    **actor_rest,
                    **critic_rest,
                    **_larger(forward, {"gathered weights": gathered, "weights from the host": 2 * gathered}),
                },
            )
        )
    if with_critic:
        tokens = _critic_tokens(c, _VALUES_TOKENS)
        phases.append(
            Phase(
                "values",
                {
                    **base,
                    **actor_rest,
                    **critic_rest,
                    "critic weights": c_weights,
                    **_without_gradients(c, critic_section, tokens),
                },
            )
        )
        tokens = _critic_tokens(c, _CRITIC_TOKENS)
        own_checkpointing = s.flag("critic.model.enable_gradient_checkpointing")
        working = {
            "gathered weights": _gathered(c, critic_section, backward=True),
            "activations": _saved(c, tokens, own_checkpointing),
        }
        phases.append(
            Phase(
                "critic update",
                {
                    **base,
                    **actor_rest,
                    "critic weights": c_weights,
                    "critic optimizer": c_moments,
                    "critic gradients": c_gradients,
                    **_larger(working, {"optimizer step": c_weights}),
                },
            )
        )
    tokens, response = _tokens(c, *_ACTOR_TOKENS)
    working = {
        "gathered weights": _gathered(c, actor_section, backward=True),
        "activations": _saved(c, tokens, checkpointing),
        "logits": _update_logits(c, tokens, response),
    }
    phases.append(
        Phase(
            "actor update",
            {
                **base,
                **critic_rest,
                "actor weights": weights,
                "actor optimizer": moments,
                "actor gradients": gradients,
                **_larger(working, {"optimizer step": weights}),
            },
        )
    )
    return tuple(phases), kv_tokens


def _larger(one: Mapping[str, float], other: Mapping[str, float]) -> Mapping[str, float]:
    """What is not there at the same time counts once.

    The optimizer's step comes after forward and backward: torch/optim/adamw.py _multi_tensor_adamw(), whose
    torch._foreach_sqrt makes one more copy of the weights' size.
    """
    return one if sum(one.values()) >= sum(other.values()) else other


def _host(c: _Context) -> dict[str, float]:
    """GB of host memory on one node with all `devices` on it: offloaded states, the reference model, loading, Ray.

    Source: verl 0.6.1, fsdp_workers.py: the reference keeps its parameters on the host; tied models are loaded whole by
    every process (use_meta_tensor=not tie_word_embeddings), in fp32; vllm-ascend sleeps at level 1, its weights on
    the host (third_party/vllm/__init__.py). Process size: imports of torch, transformers, vllm; estimate.
    """
    s, m, n = c.s, c.m, c.devices
    section, critic_section = f"{ACTOR}.fsdp_config", _critic_fsdp(s)
    whole = 4 * parameters(m) / GB
    parts = {"processes": 5.0 * n + 4.0, "loading": whole * (n if m.tied else 1)}
    if s.flag(f"{section}.param_offload"):
        parts["actor weights"] = whole
    if s.flag(f"{section}.optimizer_offload"):
        parts["actor optimizer"] = 2 * whole
    if s.reference_is_used():
        parts["reference"] = whole
    if s.critic_is_used():
        critic = 4 * critic_parameters(m) / GB
        if s.flag(f"{critic_section}.param_offload"):
            parts["critic weights"] = critic
        if s.flag(f"{critic_section}.optimizer_offload"):
            parts["critic optimizer"] = 2 * critic
    if c.card.vendor == "ascend" and s.flag(f"{ROLLOUT}.free_cache_engine"):
        parts["sleeping engine"] = _engine_weights(c) * n
    return parts


def estimate(
    m: ModelShape, config: Mapping[str, object], card: Card, devices: int | None = None, *, verl: str | None = None
) -> Estimate:
    """The memory plan of a configuration (dotted verl keys that are set; the rest has verl's default).

    devices: how many the run uses (default: trainer.n_gpus_per_node x nnodes). The lengths, micro-batches and token
    budgets are taken at their worst: every sequence as long as it may be.
    """
    s = make(config, Facts(verl=verl), complete=True, config_name="ppo_trainer")
    c = _Context(s, m, card, devices or s.world_size() or 1)
    phases, kv_tokens = _phases(c)
    made = Estimate(card, c.devices, parameters(m), phases, _host(c), kv_tokens, c.longest)
    return replace(made, findings=tuple(_findings(made, c)))


def _findings(e: Estimate, c: _Context) -> list[Finding]:
    phase, room = e.deciding, e.card.capacity
    parts = ", ".join(f"{name} {size:.1f}" for name, size in sorted(phase.parts.items(), key=lambda p: -p[1])[:4])
    devices = f"{e.devices} device{'s' if e.devices > 1 else ''}"
    why = f"{phase.name}: {parts} GB of {room:.1f} GB on a {e.card.name} ({devices})."
    fix = "`plan --fit` proposes settings that fit and keep the algorithm as it is."
    if e.kv_tokens < e.longest:
        share = c.s.number(f"{ROLLOUT}.gpu_memory_utilization") or 0.5
        return [
            DOES_NOT_FIT.finding(
                f"the engine has no room to cache one sequence of {e.longest} tokens (it has {e.kv_tokens})",
                why=f"gpu_memory_utilization {share:g} of {room:.1f} GB holds the weights ({_engine_weights(c):.1f}"
                " GB) and the"
                f" engine's own peak ({_engine_peak(c):.1f} GB); vLLM refuses to start.",
                fix=f"a larger {ROLLOUT}.gpu_memory_utilization; or {fix}",
                severity="error",
            )
        ]
    if e.verdict == "does not fit":
        # Weights, optimizer states, gradients and the engine's share are arithmetic; the rest is an estimate.
        certain = sum(size for name, size in phase.parts.items() if name in _ARITHMETIC) > room
        return [
            DOES_NOT_FIT.finding(
                f"{phase.name} needs about {phase.total:.1f} GB, and a {e.card.name} has {room:.1f}",
                why=why,
                fix=fix,
                severity="error" if certain else None,
            )
        ]
    if e.verdict == "tight":
        return [
            TIGHT.finding(
                f"{phase.name} needs about {phase.total:.1f} of {room:.1f} GB: it may just fit", why=why, fix=fix
            )
        ]
    return []


def _divisor_below(number: int, bound: int) -> int:
    """The largest divisor of `number` that is smaller than `bound`, at least 1."""
    return max((d for d in range(1, min(number, max(bound - 1, 1)) + 1) if number % d == 0), default=1)


_TOKENS_OF = {
    "actor update": _ACTOR_TOKENS,
    "critic update": _CRITIC_TOKENS,
    "values": _VALUES_TOKENS,
    "log-probabilities": _LOG_PROB_TOKENS,
    "reference": _REF_TOKENS,
}


def _smaller_batch(c: _Context, phase: str) -> dict[str, object]:
    """The next smaller micro-batch or token budget of a phase; empty when it is as small as can be."""
    if phase not in _TOKENS_OF:
        return {}
    micro, budget, dynamic, parallel = _TOKENS_OF[phase]
    s = c.s
    if phase in ("critic update", "values") and _critic_packs(s):
        size = _critic_tokens(c, _TOKENS_OF[phase])
        return {f"+{CRITIC_BUDGET_091}": max(c.longest, size // 2)} if size > c.longest else {}
    if s.flag(dynamic):
        least = math.ceil(c.longest / max(1, s.integer(parallel) or 1))
        size = s.integer(budget) or least
        return {budget: max(least, size // 2)} if size > least else {}
    size = s.integer(micro) or 1
    if size <= 1:
        return {}
    mini = s.integer(f"{micro.rpartition('.')[0]}.ppo_mini_batch_size") if "ppo_micro" in micro else None
    if mini is None:
        return {micro: size // 2}
    ranks = max(1, c.devices // max(1, s.integer(parallel) or 1))
    return {micro: _divisor_below(max(1, mini * (s.integer(f"{ROLLOUT}.n") or 1) // ranks), size)}


def _steps(c: _Context, e: Estimate) -> list[dict[str, object]]:
    """Changes that may lessen the deciding phase, the cheapest in speed first."""
    s, phase = c.s, e.deciding
    actor, critic = f"{ACTOR}.fsdp_config", _critic_fsdp(s)
    share = s.number(f"{ROLLOUT}.gpu_memory_utilization") or 0.5
    steps: list[dict[str, object]] = []
    if e.kv_tokens < e.longest:
        return [{f"{ROLLOUT}.gpu_memory_utilization": round(share + 0.05, 2)}] if share < 0.9 else []
    if "engine" in phase.parts and s.flag(f"{ROLLOUT}.free_cache_engine"):
        # Give the engine what the others leave, as long as it can still serve sixteen of the longest sequences at once.
        over = phase.total / c.card.capacity - FITS_BELOW
        wanted = math.floor(round((share - over) * 20, 6)) / 20
        needed = _engine_weights(c) + _engine_peak(c) + 16 * c.longest * kv_bytes(c) / GB
        if (needed + share * c.card.capacity - phase.parts["engine"]) / c.card.capacity <= wanted < share:
            steps.append({f"{ROLLOUT}.gpu_memory_utilization": wanted})
    steps.append(_smaller_batch(c, phase.name))
    steps.append({f"{ROLLOUT}.free_cache_engine": True})
    steps.append({f"{MODEL}.enable_gradient_checkpointing": True})
    if s.critic_is_used():
        steps += [{"critic.model.enable_gradient_checkpointing": True}]
        steps += [{f"{critic}.optimizer_offload": True}, {f"{actor}.optimizer_offload": True}]
        steps += [{f"{critic}.param_offload": True}, {f"{actor}.param_offload": True}]
    else:
        steps += [{f"{actor}.optimizer_offload": True}, {f"{actor}.param_offload": True}]
    return [step for step in steps if step and any(s.get(key) != value for key, value in step.items())]


def fit(
    m: ModelShape, config: Mapping[str, object], card: Card, devices: int | None = None, *, verl: str | None = None
) -> tuple[dict[str, object], Estimate]:
    """Settings to change so that the plan fits, and the plan with them; no change when it fits already.

    Only what leaves the algorithm as it is: micro-batches, token budgets, gpu_memory_utilization, free_cache_engine,
    offload, gradient checkpointing. Never batch, mini-batch, lengths or n. When nothing helps, the verdict of the
    returned plan is still "tight" or "does not fit".
    """

    def plan_with(changes: Mapping[str, object]) -> Estimate:
        return estimate(m, {**config, **changes}, card, devices, verl=verl)

    changes: dict[str, object] = {}
    plan = plan_with(changes)
    for _ in range(100):
        if plan.verdict == "fits":
            break
        s = make({**config, **changes}, Facts(verl=verl), complete=True, config_name="ppo_trainer")
        for step in _steps(_Context(s, m, card, devices or s.world_size() or 1), plan):
            after = plan_with({**changes, **step})
            same = next((phase for phase in after.phases if phase.name == plan.deciding.name), after.deciding)
            cache_grows = plan.kv_tokens < plan.longest and after.kv_tokens > plan.kv_tokens
            if cache_grows or same.total < 0.99 * plan.deciding.total:
                changes, plan = {**changes, **step}, after
                break
        else:
            break
    for key in reversed(list(changes)):  # what a later step has made needless
        fewer = {name: value for name, value in changes.items() if name != key}
        if plan.verdict == "fits" and plan_with(fewer).verdict == "fits":
            changes, plan = fewer, plan_with(fewer)
    return changes, plan


def to_text(e: Estimate) -> str:
    """The plan as lines: a phase each, the verdict, the engine's cache, host memory."""
    lines = [
        f"memory of one {e.card.name} ({e.card.capacity:.1f} GB), {e.devices} device{'s' if e.devices > 1 else ''}:"
    ]
    for phase in e.phases:
        largest = ", ".join(f"{name} {size:.1f}" for name, size in sorted(phase.parts.items(), key=lambda p: -p[1])[:3])
        mark = "  <- decides" if phase is e.deciding else ""
        lines.append(f"  {phase.name:18s} {phase.total:7.1f} GB  ({largest}){mark}")
    lines.append(
        f"  {e.verdict}; the engine caches {e.kv_tokens:,} tokens ({e.kv_tokens // e.longest} longest sequences)"
    )
    lines.append(f"  host memory of a node: about {sum(e.host.values()):.0f} GB")
    return "\n".join(lines)
