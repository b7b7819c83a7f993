"""The catalogue is data: the loader refuses what is wrong with it, all at once."""

from __future__ import annotations

import re

import pytest

from verlbox.diagnosis.catalogue import CatalogueError, load, parse, required_literals, search_words
from verlbox.diagnosis.matcher import CHECKS
from verlbox.findings import registered

GOOD = """
- id: gizmo-upside-down
  severity: fatal
  signals: {any: ['gizmo is upside down']}
  cause: The gizmo is upside down
  why: It was dropped
  fix: Turn it
  source: gizmo/gizmo#1
"""


def test_the_shipped_catalogue_is_valid_and_registers_its_codes() -> None:
    entries = load()
    codes = {code.name: code for code in registered()}
    assert len(entries) > 200
    for entry in entries:
        assert codes[f"log-{entry.id}"].meaning == entry.cause
        assert not entry.check or entry.check in CHECKS, entry.id


def test_every_kind_of_exhaustion_has_entries_that_are_fatal() -> None:
    failures = {entry.failure for entry in load() if entry.failure}
    assert failures == {"device-oom", "host-oom", "shm", "disk-full"}
    assert all(entry.severity == "fatal" for entry in load() if entry.failure)


def test_a_cause_is_one_sentence_without_a_full_stop_and_every_entry_names_its_source() -> None:
    for entry in load():
        assert not entry.cause.endswith((".", "!")) and len(entry.cause) < 140, entry.id
        assert len(entry.source) > 3, entry.id


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("severity: fatal", "severity: deadly", "severity must be one of"),
        ("signals: {any", "signals: {some", "signals must hold `any`"),
        ("'gizmo is upside down'", "'gizmo ('", "is no regular expression"),
        ("'gizmo is upside down'", r"'\d+ (of|in) \w+'", "needs plain text"),
        ("'gizmo is upside down'", "'reward memory'", "needs plain text"),
        ("fix: Turn it", "fx: Turn it", "unknown key 'fx'"),
        ("fix: Turn it", "fix: ''", "fix must be a text"),
        ("source: gizmo/gizmo#1", "source: x\n  over: [nobody]", "over names 'nobody'"),
        ("source: gizmo/gizmo#1", "source: x\n  failure: oom", "failure must be one of"),
        ("source: gizmo/gizmo#1", "source: x\n  platforms: [tpu]", "unknown platform 'tpu'"),
        ("id: gizmo-upside-down", "id: Gizmo", "needs an id in kebab-case"),
    ],
)
def test_a_faulty_entry_is_refused(old: str, new: str, fault: str) -> None:
    assert parse({"topic": GOOD})[0].id == "gizmo-upside-down"
    with pytest.raises(CatalogueError, match=re.escape(fault)):
        parse({"topic": GOOD.replace(old, new)})


def test_all_faults_are_told_at_once() -> None:
    bad = GOOD.replace("severity: fatal", "severity: deadly").replace("why: It was dropped", "why: 3")
    with pytest.raises(CatalogueError) as caught:
        parse({"one": bad, "two": GOOD.replace("gizmo-upside-down", "other").replace("fix: Turn it", "")})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("expression", "literals"),
    [
        ("plain text", (("plain text",),)),
        (r"error code is \d+ now", (("error code is ",), (" now",))),
        ("(?:alpha|beta) gone", (("alpha", "beta"), (" gone",))),
        ("a?bc", (("bc",),)),
        ("x{4}", (("xxxx",),)),
        (r"\w+", ()),
    ],
)
def test_literals_stand_in_every_match(expression: str, literals: tuple[tuple[str, ...], ...]) -> None:
    assert sorted(required_literals(expression)) == sorted(literals)


def test_every_match_of_a_pattern_holds_one_of_its_words() -> None:
    for entry in load():
        for pattern in (*entry.any, *entry.all, *entry.not_near):
            assert pattern.words == search_words(pattern.expression) != ()
            if re.fullmatch(r"[\w :,'/_-]+", pattern.expression):  # plain: it matches itself
                assert any(word in pattern.expression for word in pattern.words)
