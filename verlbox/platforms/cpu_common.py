"""What real verl needs on a machine without an accelerator, whatever its version; cpu_engine*.py apply it.

Each function mends one place in verl and names it. Importing this module changes nothing.
"""

import hashlib
import os
import resource
from collections.abc import Iterator
from typing import Any

import psutil
import torch
import torch.distributed as dist
import verl.utils.model
from transformers import AutoModelForTokenClassification

SEED_VARIABLE = "VERLBOX_SEED"


def seed_of(*what: object) -> int:
    """A seed in [0, 2**63) from the run's seed (`VERLBOX_SEED`, 0 when unset) and what names the purpose.

    Hashed, so that neither neighbouring run seeds nor neighbouring steps share noise.
    """
    text = "/".join(map(str, (os.environ.get(SEED_VARIABLE, "0"), *what)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def complete_torch_cpu() -> None:
    """Give torch.cpu the names that verl calls on its device module (`get_torch_device()`, here torch.cpu).

    Random state: verl 0.6.1 workers/fsdp_workers.py, 0.9.1 utils/checkpoint/checkpoint_manager.py. Memory:
    utils/memory_utils.py and utils/profiler/performance.py; the peak goes into `perf/max_memory_*_gb`, and is the
    worker's resident memory here.
    """

    def resident(*_: Any) -> int:
        return int(psutil.Process().memory_info().rss)

    def peak_resident(*_: Any) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kibibytes on Linux

    def free_and_total(*_: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def nothing(*_: Any) -> None:
        pass

    names = {
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "manual_seed": torch.manual_seed,
        "memory_allocated": resident,
        "memory_reserved": resident,
        "max_memory_allocated": peak_resident,
        "max_memory_reserved": peak_resident,
        "mem_get_info": free_and_total,
        "get_device_name": lambda *_: "cpu",
        "empty_cache": nothing,
        "reset_peak_memory_stats": nothing,
        "ipc_collect": nothing,
    }
    for name, function in names.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


def leave_memory_unpinned() -> None:
    """`Tensor.pin_memory` fails without an accelerator; the reference policy asks for it.

    `CPUOffloadPolicy(pin_memory=True)`: verl 0.6.1 workers/fsdp_workers.py, 0.9.1 workers/engine/fsdp.
    """
    torch.Tensor.pin_memory = lambda self, *_, **__: self


def use_gloo() -> None:
    """Start process groups on gloo where verl asks for nccl, and give gloo the collectives as verl calls them.

    - verl asks for "cpu:gloo,cpu:nccl" (0.6.1) or "cpu:gloo,cpu:gloo" (0.9.1), which names one device twice.
    - `reduce_timing` in utils/profiler/performance.py reduces by average, which gloo does not know.
    - `topk_reduce_ratio_min_max` there gathers a scalar into tensors of shape [1], which gloo refuses.
    """
    init_process_group, all_reduce, all_gather = dist.init_process_group, dist.all_reduce, dist.all_gather

    def init_on_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        on_cpu = backend is not None and (backend == "nccl" or backend.startswith("cpu:gloo,cpu:"))
        return init_process_group("gloo" if on_cpu else backend, *args, **kwargs)

    def all_reduce_average(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if op != dist.ReduceOp.AVG:
            return all_reduce(tensor, op, group, async_op)
        all_reduce(tensor, dist.ReduceOp.SUM, group)
        tensor /= dist.get_world_size(group)
        return None

    def all_gather_scalar(tensors: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        return all_gather(tensors, tensor.reshape(tensors[0].shape), group, async_op)

    dist.init_process_group = init_on_gloo
    dist.all_reduce = all_reduce_average
    dist.all_gather = all_gather_scalar


def stay_in_float32() -> None:
    """Make autocast on the CPU do nothing.

    verl 0.6.1's critic hard-codes bfloat16 (workers/critic/dp_critic.py), slow and inexact on a CPU; the others ask for
    `fsdp_config.dtype`, and float32 there makes torch warn in every micro-batch.
    """
    autocast = torch.autocast

    class Float32OnCpu(autocast):  # type: ignore[misc, valid-type]
        def __init__(self, device_type: str, *args: Any, enabled: bool = True, **kwargs: Any) -> None:
            super().__init__(device_type, *args, enabled=enabled and device_type != "cpu", **kwargs)

    torch.autocast = Float32OnCpu


def load_value_head_with_sdpa() -> None:
    """Replace `load_valuehead_model` of utils/model.py, which hard-codes flash_attention_2 for the critic.

    The value head is not in the checkpoint of a language model: its random start follows the run's seed.
    """

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        torch.manual_seed(seed_of("value head"))
        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )

    verl.utils.model.load_valuehead_model = load_valuehead_model


def batches_by_length(lengths: torch.Tensor, new_tokens: int, max_tokens: int, max_rows: int) -> Iterator[torch.Tensor]:
    """Row numbers in batches of similar prompt length, so that little of a batch is padding.

    `lengths` (rows,) are prompt lengths in tokens. A batch has at most `max_rows` rows, and at most `max_tokens` tokens
    of prompt, padding and answer unless a single row has more.
    """
    order = torch.argsort(lengths, stable=True)
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and end - start < max_rows:
            if (end + 1 - start) * (int(lengths[order[end]]) + new_tokens) > max_tokens:
                break
            end += 1
        yield order[start:end]
        start = end
