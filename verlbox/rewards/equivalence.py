"""Whether two answers have the same value: structure, units and exact arithmetic first, math-verify for the rest.

`decide(gold, answer)` never starts a process and imports no sympy: True, False, or None (undecided). `judge` asks the
worker pool about what stays undecided. What counts as equal is written down in docs/rewards.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

from verlbox.rewards import answers, expressions, pool
from verlbox.rewards.expressions import Node
from verlbox.rewards.reasons import Reason

MAX_ANSWER = 4000  # characters; the longest answer of MATH has 159
MAX_ITEMS = 64
MAX_DEPTH = 40  # brackets within brackets; MATH's answers have at most 4

# --------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class Scalar:
    """One expression; `unit` is the words behind it, `percent` whether it was written as a percentage."""

    node: Node
    text: str
    unit: str = ""
    percent: bool = False
    equation: Node | None = None  # `y = 2x + 1`: its two sides' difference, beside the value behind the label


@dataclass(frozen=True)
class Words:
    """Words, dates, names, mixtures of text and numbers: compared letter by letter, case and blanks aside."""

    text: str


@dataclass(frozen=True)
class Opaque:
    """Something mathematical that is not covered here."""

    text: str


@dataclass(frozen=True)
class Group:
    """An ordered, bracketed group: tuple, interval, vector."""

    opening: str
    closing: str
    items: tuple[Value, ...]


@dataclass(frozen=True)
class Bag:
    """A set or list whose order is free. `bare`: no brackets were written, `labels`: `x=1, y=2`."""

    items: tuple[Value, ...]
    bare: bool = False
    labels: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Union:
    """A union of sets."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class Grid:
    """A matrix by rows."""

    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True)
class Relation:
    """`left op right`, as left - right against zero. `op` is =, <, <= or !=."""

    op: str
    difference: Node
    interval: Group | None = None


@dataclass(frozen=True)
class Based:
    """Digits in a stated base: `204_5`."""

    digits: str
    base: str


@dataclass(frozen=True)
class Ratio:
    """`7:32`, or a time of day."""

    parts: tuple[Node, ...]
    text: str


Value = Scalar | Words | Opaque | Group | Bag | Union | Grid | Relation | Based | Ratio

# --------------------------------------------------------------------------------------------- spelling

_TEXT_OPEN, _TEXT_CLOSE = "\ue000", "\ue001"  # mark words inside mathematics
_SPELLING: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\(?=(?:frac|left|right|boxed|sqrt|text|le|ge|in|infty|cup|pi)(?![A-Za-z]))", r"\\"),  # escaped twice
        (r"(?<=\d)(?:\s?\{\s?,\s?\}|,\s?\\!|\\,|\\!,|\\ )(?=\d{3}(?!\d))", ""),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?(?=[^A-Za-z0-9]|$)", ""),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|phantom\s*-?|tag\*?\{[^{}]*\}|label\{[^{}]*\}|hfill)", " "),
        (r"\\q?quad(?=[^a-zA-Z]|[a-z](?![a-z]))", " "),
        (r"\\q?quad", " "),
        (r"\\mathbb\s*(?:\{\s*R\s*\}|R(?![A-Za-z]))|ℝ", r"(-\\infty,\\infty)"),
        (r"(?<!\\)\\[,;:! >]|\\(?:thinspace|enspace|space)(?![A-Za-z])|(?<!~)~(?!~)|&nbsp;", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:lbrace|lbrack)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace|rbrack)(?![A-Za-z])", r"\\}"),
        (r"\\(?:leqslant|leq|le)(?![A-Za-z])|≤|⩽|<\s?=|=<", " \\\\le "),
        (r"\\(?:geqslant|geq|ge)(?![A-Za-z])|≥|⩾|>\s?=", " \\\\ge "),
        (r"\\(?:neq|ne)(?![A-Za-z])|≠|!=|\\not\s*=", " \\\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\(?:approx|simeq|thickapprox)(?![A-Za-z])|≈", " ≈ "),
        (r"\\(?:cdot|times|ast|cdotp)(?![A-Za-z])|[·×⋅∗]", "*"),
        (r"\\div(?![A-Za-z])|÷", "/"),
        (r"π", r"\\pi "),
        (r"∞", r"\\infty "),
        (r"√\s*(?=\()", r"\\sqrt"),
        (r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
        (r"∪", r"\\cup "),
        (r"\\varnothing(?![A-Za-z])|∅|\\\{\s*\\\}", r"\\emptyset "),
        (r"∈", r"\\in "),
        (r"±|\+/-|\+-", r"\\pm "),
        (r"\+\s*\\infty", r"\\infty"),
        (r"θ", r"\\theta "),
        (r"α", r"\\alpha "),
        (r"β", r"\\beta "),
        (r"\^\s*\{\s*(?:\\circ|∘|°)\s*\}|\^\s*(?:\\circ|∘|°)|\\degree(?:s|Celsius)?(?![A-Za-z])|°|º", " \ue002 "),
        (r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])", "|"),
        (r"\\(?:langle|rangle)(?![A-Za-z])", ""),
        (r"\\(?:\$|pounds|euro)|[$£€¥₹]", " "),
        (r"\\%|％", "%"),
        (r"\\(?:boldsymbol|mathbb|mathcal|bm|vec|mathit|mathsf)(?![A-Za-z])", " "),
    )
)
_TEXT_COMMAND = re.compile(
    r"\\(text(?:bf|it|rm|sf|tt|normal|up)?|textnormal|mbox|hbox|mathrm|mathbf|operatorname\*?|emph|rm|bf)(?![A-Za-z])\s*"
)
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])(?:\s*\{\s*\})?")
_JOINING = re.compile(r"[\s,;]*(?:and|or|&|和|或|以及)?[\s,;]*")
_UNITS = """
    cm mm km m dm in ft yd mi kg g mg lb lbs oz gm l ml sec s min h hr hrs mph kph inch inches foot feet yard yards mile
    miles meter meters metre metres centimeter centimeters kilometers gram grams kilogram kilograms pound pounds second
    seconds minute minutes hour hours day days week weeks month months year years dollar dollars cent cents euro euros
    yuan usd rs unit units square squared sq cubic cubed degree degrees radian radians percent percentage pct per people
    ways students points times pieces items pm am
"""
_UNIT_WORDS = frozenset(_UNITS.split())
_CANONICAL_UNIT = {
    word: names.split()[0]
    for names in (
        "cm centimeter centimeters centimetre centimetres",
        "mm millimeter millimeters",
        "km kilometer kilometers kilometre kilometres",
        "m meter meters metre metres",
        "in inch inches",
        "ft foot feet",
        "yd yard yards",
        "mi mile miles",
        "kg kilogram kilograms",
        "g gm gram grams",
        "lb lbs pound pounds",
        "oz ounce ounces",
        "s sec second seconds",
        "min minute minutes",
        "h hr hrs hour hours",
        "day days",
        "week weeks",
        "month months",
        "year years",
        "dollar dollars usd",
        "cent cents",
        "am",
        "pm",
    )
    for word in names.split()
}


