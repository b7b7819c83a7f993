"""Models of a known shape with random weights, for measuring speed and memory where no weights can be fetched.

Such a model answers with noise that rarely ends by itself: it shows how fast a run is, never what it learns.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from verlbox import memory
from verlbox.findings import EXIT_STAGE, FindingsError, register
from verlbox.hub import verify

UNKNOWN = register("random-model-unknown", "error", "source: random asks for a model whose shape is not known.")
FAILED = register("random-model-failed", "error", "The random weights could not be made.")

ROOT = Path(__file__).parents[2]
SEED = 1
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json")
# What the planner's table leaves out of Qwen2.5's config.json (and generation_config.json: eos_token_id).
DETAILS: Mapping[str, object] = {
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-06,
    "bos_token_id": 151643,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
}


def path(name: str, tokenizer: Path, cache: Path) -> Path:
    """A folder with a model of the shape of `name`, bfloat16, and the tokenizer of that folder; made when absent.

    Raises FindingsError (`random-model-unknown`, `random-model-failed`).
    """
    shape = memory.known_config(name)
    if shape is None:
        raise FindingsError(
            UNKNOWN.finding(
                f"the shape of {name} is not known",
                why="source: random makes weights from verlbox's own table of shapes.",
                fix=f"Known: {', '.join(memory.KNOWN_CONFIGS)} (and their -Instruct).",
            )
        )
    from filelock import FileLock

    files = {file: verify.hashes(tokenizer / file)[0] for file in TOKENIZER_FILES if (tokenizer / file).is_file()}
    folder = cache / "models" / f"{name.replace('/', '--')}--random-{verify.digest(files)[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):  # of two runs that need it at once, one makes it
        _complete(folder, name, shape, [tokenizer / file for file in files])
    return folder


def _complete(folder: Path, name: str, shape: Mapping[str, object], tokenizer: Sequence[Path]) -> None:
    if not (folder / "model.safetensors").is_file():
        # A process of its own: whoever runs a pipeline should not hold torch for the rest of it.
        call = f"from {__name__} import make; from pathlib import Path; make({dict(shape)!r}, Path({str(folder)!r}))"
        command = [sys.executable, "-c", call]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        made = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if made.returncode != 0:
            raise FindingsError(
                FAILED.finding(
                    f"no random weights for {name}: {(made.stderr.strip() or '?').splitlines()[-1]}",
                    why="Without weights there is nothing to train.",
                    fix=f"Look at `{shlex.join(command)}`, with PYTHONPATH={ROOT}.",
                ),
                EXIT_STAGE,
            )
    for file in tokenizer:
        if not (folder / file.name).is_file():
            partial = folder / f".{file.name}.partial"
            shutil.copyfile(file, partial)
            partial.replace(folder / file.name)


def make(shape: Mapping[str, object], folder: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors: weights as transformers initialises them.

    `shape` has the keys of config.json that memory.KNOWN_CONFIGS holds.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.for_model(**{**DETAILS, **shape})
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    partial = folder / f".partial-{os.getpid()}"
    model.save_pretrained(partial, max_shard_size="1TB")
    eos = DETAILS["eos_token_id"]
    GenerationConfig(eos_token_id=eos, pad_token_id=DETAILS["pad_token_id"]).save_pretrained(partial)
    # As in Qwen's own files: one end token in config.json, both in generation_config.json, which vLLM and verl read.
    written = json.loads((partial / "config.json").read_text(encoding="utf-8"))
    (partial / "config.json").write_text(json.dumps({**written, "eos_token_id": 151645}, indent=2), encoding="utf-8")
    for file in sorted(partial.iterdir(), key=lambda file: file.name == "model.safetensors"):  # the weights last
        file.replace(folder / file.name)
    partial.rmdir()
