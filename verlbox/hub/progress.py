"""A download shown to a person (a bar) or to a log (a line every tenth)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import IO

from verlbox.hub.spec import Progress


@contextlib.contextmanager
def progress_bar(stream: IO[str] | None = None) -> Iterator[Callable[[Progress], None]]:
    """Gives the function to pass as `progress`: a bar on a terminal, plain lines elsewhere."""
    out = stream or sys.stderr
    if not out.isatty():
        yield _lines(out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    tasks: dict[tuple[str, str], TaskID] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(file=out)) as bars:

        def show(state: Progress) -> None:
            key = (state.source, state.name)
            if key not in tasks:
                tasks[key] = bars.add_task(f"{state.name} from {state.source}", total=state.total or None)
            bars.update(tasks[key], completed=state.done, total=state.total or None)

        yield show


def _lines(out: IO[str]) -> Callable[[Progress], None]:
    shown: dict[tuple[str, str], int] = {}

    def show(state: Progress) -> None:
        key = (state.source, state.name)
        tenth = 10 * state.done // state.total if state.total else -1
        if shown.get(key) == tenth:
            return
        shown[key] = tenth
        if tenth < 0:
            print(f"{state.name}: another run is downloading it, waiting", file=out, flush=True)
        else:
            mib = 1024 * 1024
            amount = f"{state.done / mib:.1f} of {state.total / mib:.1f} MiB"
            print(f"{state.name} from {state.source}: {amount} ({10 * tenth}%)", file=out, flush=True)

    return show
