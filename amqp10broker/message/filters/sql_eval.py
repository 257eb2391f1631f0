"""Compiles the tree of an SQL filter to closures, and the selectors of JMS, which have a lexer of their own.

None is *unknown*, as is any value that is not a boolean where a condition is needed. All comparisons of
values of different kinds (`KINDS`) are False, `<>` too. A closure takes the list of the values of the
expression's fields, with the time behind them if UTC() occurs.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters import sql_parser as ast
from amqp10broker.message.filters.fields import (
    DELIVERY_MODE,
    PRIORITY,
    PROPERTIES,
    REDELIVERED,
    FilterError,
    MessageField,
    Section,
)
from amqp10broker.message.filters.sql_parser import (
    BOOLEAN,
    CONTROL,
    INTEGERS,
    KINDS,
    NUMBER,
    TEXT,
    Dialect,
    Token,
    TokenKind,
    parse,
    parse_tokens,
    tokens_of,
)

# --- LIKE ----------------------------------------------------------------------------------------
#
# A pattern is cut at its ``%`` into segments of fixed length. The first and the last have their places at the
# ends of the text. Each of the others is searched for from the end of the one before it, because the nearest
# place is as good as any. So nothing is tried twice, and the time of a search stays bounded for every
# pattern.

Matcher = Callable[[str], bool]

_STEPS_MAX: Final = 100_000
"""A search by regular expression takes at most text times segment steps. Beyond this number, which only
hostile patterns reach, another search takes one step per character.
"""


class _Segment:
    """A pattern's piece between two ``%``."""

    __slots__ = ("_characters", "_pattern", "length", "text")

    def __init__(self, characters: list[str | None]) -> None:
        self.length = len(characters)
        self.text = None if None in characters else "".join(map(str, characters))
        self._characters = characters
        self._pattern = re.compile(
            "".join("." if character is None else re.escape(character) for character in characters), re.DOTALL
        )

    def is_at(self, text: str, start: int) -> bool:
        if self.text is not None:
            return text.startswith(self.text, start)
        return self._pattern.match(text, start) is not None

    def find(self, text: str, start: int, end: int) -> int:
        if self.text is not None:
            return text.find(self.text, start, end)
        if (end - start) * self.length > _STEPS_MAX:
            return self._find_in_long(text, start, end)
        found = self._pattern.search(text, start, end)
        return -1 if found is None else found.start()

    def _find_in_long(self, text: str, start: int, end: int) -> int:
        # Bit i of `state` means that the first i + 1 characters end at the current place.
        anything = sum(1 << index for index, character in enumerate(self._characters) if character is None)
        accepted: dict[str, int] = {}
        for index, character in enumerate(self._characters):
            if character is not None:
                accepted[character] = accepted.get(character, anything) | 1 << index
        whole = 1 << (self.length - 1)
        state = 0
        for place in range(start, end):
            state = (state << 1 | 1) & accepted.get(text[place], anything)
            if state & whole:
                return place + 1 - self.length
        return -1


def compile_like(pattern: str, escape: str | None) -> Matcher:
    segments = [_Segment(characters) for characters in _split(pattern, escape)]
    first, *others, last = segments if len(segments) > 1 else (*segments, segments[0])
    match [segment.text for segment in segments]:
        case [str() as wanted]:
            return lambda text: text == wanted
        case [None]:
            return lambda text: len(text) == first.length and first.is_at(text, 0)
        case [str() as start, ""]:
            return lambda text: text.startswith(start)
        case ["", str() as end]:
            return lambda text: text.endswith(end)
        case ["", str() as part, ""]:
            return lambda text: part in text
        case [str() as start, str() as end]:
            both = len(start) + len(end)
            return lambda text: len(text) >= both and text.startswith(start) and text.endswith(end)
        case _:
            pass
    middle = [segment for segment in others if segment.length]
    length = sum(segment.length for segment in segments)

    def matches(text: str) -> bool:
        end = len(text) - last.length
        if len(text) < length or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        start = first.length
        for segment in middle:
            place = segment.find(text, start, end)
            if place < 0:
                return False
            start = place + segment.length
        return True

    return matches


def longest_part(pattern: str, escape: str | None) -> str:
    parts = [""]
    for characters in _split(pattern, escape):
        parts.append("")
        for character in characters:
            if character is None:
                parts.append("")
            else:
                parts[-1] += character
    return max(parts, key=len)


