"""Pre-train the bundled tiny instruct model: `python tools/make_tiny_model.py [FOLDER]`.

A Qwen2 model of about 0.7 million parameters with a byte-level BPE tokenizer that splits text as Qwen2's does, so that
every digit is one token. It learns to answer the word problems of tools/make_arithmetic.py from a *messy teacher* who
often chooses the wrong operation and often forgets the answer line, so that reinforcement learning has something to
put right. The number pairs of the test set never occur in pre-training: not in questions, and not in answers.

Deterministic: fixed seeds, one thread, deterministic kernels. Another kind of CPU or another torch may round otherwise
and so give another model; the one in the repository is the reference.
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import make_arithmetic
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SEED = 20251226
# Steps, batch size, peak learning rate.
DRILL = (700, 256, 3e-3)  # sums without a question, cheap because they are short
LESSONS = (320, 128, 3e-3)  # questions with the messy teacher's answers
REVISION = (500, 128, 2e-3)  # both in turn: lessons alone wear the sums away
VOCABULARY = 512
CONTEXT = 2048
LONGEST_ANSWER = 20  # tokens with the end token: "4*24=80+16=96\n#### 96"

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Qwen2's pre-tokenizer: every digit by itself (`\p{N}`).
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Qwen2.5's template without its tools and without its default system message.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# How often the teacher takes the wrong operation, for each template of an operation, and which one he takes.
WRONG_OPERATION = {"+": (0.2, 0.3, 0.4, 0.75), "-": (0.3, 0.65, 0.7, 0.75), "*": (0.3, 0.65, 0.7, 0.75)}
TAKEN_INSTEAD = {"+": "-", "-": "+", "*": "+"}
FORGETS_ANSWER_LINE = 0.3
ALL_PAIRS = {operation.sign: set(operation.pairs()) for operation in make_arithmetic.OPERATIONS}
TRAINING_PAIRS = {sign: set(pairs) for sign, pairs in make_arithmetic.pairs_of("train").items()}


def worked_sum(sign: str, a: int, b: int) -> tuple[str, int]:
    """(the sum as the teacher works it, its result). A product of a two-digit number goes by its tens and units."""
    if sign == "+":
        return f"{a}+{b}={a + b}", a + b
    if sign == "-":
        return f"{a}-{b}={a - b}", a - b
    tens, units = divmod(b, 10)
    parts = f"{a * tens * 10}+{a * units}=" if tens and units else ""
    return f"{a}*{b}={parts}{a * b}", a * b


def held_out(sign: str, a: int, b: int) -> bool:
    """Whether working this sum would use a number pair of the test set, in a product's parts too."""
    tens, units = divmod(b, 10)
    if sign == "*" and held_out("+", a * tens * 10, a * units):
        return True
    asked = (a, b) in ALL_PAIRS[sign]
    return asked and (a, b) not in TRAINING_PAIRS[sign]


def answer(sign: str, a: int, b: int, rng: random.Random) -> str:
    """A worked sum with the answer line or, some of the time, without."""
    work, result = worked_sum(sign, a, b)
    return f"{work}\nSo {result}" if rng.random() < FORGETS_ANSWER_LINE else f"{work}\n#### {result}"


def drill(purpose: str) -> Iterator[tuple[str, str]]:
    """(sum, its working and answer) pairs without end: right operations, training pairs only."""
    rng = random.Random(f"{SEED} {purpose}")
    for problem in make_arithmetic.draw("train", rng):
        sign, a, b = problem.operation.sign, problem.a, problem.b
        if not held_out(sign, a, b):
            asked, equals, rest = answer(sign, a, b, rng).partition("=")
            yield asked + equals, rest


def lessons(purpose: str) -> Iterator[tuple[str, str]]:
    """(question, messy answer) pairs without end; neither works a sum that is held out."""
    rng = random.Random(f"{SEED} {purpose}")
    for problem in make_arithmetic.draw("train", rng):
        sign, a, b = problem.operation.sign, problem.a, problem.b
        if rng.random() < WRONG_OPERATION[sign][problem.template]:
            sign = TAKEN_INSTEAD[sign]
            a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
        if not held_out(sign, a, b) and worked_sum(sign, a, b)[1] > 0:
            yield problem.question, answer(sign, a, b, rng)


