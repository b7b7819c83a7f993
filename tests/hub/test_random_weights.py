"""Random weights of a known shape: made by transformers in a process of its own, and complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verlbox import memory
from verlbox.findings import FindingsError
from verlbox.hub import ModelSpec, fetch_model, random_weights
from verlbox.hub.verify import model_findings

TINY = {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
TOKENIZER = Path(__file__).parents[2] / "verlbox" / "assets" / "tiny-qwen2-arithmetic"


def test_a_model_of_the_shape_is_written_whole(tmp_path: Path) -> None:
    from safetensors import safe_open

    random_weights.make(TINY, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    config = json.loads((tmp_path / "config.json").read_text())
    assert {key: config[key] for key in TINY} == TINY
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [151645, 151643]
    with safe_open(tmp_path / "model.safetensors", "pt") as weights:
        tensors = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.bfloat16"}
    assert tensors["model.embed_tokens.weight"].float().std() == pytest.approx(0.02, rel=0.2)


def test_with_its_tokenizer_the_folder_is_a_complete_model_that_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process makes it, others wait for it; another tokenizer is another model."""
    monkeypatch.setattr(memory, "KNOWN_CONFIGS", {"Tiny": TINY})
    fetched = fetch_model(ModelSpec("Some/Tiny-Instruct", ("random",), path=TOKENIZER), tmp_path, offline=True)
    assert fetched.source == "random"
    assert model_findings(fetched.path) == []
    before = (fetched.path / "model.safetensors").stat().st_mtime_ns
    again = fetch_model(ModelSpec("Some/Tiny-Instruct", ("random",), path=TOKENIZER), tmp_path, offline=True)
    assert again.path == fetched.path
    assert (fetched.path / "model.safetensors").stat().st_mtime_ns == before
    other = tmp_path / "tokenizer"
    other.mkdir()
    (other / "tokenizer_config.json").write_text("{}")
    assert random_weights.path("Some/Tiny-Instruct", other, tmp_path) != fetched.path
    assert model_findings(fetched.path) == []


def test_a_shape_that_is_not_known_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(FindingsError) as error:
        random_weights.path("Nobody/Model-3B", TOKENIZER, tmp_path)
    assert error.value.findings[0].code == "random-model-unknown"
    assert "Qwen2.5-0.5B" in error.value.findings[0].fix


def test_what_goes_wrong_in_the_process_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('this torch is broken')")
    (tmp_path / "verlbox").symlink_to(Path(random_weights.__file__).parents[1])
    monkeypatch.setattr(random_weights, "ROOT", tmp_path)  # from where the process imports
    with pytest.raises(FindingsError) as error:
        random_weights.path("Qwen/Qwen2.5-0.5B", TOKENIZER, tmp_path)
    assert error.value.findings[0].code == "random-model-failed"
    assert "this torch is broken" in error.value.findings[0].what
