"""Wiring: reward function, data source, columns, files, and what must be reachable without a network.

Source: verl 0.6.1, trainer/ppo/reward.py, utils/reward_score/__init__.py default_compute_score(),
workers/reward_manager/, utils/dataset/rl_dataset.py, examples/data_preprocess/gsm8k.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from verlbox.findings import Finding, register
from verlbox.lints.settings import MODEL, Settings, nearest

PATH, NAME = "custom_reward_function.path", "custom_reward_function.name"
NEW_PATH, NEW_NAME = "reward.custom_reward_function.path", "reward.custom_reward_function.name"

RELATIVE = register("reward-path-relative", "error", "The reward file is not found from where the job starts.")
NOT_FOUND = register("reward-function-missing", "error", "The reward file has no function of this name.")
BUILT_IN = register("reward-built-in", "error", "verl's own scorers cannot be used as a custom reward function.")
SIGNATURE = register("reward-signature-wrong", "error", "The reward function does not take the arguments verl passes.")
NAME_IDLE = register("reward-name-without-path", "warning", "A reward function is named and no file is given.")
NO_SCORER = register("data-source-unknown", "error", "verl has no built-in reward for this data_source.")
COLUMN = register("column-missing", "error", "The training file lacks a column that verl reads.")
FILE_KIND = register("data-file-kind", "error", "verl reads Parquet files only.")
RAW_FOLDER = register("gsm8k-folder-layout", "error", "verl's GSM8K script cannot read this folder.")
OFFLINE_MODEL = register("offline-model", "error", "The machine is offline by its settings, and the model is on a hub.")

_SOURCES = [
    "openai/gsm8k",
    "lighteval/MATH",
    "DigitalLearningGmbH/MATH-lighteval",
    "HuggingFaceH4/MATH-500",
    "math_dapo",
    "math",
    "math_dapo_reasoning",
    "numina_aops_forum",
    "numina_synthetic_math",
    "numina_amc_aime",
    "numina_synthetic_amc",
    "numina_cn_k12",
    "numina_olympiads",
    "codecontests",
    "apps",
    "codeforces",
    "taco",
    "hiyouga/geometry3k",
    "searchR1_nq",
    "searchR1_triviaqa",
    "searchR1_popqa",
    "searchR1_hotpotqa",
    "searchR1_2wikimultihopqa",
    "searchR1_musique",
    "searchR1_bamboogle",
]
_BUILT_IN = re.compile(r"(?:^|/)verl/utils/reward_score/(\w+)(?:/__init__)?\.py$")
_BUILT_IN_FILES = frozenset(
    [
        "gsm8k",
        "math_reward",
        "math_dapo",
        "math_verify",
        "math_batch",
        "geo3k",
        "prime_math",
        "prime_code",
        "search_r1_like_qa_em",
        "sandbox_fusion",
        "math",
    ]
)
_PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")
_BATCH_PARAMETERS = ("data_sources", "solution_strs", "ground_truths", "extra_infos")


def _reward(s: Settings) -> tuple[str, str]:
    """The keys of the reward function's path and name in this release."""
    return (PATH, NAME) if s.is_old else (NEW_PATH, NEW_NAME)


def reward_file_is_found(s: Settings) -> Iterator[Finding]:
    path_key, name_key = _reward(s)
    path, name = s.text(path_key), s.text(name_key)
    if not path or not s.known(path_key):
        if s.given(name_key) and name not in (None, "compute_score") and s.known(path_key):
            yield NAME_IDLE.finding(
                f"{name_key}={name} and no {path_key}",
                why="trainer/ppo/reward.py returns before it reads the name.",
                fix=f"{path_key}=/path/to/reward.py",
            )
        return
    built_in = _BUILT_IN.search(path)
    if built_in and built_in[1] in _BUILT_IN_FILES:
        yield BUILT_IN.finding(
            f"{path} is verl's own scorer",
            why="A custom function is called with data_source, solution_str, ground_truth, extra_info; the built-in"
            " one raises"
            " TypeError (unexpected keyword argument 'data_source').",
            fix=f"remove {path_key}: verl uses it by data_source; or wrap it in a function with **kwargs",
        )
    elif not path.startswith(("/", "~", "${", "pkg://", "file://")):
        if s.facts.cwd and not (Path(s.facts.cwd) / path).exists():
            yield RELATIVE.finding(
                f"{path_key}={path} is not found from {s.facts.cwd}",
                why="trainer/ppo/reward.py get_custom_reward_fn() looks in the directory the job runs in:"
                " FileNotFoundError.",
                fix=f"{path_key}=/absolute/path/to/{Path(path).name}",
            )
        elif not s.facts.cwd:
            yield RELATIVE.finding(
                f"{path_key}={path} is relative",
                why="It is found only when the job starts in the right directory (trainer/ppo/reward.py).",
                fix=f"{path_key}=/absolute/path/to/{Path(path).name}",
                severity="warning" if s.complete else "note",
            )
    elif path.startswith("~"):
        yield RELATIVE.finding(
            f"{path_key}={path}",
            why="trainer/ppo/reward.py does not expand ~: FileNotFoundError.",
            fix=f"{path_key}=$HOME{path[1:]}",
        )
    functions = s.facts.functions_in_file
    if functions is not None and name not in functions:
        yield NOT_FOUND.finding(
            f"{path} has no function '{name}'" + (f" (it has {', '.join(functions)})" if functions else ""),
            why=("trainer/ppo/reward.py" if s.is_old else "utils/import_utils.py load_extern_object()")
            + ": AttributeError (the default name is compute_score).",
            fix=f"{name_key}={functions[0]}" if functions else f"define {name} in {path}",
        )
    parameters = s.facts.reward_parameters
    if parameters is not None and "**" not in parameters:
        batch = s.is_old and s.get("reward_model.reward_manager") == "batch"
        missing = [p for p in (_BATCH_PARAMETERS if batch else _PARAMETERS) if p not in parameters]
        if missing:
            yield SIGNATURE.finding(
                f"the reward function does not take {', '.join(missing)}",
                why=("workers" if s.is_old else "experimental/reward_loop")
                + "/reward_manager/ passes them by name: TypeError at the first step, after a whole rollout.",
                fix=f"def {name}({', '.join(_BATCH_PARAMETERS if batch else _PARAMETERS)}, **kwargs)",
            )


