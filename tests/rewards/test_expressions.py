"""The expression reader: what it reads, what it refuses, and that it is bounded."""

from __future__ import annotations

import time

import pytest

from verlbox.rewards.expressions import Refused, compare, parse, symbols


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("\\frac12", "1/2"),
        ("\\frac{29}4", "7.25"),
        ("\\frac\\pi2", "\\pi/2"),
        ("\\sqrt[3]{-8}", "-2"),
        ("\\sqrt2", "2**(1/2)"),
        ("\\sin^2 x + \\cos^2 x", "1"),
        ("\\sin 2x", "2\\sin x\\cos x"),
        ("\\log_2 8", "3"),
        ("|3-5|", "2"),
        ("5!", "120"),
        ("\\binom52", "10"),
        ("-2^2", "-4"),
        ("2^{3^2}", "512"),
        ("3*sqrt(5)/7", "\\frac{3\\sqrt{5}}{7}"),
        ("\\lfloor 2.5 \\rfloor", "2"),
        ("1/2x", "\\frac{x}{2}"),
        ("\\frac{6\\sqrt{1789-240\\sqrt{21}}+8\\sqrt{1236-240\\sqrt{21}}}{5}", "96-10\\sqrt{21}"),
    ],
)
def test_equal_expressions(left: str, right: str) -> None:
    assert compare(parse(left), parse(right)) is True


@pytest.mark.parametrize("text", ["", "1 2", "\\sqrt", "\\sum_{k=1}^n k", "x<3", "(1,2)", "\\foo", "1+", "((1)", "1)"])
def test_what_is_not_covered_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}",
        "10**10**10",
        "(10^{100})!",
        "((3000!)!)!",
        "\\binom{10^9}{10^8}",
        "2^{-10^{15}}",
        "(1/3)^{99999999}",
        "e^{e^{e^{e^e}}}",
        "\\sqrt[10^9]{2}",
        "10^{10^5}+1",
    ],
)
def test_huge_values_are_undecided_at_once(text: str) -> None:
    start = time.process_time()
    assert compare(parse(text), parse("72")) is not True
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize("text", ["(" * 3000 + "1" + ")" * 3000, "x^" * 2000 + "x", "+".join("1" * 5000), "9" * 1000])
def test_deep_and_long_texts_are_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse(text)


def test_symbols_keep_their_subscripts() -> None:
    assert symbols(parse("x_1 + x_{12} y' + \\theta \\pi e")) == {"x_1", "x_12", "y'", "theta"}