def _canonical(unit: str) -> str:
    """One name for all spellings of a unit; empty when it is not in the table."""
    return _CANONICAL_UNIT.get(unit.replace(".", "").strip(), "")


def _unwrap_text(text: str) -> str:
    """`\\text{...}` and relatives: words between markers, a lone letter or number bare, joining words as commas."""
    parts: list[str] = []
    position = 0
    closing = answers.matching_braces(text)
    for match in _TEXT_COMMAND.finditer(text):
        if match.start() < position:
            continue
        parts.append(text[position : match.start()])
        position = match.end()
        if position < len(text) and text[position] == "{" and position in closing:
            inner = text[position + 1 : closing[position]]
            position = closing[position] + 1
            parts.append(_spelled_text(inner, match[1]))
    parts.append(text[position:])
    return "".join(parts)


def _spelled_text(inner: str, command: str) -> str:
    inner = _TEXT_COMMAND.sub(" ", inner).replace("\\$", " ").replace("$", "").replace("\\ ", " ")
    inner = inner.replace("{", "").replace("}", "")
    if _JOINING.fullmatch(inner) and inner.strip():
        return " , "
    bare = inner.strip().strip(".")
    if len(bare) <= 1 and command.startswith(("math", "oper", "text", "rm", "bf")) and not inner.startswith(" "):
        return bare
    if re.fullmatch(r"\(\w\)|[\d.,:/+-]+|[-+*/^()\d\s.]+|[0-9A-F]*\d[0-9A-F]*", bare):
        return bare
    parts = [part for part in re.split(r",|\band\b|\bor\b", bare) if part.strip()]
    if len(parts) > 1:
        return ", ".join(_spelled_text(part.strip(), command) for part in parts)
    if command.startswith("oper") or (command == "mathrm" and bare in ("sin", "cos", "tan", "log", "ln", "exp")):
        return "\\" + bare + " "
    if re.fullmatch(r"\d+:\d\d\s*[APap]\.?[Mm]\.?", bare):
        return bare[: bare.index(":") + 3] + f" {_TEXT_OPEN}{bare[bare.index(':') + 3 :]}{_TEXT_CLOSE}"
    return f"{_TEXT_OPEN}{inner}{_TEXT_CLOSE}"


def spelled(text: str) -> str:
    """An answer in one spelling; words are left between private markers, `\\boxed` and delimiters are gone."""
    text = re.sub(r"\s+", " ", answers.plain_text(text))
    text = re.sub(r"\\(?:\(|\)|\[|\])", " ", text)
    for _ in range(3):
        inner = answers.boxed_content(text)
        if inner is None:
            break
        text = inner
    text = _EMPTY_BOX.sub(" ", text)
    for pattern, replacement in _SPELLING[:1]:
        text = pattern.sub(replacement, text)
    text = _unwrap_text(text)
    for pattern, replacement in _SPELLING[1:]:
        text = pattern.sub(replacement, text)
    text = re.sub(r"(?<![\\A-Za-z])(?:\*\*|__)(?=\S)(.*?\S)(?:\*\*|__)(?![\w(])", r"\1", text) if "**" in text else text
    text = re.sub(r"\s+", " ", text).strip()
    while text and (text[-1] in ".,;:\\" or text[-1].isspace()):
        text = text[:-1]
    return text


# --------------------------------------------------------------------------------------------- structure

_OPENING, _CLOSING = "([{", ")]}"


