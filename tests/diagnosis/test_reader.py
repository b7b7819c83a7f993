"""Lines as they read on a screen, and the lines that matter out of files of any size."""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verlbox.diagnosis import reader
from verlbox.diagnosis.reader import Vocabulary, clean, found_as, lines_with


@pytest.mark.parametrize(
    ("raw", "worker", "text"),
    [
        (b"\x1b[36m(WorkerDict pid=42)\x1b[0m boom", "WorkerDict pid=42", "boom"),
        (
            b"\x1b[2m\x1b[36m(VGNd5CWorkerDict_0:1 WorkerDict pid=7)\x1b[0m boom",
            "VGNd5CWorkerDict_0:1 WorkerDict pid=7",
            "boom",
        ),
        (b"(TaskRunner pid=42, ip=10.0.0.5) boom", "TaskRunner pid=42, ip=10.0.0.5", "boom"),
        (b"(raylet) boom", "raylet", "boom"),
        (b"(raylet, ip=10.0.0.5) boom", "raylet, ip=10.0.0.5", "boom"),
        (b"(autoscaler +1m32s) boom", "autoscaler +1m32s", "boom"),
        (b"(WorkerDict pid=1) (EngineCore_DP0 pid=2) boom", "EngineCore_DP0 pid=2", "boom"),
        (b"npu-grpo-1  | (WorkerDict pid=1) boom", "WorkerDict pid=1", "boom"),
        (b"[rank3]: boom", "rank3", "boom"),
        (b"boom", "", "boom"),
        (b"(see the docs) boom", "", "(see the docs) boom"),
        (b"\xff\xfe boom", "", "\ufffd\ufffd boom"),
    ],
)
def test_prefixes_and_colours_are_taken_off(raw: bytes, worker: str, text: str) -> None:
    [line] = clean(raw, 5)
    assert (line.number, line.worker, line.text) == (5, worker, text)


def test_a_progress_bar_is_read_turn_by_turn_under_one_number() -> None:
    lines = clean("(TaskRunner pid=1) \r 10%|#\r 20%|##\r(TaskRunner pid=1) step:3 - a:1", 9)
    assert [line.text.strip() for line in lines] == ["10%|#", "20%|##", "step:3 - a:1"]
    assert {line.number for line in lines} == {9}


def test_the_repeat_mark_of_ray_is_a_count() -> None:
    [line] = clean("(WorkerDict pid=1) boom\x1b[32m [repeated 7x across cluster] (Ray deduplicates logs)\x1b[0m")
    assert (line.text, line.repeats) == ("boom", 7)


def test_words_are_found_inside_others_with_digits_and_dots_left_out() -> None:
    words = {"Error", "undefined", "EI", "compile", "compiled"}
    vocabulary = Vocabulary(words)
    assert vocabulary.present(b"RuntimeError: EI0006 nothing") == {b"Error", b"EI"}
    assert vocabulary.present(b"recompiled") == {found_as("compiled", words).encode()}
    assert vocabulary.present(b"all is well") == set()


@given(st.lists(st.text("ab \n", max_size=12), max_size=60), st.integers(1, 40))
def test_every_line_with_a_word_is_given_with_its_number_whatever_the_blocks(texts: list[str], chunk: int) -> None:
    raw = "\n".join(texts).encode()
    old, reader._CHUNK = reader._CHUNK, chunk
    try:
        given_lines = list(lines_with(io.BytesIO(raw), Vocabulary({"ab"})))
    finally:
        reader._CHUNK = old
    *lines, (count, end) = given_lines
    split = raw.split(b"\n")
    if all(len(line) < chunk for line in split):  # longer ones are given in pieces
        expected = [(n, line) for n, line in enumerate(split, start=1) if b"ab" in line]
        assert [pair for pair in lines if b"ab" in pair[1]] == expected
        assert all(split[n - 1] == line for n, line in lines)
    assert end == b"" and count == raw.count(b"\n") + (not raw.endswith(b"\n") and bool(raw))


def test_line_numbers_hold_over_many_blocks() -> None:
    rows = [f"row {i} {'x' * random.Random(i).randrange(300)}" for i in range(20_000)]
    for i in (0, 7_777, 19_990):
        rows[i] += " Error"
    found = [n for n, raw in lines_with(io.BytesIO("\n".join(rows).encode()), Vocabulary({"Error"})) if b"Error" in raw]
    assert found == [1, 7_778, 19_991]


def test_lines_that_differ_in_digits_only_are_not_given_for_ever_but_metrics_are() -> None:
    rows = [f"request {i} had an Error" for i in range(3000)] + [f"step:{i} - a:1" for i in range(3000)]
    rows += ["another Error"]
    found = [raw for _, raw in lines_with(io.BytesIO("\n".join(rows).encode()), Vocabulary({"Error", "step:"}))]
    assert sum(raw.startswith(b"request") for raw in found) == 1000
    assert sum(raw.startswith(b"step:") for raw in found) == 3000
    assert found.count(b"another Error") == 1


def test_the_turns_of_a_progress_bar_without_line_ends_are_given_apart() -> None:
    raw = b"".join(b"\r%d%% done" % i for i in range(30_000)) + b"\rbad Error here\r100% done\nlast Error\n"
    *lines, (count, _) = lines_with(io.BytesIO(raw), Vocabulary({"Error"}))
    assert [pair for pair in lines if b"Error" in pair[1]] == [(1, b"bad Error here"), (2, b"last Error")]
    assert count == 2


def test_what_is_remembered_of_a_log_is_bounded() -> None:
    vocabulary = Vocabulary({"Error"})
    for i in range(300):
        letters = "".join(chr(97 + int(d)) for d in str(i))
        assert vocabulary.present((letters * 5000 + "Error").encode()) == {b"Error"}
    assert vocabulary._known == {}
