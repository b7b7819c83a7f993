"""What counts as the same value."""

from __future__ import annotations

import itertools
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verlbox.rewards import answers, equivalence
from verlbox.rewards.equivalence import decide

SAME = """
\\frac{1}{2}     0.5
\\frac{1}{2}     \\dfrac12
\\frac{7}{2}     3\\frac{1}{2}
\\frac{7}{2}     3 1/2
-\\frac{1}{2}    \\frac{-1}{2}
1/6              0.1\\overline{6}
\\frac{1}{3}     0.333333
\\frac{1}{3}     0.3333
\\frac{8}{3}     2.6667
\\frac{8}{3}     2.6666
\\frac{1}{7}     0.14286
-2.6667          -\\frac{8}{3}
(\\frac{3}{5},\\frac{8}{3}]  (0.6,2.6667]
2\\sqrt{3}       \\sqrt{12}
\\ln 8           3\\ln 2
\\sin 30^\\circ  \\frac12
(x+1)^2          x^2+2x+1
5                5\\text{ cm}
5~cm             5
15\\mbox{ cm}^2  15 cm^2
45 square feet   45
30^\\circ        30°
\\$5             5 dollars
50\\%            50
50\\%            \\frac12
1,000,000        10^6
10{,}000         10\\,000
1000,99          1000.99
72               7２
-5               −5
5                5个
x=5              5
5                x = 2+3 = 5
2x+1             f(x)=2x+1
y=2x+1           2x - y + 1 = 0
x>3              (3,\\infty)
3<x\\le 4        (3,4]
5 \\ge x         x \\le 5
\\{1,2\\}        \\{2,1\\}
2,3              3 \\text{ and } 2
\\{1\\pm\\sqrt5\\}  1+\\sqrt5, 1-\\sqrt5
a=1, b=2         b=2, a=1
(1,2),(3,4)      (3,4), (1,2)
(3,2)            (x,y)=(3,2)
(3,4)            x=3, y=4
[0,1)            \\left[0, 1\\right)
[0,1]\\cup[2,3]  [2,3] \\cup [0,1]
(-\\infty,\\infty)  \\mathbb{R}
\\begin{pmatrix}1/2\\\\-1\\end{pmatrix}  \\begin{bmatrix}\\frac12\\\\-1\\end{bmatrix}
204_5            204_{5}
204_5            204_{\\text{five}}
18.90            \\text{\\$}18.90
i                \\sqrt{-1}
-2i              -\\sqrt{-4}
\\emptyset        \\varnothing
\\emptyset        \\{\\}
12:30 p.m.       \\text{12:30 PM}
3:2              6:4
\\text{(C)}      C
\\text{Evelyn}   evelyn
\\text{A, B}     B,A
\\text{June 5}   \\text{June } 5
e^{i\\pi}        -1
2^{2005}         2 \\cdot 2^{2004}
1.5\\times10^3   1500
"""

DIFFERENT = """
\\frac{1}{3}     0.333
\\frac{1}{3}     0.3334
\\frac{1}{7}     0.1429
\\frac{100}{3}   33.3
\\frac{8}{3}     -2.6667
5                5.0001
\\pi             3.1416
\\sqrt2          1.4142
\\pi             3.14
\\pi             \\frac{22}{7}
72               72.5
5                -5
x+1              x-1
x^2              y^2
|x|              x
i                -i
f(x)             f(y)
\\frac{2^{2005}+1}{3\\cdot 2^{2006}}  \\frac{1}{3\\cdot 2^{2006}}
5\\text{ cm}     5\\text{ m}
15\\text{ cm}^2  15^2
28\\%            0.28\\%
12345            12
32349            32, 349
(1,2)            (2,1)
(1,2)            [1,2]
(3,1)            \\{3,1\\}
(3,1)            3
[0,1)            [0,1]
-2,1             1
5                5 \\text{ or } 6
1\\pm\\sqrt5     1+\\sqrt5
a=1, b=2         a=2, b=1
x<3              x>3
x>3              [3,\\infty)
3x-y+13=0        3x+4y+14=0
7=11a+c          11a+c
\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}  \\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}
204_5            204_6
12:30 p.m.       12:30 a.m.
1:00             12:00
\\text{E}        2.718281828
\\text{C}        B
\\text{even}     odd
4                4\\sqrt(2)
\\infty          -\\infty
i                -\\sqrt{-1}
\\emptyset        0
\\emptyset        \\{0\\}
0                \\emptyset
\\frac{0}{0}     \\frac{0}{0}
0                \\text{nothing}
"""