def _split(pattern: str, escape: str | None) -> list[list[str | None]]:
    if CONTROL.search(pattern):
        raise FilterError("a control character in the pattern of LIKE")
    segments: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise FilterError("the pattern of LIKE ends with the escape character")
            segments[-1].append(escaped)
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append(None if character == "_" else character)
    return segments


# --- bytes that every message that passes contains -----------------------------------------------
#
# A search for some bytes in a message costs a fraction of reading its fields, so that the many messages that
# a selective filter rejects cost little.


def text_bytes(value: str | bytes) -> bytes:
    """Return the encoding of a text or binary in a message; empty for a single character: a value of the type
    char equals it, and is encoded otherwise.
    """
    content = value.encode() if isinstance(value, str) else value
    return content if len(value) > 1 else b""


def required_by(expression: ast.Expression) -> bytes:
    """Return the longest text or binary that an expression requires in a field."""
    conditions = expression.operands if isinstance(expression, ast.And) else (expression,)
    found = [b""]
    for condition in conditions:
        match condition:
            case ast.Comparison("=", ast.Identifier(field), ast.Literal(value)) | ast.Comparison(
                "=", ast.Literal(value), ast.Identifier(field)
            ) if isinstance(value, str | bytes) and field.section is not Section.HEADER:
                found.append(text_bytes(value))
            case ast.Like(ast.Identifier(field), pattern, escape) if field.section is not Section.HEADER:
                found.append(text_bytes(longest_part(pattern, escape)))
            case _:
                pass
    return max(found, key=len)


# --- expressions ---------------------------------------------------------------------------------

Run = Callable[[Sequence[Any]], Any]

_kind = KINDS.get

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class SqlFilter:
    fields: tuple[MessageField, ...]
    uses_time: bool
    required: bytes
    """Bytes that the properties of a passing message contain somewhere."""
    run: Run
    """Takes the fields' values, null and absent being None and a UUID being bytes, and the time in ms if
    `uses_time`; returns True for a message that passes.
    """


def compile_sql(text: str) -> SqlFilter:
    return compile_expression(parse(text))


def compile_expression(expression: ast.Expression) -> SqlFilter:
    # This avoids recursion: a tree may be two hundred levels deep. Children come before parents.
    nodes: list[ast.Expression] = []
    left = [expression]
    while left:
        node = left.pop()
        nodes.append(node)
        left.extend(ast.children(node))
    nodes.reverse()
    fields = tuple(dict.fromkeys(node.field for node in nodes if isinstance(node, ast.Identifier)))
    slots = {field: slot for slot, field in enumerate(fields)}
    parts: dict[int, _Term] = {}
    for node in nodes:
        inner = [parts[id(child)] for child in ast.children(node)]
        part = _compile(node, inner, slots)
        if inner and all(found.constant for found in inner):
            part = _constant(part.run(()))
        parts[id(node)] = part
    uses_time = any(isinstance(node, ast.Utc) for node in nodes)
    return SqlFilter(fields, uses_time, required_by(expression), parts[id(expression)].run)


@dataclass(frozen=True, slots=True)
class _Term:
    run: Run
    constant: bool = False
    value: Any = None


def _constant(value: Any) -> _Term:
    return _Term(lambda values: value, True, value)


def _compile(node: ast.Expression, inner: Sequence[_Term], slots: Mapping[MessageField, int]) -> _Term:
    match node:
        case ast.Literal():
            return _constant(node.value)
        case ast.Identifier():
            return _Term(operator.itemgetter(slots[node.field]))
        case ast.Utc():
            return _Term(operator.itemgetter(len(slots)))
        case ast.Unary():
            return _Term(_unary(node.operator, inner[0].run))
        case ast.Arithmetic():
            return _Term(_arithmetic(node.operator, inner[0].run, inner[1].run))
        case ast.Comparison():
            return _Term(_comparison(node.operator, *inner))
        case ast.Like():
            return _Term(_like(node, inner[0].run))
        case ast.In():
            return _Term(_in(inner[0].run, inner[1:]))
        case ast.IsNull():
            run = inner[0].run
            return _Term(lambda values: run(values) is None)
        case ast.Not():
            return _Term(_not(inner[0].run))
        case ast.And():
            return _Term(_all(tuple(part.run for part in inner), False))
        case ast.Or():
            return _Term(_all(tuple(part.run for part in inner), True))


