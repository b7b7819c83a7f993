"""Which answer a response commits to."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verlbox.rewards import answers

TAGS = ("<think>", "</think>", "<answer>", "</answer>", "#### ", "answer is ")
MARKS = ("\\boxed{", "\\boxed{5}", "\\text{", "\\frac", "\\{", "\\", "{", "}", "[", "]", "$", "**", ",")
TEXTS = ("\n", " ", "5", "7", "and", "is", "\x00", "\ud800", "½", "、")
REPEATED = ("####", "#### 1\n", "1", "1,", "```", "<<", "A: 1\n", "[1]", "1 1/")
PIECES = st.sampled_from(TAGS + MARKS + TEXTS)


@pytest.mark.parametrize(
    ("response", "committed"),
    [
        ("First $\\boxed{3}$ from the lemma, then $\\boxed{7}$.", ("7",)),
        ("<think>\\boxed{4}?</think><answer>\\boxed{5}</answer>", ("5",)),
        ("<answer>\\boxed{5}</answer> so \\boxed{6}", ("5",)),
        ("thought \\boxed{4}</think> \\boxed{5}", ("5",)),
        ("<think>\\boxed{5}", ()),
        ("<think>no end <answer>\\boxed{5}</answer>", ("5",)),
        ("\\boxed{5} ... \\boxed{", ()),
        ("answer within \\boxed{}. It is \\boxed{5}", ("5",)),
        ("in \\boxed form: \\boxed{5}", ("5",)),
        ("$\\boxed 5$", ("5",)),
        ("\\fbox{5}", ("5",)),
        ("\\boxed{1}, \\boxed{2} and \\boxed{3}", ("1, 2, 3",)),
        ("\\boxed{5} \\boxed{5}", ("5",)),
        ("\\boxed{\\text{a } \\boxed{5}}", ("\\text{a } \\boxed{5}",)),
        ("\\boxed{\\{1, 2\\}}", ("\\{1, 2\\}",)),
        ("so\n#### \\frac{1}{2}", ("\\frac{1}{2}",)),
        ("<answer>5</answer>", ("5",)),
        ("The answer is $4$.", ("4",)),
        ("The answer is 4", ()),
        ("", ()),
    ],
)
def test_policy(response: str, committed: tuple[str, ...]) -> None:
    assert answers.committed(response) == committed


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("The final answer is $(0, 1)$. I hope it is correct.", "$(0, 1)$"),
        ("The answer is 42 because geometry proves it", "42"),
        ("Final Answer: The largest $n$ is 34.", "34"),
        ("The angle is [90].", "90"),
        ("\\frac{1}{2}", "\\frac{1}{2}"),
        ("125 \\text{ miles}", "125 \\text{ miles}"),
        ("Therefore $x \\geq 5$ is the solution.", "x \\geq 5"),
        ("The answer is x = 5", "x = 5"),
        ("The answer is 10 m/s", "10 m/s"),
        ("The answer is 15 cm^2.", "15"),
        ("The answer is (B)", "(B)"),
        ("The answer is e^2", "e^2"),
        # An expression in an unknown has no visible end in prose.
        ("Let me solve this... The answer is 2x + 3", ""),
        ("The answer is x^2", ""),
        ("The answer is $2x + 3$", "$2x + 3$"),
        ("2x + 3", "2x + 3"),
        # Inline mathematics stands on one line, display does not.
        ("Answer $ 9 $", "9"),
        ("Answer $ \n 9 \n $", ""),
        ("Answer $$ \n 9 \n $$", "9"),
        ("Answer \\[ \n 9 \n \\]", "9"),
        ("It costs 5 $\nand later 7 $", "7"),
    ],
)
def test_bare_answers_are_found_in_prose(text: str, bare: str) -> None:
    assert answers.bare_answer(text) == bare


@given(st.lists(PIECES, max_size=40).map("".join))
@settings(max_examples=400, deadline=None)
def test_extraction_never_fails_and_what_it_finds_in_a_box_is_stable(text: str) -> None:
    for found in answers.committed(text):
        assert isinstance(found, str)
    content = answers.boxed_content(text)
    if content is not None and "\\boxed" not in content and content.count("{") == content.count("}"):
        again = answers.boxed_content(f"\\boxed{{{content}}}")
        assert again is None or "\\" in content or again == content.strip()
    answers.marker_value(text)
    answers.stated_value(text)
    answers.bare_answer(text)


@given(st.text(max_size=60))
def test_one_spelling_is_a_fixed_point(text: str) -> None:
    once = answers.plain_text(text)
    assert answers.plain_text(once) == once


@pytest.mark.parametrize("piece", TAGS + MARKS + TEXTS + REPEATED)
def test_150_kilobytes_of_anything_are_read_in_well_under_a_second(piece: str) -> None:
    text = piece * (150_000 // len(piece))
    start = time.process_time()
    answers.committed(text)
    answers.marker_value(text)
    answers.stated_value(text)
    answers.bare_answer(text)
    assert time.process_time() - start < 1.0
