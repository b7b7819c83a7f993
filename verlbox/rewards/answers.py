"""Which answer a response commits to, and which number an answer line states.

Policy: the last `<answer>\\boxed{}</answer>`, else the last complete `\\boxed{}` outside `<think>`, else the last
`#### N` line. Text inside `<think>` never counts, an unfinished `<think>` hides the rest of the response, an unfinished
box commits to nothing, and neighbouring boxes or markers are one answer with several values.
All scans are linear in the length of the response: it is untrusted.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

MAX_DIGITS = 400  # Python's int() itself refuses more than 4,300; no answer of GSM8K or MATH has more than 40

# What NFKC would spoil or leaves alone: superscripts become exponents, every minus sign and blank becomes the plain one.
_SUPERSCRIPTS = {ord(char): f"^{digit}" for char, digit in zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)}
_CHARACTERS = {
    **_SUPERSCRIPTS,
    **{ord(char): "-" for char in "−‒–—﹣－"},
    **{ord(char): None for char in "\u200b\u200c\u200d\u2060\ufeff\u00ad"},
    0x2044: "/",
    0xB4: "'",
    0x2019: "'",
}
_VULGAR = {char: unicodedata.normalize("NFKC", char).replace("\u2044", "/") for char in "¼½¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}


def plain_text(text: str) -> str:
    """The text in one spelling: full-width forms, vulgar fractions, superscripts, minus signs and blanks made plain."""
    if text.isascii():
        return text
    for char, spelled in _VULGAR.items():
        if char in text:
            text = re.sub(rf"(\d){char}", rf"\1 {spelled}", text).replace(char, spelled)
    return unicodedata.normalize("NFKC", text.translate(_CHARACTERS)).translate(_CHARACTERS)


def without_thinking(text: str) -> str:
    """The response outside `<think>`; a missing closing tag hides the rest, a missing opening tag the beginning."""
    kept: list[str] = []
    position, depth = 0, 0
    for tag in re.finditer(r"<(/?)think(?:ing)?>", text, re.IGNORECASE):
        if not tag[1]:
            if depth == 0:
                kept.append(text[position : tag.start()])
            depth += 1
        else:
            if depth == 0:
                kept.clear()
            depth = max(0, depth - 1)
        position = tag.end()
    if depth == 0:
        kept.append(text[position:])
    return "\n".join(kept)


# ------------------------------------------------------------------------------------------ `#### N` lines

_CODE_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_ANNOTATION = re.compile(r"<<[^<>]*>>|<\|[^<>|]*\|>|</?[A-Za-z][^<>]*>")
_LATEX_NOISE = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|boxed|fbox)\s*\{|\\[()\[\]]|\\(?:[,;:! ]|quad|qquad)")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,)(?=\d{3})")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\s?\^\s?\{?\d+\}?|(?<=[A-Za-z])\d+(?![\d.,]*\d)")
_DECIMAL = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<![A-Za-z\d])\.\d+"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]\s*)?(?:[$€£¥₹]\s*)?(?P<sign2>[+-]\s*)?(?P<value>{_DECIMAL})(?P<exponent>[eE][+-]?\d{{1,3}}(?![A-Za-z\d]))?"
    rf"(?:\s*/\s*(?P<under>\d+(?:\.\d+)?)|\s+(?P<top>\d+)\s*/\s*(?P<bottom>\d+))?"
    r"(?:\s*(?P<scale>(?:thousand|million|billion|trillion)(?![a-z])|万|亿))?",
)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*(-?[\d.]+)\s*\}|(\d))\s*(?:\{\s*(-?[\d.]+)\s*\}|(\d))")
_SCALE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "万": 10**4, "亿": 10**8}
# Between two numbers these mean a calculation that was left open, not a list.
_OPERATORS = re.compile(r"\s*(?:[-+*/^×÷·%]|\*\*|\\times|\\cdot|\\div|x|X)\s*[$€£¥₹(]*\s*")

LineState = Literal["value", "several", "none", "too_long"]


@dataclass(frozen=True)
class LineValue:
    """What an answer line states: one value, several different ones, none that can be read, or too many digits."""

    state: LineState
    value: Fraction | None = None


def _as_fraction(number: re.Match[str]) -> Fraction | None:
    """The exact value of one `_NUMBER` match; None for a division by zero."""
    value = Fraction(number["value"].replace(",", "")) * Fraction(f"1{number['exponent'] or ''}")
    if number["under"]:
        if not Fraction(number["under"]):
            return None
        value /= Fraction(number["under"])
    elif number["top"]:
        if not int(number["bottom"]):
            return None
        value += Fraction(int(number["top"]), int(number["bottom"]))
    value *= _SCALE.get(number["scale"] or "", 1)
    negative = "-" in (number["sign"] or "") + (number["sign2"] or "")
    return -value if negative else value


def _lone_values(text: str) -> LineValue:
    """The value of a text without `=`: its one number; an open calculation states none."""
    numbers = list(_NUMBER.finditer(text))
    values: list[Fraction] = []
    for index, number in enumerate(numbers):
        if index and _OPERATORS.fullmatch(text[numbers[index - 1].end() : number.start()] + (number["sign"] or "")):
            return LineValue("none")
        value = _as_fraction(number)
        if value is None:
            return LineValue("none")
        values.append(value)
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return LineValue("value", distinct[0])
    return LineValue("several" if distinct else "none")


def line_value(line: str) -> LineValue:
    """The number that the text after a marker states, with currency, units, working and markdown around it.

    `48 + 24 = 72` and `72 = 48 + 24` state 72; `48 + 24` states nothing; `72 or 73` states several values.
    """
    text = _THOUSANDS.sub(",", _ANNOTATION.sub(" ", line))
    text = _FRACTION.sub(lambda m: f" {m[1] or m[2]}/{m[3] or m[4]} ", text)
    text = _LATEX_NOISE.sub(" ", text).replace("\\$", "$").replace("\\%", "%").replace("}", " ")
    text = re.sub(r"(?<![\d\s)*])\*+|\*+(?!\s*[\d(.$*-])|[_`~]+|(?<!\d)#+", " ", text)
    text = _UNIT_POWER.sub(" ", text)
    if re.search(rf"\d{{{MAX_DIGITS}}}", text.replace(",", "")):
        return LineValue("too_long")
    sides = [side for side in re.split(r"=|≈|\\approx", text) if side.strip()]
    results = [_lone_values(side) for side in sides]
    if len(results) > 1:
        for result in (results[-1], results[0]):
            if result.state == "value":
                return result
        return LineValue("none")
    if not results:
        return LineValue("none")
    if results[0].state != "value":
        outside = _lone_values(re.sub(r"\([^()]*\)", " ", text))
        if outside.state == "value":
            return outside
    return results[0]


def marker_value(response: str) -> LineValue | None:
    """The value of the last `#### N` line outside code fences and thinking; None when there is no marker.

    Markers with nothing but blanks between their lines are one answer: several different values are not an answer.
    """
    text = without_thinking(plain_text(response))
    if "```" in text:
        unfenced = _CODE_FENCE.sub("\n", text)
        text = unfenced if "####" in unfenced else text
    pieces = re.split(r"####+", text)[1:]
    if not pieces:
        return None
    values: list[LineValue] = []
    for piece in reversed(pieces):
        line, _, rest = piece.partition("\n")
        if not _ANNOTATION.sub("", line).strip(" *_`$:"):  # the number may stand on the line below its marker
            line, _, rest = rest.lstrip().partition("\n")
        if values and rest.strip(" \t\r\n*_`$"):
            break
        values.append(line_value(line))
    stated = {value.value for value in values if value.state == "value"}
    return values[0] if len(stated) <= 1 else LineValue("several")
