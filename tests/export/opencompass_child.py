"""Loads a configuration as OpenCompass does and says as JSON what it would ask; run where OpenCompass can be imported.

usage: opencompass_child.py CONFIG TOKENIZER OUT.json
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from opencompass.cli.main import parse_args
from opencompass.models.huggingface_above_v4_33 import _convert_chat_messages, _get_meta_template
from opencompass.registry import ICL_EVALUATORS, ICL_PROMPT_TEMPLATES, ICL_RETRIEVERS, TEXT_POSTPROCESSORS
from opencompass.utils.build import build_dataset_from_cfg
from opencompass.utils.run import get_config_from_arg
from transformers import AutoTokenizer


def main() -> None:
    config, tokenizer_path, out = sys.argv[1:]
    with mock.patch.object(sys, "argv", ["opencompass", config]):
        loaded = get_config_from_arg(parse_args())
    (described,) = loaded["datasets"]
    dataset = build_dataset_from_cfg(described)
    infer = described["infer_cfg"]
    template = ICL_PROMPT_TEMPLATES.build(infer["prompt_template"])
    retriever = ICL_RETRIEVERS.build({**infer["retriever"], "dataset": dataset})
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    parser = _get_meta_template(loaded["models"][0]["meta_template"])
    prompts = []
    for index in range(len(dataset.test)):
        asked = retriever.generate_prompt_for_generate_task(
            index, "", gen_field_replace_token="", prompt_template=template
        )
        (messages,) = _convert_chat_messages([parser.parse_template(asked, mode="gen")])
        prompts.append(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    references = list(dataset.test[described["reader_cfg"]["output_column"]])
    evaluation = described["eval_cfg"]
    if "dataset_postprocessor" in evaluation:
        clean = function(evaluation["dataset_postprocessor"]["type"])
        references = [clean(text) for text in references]
    read = function(evaluation["pred_postprocessor"]["type"])
    evaluator = ICL_EVALUATORS.build(evaluation["evaluator"])
    Path(out).write_text(
        json.dumps(
            {
                "models": [
                    {"abbr": m["abbr"], "type": str(m["type"]), "path": m["path"], "max_out_len": m["max_out_len"]}
                    for m in loaded["models"]
                ],
                "max_out_len": infer["inferencer"]["max_out_len"],
                "loader": type(dataset).__name__,
                "evaluator": type(evaluator).__name__,
                "prompts": prompts,
                "references": references,
                "perfect": evaluator.score([read(answer(text)) for text in references], references)["accuracy"],
            }
        ),
        encoding="utf-8",
    )


def function(named: Any) -> Callable[[str], str]:
    """A postprocessor as a configuration names it: the function itself or its registered name."""
    found: Callable[[str], str] = TEXT_POSTPROCESSORS.get(named) if isinstance(named, str) else named
    return found


def answer(reference: str) -> str:
    """A response as the recipes ask for it, with this reference as its answer."""
    return (
        f"<think>\nIt follows.\n</think>\n<answer>\n\\boxed{{{reference}}}\n</answer>"
        if "math" in sys.argv[1]
        else f"It follows. #### {reference}"
    )


if __name__ == "__main__":
    main()