def _split(text: str, separators: str) -> list[str]:
    """The pieces of `text` between separators that stand outside all brackets, braces and texts."""
    pieces: list[str] = []
    depth, start, index = 0, 0, 0
    while index < len(text):
        char = text[index]
        if char == "\\" and index + 1 < len(text):
            following = text[index + 1]
            depth += (following == "{") - (following == "}")
            index += 2
            continue
        if char in _OPENING or char == _TEXT_OPEN:
            depth += 1
        elif char in _CLOSING or char == _TEXT_CLOSE:
            depth -= 1
        elif char in separators and depth == 0:
            pieces.append(text[start:index])
            start = index + 1
        index += 1
    pieces.append(text[start:])
    return pieces


def _enclosed(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) when one pair of brackets spans the whole text; `\\{` counts as a bracket."""
    if len(text) < 2:
        return None
    opening = text[:2] if text.startswith("\\{") else text[0]
    closing = text[-2:] if text.endswith("\\}") else text[-1]
    if (opening == "\\{") != (closing == "\\}") or (opening == "{") != (closing == "}"):
        return None
    if opening != "\\{" and (opening not in _OPENING or closing not in _CLOSING):
        return None
    depth, index = 0, 0
    while index < len(text):
        if text[index] == "\\" and index + 1 < len(text):
            depth += (text[index + 1] == "{") - (text[index + 1] == "}")
            index += 2
        else:
            depth += (text[index] in _OPENING) - (text[index] in _CLOSING)
            index += 1
        if depth <= 0 and index < len(text):
            return None
    return (opening, text[len(opening) : len(text) - len(closing)].strip(), closing) if depth == 0 else None


_NAME = r"(?:\\?[A-Za-z]+|\\(?:overline|angle|triangle|vec|widehat)\s*\{?[A-Za-z ]+\}?)"
_LABEL = re.compile(
    rf"\s*(?:{_NAME}(?:_\{{?\w+\}}?)?'*(?:\s*\([^=()]*\))?|\|[A-Za-z]{{1,3}}\||\\angle\s*[A-Z]{{1,3}}"
    rf"|\(\s*{_NAME}(?:_\{{?\w+\}}?)?(?:\s*,\s*{_NAME}(?:_\{{?\w+\}}?)?)*\s*\)"
    rf"|{_NAME}(?:_\{{?\w+\}}?)?\s*:\s*{_NAME}(?:_\{{?\w+\}}?)?"
    rf"|\\(?:sin|cos|tan|cot|sec|csc|log|ln)\s*\(?\s*\\?[A-Za-z]+\s*\)?"
    r"|\ue000[^\ue001]*\ue001|)\s*"
)
_MEMBER = re.compile(r"^\s*[A-Za-z](?:\([A-Za-z]\))?(?:_\{?\w+\}?)?\s*\\in(?![A-Za-z])\s*")
_RELATION = re.compile(r"\\(le|ge|ne)(?![A-Za-z])|([<>])")
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
_WORD_RUN = re.compile(r"(?<![\\A-Za-z_])[A-Za-z]{2,}(?:\.[a-z]\.?)?(?![A-Za-z])")
_EMPTY_WORDS = re.compile(r"^(?:the|an?|about|approximately|is|equals|answer)\s+", re.IGNORECASE)
_TRUTH = {"no": "false", "yes": "true"}
_FUNCTIONS = """
    sin cos tan sec csc cot log ln lg exp sqrt pi arcsin arccos arctan sinh cosh tanh abs binom cbrt asin acos atan
