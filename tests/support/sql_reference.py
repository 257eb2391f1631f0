"""SQL filters the slow way, as an oracle: an interpreter of the tree that follows the rules word by word, and
a printer of trees. Nothing is shared with the compiler but the tree."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any
from uuid import UUID

from amqp10broker.message.filters.fields import MessageField, Section
from amqp10broker.message.filters.sql_parser import (
    And,
    Arithmetic,
    Comparison,
    Expression,
    Identifier,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Unary,
    Utc,
)

UNKNOWN = None


def interpret(node: Expression, values: dict[MessageField, Any], now_ms: int) -> Any:
    """Return an expression's value: True, False, None for unknown and null, or another."""

    def of(inner: Expression) -> Any:
        return interpret(inner, values, now_ms)

    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Identifier):
        return values.get(node.field)
    if isinstance(node, Utc):
        return now_ms
    if isinstance(node, Not):
        return {True: False, False: True, UNKNOWN: UNKNOWN}[truth(of(node.operand))]
    if isinstance(node, And):
        found = [truth(of(operand)) for operand in node.operands]
        return False if False in found else UNKNOWN if UNKNOWN in found else True
    if isinstance(node, Or):
        found = [truth(of(operand)) for operand in node.operands]
        return True if True in found else UNKNOWN if UNKNOWN in found else False
    if isinstance(node, IsNull):
        return of(node.operand) is None
    if isinstance(node, Comparison):
        return compare(node.operator, of(node.left), of(node.right))
    if isinstance(node, In):
        left = of(node.operand)
        if left is None:
            return UNKNOWN
        return any(compare("=", left, of(option)) is True for option in node.options)
    if isinstance(node, Like):
        text = of(node.operand)
        return like(text, node.pattern, node.escape) if kind(text) == "text" else UNKNOWN
    if isinstance(node, Unary):
        number = of(node.operand)
        if kind(number) != "number":
            return UNKNOWN
        return -number if node.operator == "-" else +number
    return arithmetic(node.operator, of(node.left), of(node.right))


def truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else UNKNOWN


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    return "binary" if isinstance(value, bytes | UUID) else "other"


def compare(operator: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return UNKNOWN
    if kind(left) != kind(right) or kind(left) == "other":
        return False
    if kind(left) == "boolean" and operator not in ("=", "<>"):
        return False
    left, right = (value.bytes if isinstance(value, UUID) else value for value in (left, right))
    orders: dict[str, Callable[[], bool]] = {
        "=": lambda: left == right,
        "<>": lambda: left != right,
        "<": lambda: left < right,
        "<=": lambda: left < right or left == right,
        ">": lambda: right < left,
        ">=": lambda: right < left or left == right,
    }
    return orders[operator]()


def arithmetic(operator: str, left: Any, right: Any) -> Any:
    if kind(left) != "number" or kind(right) != "number":
        return UNKNOWN
    whole = isinstance(left, int) and isinstance(right, int)
    if operator in "/%" and right == 0:
        return UNKNOWN
    try:
        if operator == "%":
            if not whole:
                return UNKNOWN
            return int(left) - int(right) * int(Fraction(int(left), int(right)))  # int() cuts towards zero
        if operator == "/":
            return left / right
        left, right = (int(value) if isinstance(value, int) else float(value) for value in (left, right))
        if operator == "*":
            return left * right
        return left + right if operator == "+" else left - right
    except OverflowError:
        return UNKNOWN


def like(text: str, pattern: str, escape: str | None) -> bool:
    """Match a text and a pattern with a table of the prefixes that match."""
    places = [True] + [False] * len(text)
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == escape:
            at += 1
            places = [False] + [places[i] and text[i] == pattern[at] for i in range(len(text))]
        elif character == "%":
            places = [any(places[: i + 1]) for i in range(len(text) + 1)]
        else:
            places = [False] + [
                places[i] and (character == "_" or text[i] == character) for i in range(len(text))
            ]
        at += 1
    return places[-1]


# The printer.

_LEVELS: dict[type, int] = {Or: 1, And: 2, Not: 3, Comparison: 4, Like: 4, In: 4, IsNull: 4, Unary: 7}
_ARITHMETIC = {"+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_SECTIONS = {Section.HEADER: "h", Section.PROPERTIES: "p", Section.APPLICATION_PROPERTIES: "a"}


def show(node: Expression) -> str:
    """Return an expression as text that parses to it again."""
    if isinstance(node, Literal):
        return _literal(node.value)
    if isinstance(node, Identifier):
        return _identifier(node.field)
    if isinstance(node, Utc):
        return "UTC()"
    if isinstance(node, Or | And):
        word, level = (" OR ", 1) if isinstance(node, Or) else (" AND ", 2)
        return word.join(_inside(operand, level + 1) for operand in node.operands)
    if isinstance(node, Not):
        return "NOT " + _inside(node.operand, 3)
    if isinstance(node, Comparison):
        return f"{_inside(node.left, 5)} {node.operator} {_inside(node.right, 5)}"
    if isinstance(node, IsNull):
        return f"{show(node.operand)} IS NULL"
    if isinstance(node, Like):
        tail = "" if node.escape is None else f" ESCAPE {_literal(node.escape)}"
        return f"{_inside(node.operand, 5)} LIKE {_literal(node.pattern)}{tail}"
    if isinstance(node, In):
        return f"{_inside(node.operand, 5)} IN ({', '.join(_inside(option, 5) for option in node.options)})"
    if isinstance(node, Unary):
        return node.operator + _inside(node.operand, 8)
    level = _ARITHMETIC[node.operator]
    return f"{_inside(node.left, level)} {node.operator} {_inside(node.right, level + 1)}"


def _inside(node: Expression, level: int) -> str:
    own = _ARITHMETIC[node.operator] if isinstance(node, Arithmetic) else _LEVELS.get(type(node), 8)
    return show(node) if own >= level else f"({show(node)})"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, bytes):
        return "0x" + value.hex().upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int):
        return str(value)
    mantissa, _, exponent = f"{value!r}".partition("e")
    if "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}E{exponent}" if exponent else mantissa


def _identifier(field: MessageField) -> str:
    if field.section is Section.APPLICATION_PROPERTIES:
        return "[" + field.name.replace("[", "[[").replace("]", "]]") + "]"
    return f"{_SECTIONS[field.section]}.{field.name.replace('-', '_')}"
