"""Writes TensorBoard event files: small ones with TensorBoard's own record writer, large ones faster."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import google_crc32c
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def write_events(file: Path, values: Mapping[str, Mapping[int, float]], began: float = 1000.0) -> None:
    """An event a value, step by step. `values` are metric -> step -> value; `began` is the first wall time."""
    steps = sorted({step for points in values.values() for step in points})
    with file.open("wb") as stream:
        writer = RecordWriter(stream)
        writer.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
        for step in steps:
            for name, points in values.items():
                if step in points:
                    summary = Summary(value=[Summary.Value(tag=name, simple_value=points[step])])
                    writer.write(Event(wall_time=began + step, step=step, summary=summary).SerializeToString())
        writer.flush()


def write_many(file: Path, names: Sequence[str], steps: int) -> None:
    """Values between 0 and 1 for every metric and step from 1. The checksums come from a C library: TensorBoard's
    writer computes them in Python, a minute for a million values."""

    def masked(content: bytes) -> bytes:
        crc = google_crc32c.value(content)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    with file.open("wb") as stream:
        for step in range(1, steps + 1):
            for i, name in enumerate(names):
                summary = Summary(value=[Summary.Value(tag=name, simple_value=step * (i + 1) % 997 / 997)])
                record = Event(wall_time=1000.0 + step, step=step, summary=summary).SerializeToString()
                length = struct.pack("<Q", len(record))
                stream.write(length + masked(length) + record + masked(record))
