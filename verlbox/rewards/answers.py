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
from functools import lru_cache
from typing import Literal

MAX_LINE = 1000  # characters of the line that states a number
MAX_MARKERS = 100  # neighbouring markers looked at
MAX_PROSE = 20_000  # characters at the end of a text in which a bare answer is looked for
MAX_DIGITS = 400  # Python's int() itself refuses more than 4,300; no answer of GSM8K or MATH has more than 40

# What NFKC would spoil or leaves alone: superscripts become exponents, every minus sign becomes the plain one, and
# invisible characters and the private ones that equivalence.py marks words with are dropped.
_SUPERSCRIPTS = {ord(char): f"^{digit}" for char, digit in zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)}
_CHARACTERS = {
    **_SUPERSCRIPTS,
    **{ord(char): "-" for char in "−‒–—﹣－"},
    **{ord(char): None for char in "\u200b\u200c\u200d\u2060\ufeff\u00ad\ue000\ue001\ue002"},
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
    else:  # never closed: only an explicit answer block ends it
        block = text.find("<answer>", position)
        kept.append(text[block:] if block >= 0 else "")
    return "\n".join(kept)


# ------------------------------------------------------------------------------------------ `#### N` lines

_CODE_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_ANNOTATION = re.compile(r"<<[^<>]*>>|<\|[^<>|]*\|>|</?[A-Za-z][^<>]*>")
_LATEX_NOISE = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|boxed|fbox)\s*\{|\\[()\[\]]|\\(?:[,;:! ]|quad|qquad)")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,)(?=\d{3})")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\s?\^\s?\{?\d+\}?|(?<=[A-Za-z])(?<!\d[eE])\d+(?![\d.,]*\d)")
_DECIMAL = (
    r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d|\s*/)(?:\.\d+)?"
    r"|\d+(?:\.\d+)?|(?<![A-Za-z\d])\.\d+"
)
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
    value = Fraction(re.sub(r"[,\s]", "", number["value"])) * Fraction(f"1{number['exponent'] or ''}")
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


@lru_cache(maxsize=4096)
def line_value(line: str) -> LineValue:
    """The number that the text after a marker states, with currency, units, working and markdown around it.

    `48 + 24 = 72` and `72 = 48 + 24` state 72; `48 + 24` states nothing; `72 or 73` states several values.
    """
    if len(line) > MAX_LINE:
        return LineValue("too_long")
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


def has_marker(response: str) -> bool:
    """Whether a `####` line stands outside thinking."""
    return "####" in without_thinking(response)


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
        if len(values) == MAX_MARKERS:
            break
    stated = {value.value for value in values if value.state == "value"}
    return values[0] if len(stated) <= 1 else LineValue("several")


# ------------------------------------------------------------------------------------------------- boxes

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")


def matching_braces(text: str) -> dict[int, int]:
    """Position of each opening brace -> position of its closing one, in one pass; escaped braces do not count."""
    closing: dict[int, int] = {}
    stack: list[int] = []
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match[0] == "{":
            stack.append(match.start())
        elif match[0] == "}" and stack:
            closing[stack.pop()] = match.start()
    return closing


@dataclass(frozen=True)
class Box:
    """One outermost box: its content (None when it never ends) and where it stands."""

    content: str | None
    start: int
    end: int


def _boxes(text: str) -> list[Box]:
    """The outermost non-empty boxes of a text, in order; `\\boxed 5` without braces counts."""
    closing = matching_braces(text)
    found: list[Box] = []
    for match in _BOX.finditer(text):
        if found and match.start() < found[-1].end:
            continue
        at = match.end()
        if at < len(text) and text[at] == "{":
            if at not in closing:
                found.append(Box(None, match.start(), match.end()))
            elif text[at + 1 : closing[at]].strip():
                found.append(Box(text[at + 1 : closing[at]], match.start(), closing[at] + 1))
        else:
            bare = re.compile(r"-?\d+(?:[.,/]\d+)*|\\[A-Za-z]+").match(text, at)
            if bare:
                found.append(Box(bare[0], match.start(), bare.end()))
    return found


