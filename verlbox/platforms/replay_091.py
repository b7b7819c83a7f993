"""verl 0.9.1's replay buffer, asked every few hundredths of a second instead of every two.

The trainer waits for a batch of answers by looking whether it is complete, sleeping 2 s in between (verl 0.9.1
trainer/ppo/v1/replay_buffer.py, `poll_interval`): generation lasts 2, 4 or 6 s whatever the engine needs. No setting
changes the interval; a sampler of one's own (`trainer.v1.sampler.custom_sampler`) does. Which answers are taken, and
in which order, stays as it is.
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.05  # a look takes about a millisecond


def prompt_replay_buffer(**arguments: Any) -> ReplayBuffer:
    """The synchronous buffer of verl, looking oftener; `arguments` are what the trainer gives to a custom sampler."""
    return ReplayBuffer(poll_interval=POLL_SECONDS, **arguments)