"""
_FUNCTION_WORDS = frozenset(_FUNCTIONS.split())


def _flat(text: str) -> str:
    """Letters, digits and signs only, lower case: the form in which words are compared."""
    text = re.sub(r"\\(?:text|mbox)", "", text)
    flat = re.sub(r"[\s{}$\ue000\ue001.,;:!?\"“”‘’]+", "", _EMPTY_WORDS.sub("", text.strip(" \ue000\ue001"))).lower()
    return _TRUTH.get(flat, flat)


def _mark_words(text: str) -> str:
    """Plain letter runs that are words, not products of symbols, put between the text markers."""

    def mark(match: re.Match[str]) -> str:
        run = match[0]
        if run.lower() in _FUNCTION_WORDS:
            return run
        if run.lower() in _UNIT_WORDS or len(run) >= 4:
            return f"{_TEXT_OPEN}{run}{_TEXT_CLOSE}"
        return run

    pieces = re.split(f"({_TEXT_OPEN}[^{_TEXT_CLOSE}]*{_TEXT_CLOSE})", text)
    return "".join(piece if piece.startswith(_TEXT_OPEN) else _WORD_RUN.sub(mark, piece) for piece in pieces)


_TRAILING_TEXT = re.compile(r"\s*\ue000([^\ue001]*)\ue001\s*(?:\^\s*\{?\s*\d\s*\}?|/\s*\ue000[^\ue001]*\ue001)?\s*$")
_HALF_DAY = re.compile(r"(?<=\d)\s*([AaPp])(?:\.\s?[Mm]\.?|[Mm])\s*$")
_TRAILING_CJK = re.compile(r"(?<=[\d}%)])\s*[\u3400-\u9fff]{1,4}$")
_LETTER_UNIT = re.compile(r"(?<=[\d}])\s+(?:[mgsh]|[ck]m|mm)(?:\s*\^\s*\{?[23]\}?)?\s*$|(?<=\d)m\^[23]$")
_THOUSANDS = re.compile(r"(?<![\d.,\w])([1-9]\d{0,2}(?:,\d{3})+)(?![\d,]|,?\d)")
_BASED = re.compile(
    r"\(?(-?[0-9A-F]+(?:\.[0-9A-F]+)?)\)?_(?:\{\s*(\d+)\s*\}|(\d+)|\{?\s*\ue000\s*(\w+)\s*\ue001\s*\}?)"
)
_MATRIX = re.compile(r"^\s*\\begin\{([bpBv]?matrix|array|smallmatrix)\}(.*)\\end\{\1\}\s*$", re.DOTALL)
_BASE_NAMES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}


def _scalar(text: str) -> Value:
    """One expression with its unit, or words, or something opaque."""
    original = text
    if "\\begin" in text:
        return Opaque(original)
    degrees = "\ue002" in text
    if degrees and re.search(r"(?:sin|cos|tan|sec|csc|cot)", text):
        text = re.sub(r"(\d+(?:\.\d+)?)\s*\ue002", r"(\1*\\pi/180)", original)
    text = text.replace("\ue002", " ")
    text = re.sub(r"(?<=[\d)}])\s+[CF]\s*$", "", text) if degrees else text
    text = _HALF_DAY.sub(lambda m: f" {_TEXT_OPEN}{m[1].lower()}m{_TEXT_CLOSE}", text)
    text = _mark_words(text.strip().lstrip("≈ "))
    percent = False
    units: list[str] = []
    while True:
        text = text.rstrip(" .,;")
        if text.endswith("%"):
            text, percent = text[:-1], True
            continue
        match = _TRAILING_TEXT.search(text)
        if match and match.start() > 0:
            words = match[1].strip().lower()
            if words.strip(" .") in ("percent", "percentage", "pct"):
                percent = True
            else:
                units.insert(0, words)
            text = text[: match.start()]
            continue
        shorter = _TRAILING_CJK.sub("", text)
        if shorter == text:
            shorter = _LETTER_UNIT.sub("", text)
        if shorter == text:
            break
        text = shorter
    # A word in front of a number is a label (`the value is 5`) only when it ends like one.
    leading = re.match(r"\s*\ue000([^\ue001]*?(?:\bis|=|:|equals?)\s*)\ue001\s*(?=.)", text)
    if leading:
        text = text[leading.end() :]
    based = _BASED.fullmatch(text.strip())
    if based:
        return Based(based[1], based[2] or based[3] or _BASE_NAMES.get(based[4].lower(), based[4].lower()))
    if not text.strip() or _TEXT_OPEN in text or (units and re.fullmatch(r"\s*[A-Za-z]{2,}\s*", text)):
        return Words(_flat(original))
    if re.fullmatch(r"\s*[A-Za-z]{2,}\s*", text) and text.strip().lower() not in _FUNCTION_WORDS and not units:
        return Words(_flat(text)) if len(text.strip()) > 3 else _short_word(text.strip())
    pieces = _split(text, ":")
    if len(pieces) in (2, 3):
        try:
            return Ratio(tuple(expressions.parse(piece.strip()) for piece in pieces), " ".join(units))
        except expressions.Refused:
            return Opaque(original)
    try:
        node = expressions.parse(text.strip())
    except expressions.Refused:
        if re.search(r"[\u3400-\u9fff]", text) or not re.search(r"[\d\\=+^*/]", text):
            return Words(_flat(original))
        return Opaque(original)
    return Scalar(node, re.sub(r"\s+", "", text), " ".join(units), percent)


def _short_word(run: str) -> Value:
    """Two or three letters may be a word or a product: kept as a product, compared as either."""
    try:
        return Scalar(expressions.parse(run), run)
    except expressions.Refused:
        return Words(_flat(run))


def _infinite(text: str) -> str:
    """`\\infty` as a symbol of its own that the expression reader accepts."""
    return re.sub(r"\\infty(?![A-Za-z])", " Z_{inf} ", text)


def _equation(text: str) -> Value | None:
    """What `a = b = c` states: the value behind a label or a calculation, else an equation; None without `=`."""
    sides = [side.strip() for side in _split(text, "=")]
    if len(sides) < 2:
        return None
    if not sides[-1]:
        return None
    if _LABEL.fullmatch(sides[0]) or len(sides) > 2:
        value = _value(sides[-1])
        if isinstance(value, Scalar) and len(sides) == 2 and expressions.symbols(value.node):
            try:
                label = expressions.parse(sides[0])
            except expressions.Refused:
                return value
            if label.kind == "symbol":
                return replace(value, equation=Node("+", (label, Node("neg", (value.node,)))))
        return value
    right = _value(sides[1])
    left = _value(sides[0])
    if not isinstance(left, Scalar):
        constant = isinstance(right, Scalar) and not expressions.symbols(right.node)
        return right if constant and isinstance(left, (Opaque, Words)) else Opaque(text)
    if not isinstance(right, Scalar):
        return Opaque(text)
    if not expressions.symbols(left.node) and not expressions.symbols(right.node):
        return right
    return Relation("=", Node("+", (left.node, Node("neg", (right.node,)))))


def _inequality(text: str) -> Value | None:
    """`x < 3`, `-2 \\le x \\le 7`; None without a relation sign."""
    marks = list(_RELATION.finditer(text))
    if not marks:
        return None
    sides: list[str] = []
    position = 0
    for mark in marks:
        sides.append(text[position : mark.start()])
        position = mark.end()
    sides.append(text[position:])
    ops = [{"le": "<=", "ge": ">=", "ne": "!="}.get(mark[1] or "", mark[2] or "") for mark in marks]
    nodes = []
    for side in sides:
        try:
            nodes.append(expressions.parse(_infinite(side.strip())))
        except expressions.Refused:
            return Opaque(text)
    if len(ops) == 1:
        left, right, op = nodes[0], nodes[1], ops[0]
        interval = _ray(left, op, right)
        if op in (">", ">="):
            left, right, op = right, left, _FLIP[op]
        return Relation(op, Node("+", (left, Node("neg", (right,)))), interval)
    if len(ops) == 2 and nodes[1].kind in ("symbol", "*") and not expressions.symbols(nodes[0]):
        if all(op in (">", ">=") for op in ops):
            nodes.reverse()
            ops = [_FLIP[op] for op in reversed(ops)]
        simple = nodes[1].kind == "symbol" or all(arg.kind == "symbol" for arg in nodes[1].args)
        if all(op in ("<", "<=") for op in ops) and simple and not expressions.symbols(nodes[2]):
            opening, closing = "[" if ops[0] == "<=" else "(", "]" if ops[1] == "<=" else ")"
            return Group(opening, closing, (Scalar(nodes[0], ""), Scalar(nodes[2], "")))
    return Opaque(text)


_INFINITY = Node("symbol", name="Z_inf")


def _ray(left: Node, op: str, right: Node) -> Group | None:
    """The interval that `x < 3` describes."""
    if right.kind == "symbol" and not expressions.symbols(left):
        left, right, op = right, left, _FLIP[op]
    if left.kind != "symbol" or expressions.symbols(right) or op == "!=":
        return None
    bound = Scalar(right, "")
    if op in ("<", "<="):
        return Group("(", "]" if op == "<=" else ")", (Scalar(Node("neg", (_INFINITY,)), ""), bound))
    return Group("[" if op == ">=" else "(", ")", (bound, Scalar(_INFINITY, "")))


def _grid(text: str) -> Grid | None:
    match = _MATRIX.match(text)
    if match is None:
        enclosed = _enclosed(text)
        match = _MATRIX.match(enclosed[1]) if enclosed else None
    if match is None or match[1] == "vmatrix" or "\\begin" in match[2]:
        return None
    body = re.sub(r"^\s*\{[clr|@{}\s]*\}", "", match[2]) if match[1] == "array" else match[2]
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", body.replace("\\hline", "")) if row.strip()]
    if not rows or len(rows) > MAX_ITEMS:
        return None
    return Grid(tuple(tuple(_value(cell) for cell in row.split("&")) for row in rows))


def _items(text: str, separators: str) -> list[str]:
    """The non-empty list items of a text; a joining word between two items is a separator as well."""
    text = re.sub(r"(?<=[\d)}\]\s.])\s*,?\s*(?<![A-Za-z\\])(?:and|or|和|或)(?![A-Za-z])\s*(?=[\s\d(\[\\-])", ",", text)
    return [piece.strip() for piece in _split(text, separators) if piece.strip()]


def _list(text: str) -> Value | None:
    """A list without brackets, `\\pm` spelled out; None when the text is one item."""
    semicolons = _items(text, ";")
    if len(semicolons) > 1:
        groups = [_items(part, ",") for part in semicolons]
        if all(len(group) > 1 for group in groups):
            return Bag(tuple(Group("(", ")", tuple(_value(item) for item in group)) for group in groups), bare=True)
    items = _items(text, ",;")
    if len(items) > MAX_ITEMS:
        return Opaque(text)
    if len(items) < 2:
        return None
    labels = tuple(item.partition("=")[0].replace(" ", "") if "=" in item else "" for item in items)
    values = _flattened(_value(item) for item in items)
    return Bag(values, bare=True, labels=labels if len(labels) == len(values) else ())


def _flattened(values: Iterable[Value]) -> tuple[Value, ...]:
    """The elements of a list or set, where `1 \\pm \\sqrt{5}` stands for two."""
    return tuple(
        item for value in values for item in (value.items if isinstance(value, Bag) and value.bare else (value,))
    )


def _value(text: str) -> Value:
    """The value a spelled answer denotes."""
    text = text.strip().strip("≈").strip()
    enclosed = _enclosed(text)
    while enclosed and enclosed[0] == "{" and len(_split(enclosed[1], ",")) == 1:
        text = enclosed[1].rstrip(" .,;")
        enclosed = _enclosed(text)
    if text == "\\emptyset":
        return Bag(())
    grid = _grid(text)
    if grid is not None:
        return grid
    member = _MEMBER.match(text)
    if member:
        return _value(text[member.end() :])
    exact = _split(text, "≈")
    if len(exact) > 1 and exact[0].strip():
        return _value(exact[0])
    listed = _list(text)
    if listed is not None:
        return listed
    unions = re.split(r"\\cup(?![A-Za-z])", text)
    if len(unions) > 1:
        return Union(tuple(_value(part) for part in unions))
    equation = _equation(text)
    if equation is not None:
        return equation
    inequality = _inequality(text)
    if inequality is not None:
        return inequality
    if enclosed:
        return _bracketed(*enclosed)
    if "\\pm" in text or "\\mp" in text:
        plus = text.replace("\\pm", "+").replace("\\mp", "-")
        minus = text.replace("\\pm", "-").replace("\\mp", "+")
        return Bag((_value(plus), _value(minus)), bare=True)
    return _scalar(_infinite(text))


def _bracketed(opening: str, inside: str, closing: str) -> Value:
    separators = ";" if len(_split(inside, ";")) > 1 else ","
    items = [item.strip() for item in _split(inside, separators)]
    if len(items) > MAX_ITEMS:
        return Opaque(inside)
    if opening in ("\\{", "{"):
        if any(mark in inside for mark in ("\\mid", "|", "\\in")):
            return Opaque(inside)
        return Bag(_flattened(_value(item) for item in items if item))
    if len(items) == 1:
        return _value(inside) if inside else Opaque(inside)
    return Group(opening, closing, tuple(_value(item) for item in items))


@lru_cache(maxsize=8192)
def _parsed(text: str, thousands: bool) -> Value:
    try:
        return _value(_THOUSANDS.sub(lambda m: m[0].replace(",", ""), text) if thousands else text)
    except RecursionError:
        return Opaque(text)


# --------------------------------------------------------------------------------------------- comparison


def _every(results: Sequence[bool | None]) -> bool | None:
    """Three-valued `all`."""
    if any(result is False for result in results):
        return False
    return None if any(result is None for result in results) else True


def _same_scalars(gold: Scalar, answer: Scalar) -> bool | None:
    if gold.unit and answer.unit:
        units = [_canonical(unit) for unit in (gold.unit, answer.unit)]
        if all(units) and units[0] != units[1]:
            return False
    if gold.text and gold.text == answer.text:
        same: bool | None = True
    else:
        same = expressions.compare(gold.node, answer.node)
    if same is not True and _rounded_to_same(gold.node, answer.node):
        same = True
    if same is False and gold.percent != answer.percent:
        hundredth = Node("number", value=Fraction(1, 100))
        left, right = gold.node, answer.node
        if gold.percent:
            left = Node("*", (left, hundredth))
        else:
            right = Node("*", (right, hundredth))
        same = expressions.compare(left, right)
    return same


def _literal(node: Node) -> tuple[Fraction, int] | None:
    """(value, digits after the point) of a signed decimal literal."""
    sign = 1
    while node.kind == "neg":
        sign, node = -sign, node.args[0]
    return (sign * node.value, node.decimals) if node.kind == "number" else None


_LONG_DECIMAL = 6  # places from which a decimal stands for whatever value rounds to it


def _determined(decimal: Fraction, places: int, other: Node) -> bool:
    """Whether a decimal of four or more places determines the fraction `other`: it rounds or cuts to the decimal.

    Fractions with denominators of at most q differ by 1/q^2 or more. With q^2 <= 10^(places - 3) that is a thousand
    units of the last place, so that no other fraction as simple as this one is near: 2.6667 is 8/3, but 0.333 could be
    333/1000 as well as 1/3.
    """
    try:
        value = expressions.exact(other, {})
    except (expressions.Inexact, ZeroDivisionError, RecursionError):
        return False
    if places < 4 or value.denominator**2 * 1000 > 10**places:
        return False
    scaled, wanted = abs(value) * 10**places, abs(decimal) * 10**places
    return decimal * value > 0 and wanted in (scaled // 1, (scaled + Fraction(1, 2)) // 1)


def _rounded_to_same(left: Node, right: Node) -> bool:
    """Whether one is a decimal that the other, written otherwise, rounds or cuts to: long enough to mean only that."""
    for decimal, other in ((left, right), (right, left)):
        literal = _literal(decimal)
        if literal is None or literal[1] == 0:
            continue
        other_literal = _literal(other)
        if other_literal is not None and other_literal[1] > 0:
            continue
        if literal[1] < _LONG_DECIMAL:
            if _determined(*literal, other):
                return True
            continue
        value = expressions.approximate(other)
        if value is None or abs(value.imag) > 1e-12 or value.real == 0:
            continue
        difference = abs(float(literal[0]) - value.real)
        if difference <= 1.000001 * 10.0 ** -literal[1] + 1e-14 * abs(value.real) and difference <= 1e-5 * abs(
            value.real
        ):
            return True
    return False


def _same_bags(gold: Sequence[Value], answer: Sequence[Value]) -> bool | None:
    """Equality as sets: every element of each has an equal one in the other."""
    undecided = False
    for these, those, flip in ((gold, answer, False), (answer, gold, True)):
        for this in these:
            results = [_same(that, this) if flip else _same(this, that) for that in those]
            if any(result is True for result in results):
                continue
            if all(result is False for result in results):
                return False
            undecided = True
    return None if undecided else True


def _proportional(gold: Relation, answer: Relation) -> bool | None:
    """Whether two relations are multiples of each other (by a positive number, for inequalities)."""
    if gold.op != answer.op:
        return False if {gold.op, answer.op} <= {"<", "<=", "="} else None
    names = sorted(expressions.symbols(gold.difference) | expressions.symbols(answer.difference))
    if not names:
        return None
    ratios: list[Fraction] = []
    for round_number in range(3):
        at = {name: expressions.point(name, round_number) for name in names}
        try:
            a, b = expressions.exact(gold.difference, at), expressions.exact(answer.difference, at)
        except (expressions.Inexact, ZeroDivisionError, RecursionError):
            return None
        if a == 0 or b == 0:
            return None if a == b else False
        ratios.append(a / b)
    if ratios[0] == ratios[1] == ratios[2]:
        return ratios[0] > 0 or gold.op in ("=", "!=")
    # Different multiples at different points: different lines and polynomials, but xy = 1 and 1/x = y agree.
    polynomial = not any(_divides_by_symbol(value.difference) for value in (gold, answer))
    return False if polynomial else None


def _divides_by_symbol(node: Node) -> bool:
    if node.kind == "/" and expressions.symbols(node.args[1]):
        return True
    if node.kind in ("^", "\\lvert", "root") and (node.kind != "^" or node.args[1].kind != "number"):
        return bool(expressions.symbols(node))
    return any(_divides_by_symbol(arg) for arg in node.args)


def _same(gold: Value, answer: Value) -> bool | None:
    """Equality of two values; the order of the arguments matters where the gold answer sets the form."""
    if isinstance(gold, Relation) and isinstance(answer, Group) and gold.interval:
        return _same(gold.interval, answer)
    if isinstance(answer, Relation) and isinstance(gold, Group) and answer.interval:
        return _same(gold, answer.interval)
    if isinstance(gold, Opaque) or isinstance(answer, Opaque):
        left, right = (re.sub(r"\s+", "", value.text) if isinstance(value, Opaque) else "" for value in (gold, answer))
        return True if left and left == right else None
    if isinstance(gold, Words) or isinstance(answer, Words):
        left, right = (value.text if isinstance(value, (Words, Scalar)) else "" for value in (gold, answer))
        return bool(left) and _flat(left) == _flat(right)
    if isinstance(gold, Scalar) and isinstance(answer, Scalar):
        return _same_scalars(gold, answer)
    if isinstance(gold, Based) or isinstance(answer, Based):
        return _same_based(gold, answer)
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        return _same_ratios(gold, answer)
    if isinstance(gold, Relation) and isinstance(answer, Scalar) and answer.equation:
        answer = Relation("=", answer.equation)
    if isinstance(answer, Relation) and isinstance(gold, Scalar) and gold.equation:
        gold = Relation("=", gold.equation)
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _proportional(gold, answer)
    if isinstance(gold, Grid) and isinstance(answer, Grid):
        if [len(row) for row in gold.rows] != [len(row) for row in answer.rows]:
            return False
        return _every(
            [_same(a, b) for x, y in zip(gold.rows, answer.rows, strict=True) for a, b in zip(x, y, strict=True)]
        )
    if isinstance(gold, Group) and isinstance(answer, Group):
        if len(gold.items) != len(answer.items) or (gold.opening, gold.closing) != (answer.opening, answer.closing):
            return False
        return _every([_same(a, b) for a, b in zip(gold.items, answer.items, strict=True)])
    if isinstance(gold, Union) and isinstance(answer, Union):
        same = _same_bags(gold.items, answer.items)
        return same if same or len(gold.items) == len(answer.items) else None
    if isinstance(gold, Bag) and isinstance(answer, Bag):
        return _same_lists(gold, answer)
    if isinstance(gold, Bag) and gold.bare and isinstance(answer, Group):  # `12, 34` asked for, `(12, 34)` given
        if len(gold.items) != len(answer.items):
            return False
        return _every([_same(a, b) for a, b in zip(gold.items, answer.items, strict=True)])
    if isinstance(answer, Bag) and isinstance(gold, Group) and answer.labels and all(answer.labels):  # `x=3, y=4`
        in_order = [item for _, item in sorted(zip(answer.labels, answer.items, strict=True), key=lambda pair: pair[0])]
        if len(in_order) == len(gold.items):
            return _every([_same(a, b) for a, b in zip(gold.items, in_order, strict=True)])
    if isinstance(gold, Bag) != isinstance(answer, Bag):
        bag, single = (gold, answer) if isinstance(gold, Bag) else (answer, gold)
        if isinstance(bag, Bag) and isinstance(single, (Scalar, Words, Based)):
            return _same_bags(bag.items, [single])
        return None if isinstance(single, (Union, Relation)) else False
    kinds = {type(gold), type(answer)}
    return None if kinds in ({Relation, Group}, {Relation, Union}, {Group, Union}, {Grid, Group}) else False


def _same_based(gold: Value, answer: Value) -> bool | None:
    if isinstance(gold, Based) and isinstance(answer, Based):
        return gold == answer
    if isinstance(gold, Based) and isinstance(answer, Scalar):  # the task fixed the base, the answer left it out
        return answer.text.lstrip("0") == gold.digits.lstrip("0")
    return False


def _same_ratios(gold: Ratio, answer: Ratio) -> bool | None:
    if len(gold.parts) != len(answer.parts):
        return False
    halves = [_canonical(value.text) for value in (gold, answer)]
    if all(halves) and halves[0] != halves[1]:
        return False
    same = _every([expressions.compare(a, b) for a, b in zip(gold.parts, answer.parts, strict=True)])
    if same is not False or len(gold.parts) > 2 or any(halves):
        return same
    try:
        (a, b), (c, d) = ([expressions.exact(part, {}) for part in value.parts] for value in (gold, answer))
    except (expressions.Inexact, ZeroDivisionError, KeyError):
        return None
    return bool(b and d) and a * d == b * c


def _same_lists(gold: Bag, answer: Bag) -> bool | None:
    if gold.labels and all(gold.labels) and sorted(gold.labels) == sorted(answer.labels):
        by_label = dict(zip(answer.labels, answer.items, strict=True))
        if len(by_label) == len(gold.items):
            return _every([_same(item, by_label[name]) for name, item in zip(gold.labels, gold.items, strict=True)])
    return _same_bags(gold.items, answer.items)


_DOTS = re.compile(r"\\[lcv]?dots|\.\.\.")
_DECIMAL_COMMA = re.compile(r"-?(?!0*[1-9]\d{0,2}(?:,\d{3})+$)\d+,\d{2,}")


def _decimal_comma(left: str, right: str) -> bool:
    """`1000,99` against `1000.99`: a comma with two or more digits behind it that is no thousands group."""
    for comma, point in ((left, right), (right, left)):
        if _DECIMAL_COMMA.fullmatch(comma) and re.fullmatch(r"-?\d+\.\d+", point):
            return Fraction(comma.replace(",", ".")) == Fraction(point)
    return False


def readable(text: str) -> bool:
    """Whether an answer holds anything that could be a value."""
    return bool(re.search(r"[\w\u221e]", spelled(text).replace("\\", " ")))


def _depth(text: str) -> int:
    """How deep brackets of any kind are nested."""
    depth = deepest = 0
    for bracket in re.findall(r"[(\[{}\])]", text):
        depth = depth + 1 if bracket in _OPENING else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _undefined(value: Value) -> bool:
    """Whether a constant has no value, such as 0/0."""
    if not isinstance(value, Scalar) or expressions.symbols(value.node):
        return False
    try:
        expressions.exact(value.node, {})
    except ZeroDivisionError:
        return True
    except (expressions.Inexact, RecursionError):
        return False
    return False


@lru_cache(maxsize=16384)
def decide(gold: str, answer: str) -> bool | None:
    """Whether `answer` has the value of `gold`, by the fast paths alone; None: they cannot tell."""
    left, right = spelled(gold), spelled(answer)
    if not left or not right:
        return False
    compact = [re.sub(r"\s+", "", text) for text in (left, right)]
    if compact[0] == compact[1]:
        return readable(gold) and not _undefined(_parsed(left, False))
    undecided = False
    for thousands_gold, thousands_answer in ((True, True), (False, False), (True, False), (False, True)):
        if (thousands_gold, thousands_answer) != (True, True) and not any("," in text for text in compact):
            break
        result = _same(_parsed(left, thousands_gold), _parsed(right, thousands_answer))
        if result:
            return True
        undecided |= result is None
    if _decimal_comma(*compact):
        return True
    if undecided and [bool(_DOTS.search(text)) for text in compact] in ([True, False], [False, True]):
        return False  # math-verify reads over dots: `1545...` is not 1545
    return None if undecided else False


_asked: dict[tuple[str, str], Reason] = {}  # what math-verify said; bounded, oldest out first
_ASKED_SIZE = 16384


def judge(
    pairs: Sequence[tuple[str, str]], timeout: float = pool.TIMEOUT, workers: int | None = None
) -> list[pool.Verdict]:
    """The verdict on each (gold, answer) pair, in order: fast paths here, the rest in worker processes in parallel.

    `timeout` is in seconds an item; `workers` defaults to one a core. Verdicts are remembered, crashes are not.
    Raises RuntimeError when a worker is needed and cannot be started.
    """
    verdicts: list[pool.Verdict | None] = []
    for gold, answer in pairs:
        start = time.perf_counter()
        reason: Reason | None = None
        if len(gold) > MAX_ANSWER or len(answer) > MAX_ANSWER:
            reason = "too_long"
        elif max(_depth(gold), _depth(answer)) > MAX_DEPTH or not readable(gold) or not readable(answer):
            reason = "unparsable"
        elif (same := decide(gold, answer)) is not None:
            reason = "ok" if same else "wrong"
        else:
            reason = _asked.get((gold, answer))
        verdicts.append(pool.Verdict(reason, time.perf_counter() - start) if reason else None)
    open_pairs = list(dict.fromkeys(pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict is None))
    if open_pairs:
        spelled_pairs = [(spelled(gold), spelled(answer)) for gold, answer in open_pairs]
        replies = dict(zip(open_pairs, pool.shared(workers, timeout).ask_all(spelled_pairs), strict=True))
        for pair, reply in replies.items():
            if reply.reason != "crash":
                while len(_asked) >= _ASKED_SIZE:
                    _asked.pop(next(iter(_asked)), None)
                _asked[pair] = reply.reason
        return [verdict or replies[pair] for pair, verdict in zip(pairs, verdicts, strict=True)]
    return [verdict for verdict in verdicts if verdict is not None]
