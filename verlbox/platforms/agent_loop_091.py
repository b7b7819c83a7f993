"""verl 0.9.1's agent loops, without the columns that nothing reads once an answer has its score.

Its synchronous trainer names no columns when it sends a batch to a worker, so each phase fetches all of them from
TransferQueue, and splits, selects and moves them with every micro-batch (verl 0.9.1 utils/transferqueue_utils.py,
`tqbridge`; workers/engine/fsdp/transformer_impl.py, `forward_step`). A data set's columns are one Python object a
sample there: the question, its messages twice, the ground truth, ten more. Validation keeps them all.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

# What is still read: keys and tags of the queue, groups of a prompt's answers.
KEPT = frozenset({"uid", "session_id", "global_steps"})
UNREAD = frozenset({"metrics", "mm_processor_kwargs", "mm_processor_output"})  # of AgentLoopOutput

# The class that verl has decorated with @ray.remote.
VERLS_WORKER: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class.__ray_actor_class__


class AgentLoopWorker(VERLS_WORKER):  # type: ignore[misc] # verl has no types
    """verl's worker; of a training prompt's columns, those that a configured reader needs stay."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        # Ray sends inherited methods by value, with the class that their super() means: verl's would not be ours.
        super().__init__(*arguments, **named)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **columns: Any) -> None:
        if not validate and not self.distillation_enabled:  # a teacher is asked later, with all columns
            outputs = output if isinstance(output, list) else [output]
            if outputs:
                await self._compute_score(outputs, kwargs=columns)  # verl asks again, and finds the score
            for each in outputs:
                each.model_fields_set.difference_update(UNREAD)
            kept = KEPT.union(
                {"reward_model"} if self.config.trainer.get("rollout_data_dir") else (),
                {"raw_prompt"} if self.config.reward.reward_model.enable else (),
            )
            columns = {name: value for name, value in columns.items() if name in kept}
        await super()._agent_loop_postprocess(output, validate, **columns)


class AgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc] # verl has no types
    """verl's manager, with these workers: `actor_rollout_ref.rollout.agent.agent_loop_manager_class`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.agent_loop_workers_class = ray.remote(AgentLoopWorker)
