"""Steps, checkpoints, resuming, merging, and what they cost in time and disk.

Source: verl 0.6.1, trainer/ppo/ray_trainer.py fit(), _save_checkpoint(), _load_checkpoint();
utils/checkpoint/fsdp_checkpoint_manager.py; model_merger/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from verlbox.findings import Finding, register
from verlbox.lints.places import place
from verlbox.lints.settings import ACTOR, Settings
from verlbox.lints.steps import count

SAVE, MODE, RESUME_FROM = "trainer.save_freq", "trainer.resume_mode", "trainer.resume_from_path"
KEEP = {"actor": "trainer.max_actor_ckpt_to_keep", "critic": "trainer.max_critic_ckpt_to_keep"}

STEPS = register("steps-of-the-run", "note", "How many steps the run has, and how many rows it leaves out.")
NO_CHECKPOINT = register("no-checkpoint", "warning", "The run writes no checkpoint.")
STOPS_EARLY = register("stops-before-checkpoint", "warning", "The run is stopped before its first checkpoint.")
LAST_STEP = register("last-step-never-comes", "warning", "The epochs end before total_training_steps: no last save.")
NO_STEPS = register("no-steps", "error", "The run has no step.")
FINISHED = register(
    "resumes-finished-run", "warning", "The folder holds a finished run: resuming it trains nothing more."
)
RESUMES = register("resumes-run", "note", "The run goes on from an existing checkpoint.")
KEEP_ONE = register("keeps-one-checkpoint", "warning", "The only checkpoint is deleted before the next one is written.")
DISK = register("checkpoints-fill-disk", "warning", "The checkpoints the run keeps need more disk than there is.")
DISK_NOTE = register("checkpoint-size", "note", "How much disk the checkpoints need.")
RESUME_PATH = register("resume-path-wrong", "error", "The checkpoint to resume from is not given as verl reads it.")
RESUME_IGNORED = register("resume-path-ignored", "warning", "resume_from_path does nothing without resume_mode.")
HDFS = register("hdfs-resume", "error", "verl cannot resume while default_hdfs_dir is set.")
CONTENTS = register("checkpoint-contents", "warning", "A checkpoint without some part cannot be merged or resumed.")
MERGE_LAYOUT = register("merge-folder-wrong", "error", "The folder to merge is not a role folder of a checkpoint.")
MERGE_STEP = register("merge-step-missing", "error", "The run never writes a checkpoint at the step to merge.")
MERGE_BACKEND = register("merge-backend-wrong", "error", "The merger's backend is not the one that trained.")
TIME = register("estimated-time", "note", "How long the run takes at the measured time per step.")

_STEP_FOLDER = re.compile(r"global_step_(\d+)")


def run_has_steps(s: Settings) -> Iterator[Finding]:
    steps = count(s)
    total = s.integer("trainer.total_training_steps")
    if total is not None and total <= 0 and s.given("trainer.total_training_steps"):
        yield NO_STEPS.finding(
            f"trainer.total_training_steps is {total}",
            why=f"{place(s, 'fit')} counts from 1: "
            + ("the first step is already the last one." if s.is_old else "there is no step at all."),
            fix="remove it (null: epochs decide), or give the number of steps",
        )
        return
    if steps.per_epoch and steps.executed:
        unused = f", {steps.unused_rows} rows unused in each epoch" if steps.unused_rows else ""
        yield STEPS.finding(
            f"{steps.executed} steps: {steps.per_epoch} in an epoch{unused}",
            why="The loader drops the last, incomplete batch (drop_last=True).",
            fix="",
        )
        if s.facts.seconds_per_step:
            hours = steps.executed * s.facts.seconds_per_step / 3600
            basis = f", {s.facts.seconds_basis}" if s.facts.seconds_basis else ""
            yield TIME.finding(
                f"about {hours:.1f} hours ({steps.executed} x {s.facts.seconds_per_step:.4g} s{basis})",
                why="Without start-up, validation and checkpoints.",
                fix="",
            )
    if steps.last_step_is_reached is False:
        yield LAST_STEP.finding(
            f"the epochs end after {steps.executed} steps, before total_training_steps = {steps.declared}",
            why=f"{place(s, 'fit')}: only a step >= total_training_steps saves and validates as the last one, so"
            " neither happens; a cosine schedule and the warm-up ratio go by the larger number.",
            fix=f"trainer.total_epochs={-(-(steps.declared or 0) // (steps.per_epoch or 1))}, or"
            f" trainer.total_training_steps={steps.executed}",
        )


def run_leaves_a_checkpoint(s: Settings) -> Iterator[Finding]:
    frequency = s.integer(SAVE)
    if frequency is None or not s.known(SAVE):
        return
    steps = count(s)
    if frequency <= 0:
        yield NO_CHECKPOINT.finding(
            f"{SAVE}={frequency}: no checkpoint is written, not even at the end",
            why=f"{place(s, 'fit')}: save_freq > 0 is asked first, for the last step too (0 means never as well).",
            fix=f"{SAVE}={max(1, (steps.executed or 20) // 2)}: then the last step is saved whatever the frequency",
            severity="error" if "merge.local_dir" in s.other else None,
        )
        return
    stop = s.facts.planned_stop_after_step
    if stop is not None and (steps.declared is None or stop < steps.declared):
        saved = stop // frequency * frequency
        if saved == 0:
            planned = f"{steps.declared} steps are planned" if steps.declared else "the run is longer"
            yield STOPS_EARLY.finding(
                f"{planned}; stopping after step {stop} leaves no checkpoint (save_freq {frequency})",
                why="Only a step >= total_training_steps counts as the last one, which is saved and validated"
                f" ({place(s, 'fit')}); a run that is stopped has no last step.",
                fix=f"{SAVE}={stop} or less, or trainer.total_training_steps={stop}",
            )


def resuming_does_something(s: Settings) -> Iterator[Finding]:
    mode, path = s.get(MODE), s.text(RESUME_FROM)
    existing = s.facts.existing_checkpoint
    if s.given(RESUME_FROM) and path and mode != "resume_path":
        yield RESUME_IGNORED.finding(
            f"{RESUME_FROM} does nothing with {MODE}={mode}",
            why=f"{place(s, 'load')} reads it only with resume_mode=resume_path.",
            fix=f"{MODE}=resume_path",
        )
    if mode == "resume_path" and s.known(MODE):
        folder = path or ""
        if not re.search(r"global_step_\d+$", folder) and s.known(RESUME_FROM):
            yield RESUME_PATH.finding(
                f"{MODE}=resume_path with {RESUME_FROM}={path}",
                why=f"{place(s, 'load')} takes what follows 'global_step_' as a number: the path must end with it,"
                " without a slash or a role folder after it.",
                fix=f"{RESUME_FROM}=checkpoints/PROJECT/EXPERIMENT/global_step_N",
            )
        existing = existing or path
    hdfs = s.is_old and s.given("trainer.default_hdfs_dir") and s.get("trainer.default_hdfs_dir")
    if mode != "disable" and hdfs:
        yield HDFS.finding(
            f"trainer.default_hdfs_dir is set with {MODE}={mode}",
            why="ray_trainer.py _load_checkpoint(): 'load from hdfs is not implemented yet', at every start unless"
            " resuming is off.",
            fix=f"{MODE}=disable, or no default_hdfs_dir",
        )
    match = _STEP_FOLDER.search(existing or "")
    if not match or mode == "disable":
        return
    at, steps = int(match[1]), count(s)
    total = steps.declared
    if total is None:
        return
    if at < total:
        yield RESUMES.finding(
            f"the run goes on at step {at + 1} of {total}, from {existing}",
            why=f"{MODE}={mode} (auto is the default).",
            fix=f"{MODE}=disable to start anew",
        )
        return
    epochs = s.integer("trainer.total_epochs")
    if not s.is_old:
        then = f"the loop runs while the step is at most {total}, so it ends before step {at + 1}"
    elif epochs == 1:
        then = (
            "the restored loader is exhausted, the only epoch has no batch, fit() returns without validation or error"
        )
    else:
        then = (
            f"one more step, {at + 1}, is trained, counts as the last one ({at + 1} >= {total}), is validated and"
            " saved as"
            f" global_step_{at + 1}"
        )
    yield FINISHED.finding(
        f"{existing} is the end of a run of {total} steps: running it again trains nothing more",
        why=f"{place(s, 'load')} and fit(): {then}.",
        fix=f"a new trainer.experiment_name, {MODE}=disable, or more trainer.total_epochs",
    )


def checkpoints_survive(s: Settings) -> Iterator[Finding]:
    roles = ["actor", *(["critic"] if s.critic_is_used() or s.given(KEEP["critic"]) else [])]
    if not s.is_old:
        roles = []  # 0.9.1 keeps the only one until the next is written (checkpoint_manager.py)
    for role in roles:
        if s.known(KEEP[role]) and s.get(KEEP[role]) == 1:
            yield KEEP_ONE.finding(
                f"{KEEP[role]}=1",
                why="fsdp_checkpoint_manager.py save_checkpoint() deletes the old checkpoint before it writes the"
                " new one: a save"
                " that fails (disk full, power) leaves none.",
                fix=f"{KEEP[role]}=2",
            )
    for role, section in (("actor", ACTOR), ("critic", "critic")):
        key, load = f"{section}.checkpoint.save_contents", f"{section}.checkpoint.load_contents"
        if not (s.given(key) or s.given(load)):
            continue
        saved, loaded = set(map(str, s.items(key))), set(map(str, s.items(load)))
        unknown = sorted(saved - {"model", "optimizer", "extra", "hf_model"})
        if unknown:
            yield CONTENTS.finding(
                f"{key} has {', '.join(unknown)}, which verl ignores",
                why="checkpoint_manager.py knows model, optimizer, extra and hf_model.",
                fix=f"{key}=[model,optimizer,extra]",
            )
        if "model" not in saved and "hf_model" not in saved:
            yield CONTENTS.finding(
                f"{key} leaves the {role}'s weights out",
                why="Nothing can be merged or evaluated afterwards.",
                fix=f"{key}=[model,optimizer,extra]",
            )
        elif not loaded <= saved:
            yield CONTENTS.finding(
                f"a resumed run looks for {', '.join(sorted(loaded - saved))}, which {key} does not save",
                why="fsdp_checkpoint_manager.py load_checkpoint() opens a file that is not there.",
                fix=f"{load}=[{','.join(sorted(saved & loaded))}]",
            )
        elif not {"optimizer", "extra"} <= saved:
            yield CONTENTS.finding(
                f"{key} leaves out {', '.join(sorted({'optimizer', 'extra'} - saved))}",
                why="A resumed run then starts with a fresh optimizer or schedule: it is not the same run.",
                fix=f"{key}=[model,optimizer,extra]",
            )


def checkpoint_gb(parameters: int, *, critic: bool) -> float:
    """GB (10^9 bytes) of one checkpoint: fp32 weights and AdamW's two moments, 12 bytes a parameter and model.

    Source: fsdp_checkpoint_manager.py writes the model's and the optimizer's shards as they are, in fp32.
    """
    return 12 * parameters * (2 if critic else 1) / 1e9


def _size(gb: float) -> str:
    return f"{gb:.1f} GB" if gb >= 1 else f"{gb * 1000:.0f} MB"


def checkpoints_fit_on_disk(s: Settings) -> Iterator[Finding]:
    parameters, frequency = s.facts.model_parameters, s.integer(SAVE)
    executed = count(s).executed
    if not (frequency and frequency > 0 and executed and s.known(SAVE)):
        return
    written = executed // frequency + (1 if executed % frequency else 0)
    keep = s.integer(KEEP["actor"])
    kept = min(written, keep) if keep and keep > 0 else written
    size = checkpoint_gb(parameters, critic=s.critic_is_used()) if parameters else None
    need, free = kept * size if size else None, s.facts.free_disk_gb
    each = f" of {_size(size)}" if size else ""
    total = f", {_size(need)} together" if need else ""
    kept_text = f"1 checkpoint{each} is kept" if kept == 1 else f"{kept} checkpoints{each} are kept{total}"
    too_much = need is not None and free is not None and need > free
    # Where the disk is not known, a run that keeps everything it writes, and writes often, is worth a word.
    many = free is None and kept >= 20 and not keep and s.known(KEEP["actor"])
    if too_much or many:
        have = f", and {free:.0f} GB are free" if free is not None else ""
        yield DISK.finding(
            f"{kept_text}{have}",
            why="12 bytes a parameter and trained model (weights and AdamW's moments in fp32); nothing is deleted"
            f" unless {KEEP['actor']} says so. A full disk leaves a broken checkpoint.",
            fix=f"{KEEP['actor']}=2" + (f" {KEEP['critic']}=2" if s.critic_is_used() else "") + f", or a larger {SAVE}",
        )
    elif size:
        yield DISK_NOTE.finding(
            kept_text,
            why="12 bytes a parameter and trained model: weights and AdamW's moments in fp32.",
            fix="",
        )


def merge_finds_a_checkpoint(s: Settings) -> Iterator[Finding]:
    folder = s.other.get("merge.local_dir")
    backend, strategy = s.other.get("merge.backend"), s.text(f"{ACTOR}.strategy")
    if backend and s.known(f"{ACTOR}.strategy") and (backend == "megatron") != (strategy == "megatron"):
        yield MERGE_BACKEND.finding(
            f"the merger's backend is {backend}, and {strategy} trained",
            why="Each backend reads its own layout (model_merger/).",
            fix="merge.backend=" + ("megatron" if strategy == "megatron" else "fsdp"),
        )
    if not isinstance(folder, str):
        return
    parts = folder.rstrip("/").split("/")
    steps = count(s)
    match = _STEP_FOLDER.fullmatch(parts[-2]) if len(parts) > 1 else None
    if match is None or parts[-1] not in ("actor", "critic"):
        found = _STEP_FOLDER.search(folder)
        what = f"{folder} is not a checkpoint's role folder"
        if steps.declared and (number := re.search(r"step_?(\d+)", folder)) and int(number[1]) > steps.declared:
            what += f", and step {number[1]} is beyond the run's {steps.declared}"
        yield MERGE_LAYOUT.finding(
            what,
            why="verl writes <default_local_dir>/global_step_N/actor (and /critic); the merger needs its"
            " fsdp_config.json, and"
            " Hugging Face weights appear only after it (model_merger/fsdp_model_merger.py _get_world_size()).",
            fix=f"merge.local_dir={folder[: found.end()]}/actor"
            if found
            else "merge.local_dir=.../global_step_N/actor",
        )
        return
    at, frequency, total = int(match[1]), s.integer(SAVE), steps.declared
    if total is not None and at > total:
        yield MERGE_STEP.finding(
            f"step {at} is beyond the run's {total} steps",
            why="No such folder is written.",
            fix=f"global_step_{total}/actor",
        )
    elif frequency and frequency > 0 and s.known(SAVE) and at % frequency and total is not None and at != total:
        yield MERGE_STEP.finding(
            f"no checkpoint is written at step {at} (save_freq {frequency}, {total} steps)",
            why=f"{place(s, 'fit')} saves at multiples of save_freq and at the last step.",
            fix=f"global_step_{at // frequency * frequency or total}/actor",
        )


LINTS = (
    run_has_steps,
    run_leaves_a_checkpoint,
    resuming_does_something,
    checkpoints_survive,
    checkpoints_fit_on_disk,
    merge_finds_a_checkpoint,
)
