"""The recipe: one strict YAML schema, read with line numbers, so that all errors are reported at once and in place.

Two kinds of overrides come from the command line. Recipe keys are dotted names of this schema (`train.epochs=1`).
verl's own keys are written as verl's users write them (`actor_rollout_ref.rollout.n=8`, with Hydra's `+`, `++`, `~`);
they are kept verbatim in `overrides`, come last on verl's command line, and win.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from verlbox import findings, hydra_overrides
from verlbox.findings import Finding, FindingsError
from verlbox.stacks import STACKS

UNREADABLE = findings.register("recipe-unreadable", "error", "The recipe file is missing or is not readable YAML.")
DUPLICATE_KEY = findings.register("recipe-duplicate-key", "error", "A key stands twice in one mapping of the recipe.")
UNKNOWN_KEY = findings.register("recipe-unknown-key", "error", "A key is neither a recipe key nor one of verl's.")
WRONG_VALUE = findings.register("recipe-wrong-value", "error", "A value has the wrong type or is out of range.")
MISSING_KEY = findings.register("recipe-missing-key", "error", "A key that every recipe needs is absent.")
MISSING_FILE = findings.register("recipe-missing-file", "error", "A file or folder that the recipe names is absent.")
UNKNOWN_RECIPE = findings.register("recipe-unknown", "error", "No recipe has this name or path.")
BAD_OVERRIDE = findings.register("override-unreadable", "error", "An argument is not an override that can be read.")

Hub = Literal["modelscope", "huggingface", "mirror"]
Source = Literal["modelscope", "huggingface", "mirror", "local", "bundled"]
ModelSource = Literal["modelscope", "huggingface", "mirror", "local", "bundled", "random"]
NEED_PATH = ("local", "random")
AT_HAND = ("local", "bundled", "random")  # no hub is asked
DEFAULT_HUBS: list[Hub] = ["modelscope", "huggingface", "mirror"]

# verl's configuration groups under the headings that its own scripts use; a key stands under the heading it belongs to.
VERL_GROUPS: dict[str, tuple[str, ...]] = {
    "DATA": ("data.",),
    "MODEL": ("actor_rollout_ref.model.",),
    "ACTOR": ("actor_rollout_ref.actor.",),
    "ROLLOUT": ("actor_rollout_ref.rollout.",),
    "REF": ("actor_rollout_ref.ref.",),
    "CRITIC": ("critic.",),
    "ALGORITHM": ("algorithm.",),
    "TRAINER": ("trainer.", "ray_kwargs.", "global_profiler.", "transfer_queue."),
}
# Top-level groups of verl's configuration (0.6.1 and 0.9.1): an override that starts with one is verl's to read.
VERL_ROOTS = frozenset(
    {
        *("data", "actor_rollout_ref", "critic", "algorithm", "trainer", "ray_kwargs", "global_profiler"),
        *("transfer_queue", "reward_model", "custom_reward_function", "reward", "distillation", "model_engine"),
    }
)

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A strict, immutable part of a recipe: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Model(Section):
    """The model that is trained."""

    name: str = Field(description="Hub name such as Qwen/Qwen2.5-0.5B-Instruct, or the name of a bundled model.")
    source: ModelSource | list[Hub] = Field(
        DEFAULT_HUBS,
        description="Where it comes from; a list is tried in order. random: the shape with random weights, for speed.",
    )
    revision: str | None = Field(None, description="Commit or tag on the hub; null takes the newest and records it.")
    path: str | None = Field(None, description="Folder, for source: local; the tokenizer's, for random.")


class Dataset(Section):
    """The problems that are trained and evaluated on."""

    format: Literal["gsm8k", "math_lighteval"] = Field(description="How a row is read and rewarded.")
    name: str = Field(description="Hub name such as openai/gsm8k, or the name of a bundled data set.")
    source: Source | list[Hub] = Field(DEFAULT_HUBS, description="Where it comes from; a list is tried in order.")
    revision: str | None = None
    path: str | None = Field(
        None, description="Folder or file (jsonl, json, parquet, each also .gz), for source: local."
    )
    prompt: str = Field(
        "none", description="Named prompt: system prompt and instruction, alike in training and evaluation."
    )
    max_prompt_length: Positive | Literal["auto"] = Field(
        "auto", description="Tokens; longer prompts are left out and counted. auto: the longest prompt there is."
    )
    max_bad_share: Fraction = Field(0.01, description="Share of unusable rows above which preprocess fails.")


class Reward(Section):
    """The function that scores an answer."""

    name: Literal["gsm8k", "graded_math"]
    arguments: dict[str, bool | int | float | str] = Field({}, description="Keyword arguments of the reward function.")
    max_failed_share: Fraction = Field(0.01, description="Share of timeouts and crashes above which the run fails.")


VerlValue = bool | int | float | str | None | list[Any] | dict[str, Any]
Group = Literal["DATA", "MODEL", "ACTOR", "ROLLOUT", "REF", "CRITIC", "ALGORITHM", "TRAINER"]


class Train(Section):
    """How long, on what, and verl's own settings under verl's own names."""

    epochs: Positive = Field(1, description="Passes over the training rows (trainer.total_epochs).")
    steps: Positive | None = Field(None, description="Stop after so many steps instead; epochs follow from it.")
    devices: Positive = Field(1, description="Accelerators on each machine (trainer.n_gpus_per_node).")
    seed: int = Field(1, ge=0, description="Seed of data order, sampling and evaluation draws.")
    on_oom: Literal["fail", "step_down"] = Field(
        "fail", description="After a device ran out of memory: step_down resumes with the next rung of a ladder."
    )
    on_oom_times: Positive = Field(3, description="How many rungs step_down may take.")
    allow_degenerate_group: bool = Field(False, description="Accept GRPO with groups of one, which has no baseline.")
    loggers: list[Literal["tensorboard", "swanlab", "wandb", "mlflow"]] = Field(
        ["tensorboard"], description="Beside the console."
    )
    verl: dict[Group, dict[str, VerlValue]] = Field({}, description="verl's keys, by the headings of verl's scripts.")

    @field_validator("verl")
    @classmethod
    def _keys_under_their_heading(cls, groups: dict[str, dict[str, VerlValue]]) -> dict[str, dict[str, VerlValue]]:
        for group, keys in groups.items():
            for key in keys:
                if not key.lstrip("+").startswith(VERL_GROUPS[group]):
                    raise ValueError(f"{key} does not belong under {group} ({', '.join(VERL_GROUPS[group])}...)")
        return groups


class Cluster(Section):
    """Training past one machine, on a Ray cluster that exists already; docs/cluster.md."""

    nodes: Positive = Field(1, description="Machines (trainer.nnodes), each with train.devices accelerators.")
    address: str | None = Field(
        None, description="host:port of the cluster's head; null: $RAY_ADDRESS, else auto with several nodes."
    )


class Evaluate(Section):
    """Base and trained model on the held-out set, same prompts, same grader."""

    enabled: bool = True
    draws: int = Field(0, ge=0, description="Sampled answers a prompt besides the greedy one; 0 for greedy only.")
    temperature: float = Field(1.0, gt=0)
    batch_size: Positive = Field(256, description="Prompts generated together (execution only).")


class Report(Section):
    """What the report looks like."""

    language: Literal["en", "zh"] = "en"
    formats: list[Literal["md", "html", "json"]] = ["md", "html", "json"]


HealthBound = Literal[
    "patience", "nonfinite_steps", "clip_ratio", "cut_clip_ratio", "entropy", "kl", "gradient", "ungraded"
]


class Criterion(Section):
    """One line of acceptance: a metric, reduced over a window, against a bound."""

    metric: str
    reducer: Literal["last", "first", "mean", "median", "max", "min", "slope", "last_k_mean"] = "last"
    window: Positive | None = Field(None, description="Number of last steps that the reducer sees; null for all.")
    operator: Literal[">=", ">", "<=", "<", "==", "within"]
    bound: float | str | list[float] = Field(description="A number, two numbers for within, or the name of a band.")
    severity: Literal["fail", "warn"] = "fail"


class Recipe(Section):
    """A whole recipe."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Also the default name of the run.")
    description: str
    stack: str
    model: Model
    dataset: Dataset
    reward: Reward
    train: Train
    cluster: Cluster = Cluster()
    evaluate: Evaluate = Evaluate()
    report: Report = Report()
    health: dict[HealthBound, int | float] = Field(
        {}, description="Bounds of the health checks while training; see docs/diagnosis.md for the defaults."
    )
    acceptance: list[Criterion] = []
    overrides: list[str] = Field([], description="verl overrides in Hydra's syntax, last on the command line.")

    @field_validator("stack")
    @classmethod
    def _stack_exists(cls, stack: str) -> str:
        if stack not in STACKS:
            raise ValueError(f"no stack {stack!r}; there are {', '.join(sorted(STACKS))}")
        return stack

    @field_validator("overrides")
    @classmethod
    def _overrides_parse(cls, overrides: list[str]) -> list[str]:
        for text in overrides:
            hydra_overrides.parse_override(text)
        return overrides


