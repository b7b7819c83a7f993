"""What the verl that is installed here makes of settings: its real Hydra configuration, in place of the data files.

Asked in a child process (compose.py), which imports Hydra and verl's configuration classes only: about 0.6 s with verl
0.6.1 and 0.8 s with 0.9.1 on one core. Nothing is kept between processes, so nothing can be stale.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

TIMEOUT = 60.0  # seconds; a cold disk and a busy machine together took 4
_SCRIPT = Path(__file__).with_name("compose.py")


@dataclass(frozen=True)
class Composed:
    """verl's configuration with overrides.

    defaults: dotted key -> value without the overrides, references as text. values: with them, references followed;
    without the overrides that Hydra refuses, and empty where it does not say which those are. refusals: (override,
    Hydra's message); the override is empty where Hydra names none. objections: what verl's own checks say.
    """

    defaults: Mapping[str, object]
    values: Mapping[str, object]
    refusals: tuple[tuple[str, str], ...]
    objections: tuple[str, ...]


def version() -> str | None:
    """The release of verl that this interpreter would train with, or None; verl is not imported."""
    if importlib.util.find_spec("verl") is None or importlib.util.find_spec("hydra") is None:
        return None
    try:
        return metadata.version("verl")
    except metadata.PackageNotFoundError:
        return None


@cache
def _ask(config_name: str, overrides: tuple[str, ...]) -> Composed:
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.submodule_search_locations
    done = subprocess.run(
        [sys.executable, str(_SCRIPT), next(iter(spec.submodule_search_locations))],
        input=json.dumps({"config_name": config_name, "overrides": overrides}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    answer = json.loads(done.stdout)
    refusals = tuple((refusal["override"], refusal["message"]) for refusal in answer["refusals"])
    return Composed(answer["defaults"], answer["values"], refusals, tuple(answer["objections"]))


def compose(config_name: str, overrides: Sequence[str]) -> Composed:
    """verl's configuration of this name with overrides, asked at most once a process for the same ones.

    Call it only where `version()` is one that compose.py is made for (`verl_keys.VERSIONS`). Raises RuntimeError when
    the child cannot answer, with the last line of what it said.
    """
    try:
        return _ask(config_name, tuple(overrides))
    except subprocess.CalledProcessError as error:
        raise RuntimeError((error.stderr.strip() or f"exit code {error.returncode}").splitlines()[-1]) from error
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        raise RuntimeError(str(error)) from error
