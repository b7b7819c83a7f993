"""The reward functions inside verl 0.6.1's own loader, reward managers and validation metrics."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from verlbox.rewards import gsm8k, reasons

pytest.importorskip("verl")

REWARDS = Path(gsm8k.__file__).parent
RESPONSES = ("so\n#### 72", "so\n#### 71", "I do not know")


def loaded(name: str, function: str, kwargs: dict[str, Any]) -> Any:
    """The function as verl loads it, by path."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.reward import get_custom_reward_fn

    sys.modules.pop("custom_module", None)
    path = str(REWARDS / f"{name}.py")
    config = {"custom_reward_function": {"path": path, "name": function, "reward_kwargs": kwargs}}
    try:
        return get_custom_reward_fn(OmegaConf.create(config))
    finally:
        sys.modules.pop("custom_module", None)


class Letters:
    """A tokenizer whose tokens are characters."""

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return "".join(chr(int(token)) for token in ids if int(token))


def batch() -> Any:
    import numpy as np
    import torch
    from verl import DataProto

    width = max(map(len, RESPONSES))
    responses = torch.tensor([[*map(ord, text), *[0] * (width - len(text))] for text in RESPONSES])
    prompts = torch.full((len(RESPONSES), 2), ord("?"))
    mask = torch.cat([torch.ones_like(prompts), (responses != 0).long()], dim=1)
    return DataProto.from_dict(
        tensors={"prompts": prompts, "responses": responses, "attention_mask": mask},
        non_tensors={
            "data_source": np.array(["openai/gsm8k"] * 3, dtype=object),
            "reward_model": np.array([{"ground_truth": "72"}] * 3, dtype=object),
            "extra_info": np.array([{}, {}, {}], dtype=object),
        },
    )


@pytest.mark.parametrize(("manager", "function"), [("batch", "compute_score"), ("naive", "compute_score_single")])
def test_both_managers_carry_score_acc_and_reason_to_the_validation_metrics(manager: str, function: str) -> None:
    from verl.trainer.ppo.metric_utils import process_validation_metrics
    from verl.workers.reward_manager import get_reward_manager_cls

    reward = get_reward_manager_cls(manager)(
        tokenizer=Letters(), num_examine=0, compute_score=loaded("gsm8k", function, {"method": "strict"})
    )
    result = reward(batch(), return_dict=True)
    assert result["reward_tensor"].sum(-1).tolist() == [1.0, 0.0, 0.0]
    extra = result["reward_extra_info"]
    assert {len(values) for values in extra.values()} == {3}
    metrics = process_validation_metrics(["openai/gsm8k"] * 3, ["a", "b", "c"], extra)["openai/gsm8k"]
    assert metrics["acc"]["mean@1"] == pytest.approx(1 / 3)
    shares = {code: metrics[f"reason_{code}"]["mean@1"] for code in reasons.REASONS}
    assert {code: round(share, 3) for code, share in shares.items() if share} == {
        "ok": 0.333,
        "wrong": 0.333,
        "no_answer": 0.333,
    }
    assert "reason" not in metrics  # texts are for the dumped generations
    flat = {
        f"val-aux/openai/gsm8k/{name}/{metric}": value for name, by in metrics.items() for metric, value in by.items()
    }
    assert reasons.reason_shares(flat) == {"openai/gsm8k": shares}


def test_graded_math_loads_by_path_too() -> None:
    function = loaded("graded_math", "compute_score", {"timeout": 1.0, "workers": 1})
    rows = function(
        data_sources=["m"] * 2,
        solution_strs=["\\boxed{1/2}", "\\boxed{3}"],
        ground_truths=["0.5"] * 2,
        extra_infos=[{}] * 2,
    )
    assert [row["score"] for row in rows] == [0.7, 0.0]


@pytest.mark.parametrize("name", ["gsm8k", "graded_math"])
def test_files_load_without_an_entry_in_sys_modules_as_verl_0_9_does(name: str) -> None:
    """verl 0.9.1's load_module executes the file under a made-up name; the calls name every argument."""
    spec = importlib.util.spec_from_file_location("custom_module_42", REWARDS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    row = module.compute_score_single(
        data_source="s", solution_str="\\boxed{72}", ground_truth="72", extra_info={"num_turns": None}
    )
    assert row["acc"] == 1.0


@pytest.mark.e2e
def test_it_grades_inside_a_ray_worker() -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:

        @ray.remote  # type: ignore[untyped-decorator,unused-ignore]
        def grade() -> str:
            from verlbox.rewards import graded_math

            answer = "\\begin{pmatrix}1\\end{pmatrix} + \\begin{pmatrix}2\\end{pmatrix}"
            row = graded_math.compute_score_single("m", f"\\boxed{{{answer}}}", "\\begin{pmatrix}3\\end{pmatrix}")
            return str(row["reason"])

        assert ray.get(grade.remote(), timeout=120) == "ok"
    finally:
        ray.shutdown()