_GAP_NOISE = re.compile(r"\\(?:text|mbox)\s*\{|\\q?quad|\\[()\[\],;:! ]|[$}*]|\\+(?=\s|$)")
_GAP = re.compile(
    r"[\s.,;+&]*|[^.!?\n]{0,40}(?:,|;|\+|&|\band|\bor|和|或)\s*(?:[A-Za-z]\w{0,3}(?:_\{?\w+\}?)?\s*=)?\s*"
)


def boxed_content(text: str) -> str | None:
    """The last box; neighbouring ones (`\\boxed{1}, \\boxed{2}`) are one list. None without, or when it never ends."""
    boxes = _boxes(text)
    if not boxes or boxes[-1].content is None:
        return None
    contents: list[str] = [boxes[-1].content]
    for previous, current in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        gap = text[previous.end : current.start]
        if previous.content is None or len(gap) > 80 or not _GAP.fullmatch(_GAP_NOISE.sub(" ", gap).strip()):
            break
        contents.append(previous.content)
    distinct = list(dict.fromkeys(content.strip() for content in reversed(contents)))
    return ", ".join(distinct)


_ANSWER_BLOCK = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
_SAID = re.compile(
    r"(?:final\s+answer|answer|solution|答案)\s*(?:\*\*)?\s*(?:is|are|be|:|：|=|为|是)+\s*(?:\*\*)?\s*:?\s*(?=([^\n]{1,400}))",
    re.IGNORECASE,
)
_MATH_SEGMENT = re.compile(r"\$\$([^$]+)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


_SAID_NUMBER = re.compile(
    r"(?:\banswer\s+is|\banswer\s*[:：]|^[ \t]*A[ \t]*:|答案[是为：:]+)([^\n]{1,200})", re.IGNORECASE | re.MULTILINE
)


def stated_value(response: str) -> LineValue | None:
    """The number a response commits to in any of the usual forms; None when it commits to nothing.

    Boxes, then `#### N` lines (a box and a marker that differ are several values), then an `<answer>` block, then
    `answer is N` or a line `A: N`.
    """
    text = plain_text(without_thinking(response))
    marker = marker_value(text)
    blocks = _ANSWER_BLOCK.findall(text)
    boxed = [content for content in map(boxed_content, blocks) if content is not None]
    if not boxed and (last := boxed_content(text)) is not None:
        boxed = [last]
    stated = [line_value(content) for content in boxed] + ([marker] if marker else [])
    if not stated:
        said = [_SENTENCE_END.split(match[1].strip(" *"), maxsplit=1)[0] for match in _SAID_NUMBER.finditer(text)]
        stated = [line_value(line) for line in ([block for block in blocks if block.strip()] or said[-1:])]
    if not stated:
        return None
    different = {value.value for value in stated if value.state == "value"}
    return stated[0] if len(different) <= 1 else LineValue("several")


def committed(response: str) -> tuple[str, ...]:
    """The answers a response commits to: none, one, or several that must all be right.

    The contents of `<answer>` blocks' boxes, else the last box, else the last `#### N` line, else a bare `<answer>`
    block, else `answer is $...$`; all outside thinking.
    """
    text = without_thinking(response)
    blocks = _ANSWER_BLOCK.findall(text)
    boxed = [content for content in map(boxed_content, blocks) if content is not None]
    if boxed:
        return tuple(dict.fromkeys(content.strip() for content in boxed))
    if _BOX.search(text):
        content = boxed_content(text)
        if content is not None:
            return (content.strip(),)
        if any(box.content is None for box in _boxes(text)):
            return ()
    if "####" in text:
        line = text.rpartition("####")[2].partition("\n")[0]
        line = _ANNOTATION.sub(" ", line).strip(" *_`\t")
        return (line,) if line else ()
    bare = [block.strip() for block in blocks if block.strip()]
    if bare:
        return tuple(dict.fromkeys(bare))
    said = [match[1] for match in _SAID.finditer(text)]
    if said:
        segment = _MATH_SEGMENT.match(said[-1].strip())
        if segment and not _BOX.search(segment[0]):
            return (next(group for group in segment.groups() if group).strip(),)
    return ()


_PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or)\b)[A-Za-z]{2,}(?![A-Za-z(])")
_BRACKETED = re.compile(r"\[([^\[\],]{1,80})\]")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$|\")|\s(?:because|since|as|I hope)\s", re.IGNORECASE)
_LABELLED = re.compile(r"[^\d\\$:：]{2,30}[:：]\s*(-?\d[\d.,]*)\s*[$€£¥][^\d]*")
# Words and a `$` that ends its line, with another `$` below: inline mathematics stands on one line, display may not.
_BROKEN_SEGMENT = re.compile(r"[^$]*[A-Za-z:]\s*\$[ \t]*\n[^$]*\$[^$]*")
# In prose letters are words. A letter in a sum, a product or a power is an unknown, and such an expression has no
# visible end unless it is delimited or boxed; numbers, units, labels (`x = 5`) and options (`B`) have one.
_LABEL = re.compile(r"\s*[A-Za-z]\w?(?:\([A-Za-z]\))?\s*=\s*")
_UNIT_QUOTIENT = re.compile(r"(?<=\d)\s+[a-z]{1,2}\s*/\s*[a-z]{1,3}\W*$")
_UNKNOWN = r"[A-DF-HJ-Za-df-hj-z](?![A-Za-z])"  # e and i are constants
_OPEN_EXPRESSION = re.compile(
    rf"(?<![\\A-Za-z]){_UNKNOWN}\s*[-+*/^]\s*[\w(\\]|[\w)}}]\s*[-+*/^]\s*(?:\d+(?:\.\d+)?\s*)?{_UNKNOWN}"
)
_LAST_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:[.,/]\d+)?)\s*%?")