def cells(table: str) -> list[tuple[str, str]]:
    """The two columns of a table, which two blanks separate; single blanks belong to the answers."""
    found = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in table.strip().splitlines()]
    return [(left, right) for left, right in found]


@pytest.mark.parametrize(("gold", "answer"), cells(SAME))
def test_same_values(gold: str, answer: str) -> None:
    assert decide(gold, answer) is True


@pytest.mark.parametrize(("gold", "answer"), cells(DIFFERENT))
def test_different_values(gold: str, answer: str) -> None:
    assert decide(gold, answer) is False


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "10**10**10", "100000!", "((100000!)!)!", "2 \\cdot 3^{3^{3^3}}"])
def test_what_is_beyond_floating_point_is_told_from_a_plain_number_without_math_verify(answer: str) -> None:
    assert decide("72", answer) is False
    assert decide(answer, "72") is False
    assert decide(answer, answer) is True
    assert decide(answer, f"{answer} + 1") is None


def test_a_gold_answer_nested_beyond_reason_is_not_worked_on() -> None:
    deep = "(" * 50 + "1" + ")" * 50
    assert [verdict.reason for verdict in equivalence.judge([(deep, "1"), ("1", deep)])] == ["unparsable"] * 2


def test_an_empty_gold_is_matched_by_nothing() -> None:
    verdicts = equivalence.judge([("", ""), ("", "5"), ("5", " "), ("\\text{}", "\\text{}")])
    assert [verdict.reason for verdict in verdicts] == ["unparsable"] * 4


# Numbers in every spelling that has an exact meaning.
NUMBERS = st.fractions(min_value=-1000, max_value=1000, max_denominator=60)


def spellings(value: Fraction) -> list[str]:
    top, bottom = value.numerator, value.denominator
    found = [f"\\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", f"\\dfrac{{{2 * top}}}{{{2 * bottom}}}"]
    if bottom == 1:
        found += [str(top), f"{top}.0", f"{top}\\text{{ units}}", f"x={top}", f"\\${top}", f"{top}."]
    whole, rest = divmod(abs(top), bottom)
    if whole and rest and top > 0:
        found.append(f"{whole}\\frac{{{rest}}}{{{bottom}}}")
    return found


@given(NUMBERS, st.data())
@settings(max_examples=100, deadline=None)
def test_a_number_equals_itself_in_every_spelling_and_no_other(value: Fraction, data: st.DataObject) -> None:
    left = data.draw(st.sampled_from(spellings(value)))
    right = data.draw(st.sampled_from(spellings(value)))
    assert decide(left, right) is True, (left, right)
    other = data.draw(NUMBERS.filter(lambda number: number != value))
    assert decide(left, data.draw(st.sampled_from(spellings(other)))) is False


@pytest.fixture(scope="module")
def golds(shared: Path) -> list[str]:
    rows = [json.loads(line) for name in ("train", "test") for line in (shared / f"data/math/{name}.jsonl").open()]
    return [next(iter(answers.committed(row["solution"])), "") for row in rows]


def test_equality_of_real_answers_is_symmetric_and_reflexive(golds: list[str]) -> None:
    distinct = [gold for gold in dict.fromkeys(golds) if gold]
    assert [gold for gold in distinct if decide(gold, gold) is not True] == []
    neighbours = list(itertools.pairwise(distinct))
    assert [pair for pair in neighbours if decide(*pair) is True != (decide(pair[1], pair[0]) is True)] == []


def test_structure_alone_understands_the_real_answers(golds: list[str]) -> None:
    """Without the comparison of texts: all but three of MATH's 4,340 distinct answers are read as mathematics."""
    opaque = [
        gold
        for gold in dict.fromkeys(golds)
        if gold and isinstance(equivalence._parsed(equivalence.spelled(gold), True), equivalence.Opaque)
    ]
    assert sorted(opaque) == ["\\frac{1}{7}\\triangle ABC", "\\overline{CD}", "f(2) < f(1) < f(4)"]


def test_respelled_real_answers_stay_correct(golds: list[str]) -> None:
    distinct = [gold for gold in dict.fromkeys(golds) if gold][::2]
    changes = (
        lambda text: text.replace("\\frac", "\\tfrac"),
        lambda text: f"${text}$.",
        lambda text: text.replace(",", ", ").replace("+", " + "),
        lambda text: "{" + text + "}",
        lambda text: f"\\displaystyle {text}",
    )
    wrong = [
        (gold, change(gold))
        for gold in distinct
        for change in changes
        if ",\\!" not in gold and decide(gold, change(gold)) is not True
    ]
    assert wrong == []
