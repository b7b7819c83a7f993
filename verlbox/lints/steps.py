"""How many steps a run has, as verl counts them.

Source: verl 0.6.1, trainer/ppo/ray_trainer.py _create_dataloader() (drop_last=True; total_training_steps) and fit();
0.9.1, trainer/ppo/v1/trainer_base.py _init_dataloader() (steps go by train_batch_size whatever gen_batch_size is).
"""

from __future__ import annotations

from dataclasses import dataclass

from verlbox.lints.settings import Settings


@dataclass(frozen=True)
class Steps:
    """Counts of steps; None where the facts do not suffice.

    per_epoch: full batches of one pass. unused_rows: rows the loader drops in each pass.
    declared: what verl calls total_training_steps (its schedules and its last step go by it).
    executed: steps that really happen: the epochs may end before `declared` is reached.
    """

    per_epoch: int | None = None
    unused_rows: int | None = None
    declared: int | None = None
    executed: int | None = None

    @property
    def last_step_is_reached(self) -> bool | None:
        """Whether a step exists that verl treats as the last (it saves and validates there)."""
        if self.declared is None or self.executed is None:
            return None
        return self.executed >= self.declared


def count(s: Settings) -> Steps:
    """The steps of the run from settings and facts; an explicit total_training_steps fact stands in for row counts."""
    by_generation = s.is_old and s.integer("data.gen_batch_size")
    batch_key = "data.gen_batch_size" if by_generation else "data.train_batch_size"
    batch, epochs, rows = s.integer(batch_key), s.integer("trainer.total_epochs"), s.facts.train_rows_after_filter
    limit = s.integer("data.train_max_samples")
    if rows is not None and limit is not None and limit > 0:
        rows = min(rows, limit)
    per_epoch = unused = None
    if rows is not None and batch and batch > 0 and s.known(batch_key):
        per_epoch, unused = rows // batch, rows % batch
    available = (
        per_epoch * epochs if per_epoch is not None and epochs is not None and s.known("trainer.total_epochs") else None
    )
    given = s.integer("trainer.total_training_steps") if s.known("trainer.total_training_steps") else None
    fact = s.facts.total_training_steps
    declared = given if given is not None else fact if fact is not None else available
    least = 1 if s.is_old else 0  # 0.6.1 counts from 1: with 0 steps its first is the last
    executed = declared
    if available is not None:
        executed = available if declared is None else min(max(declared, least), available)
    return Steps(per_epoch, unused, declared, executed)
