from __future__ import annotations

from typing import Any

from verlbox import ladder

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
CRITIC = "critic.model.fsdp_config"


def climb(settings: dict[str, object], most: int = 30) -> list[dict[str, Any]]:
    rungs: list[dict[str, Any]] = []
    effective = dict(settings)
    while (rung := ladder.next_rung(effective, CRITIC)) is not None:
        rungs.append(rung)
        effective.update({key.lstrip("+"): value for key, value in rung.items()})
        assert len(rungs) < most
    return rungs


def test_the_order_is_engine_then_micro_batches_then_offload_then_compile() -> None:
    rungs = climb({f"{ROLLOUT}.gpu_memory_utilization": 0.5, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4})
    assert rungs == [
        {f"{ROLLOUT}.gpu_memory_utilization": 0.4},
        {f"{ROLLOUT}.gpu_memory_utilization": 0.3},
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2},
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1},
        {
            f"{ACTOR}.fsdp_config.param_offload": True,
            f"{ACTOR}.fsdp_config.optimizer_offload": True,
            f"{CRITIC}.param_offload": True,
            f"{CRITIC}.optimizer_offload": True,
        },
        {f"{ACTOR}.use_torch_compile": False, "actor_rollout_ref.ref.use_torch_compile": False},
    ]


def test_a_token_budget_never_falls_below_the_longest_sequence() -> None:
    settings: dict[str, object] = {
        f"{ROLLOUT}.gpu_memory_utilization": 0.3,
        f"{ACTOR}.ppo_max_token_len_per_gpu": 4096,
        "data.max_prompt_length": 512,
        "data.max_response_length": 1024,
    }
    budgets = [rung.get(f"{ACTOR}.ppo_max_token_len_per_gpu") for rung in climb(settings)]
    assert budgets[:2] == [2048, 1536]


def test_no_rung_touches_the_algorithm() -> None:
    settings: dict[str, object] = {
        "data.train_batch_size": 256,
        f"{ACTOR}.ppo_mini_batch_size": 64,
        f"{ROLLOUT}.n": 8,
        "data.max_response_length": 1024,
        f"{ACTOR}.optim.lr": 1e-6,
        "algorithm.kl_ctrl.kl_coef": 0.001,
    }
    for rung in climb(settings):
        assert not rung.keys() & settings.keys()


def test_grpo_has_no_critic_to_offload() -> None:
    for rung in climb({"algorithm.adv_estimator": "grpo"}):
        assert not any(key.startswith("critic") for key in rung)


def test_a_smaller_micro_batch_divides_the_rows_that_the_larger_one_divided() -> None:
    settings: dict[str, object] = {f"{ROLLOUT}.gpu_memory_utilization": 0.3, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 9}
    sizes = [rung.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu") for rung in climb(settings)]
    assert sizes[:2] == [3, 1]


def test_the_critic_of_verl_091_climbs_down_by_the_budget_that_it_reads() -> None:
    effective: dict[str, object] = {f"{ROLLOUT}.gpu_memory_utilization": 0.3, "critic.ppo_micro_batch_size_per_gpu": 4}
    first = ladder.next_rung(effective, "critic.fsdp")
    assert first == {
        "critic.ppo_micro_batch_size_per_gpu": 2,
        "++critic.ppo_infer_max_token_len_per_gpu": 16384,
    }
    effective |= {"critic.ppo_micro_batch_size_per_gpu": 1, "critic.ppo_infer_max_token_len_per_gpu": 1024}
    rung = ladder.next_rung(effective, "critic.fsdp")
    assert rung is not None and "critic.fsdp.param_offload" in rung
    effective |= {"algorithm.adv_estimator": "grpo", "critic.ppo_infer_max_token_len_per_gpu": 4096}
    rung = ladder.next_rung(effective, "critic.fsdp")
    assert rung is not None and "++critic.ppo_infer_max_token_len_per_gpu" not in rung


def test_the_critic_of_verl_091_climbs_down_by_rows_where_it_goes_by_rows() -> None:
    rows = {"critic.fsdp.use_dynamic_bsz": False, "critic.fsdp.micro_batch_size_per_gpu": 6}
    rows["critic.fsdp.infer_micro_batch_size_per_gpu"] = 1
    rung = ladder.next_rung({f"{ROLLOUT}.gpu_memory_utilization": 0.3, **rows}, "critic.fsdp")
    assert rung == {"++critic.fsdp.micro_batch_size_per_gpu": 3}
