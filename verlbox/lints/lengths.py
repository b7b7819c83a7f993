"""Lengths: prompt and response against the model, the engine and the form of the answer.

Source: verl 0.6.1, workers/rollout/vllm_rollout/vllm_rollout_spmd.py vLLMRollout.__init__, utils/dataset/rl_dataset.py,
utils/torch_functional.py postprocess_data(). How long answers get: the two published runs (docs/lints.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from verlbox.findings import Finding, register
from verlbox.lints.places import place
from verlbox.lints.settings import ROLLOUT, Settings

PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"

CONTEXT = register("context-too-short", "error", "Prompt and response do not fit into the model's context.")
MODEL_LEN = register("max-model-len-too-small", "error", "The engine's max_model_len cannot hold the longest prompt.")
MODEL_LEN_CUTS = register("max-model-len-cuts", "warning", "The engine's max_model_len cuts long responses.")
BATCHED = register("batched-tokens-too-few", "error", "max_num_batched_tokens is smaller than max_model_len.")
OVERLONG = register("prompt-too-long", "error", "A prompt is longer than max_prompt_length and nothing filters it.")
CUT = register("prompt-is-cut", "warning", "Long prompts are cut: the model does not see the whole question.")
FILTER_OFF = register("overlong-filter-off", "note", "Nothing filters overlong prompts, and one would stop the run.")
SHORT = register(
    "response-too-short", "warning", "The response length cannot hold the answer that the prompt asks for."
)
TWO_LENGTHS = register("lengths-differ", "warning", "The rollout's lengths differ from the data's.")


def _total(s: Settings) -> int | None:
    prompt, response = s.integer(PROMPT), s.integer(RESPONSE)
    return prompt + response if prompt and response and s.known(PROMPT, RESPONSE) else None


def context_holds_prompt_and_response(s: Settings) -> Iterator[Finding]:
    total, context = _total(s), s.facts.model_max_position_embeddings
    if context is None:
        return
    context = int(context * (s.facts.rope_scaling_factor or 1))
    if total and total > context:
        yield CONTEXT.finding(
            f"{s.get(PROMPT)} + {s.get(RESPONSE)} = {total} tokens, and the model's context is {context}",
            why="vllm_rollout_spmd.py: 'model context length should be greater than total sequence length'"
            " (AssertionError)."
            if s.is_old
            else "vllm_async_server.py cuts the response at the context's end (verl 0.9.1 does not look at the sum).",
            fix=f"{RESPONSE}={max(1, context - (s.integer(PROMPT) or 0))} or a shorter prompt",
            severity=None if s.is_old or context <= (s.integer(PROMPT) or 0) else "warning",
        )
    model_len = s.integer(f"{ROLLOUT}.max_model_len")
    if model_len and s.given(f"{ROLLOUT}.max_model_len") and model_len > context:
        yield CONTEXT.finding(
            f"{ROLLOUT}.max_model_len={model_len} exceeds the model's context of {context}",
            why="vLLM refuses a max_model_len above the derived one."
            if s.is_old
            else f"{place(s, 'engine')}: max_model_len should be less than or equal to max_position_embeddings"
            " (ValueError).",
            fix=f"{ROLLOUT}.max_model_len={context}",
        )


def engine_holds_a_sequence(s: Settings) -> Iterator[Finding]:
    total, model_len = _total(s), s.integer(f"{ROLLOUT}.max_model_len")
    prompt = s.integer(PROMPT) or 0
    if total and model_len and model_len < total:
        if model_len <= prompt:
            yield MODEL_LEN.finding(
                f"{ROLLOUT}.max_model_len={model_len} is not longer than max_prompt_length={prompt}",
                why="vLLM refuses a prompt that fills its whole context.",
                fix=f"{ROLLOUT}.max_model_len={total}, or remove it",
            )
        else:
            yield MODEL_LEN_CUTS.finding(
                f"{ROLLOUT}.max_model_len={model_len} is less than {total} = prompt + response",
                why="vLLM stops at max_model_len: a long prompt leaves less room than max_response_length says.",
                fix=f"{ROLLOUT}.max_model_len={total}, or remove it",
            )
    if s.text(f"{ROLLOUT}.name") not in (None, "vllm", "???") or not s.is_old:
        return  # 0.9.1 raises it itself where it must (vllm_async_server.py _validate_configs())
    batched = s.integer(f"{ROLLOUT}.max_num_batched_tokens")
    needed = model_len or total
    if not (needed and batched) or batched >= needed:
        return
    if s.get(f"{ROLLOUT}.enable_chunked_prefill") is False:
        yield BATCHED.finding(
            f"{ROLLOUT}.max_num_batched_tokens={batched} is smaller than max_model_len={needed}",
            why="verl does not check this without chunked prefill; vLLM refuses it when the engine starts.",
            fix=f"{ROLLOUT}.max_num_batched_tokens={needed}",
            severity="warning",
        )
    else:
        yield BATCHED.finding(
            f"{ROLLOUT}.max_num_batched_tokens={batched} is smaller than max_model_len={needed}",
            why="vllm_rollout_spmd.py: with chunked prefill it must not be (ValueError when the workers are built).",
            fix=f"{ROLLOUT}.max_num_batched_tokens={needed}",
        )


def rollout_lengths_follow_the_data(s: Settings) -> Iterator[Finding]:
    for own, data in ((f"{ROLLOUT}.prompt_length", PROMPT), (f"{ROLLOUT}.response_length", RESPONSE)):
        if s.given(own) and s.known(data) and s.get(own) != s.get(data):
            yield TWO_LENGTHS.finding(
                f"{own}={s.get(own)} and {data}={s.get(data)}",
                why="The rollout follows its own, padding and filtering follow the data's.",
                fix=f"remove {own}: it follows {data}",
            )


def prompts_fit(s: Settings) -> Iterator[Finding]:
    limit, longest = s.integer(PROMPT), s.facts.longest_prompt_tokens
    if s.flag("data.filter_overlong_prompts") or limit is None or not s.known(PROMPT):
        return
    how = s.get("data.truncation")
    if not s.is_old:  # agent_loop.py _cap_text_prompt_length(); data.truncation is not asked
        if longest is not None and longest > limit:
            yield CUT.finding(
                f"the longest prompt has {longest} tokens and loses its beginning beyond {limit}",
                why="agent_loop.py cuts text prompts from the left with a warning (verl 0.9.1): the model answers a"
                " question that it has not read whole.",
                fix="data.filter_overlong_prompts=True, or a longer data.max_prompt_length",
            )
        return
    if longest is not None and longest > limit:
        if how == "error":
            yield OVERLONG.finding(
                f"the longest prompt has {longest} tokens, the limit is {limit}, and nothing filters it",
                why="torch_functional.postprocess_data() raises NotImplementedError in a data-loader worker, in the"
                " middle of an"
                " epoch; filter_overlong_prompts=False and truncation=error are the defaults.",
                fix="data.filter_overlong_prompts=True",
            )
        else:
            yield CUT.finding(
                f"the longest prompt has {longest} tokens and is cut to {limit} ({how})",
                why="The model answers a question that it has not read whole; with 'right' the generation prompt is"
                " lost too.",
                fix="data.filter_overlong_prompts=True, or a longer data.max_prompt_length",
            )
    elif longest is None and s.complete and how == "error":
        yield FILTER_OFF.finding(
            "overlong prompts are not filtered, and one of them stops the run",
            why="torch_functional.postprocess_data() raises on it in the middle of an epoch.",
            fix="data.filter_overlong_prompts=True",
        )


def response_holds_the_answer(s: Settings) -> Iterator[Finding]:
    limit = s.integer(RESPONSE)
    if limit is None or not s.known(RESPONSE):
        return
    form = s.facts.prompt_asks_for or ""
    task = s.facts.task or ""
    path = s.text("custom_reward_function.path") or s.text("reward.custom_reward_function.path") or ""
    thinks = bool(re.search(r"<think|<answer", form))
    is_math = bool(re.search(r"math|aime|olympiad", f"{task} {s.facts.data_source or ''} {path}", re.IGNORECASE))
    is_gsm8k = "gsm8k" in f"{task} {s.facts.data_source or ''}".lower()
    if not (task or form or s.facts.data_source):
        return
    if is_gsm8k and not thinks:
        needed, measured = 192, "the published GSM8K run's answers were 120 to 160 tokens long on average"
    elif thinks:
        needed, measured = (
            768,
            "the published MATH run's answers were 319 to 494 tokens long on average, at a limit of 1024",
        )
    elif is_math:
        needed, measured = 512, "answers to MATH problems were 319 to 494 tokens long on average in the published run"
    else:
        return
    if limit < needed:
        yield SHORT.finding(
            f"a response of {limit} tokens is too short for"
            f" {'<think>...</think><answer>' if thinks else 'worked answers'}",
            why=f"Answers are cut before they end and score 0: {measured}.",
            fix=f"{RESPONSE}={1024 if thinks or is_math else 256}",
        )


LINTS = (
    context_holds_prompt_and_response,
    engine_holds_a_sequence,
    rollout_lengths_follow_the_data,
    prompts_fit,
    response_holds_the_answer,
)
