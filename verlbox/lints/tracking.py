"""Loggers: their names, their keys, and whether what they write can be read afterwards.

Source: verl 0.6.1, utils/tracking.py Tracking; the default logger list in config/ppo_trainer.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator

from verlbox.findings import Finding, register
from verlbox.lints.settings import Settings, nearest

KEY = "trainer.logger"

UNKNOWN = register("logger-unknown", "error", "trainer.logger names something verl does not have.")
NO_KEY = register("logger-without-key", "error", "A logger needs an API key or an offline mode, and has neither.")
KEY_UNSURE = register("logger-key-unknown", "note", "A logger needs an API key; whether there is one is not known.")
NONE = register("no-logger", "warning", "Nothing records the metrics.")
CONSOLE_ONLY = register("console-only", "warning", "A TensorBoard report is wanted and only the console is written.")
OLD_NAME = register("logger-deprecated", "warning", "The logger's name is deprecated.")
IN_TMP = register("logger-in-tmp", "note", "The logger writes where it will be lost.")
NO_GENERATIONS = register("generations-not-logged", "note", "No logger shows the generations that are asked for.")

_BACKENDS = ["wandb", "mlflow", "swanlab", "vemlp_wandb", "tensorboard", "console", "clearml", "trackio", "file"]
_OFFLINE = {"wandb": {"offline", "disabled", "dryrun"}, "swanlab": {"local", "offline", "disabled"}}
# Backend -> (environment variables that all must be set, the variable with the mode)
_NEEDS = {
    "wandb": (("WANDB_API_KEY",), "WANDB_MODE"),
    "tracking": (("WANDB_API_KEY",), "WANDB_MODE"),
    "swanlab": (("SWANLAB_API_KEY",), "SWANLAB_MODE"),
    "vemlp_wandb": (("VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY", "MLP_TRACKING_REGION"), ""),
    "clearml": (("CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"), ""),
}
_SHOWS_GENERATIONS = {"wandb", "swanlab", "mlflow", "clearml", "tensorboard", "vemlp_wandb"}


def loggers(s: Settings) -> list[str]:
    return [str(name) for name in s.items(KEY)]


def loggers_exist(s: Settings) -> Iterator[Finding]:
    if not s.known(KEY):
        return
    names = loggers(s)
    backends = [*_BACKENDS, *([] if s.is_old else ["rl_insight"])]
    if not names:
        yield NONE.finding(f"{KEY} is empty", why="No metric is written anywhere.", fix=f"{KEY}=[console,tensorboard]")
    for name in names:
        if name == "tracking":
            yield OLD_NAME.finding("the logger 'tracking' is deprecated", why="It means wandb.", fix="write wandb")
        elif name not in backends:
            guess = nearest(name, backends)
            yield UNKNOWN.finding(
                f"{KEY} names '{name}', which verl does not support",
                why="utils/tracking.py asserts it in fit(), after the models are loaded. Known are "
                + ", ".join(backends)
                + ".",
                fix=f"'{guess}'?" if guess else f"{KEY}=[console,tensorboard]",
            )


def loggers_can_log_in(s: Settings) -> Iterator[Finding]:
    if not s.known(KEY):
        return
    for name in loggers(s):
        if name not in _NEEDS:
            continue
        keys, mode_name = _NEEDS[name]
        mode = (s.environment(mode_name)[1] or "").lower() if mode_name else ""
        states = [s.environment(key) for key in keys]
        backend = "wandb" if name == "tracking" else name
        if backend in s.facts.logged_in or mode in _OFFLINE.get(backend, set()) or all(value for _, value in states):
            continue
        default = "" if s.given(KEY) else f" (verl's default is {loggers(s)})"
        offline = f", or export {mode_name}={'offline' if backend == 'wandb' else 'local'}" if mode_name else ""
        fix = f"export {' and '.join(keys)}{offline}, or {KEY}=[console,tensorboard]"
        missing = [key for key, (known, value) in zip(keys, states, strict=True) if known and not value]
        if missing:
            yield NO_KEY.finding(
                f"the logger {name} has no {', '.join(missing)}{default}",
                why="utils/tracking.py starts it in fit(), after the models are loaded, in a Ray worker without a"
                " terminal: it fails"
                " or waits for a login.",
                fix=fix,
            )
        else:
            yield KEY_UNSURE.finding(
                f"the logger {name} needs {', '.join(keys)}{default}",
                why="Whether the environment of the run has it is not known here.",
                fix=fix,
            )


def metrics_can_be_read(s: Settings) -> Iterator[Finding]:
    if not s.known(KEY):
        return
    names = set(loggers(s))
    wants = (s.facts.wants or "").lower()
    if names and "tensorboard" in wants and "tensorboard" not in names:
        yield CONSOLE_ONLY.finding(
            f"{KEY}={sorted(names)} writes no TensorBoard files, and a TensorBoard report is wanted",
            why="Only console lines ('step:1 - key:value - ...') will exist; a report must parse the log.",
            fix=f"{KEY}=[console,tensorboard]",
        )
    if "mlflow" in names and s.environment("MLFLOW_TRACKING_URI") == (True, None):
        yield IN_TMP.finding(
            "mlflow writes to /tmp/mlruns.db",
            why="utils/tracking.py: the default of MLFLOW_TRACKING_URI; a container loses it.",
            fix="export MLFLOW_TRACKING_URI=...",
        )
    generations = s.integer("trainer.log_val_generations") or 0
    if generations > 0 and s.given("trainer.log_val_generations") and names and not names & _SHOWS_GENERATIONS:
        yield NO_GENERATIONS.finding(
            f"trainer.log_val_generations={generations}, and none of {sorted(names)} shows them",
            why="utils/tracking.py ValidationGenerationsLogger.",
            fix="trainer.validation_data_dir=DIR writes them as JSONL",
        )


LINTS = (loggers_exist, loggers_can_log_in, metrics_can_be_read)
