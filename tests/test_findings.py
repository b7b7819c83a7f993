from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from verlbox import findings
from verlbox.findings import Finding, FindingsError

ROOT = Path(__file__).parents[1]
ERROR = Finding("error", "x", "what", "why", "fix", "a.yaml:3")
NOTE = Finding("note", "y", "what", "why", "")


def test_errors_come_first_and_repeats_once() -> None:
    assert findings.by_severity([NOTE, ERROR, NOTE]) == [ERROR, NOTE]


def test_plain_text_names_place_reason_and_fix() -> None:
    assert findings.to_text([NOTE, ERROR]).splitlines() == [
        "error[x] a.yaml:3: what",
        "  why: why",
        "  fix: fix",
        "note[y] what",
        "  why: why",
    ]


def test_json_holds_every_field() -> None:
    assert json.loads(findings.to_json([ERROR])) == [
        {"severity": "error", "code": "x", "what": "what", "why": "why", "fix": "fix", "where": "a.yaml:3"}
    ]


def test_a_terminal_gets_a_table_with_the_same_content() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    findings.show([ERROR], stream)
    for text in ("error", "what", "why", "fix", "a.yaml:3"):
        assert text in stream.getvalue()


def test_a_code_is_registered_once() -> None:
    findings.register("test-code-registered-once", "note", "For this test.")
    with pytest.raises(ValueError, match="twice"):
        findings.register("test-code-registered-once", "note", "For this test.")


def test_an_error_carries_its_findings_and_exit_code() -> None:
    error = FindingsError(ERROR, 3)
    assert (error.findings, error.exit_code, str(error)) == ([ERROR], 3, "x: what")


def test_the_documentation_lists_every_code() -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_findings_doc.py"), "--check"]
    done = subprocess.run(command, check=False)
    assert done.returncode == 0, "run python tools/make_findings_doc.py"