def data_source_has_a_reward(s: Settings) -> Iterator[Finding]:
    source = s.facts.data_source
    if source is None or s.get(_reward(s)[0]) or s.flag("reward_model.enable"):
        return
    if source not in _SOURCES and not source.startswith("aime"):
        guess = nearest(source.rpartition("/")[2], [known.rpartition("/")[2].lower() for known in _SOURCES])
        full = next((known for known in _SOURCES if guess and known.lower().endswith(guess)), None)
        yield NO_SCORER.finding(
            f"data_source '{source}' has no built-in reward, and no custom one is given",
            why="utils/reward_score/__init__.py default_compute_score(): NotImplementedError at the first step.",
            fix=(f"write data_source '{full}', or " if full else "") + f"{_reward(s)[0]}=/path/to/reward.py",
        )


def columns_are_there(s: Settings) -> Iterator[Finding]:
    columns = s.facts.parquet_columns
    if columns is None:
        return
    needed = {"data.prompt_key": s.get("data.prompt_key"), "data.reward_fn_key": s.get("data.reward_fn_key")}
    missing = [str(name) for name in needed.values() if name not in columns]
    if "reward_model" not in columns:
        missing.append("reward_model")
    if missing:
        raw = " This is the raw data set." if {"question", "answer"} <= set(columns) or "problem" in columns else ""
        yield COLUMN.finding(
            f"the training file has no column {', '.join(missing)} (it has {', '.join(columns)})",
            why=f"rl_dataset.py reads the prompt by data.prompt_key, the reward manager reads the rest: KeyError.{raw}"
            + (
                " With filter_overlong_prompts on, every row counts as too long instead." if "prompt" in missing else ""
            ),
            fix="preprocess the data first, or name the right column",
        )


def files_are_parquet(s: Settings) -> Iterator[Finding]:
    for key in ("data.train_files", "data.val_files"):
        if not s.given(key):
            continue
        files = [str(name) for name in s.items(key)]
        wrong = [name for name in files if re.search(r"\.(jsonl?|csv|arrow|txt)(\.gz)?$", name)]
        if wrong or not files:
            yield FILE_KIND.finding(
                f"{key}={', '.join(wrong) or 'nothing'}",
                why="rl_dataset.py: load_dataset('parquet', data_files=...).",
                fix="write Parquet with the columns data_source, prompt, reward_model, extra_info",
            )


def preprocessing_reads_the_folder(s: Settings) -> Iterator[Finding]:
    for key, value in s.other.items():
        if "gsm8k.py" not in key or "local_dataset_path" not in key or s.facts.folder is None:
            continue
        if any(name.endswith((".jsonl", ".json")) for name in s.facts.folder) and "main" not in s.facts.folder:
            yield RAW_FOLDER.finding(
                f"{value} holds {', '.join(s.facts.folder)}, and verl's gsm8k.py asks for the configuration 'main'",
                why="examples/data_preprocess/gsm8k.py: load_dataset(path, 'main'): BuilderConfig 'main' not found.",
                fix="download the data set with its folder main/, or use verlbox's preprocessing",
            )


def offline_has_a_local_model(s: Settings) -> Iterator[Finding]:
    offline = [
        name
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        if (s.environment(name)[1] or "0").lower() in ("1", "true", "yes", "on")
    ]
    path = s.text(f"{MODEL}.path")
    if not offline or not path or not s.given(f"{MODEL}.path") or s.facts.model_is_local:
        return
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", path):
        yield OFFLINE_MODEL.finding(
            f"{MODEL}.path={path} is a name on a hub, and {' and '.join(offline)} is set",
            why="Nothing can be downloaded: the run starts only if the model is in the cache already.",
            fix="download the model first and give its folder",
            severity=None if s.facts.model_is_local is False else "warning",
        )


LINTS = (
    reward_file_is_found,
    data_source_has_a_reward,
    columns_are_there,
    files_are_parquet,
    preprocessing_reads_the_folder,
    offline_has_a_local_model,
)
