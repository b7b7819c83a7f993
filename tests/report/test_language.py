"""Every word of a report exists in both languages."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from verlbox.findings import Finding
from verlbox.metrics import acceptance
from verlbox.metrics.acceptance import Band, line
from verlbox.metrics.read import Metrics, read
from verlbox.report.language import LANGUAGES, finding, messages, speaker, summaries
from verlbox.report.model import text

PACKAGE = Path(__file__).parents[2] / "verlbox"
SOURCES = [*sorted((PACKAGE / "report").glob("*.py")), PACKAGE / "compare.py"]
SOURCES += sorted((PACKAGE / "report" / "templates").glob("*.j2"))


def fields(message: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(message) if name}


@pytest.mark.parametrize("key", sorted(messages()))
def test_a_message_has_both_languages_with_the_same_values(key: str) -> None:
    message = messages()[key]
    assert set(message) == set(LANGUAGES)
    assert fields(message["en"]) == fields(message["zh"])
    words = re.sub(r"\{\w+\}|[\w.]*/[\w*]+|\b[a-z]+_\w+|[a-z]+\.[a-z]+", "", message["zh"])
    stripped = re.sub(
        r"(?i)\b(kl|mfu|verl|verlbox|fisher|mcnemar|sha-256|p|t|png|csv|nan|token|tflop/s|grpo|cpu|gib|r|flop/s|train)\b",
        "",
        words,
    )
    if re.search(r"[A-Za-z]{3,}", message["en"]) and re.search(r"[A-Za-z]", stripped):
        assert re.search(r"[\u4e00-\u9fff]", stripped), f"{key} looks untranslated: {message['zh']}"


def test_every_message_that_is_asked_for_exists() -> None:
    known = messages()
    for source in SOURCES:
        content = source.read_text(encoding="utf-8")
        for key in re.findall(r"""(?:text|plain|say)\(\s*["']([a-z][\w.-]+\.[\w.-]*\w)["']""", content):
            assert key in known, f"{source.name}: {key}"


def test_no_message_is_left_over() -> None:
    content = "".join(source.read_text(encoding="utf-8") for source in SOURCES)
    made = ["acceptance", "column", "chart", "phase", "compare", "evaluation", "curve"]
    made += ["ui.verdict", "ui.status", "ui.severity", "ui.png"]
    prefixes = (*(f"{name}." for name in made), "health.divided-", "stability.clip-", "ui.why", "ui.fix")
    for key in messages():
        if not key.startswith(prefixes):
            assert f'"{key}"' in content or f"'{key}'" in content, f"nothing says {key}"


def test_a_missing_message_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError):
        speaker("en")(text("no.such.message"))


def test_every_finding_code_has_a_chinese_summary() -> None:
    documented = re.findall(
        r"^\| `([\w-]+)` \|", (PACKAGE.parent / "docs" / "findings.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(documented) > 500
    assert set(documented) - summaries().keys() == set(), "verlbox/report/findings.zh.yaml lacks these"
    assert summaries().keys() - set(documented) == set(), "these codes no longer exist"
    for code, summary in summaries().items():
        assert re.search(r"[\u4e00-\u9fff]", summary), code


METRIC = re.compile(r"[\w-]+(?:/[\w@.-]+)+|verl|diagnose LOG|NaN|TensorBoard|Infinity|reference-run")


def untranslated(said: str) -> str:
    """English words that are left in a Chinese sentence, names of metrics and programs aside."""
    return " ".join(re.findall(r"[A-Za-z]{2,}", METRIC.sub("", said)))


BROKEN = {
    "repeated": "step:1 - a/b:1\nstep:2 - a/b:1\nstep:2 - a/b:1\nstep:3 - a/b:2\n",
    "superseded": "step:1 - a/b:1\nstep:5 - a/b:1\nstep:2 - a/b:1\n",
    "none": "step:0 - val-core/x/acc/mean@1:1\n",
    "gap": "step:1 - a/b:1\nstep:4 - a/b:1\n",
    "wide gap": "step:1 - a/b:1\nstep:400000 - a/b:1\n",
    "nan": "step:1 - a/b:nan - a/c:inf\n",
    "unreadable": "step:1 - a/b:x - a/c:1\n",
    "cut": "step:1 - a/b:1\nstep:2 - a/c:1 - a/b:0.",
}


def own_findings(folder: Path) -> dict[str, Finding]:
    """A finding of every kind that reading and judging metrics gives."""
    found: dict[str, Finding] = {}
    for name, content in BROKEN.items():
        (folder / f"{name}.log").write_text(content, encoding="utf-8")
        found.update({f"{name} {f.code}": f for f in read(folder / f"{name}.log").findings})
    (folder / "t.csv").write_text("step,a/b\n1,x\n2,3\n", encoding="utf-8")
    found.update({f"csv {f.code}": f for f in read(folder / "t.csv").findings})
    (folder / "events.out.tfevents.1").write_bytes(b"\x18\0\0\0\0\0\0\0cut")
    found.update({f"events {f.code}": f for f in read(folder / "events.out.tfevents.1").findings})
    (folder / "events.out.tfevents.2").write_bytes(b"\x18" + b"\0" * 40)
    found.update({f"checksum {f.code}": f for f in read(folder / "events.out.tfevents.2").findings})
    metrics = read(folder / "gap.log")
    lines = [
        *(line("a/b", ">", 9.0, reducer=reducer) for reducer in ("last", "first", "mean", "median", "min", "max")),
        *(
            line("a/b", ">=", 9.0, reducer=r, window=2)
            for r in ("first", "mean", "median", "min", "max", "last_k_mean")
        ),
        line("a/b", ">", 1.0, reducer="slope", severity="warn"),
        line("a/b", "within", (5.0, 6.5)),
        line("a/b", "within", "reference-run"),
        line("a/missing", "<=", 1.0),
        line("a/b", ">", 0.0, reducer="last_k_mean", window=9),
    ]
    bands: dict[acceptance.BandKey, Band] = {("reference-run", "a/b", "last", None): Band(5.0, 6.0, "reference-run")}
    for source in (metrics, Metrics({}, "csv"), read(folder / "nan.log")):
        verdict = acceptance.judge(tuple(lines), source, None, bands)
        found.update({f"{i} {len(source.series)}": f for i, f in enumerate(acceptance.findings(verdict))})
    return found


def test_the_reports_own_findings_are_chinese_as_a_whole(tmp_path: Path) -> None:
    found = own_findings(tmp_path)
    assert {f.code for f in found.values()} >= {
        *("metrics-repeated-steps", "metrics-superseded-steps", "metrics-none", "metrics-gap", "metrics-not-finite"),
        *("metrics-unreadable-values", "metrics-line-cut", "metrics-file-damaged", "acceptance-failed"),
        "acceptance-warning",
    }
    for name, one in found.items():
        said = finding(one, "zh")
        assert {part.language for part in said.values()} == {"zh"}, (name, said)
        assert not any(untranslated(part.text) for part in said.values()), (name, said)


def test_a_finding_of_another_part_opens_with_its_summary_and_keeps_its_values() -> None:
    one = Finding("warning", "hub-source-failed", "modelscope timed out after 30 s", "It was tried first.", "")
    said = finding(one, "zh")
    assert list(said) == ["summary", "what", "why"]
    assert (said["summary"].language, said["summary"].text) == ("zh", "某个来源失败，改用后面的来源。")
    assert (said["what"].language, said["what"].text) == ("en", one.what)
    assert "summary" not in finding(one, "en")
