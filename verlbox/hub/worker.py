"""The process in which a hub's client runs: `python -m verlbox.hub.worker`.

The clients read their environment when they are imported, wait without limit in places, and print where they like. In a
process of their own each gets the environment it needs, can be stopped when nothing arrives any more, and leaves the
program that started it clean.

Covered: one request on standard input (JSON); answered on standard output by `ready`, when the client is imported, and
the listing; then, when the wanted files are named, the download and `done`. A failure is answered as
{"failed": kind, "message": text}. Not covered: retries, verification, space, locks: those are the parent's (fetch.py).
When the parent goes away, standard input ends, and the worker ends itself.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from verlbox.hub import huggingface, modelscope
from verlbox.hub.spec import Repository
from verlbox.hub.trouble import Trouble


def main() -> int:
    # Whatever the clients print goes to standard error; answers keep the real standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    request = json.loads(sys.stdin.readline())
    try:
        _serve(request, answers)
    except Trouble as trouble:
        _answer(answers, {"failed": trouble.failure.value, "message": trouble.message})
    return 0


def _serve(request: dict[str, Any], answers: TextIO) -> None:
    client = modelscope if request["client"] == "modelscope" else huggingface
    repository = Repository(**request["repository"])
    client.load()
    _answer(answers, {"ready": True})
    listing = client.list_files(repository)
    _answer(answers, {"listing": asdict(listing)})
    order = json.loads(sys.stdin.readline() or "null")
    if order is None:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    client.download(repository, listing, order["wanted"], Path(order["folder"]))
    _answer(answers, {"done": True})


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _answer(stream: TextIO, value: object) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