# Conditions.


def _all(runs: tuple[Run, ...], decisive: bool) -> Run:
    neutral = not decisive
    if len(runs) == 2:
        first, second = runs

        def both(values: Sequence[Any]) -> Any:
            left = first(values)
            if left is decisive:
                return decisive
            right = second(values)
            if right is decisive:
                return decisive
            return neutral if left is neutral and right is neutral else None

        return both

    def every(values: Sequence[Any]) -> Any:
        result: bool | None = neutral
        for run in runs:
            found = run(values)
            if found is decisive:
                return decisive
            if found is not neutral:
                result = None
        return result

    return every


def _not(run: Run) -> Run:
    def negated(values: Sequence[Any]) -> Any:
        found = run(values)
        if found is True:
            return False
        return True if found is False else None

    return negated


def _comparison(name: str, left: _Term, right: _Term) -> Run:
    if left.constant and not right.constant:
        return _comparison(_MIRRORED[name], right, left)
    compare = _COMPARE[name]
    equality = name in ("=", "<>")
    run_left, run_right = left.run, right.run
    if right.constant:
        return _comparison_with(compare, equality, run_left, right.value)

    def compared(values: Sequence[Any]) -> Any:
        one, other = run_left(values), run_right(values)
        if one is None or other is None:
            return None
        kind = _kind(type(one))
        if kind is None or kind != _kind(type(other)) or (kind == BOOLEAN and not equality):
            return False
        return compare(one, other)

    return compared


def _comparison_with(compare: Callable[[Any, Any], bool], equality: bool, run: Run, constant: Any) -> Run:
    kind = _kind(type(constant))
    if constant is None:
        return lambda values: None
    if kind == BOOLEAN and not equality:
        kind = 0  # a value of no kind

    def compared(values: Sequence[Any]) -> Any:
        found = run(values)
        if found is None:
            return None
        return _kind(type(found)) == kind and compare(found, constant)

    return compared


def _like(node: ast.Like, run: Run) -> Run:
    matches = compile_like(node.pattern, node.escape)

    def liked(values: Sequence[Any]) -> Any:
        found = run(values)
        return matches(found) if _kind(type(found)) == TEXT else None

    return liked


def _in(run: Run, options: Sequence[_Term]) -> Run:
    by_kind: dict[int | None, set[Any]] = {}
    for part in options:
        if part.constant and part.value is not None:
            by_kind.setdefault(_kind(type(part.value)), set()).add(part.value)
    others = tuple(part.run for part in options if not part.constant)

    def is_in(values: Sequence[Any]) -> Any:
        found = run(values)
        if found is None:
            return None
        kind = _kind(type(found))
        if kind is None:
            return False
        constants = by_kind.get(kind)
        if constants is not None and found in constants:
            return True
        for other in others:
            option = other(values)
            if _kind(type(option)) == kind and option == found:
                return True
        return False

    return is_in


# Numbers.


def _unary(name: str, run: Run) -> Run:
    apply = operator.neg if name == "-" else operator.pos

    def signed(values: Sequence[Any]) -> Any:
        found = run(values)
        return apply(found) if _kind(type(found)) == NUMBER else None

    return signed


def _arithmetic(name: str, left: Run, right: Run) -> Run:
    apply = _ARITHMETIC[name]

    def computed(values: Sequence[Any]) -> Any:
        one, other = left(values), right(values)
        if _kind(type(one)) != NUMBER or _kind(type(other)) != NUMBER:
            return None
        try:
            return apply(one, other)
        except OverflowError:  # an integer beyond any floating-point number
            return None

    return computed


def _divide(one: float, other: float) -> float | None:
    return one / other if other else None


def _divide_integers(one: Any, other: Any) -> int | float | None:
    if type(one) not in INTEGERS or type(other) not in INTEGERS:
        return _divide(one, other)
    if not other:
        return None
    quotient: int = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


def _remainder(one: Any, other: Any) -> int | None:
    if not other or type(one) not in INTEGERS or type(other) not in INTEGERS:
        return None
    rest: int = abs(one) % abs(other)
    return -rest if one < 0 else rest


_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": _remainder,
    "div": _divide_integers,
}


