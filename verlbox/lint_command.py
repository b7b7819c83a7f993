"""`lint`: findings about verl settings for people who have no recipe.

    python entrypoint.py lint [--script run.sh] [--fact name=value ...] [--complete] [--json] key=value ...

Settings come from the command line or from each call of main_ppo in a shell script, which is read and not run. Settings
given alone are a question about these settings; those of a script, or with --complete, are a whole configuration, in
which everything else has verl's default, and which the verl installed here composes where it is the release asked about
(the default then). Exit code: 0 without errors, 2 with.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verlbox import findings, lints, verl_keys
from verlbox.findings import EXIT_OK, EXIT_USAGE, Finding, FindingsError
from verlbox.hydra_overrides import OverrideSyntaxError, parse_override, parse_value
from verlbox.lints import Facts, script
from verlbox.lints.settings import PACKAGES, package_name, split_prefix
from verlbox.verl_keys import installed
from verlbox.verl_keys.installed import Composed

SYNTAX = findings.register("override-syntax", "error", "A setting is not written as Hydra reads it.")
TWICE = findings.register("key-set-twice", "note", "A key is set twice; the last one counts.")
NO_CALL = findings.register("script-without-call", "error", "The script does not call verl's main_ppo.")
NO_FILE = findings.register("script-unreadable", "error", "The script cannot be read.")
FACT_UNKNOWN = findings.register("fact-unknown", "warning", "A fact has a name or value that verlbox does not know.")
OWN_CONFIG = findings.register("own-config", "note", "The call uses a configuration of its own, which is not read.")

_CONFIG_NAMES = ("ppo_trainer", "ppo_megatron_trainer")


@dataclass(frozen=True)
class _Question:
    """One configuration to look at."""

    overrides: Sequence[str]
    facts: Facts
    complete: bool
    where: str = ""
    options: Sequence[str] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lint`; settings are the remaining arguments (the CLI collects them as `overrides`)."""
    parser.add_argument("--script", type=Path, help="a shell script that calls verl.trainer.main_ppo; it is not run")
    parser.add_argument(
        "--fact",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what is known beside the settings, such as train_rows_after_filter=7381, platform=npu,"
        " visible_accelerators=1,"
        " WANDB_API_KEY=null, vllm=0.11.0",
    )
    parser.add_argument(
        "--complete", action="store_true", help="the settings are all there are: the rest has its default"
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    parser.set_defaults(takes_overrides=True)
    parser.epilog = "Further arguments are verl settings in Hydra's syntax; key='<absent>' says that a key is not set."
    parser.usage = "%(prog)s [-h] [--script FILE] [--fact NAME=VALUE ...] [--complete] [--json] [key=value ...]"


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; 2 when one of them is an error. Raises FindingsError for a script that cannot be read."""
    found = lint(arguments.overrides, arguments.fact, arguments.script, complete=arguments.complete)
    if arguments.json:
        print(findings.to_json(found))
    elif found:
        findings.show(found)
    else:
        print("nothing found")
    return EXIT_USAGE if findings.has_errors(found) else EXIT_OK


def lint(settings: Sequence[str], facts: Sequence[str], script_file: Path | None, *, complete: bool) -> list[Finding]:
    """Findings about settings on the command line, or about each main_ppo call of a script with them added.

    Raises FindingsError when the script cannot be read or has no such call.
    """
    known, problems = read_facts(facts)
    if script_file is None:
        questions = [_Question(settings, known, complete)]
    else:
        questions, more = _questions(script_file, settings, known)
        problems += more
    for question in questions:
        problems += _answer(question)
    return findings.by_severity(problems)


def read_facts(given: Sequence[str]) -> tuple[Facts, list[Finding]]:
    """Facts from `name=value` texts, and a finding for each that is not understood."""
    values: dict[str, object] = {}
    problems: list[Finding] = []
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            problems.append(FACT_UNKNOWN.finding(f"--fact {text} has no value", why="", fix=f"--fact {text}=VALUE"))
        elif value in ("null", "None", "none"):
            values[name] = None
        elif value.startswith("["):
            values[name] = _value(value)
        else:
            values[name] = value
    facts, unknown = lints.add_facts(Facts(), values)
    problems += [
        FACT_UNKNOWN.finding(
            f"--fact {name} is not understood", why="It is left out.", fix="docs/lints.md lists the facts."
        )
        for name in unknown
    ]
    return facts, problems


def _value(text: str) -> object:
    try:
        return parse_value(text)
    except OverrideSyntaxError:
        return text


def _questions(path: Path, arguments: Sequence[str], facts: Facts) -> tuple[list[_Question], list[Finding]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FindingsError(
            NO_FILE.finding(f"{path}: {error.strerror}", why="There is nothing to look at.", fix="give a readable file")
        ) from error
    outside = {name: value for name, value in facts.environment.items() if value is not None}
    calls = script.find_calls(text, arguments, outside)
    if not calls:
        raise FindingsError(
            NO_CALL.finding(
                f"{path} has no call of verl.trainer.main_ppo",
                why="Only this entry point is understood; a call hidden in a function or another file is not seen.",
                fix="give the settings as key=value arguments",
            )
        )
    takes_arguments = "$@" in text or "$*" in text
    questions, problems = [], []
    for call in calls:
        where = f"{path}:{call.line}"
        problems += script.findings_of(call, text, where)
        seen, _ = lints.add_facts(facts, {f"env.{name}": value for name, value in call.environment.items()})
        overrides = [*call.overrides, *([] if takes_arguments else arguments)]
        questions.append(_Question(overrides, seen, True, where, call.options))
    return questions, problems


def _answer(question: _Question) -> list[Finding]:
    config, problems = _config(question.overrides)
    facts, complete = question.facts, question.complete
    name = next((o.partition("=")[2] for o in question.options if o.startswith("--config-name=")), "ppo_trainer")
    name = name.removesuffix(".yaml").strip("'\"")
    if name not in _CONFIG_NAMES:
        problems.append(
            OWN_CONFIG.finding(
                f"--config-name={name} is not read",
                why="Its defaults are not known here: only what the call sets itself is looked at.",
                fix="",
            )
        )
    facts = _reward_file(config, facts)
    known_name = name if name in _CONFIG_NAMES else None
    composed = None
    if complete and known_name:
        facts = facts if facts.verl else replace(facts, verl=installed.version())
        composed = _composed(question.overrides, config, facts.verl, known_name)
    problems += lints.check(config, facts, complete=complete, config_name=known_name, composed=composed)
    return [replace(problem, where=problem.where or question.where) for problem in problems]


def _composed(
    overrides: Sequence[str], config: Mapping[str, object], release: str | None, config_name: str
) -> Composed | None:
    """What the installed verl makes of a whole configuration; None where it is another release, or a value is open."""
    if release not in verl_keys.VERSIONS or release != installed.version():
        return None
    if any(value in (lints.UNCERTAIN, lints.ABSENT) for value in config.values() if isinstance(value, str)):
        return None
    try:
        return installed.compose(config_name, [text for text in overrides if not _is_a_fact(text.partition("=")[0])])
    except RuntimeError:
        return None  # the data of that release answer instead


def _is_a_fact(name: str) -> bool:
    """Whether a name stands for something beside verl's settings: a variable, a version, the merger."""
    key = split_prefix(name)[1]
    return key.startswith(("env.", "merge.")) or package_name(key) in PACKAGES or " " in key


def _config(overrides: Sequence[str]) -> tuple[dict[str, object], list[Finding]]:
    """Keys with their prefixes -> values; findings for what Hydra would refuse."""
    config: dict[str, object] = {}
    problems: list[Finding] = []
    for text in overrides:
        name, separator, raw = text.partition("=")
        prefix, key = split_prefix(name)
        if separator and script.UNKNOWN in raw:
            value: object = lints.UNCERTAIN
        elif separator and raw == lints.ABSENT:
            value = lints.ABSENT
        elif separator and _is_a_fact(name):
            value = raw  # not verl's: a version such as 4.10 must not become a number
        elif script.UNKNOWN in name:
            continue
        else:
            try:
                override = parse_override(text)
            except OverrideSyntaxError as error:
                problems.append(_syntax(text, raw, error))
                if not separator:
                    continue
                value = lints.UNCERTAIN
            else:
                name, value = f"{override.prefix}{override.key}", override.value
        previous = [other for other in config if split_prefix(other)[1] == key]
        if previous and prefix != "~":
            problems.append(
                TWICE.finding(f"{key} is set twice", why=f"The last one, {text}, counts.", fix="remove the other")
            )
        for other in previous:
            del config[other]
        config[name] = value
    return config, problems


def _syntax(text: str, raw: str, error: OverrideSyntaxError) -> Finding:
    fix = "see Hydra's override grammar"
    if raw and "'" not in raw:
        fix = f"""'{text.partition("=")[0]}="{raw}"'"""
    if raw.startswith("~"):
        fix = f"{text.partition('=')[0]}=$HOME{raw[1:]} (the shell does not expand ~ there, and Hydra refuses it)"
    return SYNTAX.finding(str(error), why="Hydra stops before verl starts.", fix=fix)


def _reward_file(config: dict[str, object], facts: Facts) -> Facts:
    """Facts about the custom reward function, when its file can be read here; nothing of it is run."""
    values = {split_prefix(name)[1]: value for name, value in config.items()}
    prefix = next((p for p in ("reward.", "") if f"{p}custom_reward_function.path" in values), None)
    path = values.get(f"{prefix}custom_reward_function.path") if prefix is not None else None
    if facts.functions_in_file is not None or not isinstance(path, str) or not path.endswith(".py"):
        return facts
    if re.search(r"(^|/)verl/utils/reward_score/", path):
        return facts
    file = Path(facts.cwd or ".") / path
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return facts
    functions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assigned = {
        target.id
        for n in tree.body
        if isinstance(n, ast.Assign)
        for target in n.targets
        if isinstance(target, ast.Name)
    }
    if "*" in imported:
        return facts
    name = values.get(f"{prefix}custom_reward_function.name") or "compute_score"
    parameters = None
    if isinstance(name, str) and name in functions:
        a = functions[name].args
        parameters = tuple(p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)) + (("**",) if a.kwarg else ())
    return replace(facts, functions_in_file=(*functions, *sorted(imported | assigned)), reward_parameters=parameters)