@dataclass(frozen=True)
class Loaded:
    """A valid recipe and where each of its keys stands (dotted key -> `file:line` or `command line: ...`)."""

    recipe: Recipe
    places: Mapping[str, str]
    path: Path


# --- reading YAML with places ------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML with 1e-6 as a number and only true/false as booleans, as people who write recipes expect."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def _plain(node: yaml.Node, key: str, file: str, places: dict[str, str], problems: list[Finding]) -> Any:
    """The value of a YAML node; records the place of every key, and reports duplicate and non-text keys."""
    places.setdefault(key, f"{file}:{node.start_mark.line + 1}")
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = str(key_node.value)
            dotted = f"{key}.{name}" if key else name
            place = f"{file}:{key_node.start_mark.line + 1}"
            if name in result:
                problems.append(
                    DUPLICATE_KEY.finding(
                        f"{dotted} stands twice (first at {places[dotted]})",
                        why="YAML would silently keep only the last of them.",
                        fix="Remove one of the two lines.",
                        where=place,
                    )
                )
            places[dotted] = place
            result[name] = _plain(value_node, dotted, file, places, problems)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, f"{key}.{i}", file, places, problems) for i, item in enumerate(node.value)]
    return _Loader("").construct_object(node, deep=True)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str], list[Finding]]:
    """The content of a recipe file. Raises FindingsError when it cannot be read at all."""

    def unreadable(what: str, fix: str, where: str = "") -> FindingsError:
        return FindingsError(
            UNREADABLE.finding(what, why="Nothing can be run without it.", fix=fix, where=where or str(path))
        )

    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise unreadable(f"cannot read the recipe: {error.strerror}", "Name a readable file.") from error
    except UnicodeDecodeError as error:
        raise unreadable(f"the recipe is not UTF-8 text (byte {error.start})", "Save the file as UTF-8.") from error
    places: dict[str, str] = {}
    problems: list[Finding] = []
    try:
        node = yaml.compose(text, Loader=_Loader)
        content = _plain(node, "", str(path), places, problems) if node is not None else {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        detail = getattr(error, "problem", None) or str(error)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise unreadable(
            f"not readable as YAML: {detail}", "Mend the line; YAML is sensitive to indentation.", where
        ) from error
    except RecursionError as error:
        raise unreadable("the YAML is nested too deeply", "A recipe is a few levels deep.") from error
    if not isinstance(content, dict):
        raise unreadable("a recipe is a mapping of keys", "Start from a file in recipes/.", f"{path}:1")
    return content, places, problems


# --- errors in place ---------------------------------------------------------------------------------------------


def _all_keys(model: type[BaseModel] = Recipe, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _all_keys(field.annotation, f"{prefix}{name}.")
    return keys


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that was probably meant: close as a whole, or with the same last part."""
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if close:
        return close[0]
    last = key.rsplit(".", 1)[-1]
    same_end = [k for k in known if k.rsplit(".", 1)[-1] == last]
    if len(same_end) == 1:
        return same_end[0]
    ends = {k.rsplit(".", 1)[-1]: k for k in known}
    close = difflib.get_close_matches(last, ends, n=1, cutoff=0.8)
    return ends[close[0]] if close else None


def _unknown_key(key: str, where: str) -> Finding:
    meant = nearest(key, _all_keys())
    return UNKNOWN_KEY.finding(
        f"unknown key {key}",
        why="verlbox refuses what it does not know, since a misspelt key would change nothing, silently.",
        fix=f"Did you mean {meant}?" if meant else "`python entrypoint.py show RECIPE` lists the keys.",
        where=where,
    )


def _place(location: Sequence[str | int], places: Mapping[str, str]) -> tuple[str, str]:
    """The dotted key of a pydantic location, and the nearest place that is known for it."""
    parts = [str(part) for part in location]
    for end in range(len(parts), -1, -1):
        if ".".join(parts[:end]) in places:
            return ".".join(parts), places[".".join(parts[:end])]
    return ".".join(parts), ""


def _explain(error: ValidationError, places: Mapping[str, str]) -> list[Finding]:
    """Pydantic's errors as findings, in place; the branches of one union become one finding."""
    grouped: dict[str, list[Any]] = {}
    for item in error.errors(include_url=False):
        location = list(item["loc"])
        # A union's errors end in the name of the branch, which is no key of the recipe.
        while (
            location
            and ".".join(str(p) for p in location) not in places
            and item["type"] not in ("missing", "extra_forbidden")
        ):
            location.pop()
        grouped.setdefault(".".join(str(p) for p in location), []).append((location, item))
    problems: list[Finding] = []
    for key, items in grouped.items():
        location, item = items[0]
        dotted, where = _place(location, places)
        if item["type"] == "extra_forbidden":
            problems.append(_unknown_key(dotted, where))
        elif item["type"] == "missing":
            problems.append(
                MISSING_KEY.finding(
                    f"{dotted} is missing",
                    why="The recipe cannot be run without it.",
                    fix=f"Add {dotted}.",
                    where=where,
                )
            )
        else:
            reasons = list(dict.fromkeys(i["msg"].removeprefix("Value error, ") for _, i in items))
            problems.append(
                WRONG_VALUE.finding(
                    f"{key or 'recipe'} = {item['input']!r}: {'; or '.join(reasons)}",
                    why="The value cannot be used.",
                    fix="Write a value of the right kind.",
                    where=where,
                )
            )
    return problems


# --- command-line overrides --------------------------------------------------------------------------------------


def _set(content: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        child = content.get(part)
        content[part] = child = dict(child) if isinstance(child, dict) else {}
        content = child
    content[last] = value


def _is_recipe_key(key: str) -> bool:
    """True when the key leads somewhere in the schema (also inside free mappings such as reward.arguments)."""
    model: type[BaseModel] = Recipe
    for part in key.split("."):
        field = model.model_fields.get(part)
        if field is None:
            return False
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return True
        model = field.annotation
    return True


def _apply(arguments: Sequence[str], content: dict[str, Any], places: dict[str, str], base: Path) -> list[Finding]:
    """Puts command-line overrides into the content: recipe keys where they belong, verl's keys at the end."""
    problems: list[Finding] = []
    verl_overrides: list[str] = []
    for argument in arguments:
        where = f"command line: {argument}"
        try:
            override = hydra_overrides.parse_override(argument)
        except hydra_overrides.OverrideSyntaxError as error:
            problems.append(
                BAD_OVERRIDE.finding(
                    str(error),
                    why="Overrides are key=value, +key=value, ++key=value or ~key.",
                    fix="Mend the argument.",
                    where=where,
                )
            )
            continue
        root = override.key.split(".")[0].split("@")[0]
        if not override.prefix and _is_recipe_key(override.key):
            value = override.value
            if override.key in ("dataset.path", "model.path") and isinstance(value, str):
                value = str((base / Path(value).expanduser()).resolve())
            _set(content, override.key, value)
            places[override.key] = where
            named = f"{root}.name"
            said = any(text.startswith((f"{named}=", f"{root}.source=random")) for text in arguments)
            if override.key.endswith(".path") and not said:
                _set(content, named, Path(str(value)).name)  # the recipe's name would be that of other content
        elif root in VERL_ROOTS:
            verl_overrides.append(argument)
        else:
            problems.append(_unknown_key(override.key, where))
    if verl_overrides:
        content["overrides"] = [*content.get("overrides", []), *verl_overrides]
        places.setdefault("overrides", f"command line: {verl_overrides[0]}")
    return problems


# --- the public functions ----------------------------------------------------------------------------------------


def find(name: str, folder: Path) -> Path:
    """The file of a recipe given by path or by bare name in `folder`. Raises FindingsError when there is none."""
    for candidate in (Path(name), folder / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    meant = difflib.get_close_matches(Path(name).stem, known, n=1)
    raise FindingsError(
        UNKNOWN_RECIPE.finding(
            f"no recipe {name}",
            why="It is neither a file nor the name of a recipe in recipes/.",
            fix=f"Did you mean {meant[0]}?" if meant else f"Recipes: {', '.join(known) or 'none'}.",
        )
    )


def _missing_files(recipe: Recipe, places: Mapping[str, str]) -> list[Finding]:
    problems: list[Finding] = []
    for key, section in (("dataset", recipe.dataset), ("model", recipe.model)):
        where = places.get(f"{key}.path") or places.get(f"{key}.source", "")
        if section.source in NEED_PATH and section.path is None:
            problems.append(
                MISSING_KEY.finding(
                    f"{key}.source is {section.source}, but {key}.path is not set",
                    why="A local source needs a place, and random weights a folder to take the tokenizer from.",
                    fix=f"Set {key}.path=FOLDER.",
                    where=where,
                )
            )
        elif section.path is not None and section.source not in NEED_PATH:
            problems.append(
                WRONG_VALUE.finding(
                    f"{key}.path is set, but {key}.source is {section.source}",
                    why="The path would not be read.",
                    fix=f"Set {key}.source=local, or remove {key}.path.",
                    where=where,
                )
            )
        elif section.path is not None and not Path(section.path).exists():
            problems.append(
                MISSING_FILE.finding(
                    f"{key}.path does not exist: {section.path}",
                    why="There is nothing to read.",
                    fix="Name an existing path.",
                    where=where,
                )
            )
    return problems


def load(path: Path, arguments: Sequence[str] = (), cwd: Path | None = None, *, files_here: bool = True) -> Loaded:
    """Reads a recipe file and applies command-line overrides.

    Paths in the file are relative to the file, paths in `arguments` to `cwd`. Raises FindingsError with every problem
    found, each with its file and line or the argument it stands in. Without `files_here` the files that the recipe
    names are not looked for: they are on the machine that it is meant for.
    """
    content, places, problems = _read(path)
    for key in ("dataset", "model"):
        section = content.get(key)
        if isinstance(section, dict) and isinstance(section.get("path"), str):
            section["path"] = str((path.resolve().parent / Path(section["path"]).expanduser()).resolve())
    problems += _apply(arguments, content, places, cwd or Path.cwd())
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise FindingsError(problems + _explain(error, places)) from error
    problems += [p for p in _missing_files(recipe, places) if files_here or p.code != MISSING_FILE.name]
    if problems:
        raise FindingsError(problems)
    return Loaded(recipe, places, path)


def resolved(recipe: Recipe) -> str:
    """The recipe as YAML with every default written out; itself a recipe that loads to the same value."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110)


def flat(value: object, prefix: str = "") -> dict[str, object]:
    """A nested mapping as dotted keys (lists and empty mappings are values): the form that fingerprints compare."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    result: dict[str, object] = {}
    for key, item in value.items():
        result.update(flat(item, f"{prefix}.{key}" if prefix else str(key)))
    return result
