"""Mathematical expressions as trees: a small LaTeX and plain-text reader with bounded exact and numeric evaluation.

Covered: numbers, symbols, + - * / ^ !, fractions, mixed numbers, repeating decimals, roots, |x|, floor and ceiling,
binomials, logarithms, exponential, trigonometric and hyperbolic functions, pi, e, i.
Not covered: sums, integrals, limits, matrices, relations; `parse` refuses them and the caller asks math-verify.
Nothing here evaluates code, and every step is bounded: depth, number of nodes, size of integers.
"""

from __future__ import annotations

import cmath
import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

MAX_DEPTH = 40
MAX_NODES = 3000
MAX_BITS = 100_000
MAX_DIGITS = 400


class Refused(ValueError):
    """This text is not an expression of the covered kind, or it is too large."""


@dataclass(frozen=True)
class Node:
    """`kind` is number, symbol, constant, neg, factorial, binom, log, or an operator or function name."""

    kind: str
    args: tuple[Node, ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""
    decimals: int = 0  # digits after the point, of a number written as a decimal


_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "tanh": cmath.tanh,
    "exp": cmath.exp,
    "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z),
    "cot": lambda z: 1 / cmath.tan(z),
}
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_GREEK_NAMES = """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi
    varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell
"""
_GREEK = frozenset(_GREEK_NAMES.split())
_WORDS = "|".join(
    sorted([*_FUNCTIONS, *_ALIASES, "sqrt", "log", "ln", "lg", "pi", "binom", "abs", "cbrt"], key=len, reverse=True)
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<exponent>[eE][+-]?\d{1,3}(?![\w.]))?"
    rf"|(?P<command>\\[A-Za-z]+)|(?P<word>{_WORDS})(?![A-Za-z])|(?P<letter>[A-Za-z])|(?P<op>\*\*|[-+*/^!()\[\]{{}}|_']))"
)
_OPEN = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "\\lvert": "\\rvert"}
_STARTS = {"number", "command", "word", "letter"}
_ENDING_COMMANDS = {"\\cdot", "\\times", "\\div", "\\rfloor", "\\rceil", "\\rvert", "\\ast"}


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """(kind, text, position) of each token; raises Refused at the first character that belongs to none."""
    found: list[tuple[str, str, int]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise Refused(f"unexpected {text[position]!r}")
        kind = match.lastgroup or ""
        if kind == "exponent":
            kind = "number"
        found.append((kind, match[0].strip(), match.end() - len(match[0].lstrip())))
        position = match.end()
        if len(found) > MAX_NODES:
            raise Refused("too long")
    return found


class _Parser:
    """Recursive descent over the tokens of one expression; `position` and `nodes` are its state."""

    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.position = 0
        self.depth = 0
        self.bars = 0

    def peek(self) -> tuple[str, str]:
        if self.position < len(self.tokens):
            kind, text, _ = self.tokens[self.position]
            return kind, text
        return "", ""

    def take(self) -> tuple[str, str]:
        token = self.peek()
        if not token[0]:
            raise Refused("unexpected end")
        self.position += 1
        return token

    def accept(self, *texts: str) -> bool:
        if self.peek()[1] in texts:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise Refused(f"{text!r} missing")

    def sum(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Refused("nested too deeply")
        terms = [self.product()]
        while self.peek()[1] in ("+", "-"):
            negative = self.take()[1] == "-"
            term = self.product()
            terms.append(Node("neg", (term,)) if negative else term)
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Node("+", tuple(terms))

    def starts_factor(self) -> bool:
        kind, text = self.peek()
        if kind == "op":
            return text in "([{" or (text == "|" and not self.bars)
        return kind in _STARTS and text not in _ENDING_COMMANDS

    def product(self) -> Node:
        node = self.signed()
        while True:
            if self.accept("*", "\\cdot", "\\times", "\\ast"):
                node = Node("*", (node, self.signed()))
            elif self.accept("/", "\\div"):
                node = Node("/", (node, self.signed()))
            elif self.starts_factor():
                factor = self.power()
                if _is_mixed(node, factor):
                    node = Node("+", (node, factor))
                elif node.kind == "number" and factor.kind == "number":
                    raise Refused("two numbers side by side")
                else:
                    node = Node("*", (node, factor))
            else:
                return node

    def signed(self) -> Node:
        negative = False
        while self.peek()[1] in ("+", "-"):
            negative ^= self.take()[1] == "-"
        node = self.power()
        return Node("neg", (node,)) if negative else node

    def power(self) -> Node:
        base = self.postfix(self.atom())
        if self.accept("^", "**"):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise Refused("nested too deeply")
            exponent = self.signed()
            self.depth -= 1
            base = self.postfix(Node("^", (base, exponent)))
        return base

    def postfix(self, node: Node) -> Node:
        while self.peek()[1] == "!":
            self.take()
            node = Node("factorial", (node,))
        return node

    def group(self) -> Node:
        """`{...}`, or one atom (LaTeX arguments); callers have braced single characters already."""
        if self.accept("{"):
            node = self.sum()
            self.expect("}")
            return node
        return self.atom()

    def atom(self) -> Node:
        kind, text = self.take()
        if kind == "number":
            return self.number(text)
        if text in _OPEN:
            bars, self.bars = self.bars, 0
            node = self.sum()
            self.bars = bars
            self.expect(_OPEN[text])
            return Node(text, (node,)) if text in ("\\lfloor", "\\lceil", "\\lvert") else node
        if text == "|":
            self.bars += 1
            node = self.sum()
            self.bars -= 1
            self.expect("|")
            return Node("\\lvert", (node,))
        if kind == "letter":
            return self.symbol(text)
        if kind in ("word", "command"):
            return self.named(text.lstrip("\\"), kind == "command")
        raise Refused(f"unexpected {text!r}")

    @staticmethod
    def number(text: str) -> Node:
        if len(text) > MAX_DIGITS:
            raise Refused("too many digits")
        mantissa = re.split("[eE]", text)[0]
        decimals = len(mantissa.partition(".")[2])
        return Node("number", value=Fraction(text), decimals=decimals)

    def symbol(self, name: str) -> Node:
        if self.accept("_"):
            if self.accept("{"):
                inner: list[str] = []
                while not self.accept("}"):
                    inner.append(self.take()[1])
                name += "_" + "".join(inner)
            else:
                name += "_" + self.take()[1]
        while self.accept("'"):
            name += "'"
        if name in ("i", "e"):
            return Node("constant", name=name)
        return Node("symbol", name=name)

    def named(self, name: str, command: bool) -> Node:
        name = _ALIASES.get(name, name)
        if name == "pi":
            return Node("constant", name="pi")
        if name in ("frac", "binom"):
            first = self.group()
            second = self.group()
            return Node("/" if name == "frac" else "binom", (first, second))
        if name == "sqrt":
            degree = Node("number", value=Fraction(2))
            if command and self.accept("["):
                degree = self.sum()
                self.expect("]")
            return Node("root", (self.group(), degree))
        if name == "cbrt":
            return Node("root", (self.group(), Node("number", value=Fraction(3))))
        if name == "abs":
            return Node("\\lvert", (self.group(),))
        if name in ("log", "ln", "lg") or name in _FUNCTIONS:
            return self.function(name)
        if command and name in _GREEK:
            return self.symbol(name)
        raise Refused(f"unknown name {name!r}")

    def continues_argument(self) -> bool:
        kind, text = self.peek()
        return kind in ("letter", "number") or text in ("\\pi", "\\theta", "\\alpha")

    def function(self, name: str) -> Node:
        base = Node("constant", name="e") if name == "ln" else Node("number", value=Fraction(10))
        if name == "log" and self.accept("_"):
            base = self.group()
        exponent: Node | None = None
        if self.accept("^"):
            exponent = self.signed() if self.peek()[1] != "{" else self.group()
        # LaTeX's `\sin 2x y` means sin(2xy); an argument in brackets ends with them.
        if self.peek()[1] in _OPEN or self.peek()[1] == "|":
            argument = self.power()
        else:
            argument = self.signed()
            while self.continues_argument():
                argument = Node("*", (argument, self.power()))
        if name in ("log", "ln", "lg"):
            node = Node("log", (argument, base))
        else:
            if exponent is not None and exponent.kind == "neg" and exponent.args[0].value == 1:
                raise Refused("inverse function or reciprocal")
            node = Node(name, (argument,))
        return node if exponent is None else Node("^", (node, exponent))


def _is_mixed(left: Node, right: Node) -> bool:
    """Whether `3 \\frac{1}{2}` is a mixed number: an integer, then a proper fraction of integers."""
    if left.kind != "number" or left.decimals or right.kind != "/" or left.value.denominator != 1:
        return False
    top, bottom = right.args
    if top.kind != "number" or bottom.kind != "number" or top.decimals or bottom.decimals:
        return False
    return 0 < top.value < bottom.value


_REPEATING = re.compile(r"(\d+)\.(\d*)\\(?:overline|dot|bar)\s*\{\s*(\d+)\s*\}")
_PLAIN_MIXED = re.compile(r"(?<![\d.\w^_{}/])(\d{1,9})\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\d.\w])")
_ARGUMENT = re.compile(r"\s*(?:(?P<open>\{)|(?P<command>\\[A-Za-z]+)|(?P<char>[A-Za-z0-9]))")
_TAKES = re.compile(r"\\(?P<name>frac|binom|sqrt|overline|dot|bar)(?![A-Za-z])")


def _repeating(match: re.Match[str]) -> str:
    whole, fixed, period = match[1], match[2], match[3]
    value = Fraction(int(whole + fixed + period) - int(whole + fixed), 10 ** len(fixed) * (10 ** len(period) - 1))
    return f"({value.numerator}/{value.denominator})"


def _braced(text: str) -> str:
    """`\\frac12`, `\\frac\\pi2`, `\\sqrt2` with their arguments in braces, as LaTeX reads them."""
    parts: list[str] = []
    position = 0
    for match in _TAKES.finditer(text):
        if match.start() < position:
            continue
        parts.append(text[position : match.end()])
        position = match.end()
        for _ in range(2 if match["name"] in ("frac", "binom") else 1):
            argument = _ARGUMENT.match(text, position)
            if argument is None or argument["open"]:
                break
            if argument["command"]:
                if argument["command"] in ("\\sqrt", "\\frac", "\\overline"):
                    break
                parts.append("{" + argument["command"] + "}")
                position = argument.end()
            else:
                end = argument.end()
                if match["name"] == "sqrt" and argument["char"].isdigit():
                    while end < len(text) and (text[end].isdigit() or text[end] == "."):
                        end += 1
                parts.append("{" + text[argument.start("char") : end] + "}")
                position = end
    parts.append(text[position:])
    return "".join(parts)


def _second_arguments(text: str) -> str:
    """`\\frac{29}4` with its second argument in braces too (the first one was braced in the text)."""
    if not re.search(r"\\(?:frac|binom)", text):
        return text
    closing: dict[int, int] = {}
    stack: list[int] = []
    for index, char in enumerate(text):
        if char == "{":
            stack.append(index)
        elif char == "}" and stack:
            closing[stack.pop()] = index
    inserts: list[tuple[int, int]] = []
    for match in re.finditer(r"\\(?:frac|binom)\s*(?=\{)", text):
        end = closing.get(match.end())
        if end is None:
            continue
        argument = _ARGUMENT.match(text, end + 1)
        if argument and not argument["open"] and argument["command"] not in ("\\sqrt", "\\frac"):
            group = "command" if argument["command"] else "char"
            inserts.append((argument.start(group), argument.end(group)))
    for start, stop in reversed(inserts):
        text = f"{text[:start]}{{{text[start:stop]}}}{text[stop:]}"
    return text


@lru_cache(maxsize=4096)
def parse(text: str) -> Node:
    """The tree of one expression. Raises Refused when the text is not covered or too large."""
    if text.count("^") + text.count("\\frac") > 400:
        raise Refused("too long")
    text = _REPEATING.sub(_repeating, _second_arguments(_braced(text)))
    text = _PLAIN_MIXED.sub(r"(\1+\2/\3)", text)
    parser = _Parser(text)
    node = parser.sum()
    if parser.position != len(parser.tokens):
        raise Refused(f"unexpected {parser.peek()[1]!r}")
    return node


# ------------------------------------------------------------------------------------------------ evaluation


class Inexact(ArithmeticError):
    """The value is not rational (or its exact value would be too large)."""


def symbols(node: Node) -> frozenset[str]:
    """Names of the free symbols."""
    found: set[str] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current.kind == "symbol":
            found.add(current.name)
        stack.extend(current.args)
    return frozenset(found)


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if base < 0 or exponent.denominator > 64:
            raise Inexact
        return _exact_power(_exact_root(base, exponent.denominator), Fraction(exponent.numerator))
    if base in (0, 1):
        if base == 0 and exponent <= 0:
            raise ZeroDivisionError
        return base
    if abs(exponent.numerator) * _bits(base) > MAX_BITS:
        raise Inexact
    return base**exponent.numerator


def _integer_root(value: int, degree: int) -> int:
    if degree == 2:
        return math.isqrt(value)
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= value:
            low = middle
        else:
            high = middle - 1
    return low


def _exact_root(value: Fraction, degree: int) -> Fraction:
    if degree < 1 or degree > 64 or _bits(value) > 4096:
        raise Inexact
    if value < 0:
        if degree % 2 == 0:
            raise Inexact
        return -_exact_root(-value, degree)
    top, bottom = _integer_root(value.numerator, degree), _integer_root(value.denominator, degree)
    if top**degree != value.numerator or bottom**degree != value.denominator:
        raise Inexact
    return Fraction(top, bottom)


def exact(node: Node, at: dict[str, Fraction]) -> Fraction:
    """The exact rational value with the symbols at `at`. Raises Inexact, or ZeroDivisionError."""
    kind, args = node.kind, node.args
    if kind == "number":
        return node.value
    if kind == "constant" or (kind == "symbol" and node.name not in at):
        raise Inexact
    if kind == "symbol":
        return at[node.name]
    if kind == "+":
        total = Fraction(0)
        for arg in args:
            total += exact(arg, at)
        return total
    values = [exact(arg, at) for arg in args]
    if kind == "neg":
        return -values[0]
    if kind == "*":
        result = values[0] * values[1]
    elif kind == "/":
        result = values[0] / values[1]
    elif kind == "^":
        result = _exact_power(values[0], values[1])
    elif kind == "root" and values[1].denominator == 1:
        result = _exact_root(values[0], values[1].numerator)
    elif kind == "\\lvert":
        result = abs(values[0])
    elif kind == "\\lfloor":
        result = Fraction(math.floor(values[0]))
    elif kind == "\\lceil":
        result = Fraction(math.ceil(values[0]))
    elif kind == "factorial" and values[0].denominator == 1 and 0 <= values[0] <= 3000:
        result = Fraction(math.factorial(values[0].numerator))
    elif (
        kind == "binom" and values[0].denominator == values[1].denominator == 1 and 0 <= values[1] <= values[0] <= 5000
    ):
        result = Fraction(math.comb(values[0].numerator, values[1].numerator))
    else:
        raise Inexact
    if _bits(result) > MAX_BITS:
        raise Inexact
    return result


@dataclass
class _Scale:
    """The largest term met while evaluating: what rounding errors are relative to."""

    largest: float = 0.0


def _numeric(node: Node, at: dict[str, complex], scale: _Scale) -> complex:
    kind, args = node.kind, node.args
    if kind == "number":
        return complex(float(node.value))
    if kind == "symbol":
        return at[node.name]
    if kind == "constant":
        return {"pi": complex(math.pi), "e": complex(math.e), "i": 1j}[node.name]
    # Adding 0 makes -0 imaginary parts +0, so that real numbers lie on one side of all branch cuts.
    values = [_numeric(arg, at, scale) + 0 for arg in args]
    first = values[0]
    if kind == "+":
        scale.largest = max(scale.largest, *map(abs, values))
        return sum(values, 0j)
    if kind == "neg":
        return -first
    if kind == "*":
        return first * values[1]
    if kind == "/":
        return first / values[1]
    if kind == "^":
        return first ** values[1]
    if kind == "root":
        degree = values[1].real
        if first.imag == 0 and first.real < 0 and degree % 2 == 1:  # the real root is meant
            return complex(-((-first.real) ** (1 / degree)))
        return cmath.sqrt(first) if degree == 2 else first ** (1 / values[1])
    if kind == "log":
        return cmath.log(first) / cmath.log(values[1])
    if kind == "\\lvert":
        return complex(abs(first))
    if kind in _FUNCTIONS:
        return complex(_FUNCTIONS[kind](first))
    # Floor, factorial and binomials of anything but small integers are left to the exact evaluation.
    return complex(float(exact(node, {})))


def point(name: str, round_number: int) -> Fraction:
    """A fixed pseudo-random positive value for a symbol."""
    return Fraction(zlib.crc32(f"{round_number}:{name}".encode()) % 9973 + 5003, 6007 + 211 * round_number)


def compare(left: Node, right: Node) -> bool | None:
    """Whether two expressions have the same value for all values of their symbols; None: undecided.

    Rational expressions are compared exactly at three pseudo-random rational points: all symbols positive, all
    negative, and mixed. Others numerically at three positive points: equal means that 11 digits agree, different that
    the difference is far above rounding error.
    """
    names = sorted(symbols(left) | symbols(right))
    try:
        for round_number in range(3 if names else 1):
            signs = [1 if round_number == 0 or (round_number == 2 and index % 2) else -1 for index in range(len(names))]
            at = {name: sign * point(name, round_number) for name, sign in zip(names, signs, strict=True)}
            if exact(left, at) != exact(right, at):
                return False
        return True
    except (Inexact, ZeroDivisionError, RecursionError):
        pass
    equal = 0
    for round_number in range(3 if names else 1):
        at_float = {name: complex(float(point(name, round_number))) for name in names}
        scale = _Scale()
        try:
            a, b = _numeric(left, at_float, scale), _numeric(right, at_float, scale)
        except (ArithmeticError, ValueError, RecursionError):
            return False if _far_apart(left, right) or _far_apart(right, left) else None
        size = max(abs(a), abs(b))
        if not (math.isfinite(size) and math.isfinite(scale.largest)):
            return None
        difference = abs(a - b)
        if difference > 1e-7 * size + 1e-10 * scale.largest:
            return False
        equal += difference <= 1e-11 * size and 1e-13 * scale.largest < 1e-9 * max(size, 1e-300)
    return True if equal == (3 if names else 1) else None


def _far_apart(huge: Node, other: Node) -> bool:
    """Whether one constant is beyond floating point and the other is well within it."""
    value = approximate(other)
    if value is None or abs(value) >= 1e280:
        return False
    try:
        return _magnitude(huge) > 300
    except (Inexact, ArithmeticError, RecursionError):
        return False


def _magnitude(node: Node) -> float:
    """A lower bound of the decimal logarithm of a constant above 1; infinite for power towers.

    Raises Inexact for anything that is not made of exact values by products, powers and factorials.
    """
    try:
        value = exact(node, {})
    except Inexact:
        sizes = [_magnitude(arg) for arg in node.args]
        if node.kind == "*":
            return sum(sizes)
        if node.kind == "^":
            return sizes[0] * 10 ** sizes[1] if sizes[1] < 300 else math.inf
        if node.kind == "factorial":  # n! > (n/2)^(n/2)
            return (sizes[0] - 1) * 10 ** sizes[0] / 2 if sizes[0] < 300 else math.inf
        raise
    if value <= 1:
        raise Inexact
    return math.log10(value.numerator) - math.log10(value.denominator)


def approximate(node: Node) -> complex | None:
    """The numeric value of an expression without symbols; None when it has none or it cannot be computed."""
    if symbols(node):
        return None
    try:
        value = _numeric(node, {}, _Scale())
    except (ArithmeticError, ValueError, RecursionError):
        return None
    return value if math.isfinite(abs(value)) else None
