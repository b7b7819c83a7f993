"""Time and memory of a report on a long run: 20,000 steps of 60 metrics in TensorBoard event files.

Usage: python benchmarks/report_large.py [--steps 20000] [--metrics 60] [--out DIR]. The event files are written by
TensorBoard's own record writer first (not counted); the report then runs in a process of its own, whose peak resident
memory is read with getrusage.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

NAMES = (
    "critic/score/mean",
    "actor/entropy",
    "actor/kl_loss",
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/pg_clipfrac",
    "response_length/mean",
    "response_length/clip_ratio",
    "prompt_length/mean",
    "perf/throughput",
    "perf/time_per_step",
    "perf/mfu/actor",
    "timing_s/gen",
    "timing_s/ref",
    "timing_s/old_log_prob",
    "timing_s/update_actor",
    "timing_s/step",
)


def write_events(folder: Path, steps: int, metrics: int) -> None:
    """Two event files of one resumed run, an event a value, as torch's SummaryWriter writes them."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    rng = random.Random(0)
    names = [*NAMES, *(f"extra/metric_{i:02d}" for i in range(metrics - len(NAMES)))][:metrics]
    folder.mkdir(parents=True, exist_ok=True)
    half = steps // 2
    for part, (first, last) in enumerate(((1, half), (half + 1, steps))):
        with (folder / f"events.out.tfevents.{1_800_000_000 + part}.host.1.{part}").open("wb") as stream:
            writer = RecordWriter(stream)
            writer.write(Event(wall_time=1_800_000_000.0 + part, file_version="brain.Event:2").SerializeToString())
            for step in range(first, last + 1):
                for i, name in enumerate(names):
                    value = 0.5 + 0.3 * math.sin(step / 500 + i) + rng.gauss(0, 0.05)
                    summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
                    event = Event(wall_time=1_800_000_000.0 + step, step=step, summary=summary)
                    writer.write(event.SerializeToString())
            writer.flush()


def report(folder: Path, out: Path) -> dict[str, float]:
    """Makes the report in this process; seconds and peak resident MiB."""
    began = time.perf_counter()
    from verlbox import report as reports
    from verlbox.metrics.read import read
    from verlbox.report.facts import RunFacts

    metrics = read(folder)
    read_in = time.perf_counter() - began
    reports.write(RunFacts(name="long run"), metrics, out)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "values": sum(map(len, metrics.series.values())),
        "read_seconds": round(read_in, 2),
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time(), 2),
        "peak_mib": round(peak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--metrics", type=int, default=60)
    parser.add_argument("--out", type=Path, help="keep the report here")
    parser.add_argument("--events", type=Path, help=argparse.SUPPRESS)  # set for the process that is measured
    arguments = parser.parse_args()
    if arguments.events is not None:
        print(json.dumps(report(arguments.events, arguments.out)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        events = Path(scratch) / "events"
        write_events(events, arguments.steps, arguments.metrics)
        out = arguments.out or Path(scratch) / "report"
        command = [sys.executable, __file__, "--events", str(events), "--out", str(out)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


if __name__ == "__main__":
    main()
