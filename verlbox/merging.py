"""Runs verl's own merger, then loads what it wrote and compares it with what was trained; a child of the merge stage.

usage: python -m verlbox.merging CHECKPOINT_ROLE_FOLDER TARGET_FOLDER REPORT.json

The merged model counts only when transformers loads it and every weight equals the trained one. Trained weights come
from the Hugging Face copy in the checkpoint (save_contents has hf_model) or, without one, from a single rank's shard;
for several shards without a copy, names, shapes and finiteness are compared with the model's own definition.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def merge(role_folder: Path, target: Path) -> None:
    """verl.model_merger on an FSDP checkpoint, as `python -m verl.model_merger merge` runs it."""
    from verl.model_merger import __main__ as merger

    sys.argv = ["merge", "merge", "--backend", "fsdp", "--local_dir", str(role_folder), "--target_dir", str(target)]
    merger.main()


def trained_weights(role_folder: Path) -> tuple[str, dict[str, Any]] | None:
    """Where the trained weights were read from, and the weights; None when only many shards hold them."""
    import torch
    from safetensors.torch import load_file

    copies = sorted((role_folder / "huggingface").glob("*.safetensors"))
    if copies:
        return "the Hugging Face copy in the checkpoint", {k: v for path in copies for k, v in load_file(path).items()}
    shards = sorted(role_folder.glob("model_world_size_*_rank_*.pt"))
    if len(shards) != 1:
        return None
    state = torch.load(shards[0], weights_only=False, map_location="cpu")
    return "the checkpoint's shard", {k: getattr(v, "to_local", lambda v=v: v)() for k, v in state.items()}


def compare(role_folder: Path, target: Path) -> dict[str, Any]:
    """Loads the merged model and compares it with the trained weights, in the merged model's precision.

    Raises RuntimeError when a weight is missing, differs or is not finite.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(target)
    model, report = AutoModelForCausalLM.from_pretrained(target, dtype="auto", output_loading_info=True)
    if report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"]:
        raise RuntimeError(f"the merged model does not load cleanly: {report}")
    merged = model.state_dict()
    not_finite = [name for name, value in merged.items() if not torch.isfinite(value).all()]
    if not_finite:
        raise RuntimeError(f"the merged model holds values that are not finite: {not_finite[:5]}")
    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    trained = trained_weights(role_folder)
    if trained is None:
        return {
            **result,
            "compared_with": "the model's definition (names, shapes, finite values)",
            "tensors_equal": None,
        }
    source, weights = trained
    different = [n for n, v in weights.items() if n in merged and not torch.equal(v.to(merged[n].dtype), merged[n])]
    absent = sorted(set(merged) - set(weights) - ({"lm_head.weight"} if model.config.tie_word_embeddings else set()))
    if different or absent:
        raise RuntimeError(f"the merged model is not the trained one: different {different[:5]}, absent {absent[:5]}")
    return {**result, "compared_with": source, "tensors_equal": len(weights)}


def main() -> None:
    role_folder, target, report = map(Path, sys.argv[1:4])
    merge(role_folder, target)
    report.write_text(json.dumps(compare(role_folder, target)))


if __name__ == "__main__":
    main()
