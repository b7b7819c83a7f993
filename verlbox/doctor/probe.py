"""Imports modules one after the other and says how it went, a JSON line each. Runs as a child of the doctor only.

What it imports may crash, hang or print; none of that reaches the doctor.
"""

import os
import sys

# A script's own folder comes first in the path: its neighbours must not hide packages of the same name.
if sys.path and os.path.realpath(sys.path[0] or ".") == os.path.dirname(os.path.realpath(__file__)):  # noqa: PTH120
    del sys.path[0]

import importlib
import json
import time


def main(names: list[str]) -> None:
    """Imports each name; an error is reported with the chain of its causes, the first cause last."""
    # `import torch` would load torch_npu as well: each is to answer for itself.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in names:
        start = time.monotonic()
        error: BaseException | None = None
        try:
            importlib.import_module(name)
        except BaseException as raised:
            error = raised
        causes: list[str] = []
        while error is not None and len(causes) < 5:
            causes.append(f"{type(error).__name__}: {error}")
            error = error.__cause__ or error.__context__
        answer = {"module": name, "seconds": round(time.monotonic() - start, 2), "causes": causes}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
    # Threads that a library has started must not keep the doctor waiting.
    os._exit(0)
