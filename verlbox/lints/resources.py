"""Devices: how many, which kind, how they are shared, and what is asked of their memory.

Source: verl 0.6.1, trainer/ppo/ray_trainer.py (ResourcePoolManager), single_controller/ray/base.py
get_placement_groups(), workers/fsdp_workers.py _build_rollout() and create_device_mesh(), workers/config/*.py,
workers/rollout/base.py; vLLM 0.11.0, device_allocator/cumem.py; vllm-ascend 0.11.0, device_allocator/camem.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from verlbox.findings import Finding, register
from verlbox.lints.places import place
from verlbox.lints.settings import ACTOR, MODEL, REF, ROLLOUT, Settings

TP = f"{ROLLOUT}.tensor_model_parallel_size"
UTILIZATION = f"{ROLLOUT}.gpu_memory_utilization"

TOO_MANY = register("devices-missing", "error", "The run asks for more devices than there are.")
IDLE = register("devices-idle", "note", "There are more devices than the run uses.")
PARALLEL = register("parallel-size-not-divisor", "error", "A parallel size does not divide the devices or the heads.")
PIPELINE = register("pipeline-parallel-unsupported", "error", "The rollout engine has no pipeline parallelism in verl.")
EXPERT = register("expert-parallel-mismatch", "error", "expert_parallel_size must equal tensor x data parallel size.")
WRONG_DEVICE = register("device-mismatch", "error", "trainer.device is not the kind of device this machine has.")
ROLLOUT_NAME = register("rollout-name-missing", "error", "The rollout engine is not named; verl has no default.")
ROLLOUT_UNKNOWN = register("rollout-unknown", "error", "verl has no rollout engine of this name and mode.")
UTILIZATION_RANGE = register("memory-utilization-out-of-range", "error", "gpu_memory_utilization must be in (0, 1].")
UTILIZATION_HIGH = register("memory-utilization-high", "warning", "The engine leaves too little memory for training.")
SEGMENTS = register("expandable-segments", "error", "Expandable segments do not go with the engine's sleep mode.")
PADDING = register("remove-padding-needed", "error", "Sequence parallelism needs use_remove_padding.")
HYBRID = register("hybrid-engine-off", "error", "verl supports only the hybrid engine.")
OFFLOAD_IDLE = register("offload-without-effect", "warning", "An offload setting does nothing with this strategy.")
LORA_RANK = register("lora-rank-too-big", "error", "vLLM accepts LoRA ranks up to 512.")
ASCEND_NZ = register("ascend-nz-on", "error", "VLLM_ASCEND_ENABLE_NZ must be 0 for training.")
CACHE_KEPT = register(
    "engine-keeps-memory", "note", "The engine keeps its weights and cache while the model is trained."
)
RAW_CHAT = register("raw-chat-missing", "error", "The asynchronous rollout needs data.return_raw_chat.")
MEGATRON_CONFIG = register("megatron-config-missing", "error", "Megatron needs verl's other configuration.")
REWARD_POOL = register("reward-pool-empty", "error", "The reward model's own pool has no devices.")


def devices_are_there(s: Settings) -> Iterator[Finding]:
    key = "trainer.n_gpus_per_node"
    per_node, visible = s.integer(key), s.facts.visible_accelerators
    if visible is None or not per_node or not s.known(key) or s.facts.platform == "cpu":
        return
    if per_node > visible:
        yield TOO_MANY.finding(
            f"{key}={per_node}, and {visible} devices are visible",
            why=f"{place(s, 'devices')} _check_resource_available(): 'Total available GPUs is less than total desired"
            " GPUs' (8 is the default).",
            fix=f"{key}={visible}" if visible else "make the devices visible to this process",
        )
    elif visible > per_node and s.given(key):
        yield IDLE.finding(
            f"{visible} devices are visible and {per_node} are used", why="", fix=f"{key}={visible} to use all of them"
        )


def parallel_sizes_divide(s: Settings) -> Iterator[Finding]:
    world = s.world_size()
    names = [TP, f"{ROLLOUT}.data_parallel_size", f"{ROLLOUT}.pipeline_model_parallel_size"]
    sizes = [s.integer(name) or 1 for name in names]
    together = sizes[0] * sizes[1] * sizes[2]
    engine = s.text(f"{ROLLOUT}.name")
    if world and s.known(TP) and s.known("trainer.n_gpus_per_node") and world % together:
        yield PARALLEL.finding(
            f"{world} devices do not divide by {together} (rollout tensor x data x pipeline parallel size)",
            why=f"{place(s, 'rollout')}: 'rollout world_size: {world} is not divisible by infer_world_size:"
            f" {together}' (tensor_model_parallel_size is 2 by default).",
            fix=f"{TP}={max(size for size in range(1, min(world, sizes[0]) + 1) if world % size == 0)}",
        )
    heads = s.facts.num_attention_heads
    if heads and s.known(TP) and heads % sizes[0]:
        yield PARALLEL.finding(
            f"{heads} attention heads do not divide by {TP}={sizes[0]}",
            why="vLLM refuses it when the engine starts.",
            fix=f"{TP}={max(size for size in range(1, sizes[0] + 1) if heads % size == 0)}",
        )
    if s.given(names[2]) and sizes[2] > 1 and engine in (None, "???", "vllm", "sglang"):
        yield PIPELINE.finding(
            f"{names[2]}={sizes[2]}",
            why="workers/config/rollout.py __post_init__: not implemented for vllm and sglang (NotImplementedError).",
            fix=f"{names[2]}=1",
        )
    expert = s.integer(f"{ROLLOUT}.expert_parallel_size") or 1
    if s.given(f"{ROLLOUT}.expert_parallel_size") and expert > 1 and expert != sizes[0] * sizes[1]:
        yield EXPERT.finding(
            f"{ROLLOUT}.expert_parallel_size={expert} and tensor x data parallel size is {sizes[0] * sizes[1]}",
            why="workers/config/rollout.py __post_init__ asserts that they are equal.",
            fix=f"{ROLLOUT}.expert_parallel_size={sizes[0] * sizes[1]}",
        )
    for section, padding in ((ACTOR, f"{MODEL}.use_remove_padding"), ("critic", "critic.model.use_remove_padding")):
        key = f"{section}.ulysses_sequence_parallel_size"
        parallel = s.integer(key) or 1
        if not s.given(key) or parallel <= 1 or (section == "critic" and not s.critic_is_used()):
            continue
        own = s.get(f"{ACTOR}.use_remove_padding") if section == ACTOR else None
        if s.get(padding) is not True and own is not True:
            yield PADDING.finding(
                f"{key}={parallel} without {padding}",
                why=f"workers/config/{section.rpartition('.')[2]}.py: 'When using sequence parallelism, you must enable"
                " `use_remove_padding`' (ValueError).",
                fix=f"{padding}=True",
            )
        for total, what in (
            (world if s.known("trainer.n_gpus_per_node") else None, "devices"),
            (heads, "attention heads"),
        ):
            if total and total % parallel:
                yield PARALLEL.finding(
                    f"{total} {what} do not divide by {key}={parallel}",
                    why="Ulysses deals out devices in groups of this size, and heads within a group.",
                    fix=f"{key}={max(size for size in range(1, parallel + 1) if total % size == 0)}",
                )
    for key in (f"{ACTOR}.fsdp_config.fsdp_size", "critic.model.fsdp_config.fsdp_size", f"{REF}.fsdp_config.fsdp_size"):
        size = s.integer(key)
        if s.given(key) and size and world and 0 < size < world and world % size:
            yield PARALLEL.finding(
                f"{world} devices do not divide by {key}={size}",
                why=f"{place(s, 'mesh')} makes a mesh of (devices // fsdp_size, fsdp_size).",
                fix=f"{key}=-1",
            )


def device_is_the_one_here(s: Settings) -> Iterator[Finding]:
    device, platform = s.text("trainer.device"), s.facts.platform
    if platform not in ("npu", "cuda", "cpu") or device not in ("npu", "cuda", "cpu") or not s.known("trainer.device"):
        return
    if device == platform or (not s.is_old and platform != "cpu"):
        return  # 0.9.1 corrects it to the accelerator that it finds (utils/device.py auto_set_device())
    if device == "cpu":
        yield WRONG_DEVICE.finding(
            f"trainer.device=cpu on a machine with {platform} devices",
            why="Training runs on the CPU, hundreds of times slower.",
            fix=f"trainer.device={platform}",
            severity="warning",
        )
        return
    waits = "the placement group asks Ray for a resource that no node offers ('GPU', 'NPU'), and waits for ever"
    counts = "The availability check passes (it counts NPUs too), but " if platform == "npu" else ""
    yield WRONG_DEVICE.finding(
        f"trainer.device={device} on a machine with {'no accelerator' if platform == 'cpu' else platform + ' devices'}",
        why=f"{counts}{waits} (single_controller/ray/base.py get_placement_groups(); the default is cuda).",
        fix=f"trainer.device={platform}",
    )


def rollout_engine_exists(s: Settings) -> Iterator[Finding]:
    key, mode_key = f"{ROLLOUT}.name", f"{ROLLOUT}.mode"
    name, mode = s.get(key), s.get(mode_key)
    if s.known(key) and name in (None, "", "???"):
        yield ROLLOUT_NAME.finding(
            f"{key} is not set",
            why="config/rollout/rollout.yaml has `name: ???`: MissingMandatoryValue when the workers are built"
            " (validate_config"
            " passes).",
            fix=f"{key}=vllm",
        )
        return
    engines, modes = (["vllm", "sglang"], ["sync", "async"]) if s.is_old else (["vllm", "sglang", "trtllm"], ["async"])
    on_cpu = name == "hf" and "cpu" in (s.facts.platform, s.get("trainer.device"))
    if s.known(key) and name not in engines and not on_cpu and s.prefixes.get(key) != "++":
        extra = " (its HFRollout exists, but is not registered)" if name == "hf" else ""
        yield ROLLOUT_UNKNOWN.finding(
            f"{key}={name}: verl {s.keys.version} has no such engine{extra}",
            why=f"workers/rollout/base.py get_rollout_class() knows {', '.join(engines)}.",
            fix=f"{key}=vllm",
        )
    if s.given(mode_key) and mode not in modes:
        yield ROLLOUT_UNKNOWN.finding(
            f"{mode_key}={mode}: verl {s.keys.version} has no such mode",
            why=f"workers/rollout/base.py get_rollout_class() knows {', '.join(modes)}.",
            fix=f"{mode_key}={modes[0]}",
        )
    raw = "data.return_raw_chat"
    if s.given(mode_key) and mode == "async" and s.is_old and s.known(raw) and s.get(raw) is not True:
        yield RAW_CHAT.finding(
            f"{mode_key}=async without {raw}",
            why="experimental/agent_loop/single_turn_agent_loop.py reads kwargs['raw_prompt'] (KeyError), which the"
            " data set gives"
            " only with return_raw_chat.",
            fix=f"{raw}=True",
        )


def engine_leaves_memory(s: Settings) -> Iterator[Finding]:
    share = s.number(UTILIZATION)
    if share is not None and s.given(UTILIZATION) and not 0 < share <= 1:
        yield UTILIZATION_RANGE.finding(
            f"{UTILIZATION}={share:g}",
            why="verl does not check the range; vLLM refuses it when the engine starts.",
            fix=f"{UTILIZATION}=0.5",
        )
    elif share is not None and s.given(UTILIZATION):
        with_critic = s.critic_is_used() and s.known("algorithm.adv_estimator")
        limit = 0.85 if with_critic else 0.95
        if share >= limit:
            memory = s.facts.accelerator_gb
            taken = f" ({share * memory:.0f} of {memory:g} GB)" if memory else ""
            others = "actor, critic and their optimizer states" if with_critic else "the actor and its optimizer states"
            yield UTILIZATION_HIGH.finding(
                f"{UTILIZATION}={share:g}{taken} leaves almost nothing for {others}",
                why="All roles share the device (one colocated worker group): expect out-of-memory when the engine"
                " wakes up or at the"
                " first update. The published PPO run used 0.4 on 40 GB.",
                fix=f"{UTILIZATION}={0.4 if with_critic else 0.8}",
            )
    key = f"{ROLLOUT}.free_cache_engine"
    if s.given(key) and s.get(key) is False:
        yield CACHE_KEPT.finding(
            f"{key}=False: the engine keeps its memory while the model is trained",
            why=f"{place(s, 'sleep')} releases weights and cache only with free_cache_engine.",
            fix=f"{key}=True, unless memory is plentiful",
        )
    variables = {"cuda": ["PYTORCH_CUDA_ALLOC_CONF"], "npu": ["PYTORCH_NPU_ALLOC_CONF"], "cpu": []}.get(
        s.facts.platform or "", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"]
    )
    engine_is_vllm = s.text(f"{ROLLOUT}.name") in (None, "???", "vllm")
    for variable in variables:
        value = s.environment(variable)[1] or ""
        on = "expandable_segments:true" in value.replace(" ", "").lower()
        if on and s.flag(key) and engine_is_vllm:
            yield SEGMENTS.finding(
                f"{variable}={value} with {key}=True",
                why="vLLM's sleep mode uses a memory pool: 'Expandable segments are not compatible with memory pool'"
                " (AssertionError in its cumem / camem allocator). verl switches segments on itself while it trains.",
                fix=f"unset {variable}, or {key}=False",
            )


def offload_does_something(s: Settings) -> Iterator[Finding]:
    sections = [(ACTOR, f"{ACTOR}.fsdp_config"), ("critic", "critic.model.fsdp_config" if s.is_old else "critic.fsdp")]
    for owner, section in sections:
        key, strategy = f"{section}.offload_policy", s.get(f"{owner}.strategy")
        if s.given(key) and s.flag(key) and strategy == "fsdp":
            yield OFFLOAD_IDLE.finding(
                f"{key}=True does nothing with {owner}.strategy=fsdp",
                why=f"{place(s, 'offload policy')} reads it only for fsdp2.",
                fix=f"{owner}.strategy=fsdp2, or param_offload and optimizer_offload",
            )


def engine_and_strategy_fit(s: Settings) -> Iterator[Finding]:
    if s.is_old and s.given("actor_rollout_ref.hybrid_engine") and s.get("actor_rollout_ref.hybrid_engine") is False:
        yield HYBRID.finding(
            "actor_rollout_ref.hybrid_engine=False",
            why="ray_trainer.py: 'Currently, only support hybrid engine' (AssertionError).",
            fix="remove it",
        )
    rank = s.integer(f"{MODEL}.lora_rank")
    if rank and rank > 512 and s.text(f"{ROLLOUT}.name") in (None, "???", "vllm"):
        yield LORA_RANK.finding(
            f"{MODEL}.lora_rank={rank}",
            why="utils/config.py validate_config(): the rank must be less than or equal to 512.",
            fix=f"{MODEL}.lora_rank=512",
        )
    if (
        s.is_old
        and s.keys.config_name == "ppo_trainer"
        and s.given(f"{ACTOR}.strategy")
        and s.get(f"{ACTOR}.strategy") == "megatron"
    ):
        yield MEGATRON_CONFIG.finding(
            f"{ACTOR}.strategy=megatron with the FSDP configuration",
            why="ppo_trainer.yaml has no megatron sections, which utils/config.py reads.",
            fix="--config-name=ppo_megatron_trainer.yaml",
        )
    if s.flag("reward_model.enable_resource_pool") and s.is_old:
        for key in ("reward_model.n_gpus_per_node", "reward_model.nnodes"):
            if (s.integer(key) or 0) <= 0:
                yield REWARD_POOL.finding(
                    f"reward_model.enable_resource_pool with {key}={s.get(key)}",
                    why="main_ppo.py init_resource_pool_mgr(): must be greater than 0 (ValueError).",
                    fix=f"{key}=1",
                )


def ascend_is_set_up(s: Settings) -> Iterator[Finding]:
    if s.facts.platform != "npu" or s.text(f"{ROLLOUT}.name") not in (None, "???", "vllm"):
        return
    known, value = s.environment("VLLM_ASCEND_ENABLE_NZ")
    if known and value != "0":
        yield ASCEND_NZ.finding(
            f"VLLM_ASCEND_ENABLE_NZ is {value or 'not set'}",
            why="vllm-ascend 0.11.0 then keeps weights in the NZ layout, which weight updates from training corrupt.",
            fix="export VLLM_ASCEND_ENABLE_NZ=0",
        )


LINTS = (
    devices_are_there,
    parallel_sizes_divide,
    device_is_the_one_here,
    rollout_engine_exists,
    engine_leaves_memory,
    offload_does_something,
    engine_and_strategy_fit,
    ascend_is_set_up,
)
