"""Override strings mean here what they mean to the installed Hydra."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verlbox.hydra_overrides import (
    OverrideSyntaxError,
    format_override,
    format_value,
    parse_override,
    parse_value,
)

hydra_parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
PREFIX = {"CHANGE": "", "ADD": "+", "FORCE_ADD": "++", "DEL": "~"}


def hydra_reads(text: str) -> tuple[str, str, object]:
    override = hydra_parser.OverridesParser.create().parse_override(text)
    if override.is_sweep_override():
        raise ValueError("sweep")
    return PREFIX[override.type.name], override.get_key_element().lstrip("+~"), override.value()


def same(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


VALUES = [
    "1", "-1", "+5", "007", "1_000", "1_", "1e-6", "1E5", "10e3", "1.", ".5", "-.5", "1.0.0", "1e5x", "--5", "1 2",
    "inf", "-inf", "nan", "info", "true", "True", "FALSE", "True-x", "null", "NULL", "nullable", "None",
    "abc", "a-b", "a b", " a ", "/x/y.z", "'~/models/Qwen'", "a:b", "https://host:1/x?y", "a|b*c@d%e$f+g", "?",
    "???",
    "''", '""', "'a b'", '"a,b"', "'it\\'s'", '"a\\\\"', "'a\\b'", '"\\\\\\"x"', "'null'", "'1'", "'#### 1'",
    "[]", "[a]", "[console,tensorboard]", "['console','wandb']", "[ a , b ]", "[[1,2],[3]]", "[1,2.5,null,true,'x y']",
    "{}", "{a:1}", "{a:{b:[1,2]},c:d}", "{ a : 1 , b : x y }", "{1:2}",
    "${a.b}", "${oc.env:USER,me}/x", "a\\,b", "a\\=b", "\\[x\\]", "\\\\", "",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_a_value_reads_as_hydra_reads_it(value: str) -> None:
    assert same(parse_value(value), hydra_reads(f"key={value}")[2])


@pytest.mark.parametrize(
    "text",
    [
        "a=1",
        "+a.b=x",
        "++a.b.c=[1]",
        "~a.b",
        "~a.b=1",
        "a@b.c=d",
        "a/b=c",
        "a/b@c=d",
        "a= 1",
        "a=",
        "a= ",
        "a-b=1",
        "$a=1",
        "a.0.b=1",
        "hydra.run.dir=x",
    ],
)
def test_prefix_key_and_value_are_those_of_hydra(text: str) -> None:
    ours = parse_override(text)
    assert (ours.prefix, ours.key, ours.value) == hydra_reads(text)
    assert ours.raw == text


@pytest.mark.parametrize(
    "text",
    [
        "a", "+a", "a =1", "a..b=1", "a=[1", "a=1]", "a={x", "a={a=1}", "a='x", "a='x'y", "a=é", "a=1,2", "a=[1,]",
        "a=~/models/Qwen", "a=~",
        "a={'q':1}", "a=x=y", "a=f(", "a=#x", "a=!", "a=;", "a=a b:c,d", "a=(x)", "-a=1", "+++a=1",
    ],
)  # fmt: skip
def test_what_hydra_refuses_is_refused(text: str) -> None:
    with pytest.raises(Exception):  # noqa: B017  # Hydra raises several types; ours must refuse the same texts
        print(hydra_reads(text))
    with pytest.raises(OverrideSyntaxError):
        parse_override(text)


@pytest.mark.parametrize("text", ["=1", "+=1", "~"])
def test_an_empty_key_is_refused_although_the_grammar_of_hydra_has_it(text: str) -> None:
    with pytest.raises(OverrideSyntaxError):
        parse_override(text)


@pytest.mark.parametrize("text", ["a=1,2", "a=choice(1,2)", "a=range(1,3)", "a=str(1)"])
def test_sweeps_and_functions_are_refused_by_name(text: str) -> None:
    with pytest.raises(OverrideSyntaxError, match=r"sweep"):
        parse_override(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("/data/train.parquet", "/data/train.parquet"),
        ("1", "'1'"),
        ("null", "'null'"),
        ("a,b", "'a,b'"),
        ("", "''"),
        ("it's", "it's"),
        (1e-6, "1e-06"),
        (True, "true"),
        (None, "null"),
        (["console", "tensorboard"], "[console,tensorboard]"),
        ({"format_weight": 0.1, "name": "a b"}, "{format_weight:0.1,name:a b}"),
    ],
)
def test_values_are_written_plainly_and_quoted_where_they_must_be(value: object, text: str) -> None:
    if value == "it's":
        text = "'it\\'s'"
    assert format_value(value) == text


def test_what_hydra_has_no_words_for_is_refused() -> None:
    with pytest.raises(ValueError, match="object"):
        format_override("a", object())
    with pytest.raises(ValueError, match="dictionary key"):
        format_override("a", {"é": 1})


def test_a_deletion_is_written_without_a_value() -> None:
    assert format_override("a.b", None, "~") == "~a.b"
    assert format_override("a.b", 1, "++") == "++a.b=1"


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)
tricky = st.text(alphabet="\\'\"`,:=[]{}() \t\nab1._-$#é~+", max_size=10).filter(lambda s: "${" not in s)
keys = st.text(alphabet="ab_1- .\\,:=()", min_size=1, max_size=6).filter(lambda s: s.strip() == s)
trees = st.recursive(
    scalars | tricky,
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.just("k") | st.just("k2"), c, max_size=2),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(trees.filter(lambda v: "${" not in repr(v)))
def test_hydra_reads_back_what_is_written(value: object) -> None:
    assert same(hydra_reads(format_override("some.key", value))[2], value)
    assert same(parse_value(format_value(value)) if value != "" else "", value)


@settings(max_examples=600, deadline=None)
@given(st.text(alphabet="\\'\",:=[]{}() \tab1e+._-$~nulTrue", max_size=9))
def test_any_text_is_read_or_refused_as_hydra_does(text: str) -> None:
    try:
        theirs: object = hydra_reads("k=" + text)[2]
    except Exception:
        theirs = OverrideSyntaxError
    try:
        ours: object = parse_override("k=" + text).value
    except OverrideSyntaxError:
        ours = OverrideSyntaxError
    assert same(ours, theirs)


@settings(max_examples=200, deadline=None)
@given(keys)
def test_dictionary_keys_survive_or_are_refused(key: str) -> None:
    try:
        text = format_override("a", {key: 1})
    except ValueError:
        return
    assert hydra_reads(text)[2] == {key: 1}