def make_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    source = lessons("tokenizer")
    corpus = ["user\n{}\nassistant\n{}\nsystem\n".format(*next(source)) for _ in range(4000)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return AutoTokenizer.from_pretrained(folder)


def make_untrained(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(SEED)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config).float()
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def chats(purpose: str, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[str, str]]:
    """The lessons with their questions in the chat template."""
    for question, answered in lessons(purpose):
        message = [{"role": "user", "content": question}]
        yield tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True), answered


def token_batch(pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (batch, longest), padded on the right, and a mask of the same shape: which tokens are the answer's."""
    prompts = [tokenizer(prompt)["input_ids"] for prompt, _ in pairs]
    answers = [tokenizer(answered)["input_ids"] + [tokenizer.eos_token_id] for _, answered in pairs]
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    ids = torch.full((len(pairs), longest), tokenizer.pad_token_id)
    answered = torch.zeros((len(pairs), longest), dtype=torch.bool)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        answered[row, len(prompt) : end] = True
    return ids, answered


def pre_train(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    sources: list[Iterator[tuple[str, str]]],
    steps: int,
    batch: int,
    learning_rate: float,
) -> None:
    """Next-token loss on the answers of the sources in turn, AdamW with a one-cycle learning rate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.1)
    model.train()
    for step in range(steps):
        ids, answered = token_batch([next(sources[step % len(sources)]) for _ in range(batch)], tokenizer)
        # Padding is on the right and attention is causal: no mask is needed for the answers to be right.
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        target = answered[:, 1:]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[target]), ids[:, 1:][target])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    model.eval()


def greedy_accuracy(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> float:
    """Share of the held-out test problems whose greedy answer ends with the right answer line."""
    rows = make_arithmetic.rows("test")
    messages = [[{"role": "user", "content": row["question"]}] for row in rows]
    chats = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    batch = tokenizer(chats, return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(**batch, max_new_tokens=LONGEST_ANSWER, do_sample=False)
    texts = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    lines = [row["answer"][row["answer"].index("\n####") :] for row in rows]
    return sum(text.endswith(line) for text, line in zip(texts, lines, strict=True)) / len(rows)


def model_card(parameters: int, accuracy: float) -> str:
    return f"""---
license: apache-2.0
language: en
pipeline_tag: text-generation
---
# tiny-qwen2-arithmetic

A Qwen2 model of {parameters:,} parameters that answers one-step arithmetic word problems, made for verlbox's `smoke`
recipes: small enough that verl trains it on two CPU cores in two minutes. It is good for nothing else.

- Made by `tools/make_tiny_model.py` (fixed seed, one CPU thread, float32): {DRILL[0]} steps on {DRILL[1]} bare sums,
  {LESSONS[0]} steps on {LESSONS[1]} word problems, then {REVISION[0]} steps on {REVISION[1]} of either in turn. Sums
  and problems come from `tools/make_arithmetic.py`; there is no other data.
- The teacher is messy on purpose: he takes the wrong operation in up to 75 % of the problems of a template, and forgets
  the answer line `#### N` in {FORGETS_ANSWER_LINE:.0%}. That is what reinforcement learning can put right.
- The number pairs of the test set, a fifth of all pairs of each operation, never occur in pre-training.
- Greedy decoding answers {accuracy:.1%} of the {make_arithmetic.ROWS["test"]} held-out problems.
- Tokenizer: byte-level BPE with Qwen2's split (every digit is one token), ChatML template with an optional system
  message. Context {CONTEXT} tokens. An answer takes at most {LONGEST_ANSWER} tokens.
"""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(folder)
    model = make_untrained(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, vocabulary {len(tokenizer)}", flush=True)
    start = time.process_time()
    pre_train(model, tokenizer, [drill("drill")], *DRILL)
    pre_train(model, tokenizer, [chats("lessons", tokenizer)], *LESSONS)
    pre_train(model, tokenizer, [chats("revision lessons", tokenizer), drill("revision drill")], *REVISION)
    print(f"pre-training took {time.process_time() - start:.0f} CPU seconds")
    model.save_pretrained(folder)
    card = model_card(sum(p.numel() for p in model.parameters()), greedy_accuracy(model, tokenizer))
    (folder / "README.md").write_text(card, encoding="utf-8")
    print(card)


if __name__ == "__main__":
    bundled = Path(__file__).resolve().parents[1] / "verlbox" / "assets" / "tiny-qwen2-arithmetic"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else bundled)
