from __future__ import annotations

import json
from pathlib import Path

import pytest

from verlbox import checkpoints

CONTENTS = ["model", "optimizer", "extra"]


def save(checkpoint: Path, roles: tuple[str, ...] = ("actor",), world_size: int = 2) -> Path:
    """A checkpoint with verl's file names, each shard written by torch.save."""
    torch = pytest.importorskip("torch")
    for role in roles:
        (checkpoint / role).mkdir(parents=True)
        for rank in range(world_size):
            for kind in ("model", "optim", "extra_state"):
                torch.save(
                    {"w": torch.zeros(300)}, checkpoint / role / f"{kind}_world_size_{world_size}_rank_{rank}.pt"
                )
        (checkpoint / role / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world_size}))
    torch.save({"position": 3}, checkpoint / "data.pt")
    return checkpoint


def repair(tmp_path: Path, roles: tuple[str, ...] = ("actor",)) -> checkpoints.Repair:
    return checkpoints.repair(tmp_path / "c", dict.fromkeys(roles, CONTENTS), tmp_path / "shelf")


def tracker(tmp_path: Path) -> Path:
    return tmp_path / "c" / checkpoints.TRACKER


def test_a_sound_folder_is_left_as_it_is(tmp_path: Path) -> None:
    save(tmp_path / "c" / "global_step_2")
    save(tmp_path / "c" / "global_step_10")
    tracker(tmp_path).write_text("10")
    assert repair(tmp_path) == checkpoints.Repair(10, (), "10")
    assert tracker(tmp_path).read_text() == "10"


@pytest.mark.parametrize("damage", ["data.pt", "actor/optim_world_size_2_rank_1.pt", "actor/fsdp_config.json"])
@pytest.mark.parametrize("how", ["missing", "torn"])
def test_a_checkpoint_that_was_being_written_is_set_aside(tmp_path: Path, damage: str, how: str) -> None:
    save(tmp_path / "c" / "global_step_2")
    file = save(tmp_path / "c" / "global_step_4") / damage
    tracker(tmp_path).write_text("4")
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    made = repair(tmp_path)
    assert (made.step, made.tracker_was) == (2, "4")
    assert made.set_aside == (tmp_path / "shelf" / "global_step_4",)
    assert tracker(tmp_path).read_text() == "2"
    assert not (tmp_path / "c" / "global_step_4").exists()


def test_a_critic_that_was_not_written_makes_the_checkpoint_incomplete(tmp_path: Path) -> None:
    save(tmp_path / "c" / "global_step_2", ("actor",))
    assert repair(tmp_path, ("actor", "critic")).step == 0
    assert (tmp_path / "shelf" / "global_step_2").is_dir()


@pytest.mark.parametrize("content", ["", "7", "x"])
def test_a_tracker_that_names_no_checkpoint_is_mended(tmp_path: Path, content: str) -> None:
    save(tmp_path / "c" / "global_step_2")
    tracker(tmp_path).write_text(content)
    assert repair(tmp_path).step == 2
    assert tracker(tmp_path).read_text() == "2"


def test_a_tracker_without_any_checkpoint_is_removed_since_verl_would_believe_it(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    tracker(tmp_path).write_text("3")
    assert repair(tmp_path).step == 0
    assert not tracker(tmp_path).exists()


def test_what_verls_rotation_left_of_an_older_checkpoint_stays(tmp_path: Path) -> None:
    old = save(tmp_path / "c" / "global_step_2")
    for path in (old / "actor").iterdir():
        path.unlink()
    save(tmp_path / "c" / "global_step_4")
    made = repair(tmp_path)
    assert (made.step, made.set_aside) == (4, ())
    assert old.is_dir()


def test_a_folder_that_does_not_exist_has_no_checkpoint(tmp_path: Path) -> None:
    assert repair(tmp_path) == checkpoints.Repair(0, (), None)


def test_a_role_is_judged_by_its_own_contents(tmp_path: Path) -> None:
    save(tmp_path / "c" / "global_step_2", ("actor", "critic"))
    roles = {"actor": CONTENTS, "critic": ["model"]}
    assert checkpoints.repair(tmp_path / "c", roles, tmp_path / "shelf").step == 2
    with_copy = {"actor": [*CONTENTS, "hf_model"], "critic": CONTENTS}
    assert checkpoints.repair(tmp_path / "c", with_copy, tmp_path / "shelf").step == 0
