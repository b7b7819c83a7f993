"""Peak memory of each phase, printed by verl 0.9.1's own workers: loaded through VERL_USE_EXTERNAL_MODULES.

verl reports one maximum over the whole run. This wraps the FSDP engine's two calls, resets PyTorch's peak before each
and prints it after: `vbx-memory {...}`, sizes in bytes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import torch
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine


def measured(method: Callable[..., Any], phase: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            return method(self, *arguments, **named)
        finally:
            line = {
                "phase": phase(self, **named),
                "engine": type(self).__name__,
                "before": before,
                "peak": torch.cuda.max_memory_allocated(),
                "reserved": torch.cuda.max_memory_reserved(),
            }
            print("vbx-memory", json.dumps(line), flush=True)

    return call


def pass_of(engine: Any, forward_only: bool = False, **_: Any) -> str:
    return "forward" if forward_only else "forward_backward"


FSDPEngine.forward_backward_batch = measured(FSDPEngine.forward_backward_batch, pass_of)
FSDPEngine.optimizer_step = measured(FSDPEngine.optimizer_step, lambda engine, **_: "optimizer")
