"""What a run prints while it works: lines, and a progress line that a terminal rewrites and a pipe gets whole."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import IO


@dataclass
class Console:
    """Prints to `stream`. On a terminal the last progress line is replaced by the next; in a pipe each is a line."""

    stream: IO[str]
    open_line: bool = False

    def line(self, text: str) -> None:
        if self.open_line:
            self.stream.write("\n")
            self.open_line = False
        print(text, file=self.stream, flush=True)

    def progress(self, text: str) -> None:
        if not self.stream.isatty():
            print(text, file=self.stream, flush=True)
            return
        width = shutil.get_terminal_size().columns - 1
        self.stream.write(f"\r\x1b[K{text[:width]}")
        self.stream.flush()
        self.open_line = True


def standard() -> Console:
    return Console(sys.stderr)


def duration(seconds: float) -> str:
    """Seconds as people read them: 4.2 s, 3:07, 2:15:30."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
