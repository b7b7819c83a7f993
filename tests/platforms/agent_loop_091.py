"""What verlbox's agent loops leave in verl 0.9.1's queue, with a real Ray and TransferQueue.

usage: python -m tests.platforms.agent_loop_091, with an interpreter that has verl 0.9.1; tests/e2e/test_smoke_091.py
runs it with that of .venv-091. Each check is a function; a failed one ends the script.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
import transfer_queue as tq  # type: ignore[import-not-found] # only where verl 0.9.1 is
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopOutput

from tests.platforms import checks
from verlbox.platforms.agent_loop_091 import AgentLoopManager, AgentLoopWorker

COLUMNS = {
    "uid": "a",
    "session_id": 0,
    "global_steps": 3,
    "raw_prompt": [{"role": "user", "content": "1+1?"}],
    "reward_model": {"ground_truth": "2"},
    "data_source": "arithmetic",
    "extra_info": {"index": 7},
}
READ_LATER = {"prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids", "rm_scores"} | {
    *("uid", "session_id", "global_steps", "num_turns", "extra_fields", "multi_modal_inputs")
}


def left_in_the_queue(validate: bool, trainer: dict[str, Any], reward_model: bool = False) -> Any:
    """One answer handed in; what the queue holds of it then."""
    worker = object.__new__(AgentLoopWorker)  # its __init__ loads a model's configuration, which nothing here reads
    worker.processor, worker.distillation_enabled, worker.reward_loop_worker_handles = None, False, None
    worker.config = OmegaConf.create({"trainer": trainer, "reward": {"reward_model": {"enable": reward_model}}})
    output = AgentLoopOutput(
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5],
        response_mask=[1, 1, 1],
        reward_score=1.0,
        num_turns=2,
        metrics={},
        mm_processor_kwargs={},
    )
    asyncio.run(worker._agent_loop_postprocess(output, validate, **COLUMNS))
    partition = "val" if validate else "train"
    held = tq.kv_batch_get(keys=["a_0_0"], partition_id=partition)
    tq.kv_clear(keys=["a_0_0"], partition_id=partition)
    return held


def check_a_training_answer_keeps_what_is_read_later_and_nothing_else() -> None:
    held = left_in_the_queue(validate=False, trainer={})
    assert set(held.keys()) == READ_LATER, set(held.keys()) ^ READ_LATER
    assert held["input_ids"].unbind()[0].tolist() == [1, 2, 3, 4, 5]
    assert held["rm_scores"].unbind()[0].tolist() == [0.0, 0.0, 1.0]
    assert list(held["uid"]) == ["a"]


def check_a_validation_answer_keeps_all_columns() -> None:
    held = left_in_the_queue(validate=True, trainer={})
    assert set(held.keys()) == READ_LATER | set(COLUMNS) | {"metrics", "mm_processor_kwargs"}
    assert list(held["reward_model"]) == [{"ground_truth": "2"}]


def check_a_configured_reader_finds_its_column() -> None:
    assert "reward_model" in left_in_the_queue(False, {"rollout_data_dir": "rollouts"}).keys()  # noqa: SIM118
    assert "raw_prompt" in left_in_the_queue(False, {}, reward_model=True).keys()  # noqa: SIM118


def check_the_manager_starts_these_workers() -> None:
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {}, "model": {}}})
    started = AgentLoopManager(config, llm_client=None).agent_loop_workers_class
    assert issubclass(started.__ray_metadata__.modified_class, AgentLoopWorker)


def main() -> None:
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)  # the queue asks for that many, and uses few
    tq.init()
    checks.run(globals())
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
