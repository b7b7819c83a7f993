"""Preprocessing of the full GSM8K and MATH: verlbox against the method of verl's own scripts, in one run.

    python benchmarks/preprocess.py [--data FOLDER] [--repeat N] [--scripts FOLDER]

Both sides read the same JSON Lines files and write both splits as parquet; the tokenizer is not involved. The
reference does what examples/data_preprocess/{gsm8k,math_dataset}.py of verl v0.6.1 do: datasets.load_dataset, then one
Python call a row by Dataset.map(with_indices=True), then to_parquet, with a fresh cache each time. Import times are
left out on both sides. Prints one line a data set (medians in seconds) and exits 1 when a median of ours is 5 seconds
or more.

With --scripts, the folder examples/data_preprocess of a checkout of verl v0.6.1 (they are not in its wheel), the
scripts themselves run too: whole processes on both sides, imports included, which is what a user waits for.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from verlbox.datasets import DATASETS, named, prepare, write_parquet  # noqa: E402
from verlbox.datasets.math_lighteval import last_boxed  # noqa: E402

LIMIT_SECONDS = 5.0
FOLDERS = {"gsm8k": "gsm8k", "math_lighteval": "math"}
SCRIPTS = {"gsm8k": "gsm8k.py", "math_lighteval": "math_dataset.py"}
CARD = """---
configs:
- config_name: main
  data_files: [{split: train, path: train.jsonl}, {split: test, path: test.jsonl}]
---
"""  # the configuration that the scripts load
OURS = """import sys, pathlib
sys.path.insert(0, sys.argv[1])
from benchmarks.preprocess import ours
ours(sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4]))
"""


def ours(name: str, source: Path, target: Path) -> None:
    dataset = DATASETS[name]
    train, test, _ = prepare(source, dataset, named(dataset.default_prompt))
    for split in (train, test):
        write_parquet(split, target / f"{split.name}.parquet")


def reference(name: str, source: Path, target: Path) -> None:
    import datasets

    files = {split: str(source / f"{split}.jsonl") for split in ("train", "test")}
    loaded = datasets.load_dataset("json", data_files=files, cache_dir=str(target / "cache"))
    for split in files:
        rows = loaded[split].map(function=_row_function(name, split), with_indices=True)
        rows.to_parquet(str(target / f"{split}.parquet"))


def _row_function(name: str, split: str) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    """What one call of the script's process_fn costs: two fields popped, an answer extracted, a dictionary built."""
    question, answer = DATASETS[name].columns
    instruction = named(DATASETS[name].default_prompt).instruction
    number = re.compile(r"#### (\-?[0-9\.\,]+)")

    def row(example: dict[str, Any], index: int) -> dict[str, Any]:
        text, worked = example.pop(question), example.pop(answer)
        match = number.search(worked)
        gold = match.group(1).replace(",", "") if match else last_boxed(worked)
        extra = {"split": split, "index": index}
        if name == "gsm8k":
            extra |= {"answer": worked, "question": text}
        return {
            "data_source": DATASETS[name].data_source,
            "prompt": [{"role": "user", "content": f"{text} {instruction}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": gold},
            "extra_info": extra,
        }

    return row


def our_process(name: str, source: Path, target: Path) -> None:
    subprocess.run([sys.executable, "-c", OURS, str(ROOT), name, str(source), str(target)], check=True)


def script_process(scripts: Path) -> Callable[[str, Path, Path], None]:
    """Runs verl's own script on the raw files, with a fresh cache."""

    def run(name: str, source: Path, target: Path) -> None:
        raw = target / "raw"
        raw.mkdir()
        (raw / "README.md").write_text(CARD)
        for split in ("train", "test"):
            (raw / f"{split}.jsonl").symlink_to((source / f"{split}.jsonl").resolve())
        cache = str(target / "cache")
        environment = {**os.environ, "HF_HOME": cache, "HF_DATASETS_CACHE": cache, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(scripts / SCRIPTS[name]), "--local_dataset_path", str(raw)]
        command += ["--local_save_dir", str(target)]
        subprocess.run(command, check=True, env=environment, capture_output=True)

    return run


def seconds(function: Callable[[str, Path, Path], None], name: str, source: Path, repeat: int) -> list[float]:
    taken: list[float] = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as target:
            start = time.perf_counter()
            function(name, source, Path(target))
            taken.append(time.perf_counter() - start)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="holds gsm8k/ and math/")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scripts", type=Path, help="examples/data_preprocess of verl v0.6.1")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.error(f"{arguments.data} does not exist; give the folder of the data sets with --data")

    import datasets
    import pyarrow.parquet  # noqa: F401  import times belong to neither side

    datasets.disable_progress_bars()
    slow = False
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}, {arguments.repeat} repeats, datasets {datasets.__version__}")
    for name, folder in FOLDERS.items():
        mine = statistics.median(seconds(ours, name, arguments.data / folder, arguments.repeat))
        theirs = statistics.median(seconds(reference, name, arguments.data / folder, arguments.repeat))
        slow |= mine >= LIMIT_SECONDS
        print(f"{name}: verlbox {mine:.2f} s, verl's method {theirs:.2f} s, ratio {theirs / mine:.2f}")
        if arguments.scripts:
            whole = statistics.median(seconds(our_process, name, arguments.data / folder, arguments.repeat))
            script = script_process(arguments.scripts)
            own = statistics.median(seconds(script, name, arguments.data / folder, arguments.repeat))
            print(f"{name}, whole processes: verlbox {whole:.2f} s, verl's script {own:.2f} s, ratio {own / whole:.2f}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
