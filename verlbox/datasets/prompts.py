"""Prompts as named, hashed data: what is said to the model around a question, in training and evaluation alike.

A prompt is a system message, an instruction behind the question, both, or neither. It replaces editing a model's
tokenizer_config.json: an explicit system message gives the same tokens as a chat template whose default was changed,
and it is visible in the parquet file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from verlbox.findings import FindingsError, register

UNKNOWN_PROMPT = register("prompt-unknown", "error", "The recipe names a prompt that verlbox does not have.")


@dataclass(frozen=True)
class Prompt:
    """`system` becomes the first message when given; `instruction` follows the question after one blank."""

    name: str
    about: str
    system: str | None = None
    instruction: str | None = None

    @property
    def sha256(self) -> str:
        """Hash of what the model sees (not of the name): equal prompts have equal hashes."""
        seen = json.dumps({"system": self.system, "instruction": self.instruction}, sort_keys=True)
        return hashlib.sha256(seen.encode()).hexdigest()

    def messages(self, question: str) -> list[dict[str, str]]:
        """The conversation that asks `question`, as role/content messages."""
        content = f"{question} {self.instruction}" if self.instruction else question
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": content}]


_QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_THINK_ANSWER = (
    f"{_QWEN} When answering any question, you must first output your reasoning process within <think> tags, and then"
    " output the final answer within <answer> tags with the answer enclosed in \\boxed{}. Ensure to use newlines for"
    " better readability: place a newline after <think> and before </think>, and similarly for <answer> tags."
    " For example: "
)
_MATH_BOXED = "Let's think step by step and output the final answer within \\boxed{}."

PROMPTS: dict[str, Prompt] = {
    prompt.name: prompt
    for prompt in (
        Prompt("none", "the bare question; the chat template's own system message, if it has one, still applies"),
        Prompt(
            "gsm8k-hash",
            "GSM8K as verl's examples/data_preprocess/gsm8k.py asks it (v0.6.1)",
            instruction='Let\'s think step by step and output the final answer after "####".',
        ),
        Prompt(
            "math-boxed",
            "MATH as verl's examples/data_preprocess/math_dataset.py asks it (v0.6.1)",
            instruction=_MATH_BOXED,
        ),
        Prompt(
            "math-think-answer",
            "the published NPU run, token for token: it shows the model a backslash and an n, not a newline, so a"
            " model that copies the example literally earns no format points",
            system=_THINK_ANSWER
            + "<think>\\n reasoning process here \\n</think>\\n<answer>\\n\\boxed{ answer here }\\n</answer>",
            instruction=_MATH_BOXED,
        ),
        Prompt(
            "math-think-answer-newlines",
            "math-think-answer with real newlines in its example",
            system=_THINK_ANSWER
            + "<think>\n reasoning process here \n</think>\n<answer>\n\\boxed{ answer here }\n</answer>",
            instruction=_MATH_BOXED,
        ),
    )
}


def named(name: str) -> Prompt:
    """The prompt of that name. Raises FindingsError (`prompt-unknown`) with the nearest right name."""
    if name in PROMPTS:
        return PROMPTS[name]
    import difflib

    near = difflib.get_close_matches(name, PROMPTS, n=1)
    raise FindingsError(
        UNKNOWN_PROMPT.finding(
            f"there is no prompt {name!r}",
            why="a prompt is part of what is trained and compared, so it is never guessed",
            fix=(f"did you mean {near[0]!r}? " if near else "") + f"Known: {', '.join(PROMPTS)}",
        )
    )
