"""The grammar of an SQL filter: what binds how strongly, and what is no expression."""

from __future__ import annotations

import inspect
import sys

import pytest

from amqp10broker.message.filters.fields import FilterError, MessageField, Section
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
    parse,
)


def name(text: str) -> Identifier:
    return Identifier(MessageField(Section.APPLICATION_PROPERTIES, text))


a, b, c, d = map(name, "wxyz")
one, two = Literal(1), Literal(2)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("w OR x AND y", Or((a, And((b, c))))),
        ("w AND x OR y", Or((And((a, b)), c))),
        ("w AND x AND y", And((a, b, c))),
        ("(w AND x) AND y", And((And((a, b)), c))),
        ("w AND (x AND y)", And((a, And((b, c))))),
        ("w OR x OR y", Or((a, b, c))),
        ("NOT w AND x", And((Not(a), b))),
        ("NOT (w AND x)", Not(And((a, b)))),
        ("NOT NOT w", Not(Not(a))),
        ("NOT w = x", Not(Comparison("=", a, b))),
        ("w AND NOT x", And((a, Not(b)))),
        ("w = x AND y <> z", And((Comparison("=", a, b), Comparison("<>", c, d)))),
        ("w = (x AND y)", Comparison("=", a, And((b, c)))),
        ("(w = x) = y", Comparison("=", Comparison("=", a, b), c)),
        ("w + 1 < x", Comparison("<", Arithmetic("+", a, one), b)),
        ("w - x - y", Arithmetic("-", Arithmetic("-", a, b), c)),
        ("w - (x - y)", Arithmetic("-", a, Arithmetic("-", b, c))),
        ("w + x * y", Arithmetic("+", a, Arithmetic("*", b, c))),
        ("w * x + y", Arithmetic("+", Arithmetic("*", a, b), c)),
        ("w % x / y", Arithmetic("/", Arithmetic("%", a, b), c)),
        ("-w * x", Arithmetic("*", Unary("-", a), b)),
        ("w - -x", Arithmetic("-", a, Unary("-", b))),
        ("-(w + x)", Unary("-", Arithmetic("+", a, b))),
        ("-(-(w))", Unary("-", Unary("-", a))),
        ("+UTC()", Unary("+", Utc())),
        ("UTC ( ) > w", Comparison(">", Utc(), a)),
        ("w IS NULL", IsNull(a)),
        ("w IS NOT NULL", Not(IsNull(a))),
        ("NOT w IS NULL", Not(IsNull(a))),
        ("w LIKE 'x%'", Like(a, "x%", None)),
        ("w NOT LIKE 'x!%' ESCAPE '!'", Not(Like(a, "x!%", "!"))),
        ("w + x LIKE 'x'", Like(Arithmetic("+", a, b), "x", None)),
        ("w IN (1)", In(a, (one,))),
        ("w NOT IN (x + 1, (y), -2)", Not(In(a, (Arithmetic("+", b, one), c, Unary("-", two))))),
        ("w IN (1, (x IN (2)))", In(a, (one, In(b, (two,))))),
        ("w IN (1) AND x", And((In(a, (one,)), b))),
        ("1 + 1 IN (2) OR w", Or((In(Arithmetic("+", one, one), (two,)), a))),
        ("(((w)))", a),
    ],
)
def test_what_binds_stronger_is_further_inside(text: str, tree: Expression) -> None:
    """NOT, AND, OR in this order; arithmetic from the left; a chain of AND is one node."""
    assert parse(text) == tree


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "AND",
        "AND NOT",
        "NOT",
        "w AND",
        "w x",
        "1 x",
        "5 E2",
        "w = = x",
        "w = x = y",
        "w < x < y",
        "w = x IN (1)",
        "w IN (1) = x",
        "w IN (1) IN (2)",
        "w IS NULL IS NULL",
        "w IS NULL + 1",
        "w LIKE 'a' LIKE 'b'",
        "w = NOT x",
        "w + NOT x",
        "- NOT w",
        "--1",
        "+-1",
        "- -1",
        "1 +",
        "* 1",
        "w NOT",
        "w NOT x",
        "w NOT = x",
        "w NOT NULL",
        "w NOT IS NULL",
        "w IS",
        "w IS NOT",
        "w IS TRUE",
        "(w) IS NULL",
        "-w IS NULL",
        "w + x IS NULL",
        "1 IS NULL",
        "NULL",
        "w = NULL",
        "w LIKE",
        "w LIKE x",
        "w LIKE 1",
        "w LIKE 0x48",
        "w LIKE ('a')",
        "w LIKE 'a' ESCAPE",
        "w LIKE 'a' ESCAPE ''",
        "w LIKE 'a' ESCAPE 'ab'",
        "w LIKE 'a' ESCAPE 1",
        "w IN",
        "w IN 1",
        "w IN ()",
        "w IN (1",
        "w IN (1,)",
        "w IN (,1)",
        "w IN (1 2)",
        "w IN (1, x = 2)",
        "w IN (NOT x)",
        "w IN (x AND y)",
        "(w, x)",
        "w, x",
        "(w",
        "w)",
        "((w)",
        "(w))",
        "()",
        "w()",
        "w (x)",
        "UTC",
        "UTC(",
        "UTC(1)",
        "UTC(w)",
        "UTC('x')",
        "UTC(UTC())",
        "UTC() UTC()",
        "TRUE FALSE",
        "1 TRUE",
    ],
)
def test_anything_else_is_an_error_with_its_place(text: str) -> None:
    """Comparisons do not chain, signs do not pile up, NOT begins a condition, patterns are strings."""
    with pytest.raises(FilterError, match=r"\(at character \d+\)$"):
        parse(text)


@pytest.mark.parametrize("text", ["p.message-id", "p.Subject", "p.x", "properties.x", "p.[to]"])
def test_another_field_of_properties_is_an_error(text: str) -> None:
    """Also if it differs in case; a hyphen is a minus."""
    with pytest.raises(FilterError):
        parse(text)


@pytest.mark.parametrize(
    "section", ["d", "delivery_annotations", "m", "message_annotations", "f", "footer", "P"]
)
def test_other_sections_are_errors(section: str) -> None:
    """They may be asked for in the specification, and not here."""
    with pytest.raises(FilterError, match=f"section '{section}' is none of"):
        parse(f"{section}.x")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 99 + "w" + ")" * 99,
        "NOT " * 199 + "w",
        "-(" * 66 + "w" + ")" * 66,
        "w + (" * 49 + "w" + ")" * 49,
        "1 IN ((" * 33 + "w" + "))" * 33,
    ],
)
def test_no_nesting_uses_up_the_stack(text: str) -> None:
    """As deep as two hundred tokens go, with little stack left."""
    limit = sys.getrecursionlimit()
    depth = len(inspect.stack())
    sys.setrecursionlimit(depth + 30)
    try:
        parse(text)
    finally:
        sys.setrecursionlimit(limit)
