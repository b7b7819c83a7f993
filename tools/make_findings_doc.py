"""Writes docs/findings.md from the codes that verlbox's modules register.

usage: python tools/make_findings_doc.py [--check]

With --check nothing is written; exit code 1 when the file is not what would be written.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "findings.md"
REGISTERS = re.compile(r"\bregister\(")
NAME = re.compile(r"""\bregister\(\s*["']([a-z0-9-]+)["']""")

HEAD = """\
# Findings

Everything verlbox has to say to a user is a finding: severity, code, what, why, fix. This page is generated from the
code by `python tools/make_findings_doc.py`; a test keeps it true. A finding's severity may differ from the usual one
given here where the case calls for it.

Exit codes: 0 ok, 2 recipe or usage error, 3 this machine cannot run the recipe, 4 a stage failed, 5 acceptance failed,
130 Ctrl-C, 143 SIGTERM.

| code | usual severity | meaning | raised by |
| --- | --- | --- | --- |
"""


def codes() -> dict[str, tuple[str, str, str]]:
    """Code -> usual severity, meaning, file that registers it; from importing every module that registers codes."""
    sys.path.insert(0, str(ROOT))
    files: dict[str, str] = {}
    for path in sorted((ROOT / "verlbox").rglob("*.py")):
        text, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        if not REGISTERS.search(text) or path.name.startswith("cpu_engine"):  # that one registers rollouts, not codes
            continue
        importlib.import_module(".".join(place.with_suffix("").parts).removesuffix(".__init__"))
        files.update(dict.fromkeys(NAME.findall(text), str(place)))
    importlib.import_module("verlbox.diagnosis.catalogue").load()
    registered = importlib.import_module("verlbox.findings").registered()
    elsewhere = "verlbox/diagnosis/entries"  # codes that are data
    return {code.name: (code.severity, code.meaning, files.get(code.name, elsewhere)) for code in registered}


def page() -> str:
    rows = [f"| `{name}` | {s} | {m.replace('|', chr(92) + '|')} | {file} |" for name, (s, m, file) in codes().items()]
    return HEAD + "\n".join(rows) + "\n"


def main() -> int:
    wanted = page()
    if "--check" in sys.argv[1:]:
        return int(not FILE.is_file() or FILE.read_text(encoding="utf-8") != wanted)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
