"""Time and memory of `diagnose` on a large log.

Writes a log of the wanted size from a real one (repeated with changing numbers, so that no line is a copy) with one
device out-of-memory near its end, diagnoses it in a fresh process, and prints wall and processor seconds, peak memory
and the finding.

    python benchmarks/diagnose_large_log.py LOG [--gib 1.0] [--keep PATH]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLANTED = (
    b"\x1b[36m(WorkerDict pid=4411)\x1b[0m torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.\n"
)


def write_log(source: Path, target: Path, size: int) -> int:
    """Writes about `size` bytes and returns the number of the planted line."""
    body = source.read_bytes()
    body = body[: body.rfind(b"step:")]
    lines = planted = 0
    with target.open("wb") as out:
        turn = 0
        while out.tell() < size:
            turn += 1
            block = body.replace(b"step:", b"step:%d" % turn).replace(b"(", b"(x%dq" % turn)
            out.write(block)
            lines += block.count(b"\n")
            if not planted and out.tell() > size * 0.95:
                out.write(b"\n")
                out.write(PLANTED)
                planted = lines + 2
                body = b"INFO engine idle\n" * (len(body) // 17)
                lines += 2
    return planted


def diagnose(path: Path) -> None:
    """Runs in the child: diagnoses and prints its own time and peak memory."""
    started = time.perf_counter()
    from verlbox.diagnosis.matcher import diagnose_stream

    with path.open("rb") as stream:
        diagnosis = diagnose_stream(stream)
    seconds = time.perf_counter() - started
    processor = time.process_time()  # what it would take on an idle core
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    top = diagnosis.findings[0] if diagnosis.findings else None
    print(
        json.dumps(
            {
                "gib": round(path.stat().st_size / 2**30, 3),
                "lines": diagnosis.lines,
                "seconds": round(seconds, 1),
                "cpu_seconds": round(processor, 1),
                "peak_rss_mib": round(peak),
                "finding": top and top.code,
                "where": top and top.where,
            }
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--keep", type=Path, help="write the log here and leave it")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        diagnose(arguments.log)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        target = arguments.keep or Path(folder) / "large.log"
        planted = write_log(arguments.log, target, int(arguments.gib * 2**30))
        print(f"planted at line {planted}", file=sys.stderr)
        return subprocess.run([sys.executable, __file__, str(target), "--child"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())