def bare_answer(text: str) -> str:
    """The answer in a text that is one already, or in the prose around it (offline comparison of bare answers)."""
    text = re.sub(r"<\|[^<>|]*\|>\S*", " ", text[-MAX_PROSE:]).strip()
    if "<think>" in text or "</think>" in text or "<answer>" in text or _BOX.search(text) or "####" in text:
        behind = text[max((box.end for box in _boxes(text)), default=0) :] if "</" not in text else ""
        final = re.search(r"final answer is:?\s*([^\n]{1,400})", behind, re.IGNORECASE)
        return _from_sentence(final[1]) if final else ", ".join(committed(text))
    segments = [next(group for group in match.groups() if group) for match in _MATH_SEGMENT.finditer(text)]
    if not segments and _BROKEN_SEGMENT.fullmatch(text):
        return ""
    prose = _PROSE.findall(_MATH_SEGMENT.sub(" ", re.sub(r"\\[A-Za-z]+\s*\{[^{}]*\}|\\[A-Za-z]+", " ", text)))
    label = bool(segments) and len(prose) == 1 and re.match(r"(?:answer|solution)\b", text, re.IGNORECASE) is not None
    if len(prose) < 3 and not label and not re.match(r"(?:final\s+)?answer\s*:", text, re.IGNORECASE):
        bracketed = re.fullmatch(r"([A-Za-z][^\[\]]*)\[([^\[\],]{1,80})\]\W*", text)
        labelled = _LABELLED.fullmatch(text)
        return bracketed[2] if bracketed else labelled[1] if labelled else text
    said = [match[1] for match in _SAID.finditer(text)]
    if said:
        return _from_sentence(said[-1])
    brackets = _BRACKETED.findall(text)
    if brackets and not segments:
        return str(brackets[-1])
    if segments:
        return segments[-1].strip()
    return _from_sentence(text)


def _from_sentence(sentence: str) -> str:
    """The mathematics, else the last number of the first sentence, else of the whole; empty without a clear end."""
    sentence = re.sub(r'\\?"', " ", sentence).strip()
    segments = [next(group for group in match.groups() if group) for match in _MATH_SEGMENT.finditer(sentence)]
    first = _SENTENCE_END.split(sentence.strip(), maxsplit=1)[0].strip()
    if segments and not _PROSE.search(_MATH_SEGMENT.sub(" ", first)):
        return first
    if not _PROSE.search(first):
        bare = _UNIT_QUOTIENT.sub("", _LABEL.sub("", first, count=1))
        return "" if not segments and _OPEN_EXPRESSION.search(bare) else first
    counted = _MATH_SEGMENT.sub(lambda m: m[0] if re.search(r"\d", m[0]) else " ", first)
    numbers = _LAST_NUMBER.findall(_UNIT_POWER.sub(" ", counted))
    if numbers:
        return str(numbers[-1]).strip()
    numbers = _LAST_NUMBER.findall(sentence)
    return str(numbers[-1]).strip() if numbers else first
