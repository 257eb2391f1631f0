"""Compiles the tree of an SQL filter to closures.

Three values are True, False and None, which is *unknown*, and also the value of a null. Any other value
counts as unknown where a condition is needed. The types of AMQP fall into four kinds: booleans, numbers
(integers, floating point and times alike), texts (strings, symbols, characters) and binaries (with UUIDs
among them). Values of different kinds are never equal, less or greater: all comparisons of them are False,
`<>` too. A value of no kind (decimals, lists) is not null and equals nothing.

A closure takes the list of the values of the expression's fields, with the time behind them if UTC()
occurs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters import sql_ast as ast
from amqp10broker.message.filters.fields import MessageField
from amqp10broker.message.filters.required import required_by
from amqp10broker.message.filters.sql_ast import BOOLEAN, INTEGERS, KINDS, NUMBER, TEXT
from amqp10broker.message.filters.sql_like import compile_like
from amqp10broker.message.filters.sql_parser import parse

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
    """Whether the expression contains UTC()."""
    required: bytes
    """Bytes that the properties of a passing message contain somewhere; empty if none are known."""
    run: Run
    """Takes the fields' values, null and absent being None and a UUID being bytes, and the time in
    milliseconds if `uses_time`; returns True for a message that passes, and any other value for one that
    does not.
    """


def compile_sql(text: str) -> SqlFilter:
    return compile_expression(parse(text))


def compile_expression(expression: ast.Expression) -> SqlFilter:
    nodes = _inside_out(expression)
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


def _inside_out(expression: ast.Expression) -> list[ast.Expression]:
    # Without recursion: a tree may be two hundred levels deep. Children come before parents.
    nodes: list[ast.Expression] = []
    left = [expression]
    while left:
        node = left.pop()
        nodes.append(node)
        left.extend(ast.children(node))
    nodes.reverse()
    return nodes


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
            return _Term(_is_null(inner[0].run))
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


def _is_null(run: Run) -> Run:
    return lambda values: run(values) is None


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