# --- selectors -----------------------------------------------------------------------------------
#
# The language of Jakarta Messaging 3.1, section 3.8. Beyond the specification a name may contain dots, or be
# anything between double quotes; a list of IN may have any values; and the field of a message is also
# ``amqp.subject`` and the like, which clients write that translate selectors themselves.

KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "BETWEEN", "LIKE", "ESCAPE", "IN", "IS", "NULL", "TRUE", "FALSE"}
)

_PROPERTY_OF: Final = {
    "JMSMessageID": "message-id",
    "JMSCorrelationID": "correlation-id",
    "JMSTimestamp": "creation-time",
    "JMSExpiration": "absolute-expiry-time",
    "JMSType": "subject",
    "JMSReplyTo": "reply-to",
    "JMSDestination": "to",
    "JMSXGroupID": "group-id",
    "JMSXGroupSeq": "group-sequence",
    "JMSXUserID": "user-id",
}
_HEADER_OF: Final = {
    "JMSPriority": PRIORITY,
    "JMSDeliveryMode": DELIVERY_MODE,
    "JMSRedelivered": REDELIVERED,
}
_OF_AMQP: Final = "amqp."

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<hex>0[xX](?P<digits>[0-9A-Fa-f]+)[lL]?)
    | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?
              | [0-9]+(?:[eE][+-]?[0-9]+[fFdD]?|[fFdD]))
    | (?P<integer>[0-9]+)[lL]?
    | '(?P<string>(?:[^']|'')*)'
    | "(?P<quoted>(?:[^"]|"")*)"
    | (?P<word>[^\W\d][\w$.]*|\$[\w$.]*)
    | (?P<symbol><>|<=|>=|[=<>+\-*/(),])
    """,
    re.VERBOSE,
)


def compile_selector(text: str) -> SqlFilter:
    return compile_expression(parse_tokens(tokens_of(text, _TOKEN, _token, _no_token), _DIALECT))


def selector_fault(text: str) -> str | None:
    try:
        compile_selector(text)
    except ValueError as error:
        return str(error)
    return None


def _field(section: str | None, name: str, position: int) -> MessageField:
    if (header := _HEADER_OF.get(name)) is not None:
        return MessageField(Section.HEADER, header)
    if (own := _PROPERTY_OF.get(name)) is not None:
        return MessageField(Section.PROPERTIES, own)
    if name.startswith(_OF_AMQP):
        field = name.removeprefix(_OF_AMQP).replace("_", "-")
        if field == PRIORITY:
            return MessageField(Section.HEADER, PRIORITY)
        if field in PROPERTIES:
            return MessageField(Section.PROPERTIES, field)
        raise FilterError(f"'{name}' is no field of a message", position)
    return MessageField(Section.APPLICATION_PROPERTIES, name)


_DIALECT: Final = Dialect(_field, "div")


def _token(found: re.Match[str], position: int) -> Token:
    if (word := found["word"]) is not None:
        keyword = word.upper()
        if keyword in ("TRUE", "FALSE"):
            return Token(TokenKind.LITERAL, keyword == "TRUE", position)
        if keyword in KEYWORDS:
            return Token(TokenKind.KEYWORD, keyword, position)
        return Token(TokenKind.IDENTIFIER, (None, word), position)
    if (symbol := found["symbol"]) is not None:
        return Token(TokenKind.SYMBOL, symbol, position)
    if (string := found["string"]) is not None:
        return Token(TokenKind.LITERAL, string.replace("''", "'"), position)
    if (quoted := found["quoted"]) is not None:
        return Token(TokenKind.IDENTIFIER, (None, quoted.replace('""', '"')), position)
    return Token(TokenKind.LITERAL, _number(found, position), position)


def _number(found: re.Match[str], position: int) -> int | float:
    if (digits := found["digits"]) is not None:
        return int(digits, 16)
    if (integer := found["integer"]) is not None:
        if len(integer) > 1 and integer[0] == "0":
            if not set(integer) <= set("01234567"):
                raise FilterError(f"{integer} begins with 0, which makes it octal", position)
            return int(integer, 8)
        return int(integer)
    number = float(found["float"].rstrip("fFdD"))
    if number == math.inf:
        raise FilterError("the number is larger than any floating-point number", position)
    return number


def _no_token(character: str) -> str:
    if character in "'\"":
        return "a string has no end"
    if character == "!":
        return "'!' cannot be here; unequal is written <>"
    return f"{character!r} cannot be here"
