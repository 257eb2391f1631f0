"""The tree of an SQL filter: `sql_parser` builds it, `sql_eval` compiles it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias
from uuid import UUID

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters.fields import MessageField
from amqp10broker.protocols.amqp10 import types as t10

BOOLEAN: Final = 1
NUMBER: Final = 2
"""Integers, floating-point numbers and times alike: 10 equals 10.0."""
TEXT: Final = 3
BINARY: Final = 4
UNIQUE_ID: Final = 5

INTEGERS: Final[frozenset[type]] = frozenset(
    (int, t10.UByte, t10.UShort, t10.UInt, t10.ULong, t10.Byte, t10.Short, t10.Int, t10.Long, t10.Timestamp)
)

KINDS: Final[Mapping[type, int]] = {
    bool: BOOLEAN,
    **dict.fromkeys(INTEGERS, NUMBER),
    float: NUMBER,
    t10.Float: NUMBER,
    str: TEXT,
    t10.Symbol: TEXT,
    t10.Char: TEXT,
    bytes: BINARY,
    UUID: UNIQUE_ID,
}
"""By the class of the value. Null, decimals and compound values have no kind. The lookup by class, not by
`isinstance`, prevents True from being 1.
"""


@dataclass(frozen=True, slots=True)
class Literal:
    value: bool | int | float | str | bytes


@dataclass(frozen=True, slots=True)
class Identifier:
    field: MessageField


@dataclass(frozen=True, slots=True)
class Utc:
    """The time of the evaluation, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``+ - * / %``, and ``div``: as ``/``, of two integers an integer."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Comparison:
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Like:
    operand: Expression
    pattern: str
    escape: str | None


@dataclass(frozen=True, slots=True)
class In:
    operand: Expression
    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Identifier


@dataclass(frozen=True, slots=True)
class Not:
    operand: Expression


@dataclass(frozen=True, slots=True)
class And:
    """AND between two or more: a chain of them is one node, which bounds the tree's depth."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Expression, ...]


Expression: TypeAlias = (
    Literal | Identifier | Utc | Unary | Arithmetic | Comparison | Like | In | IsNull | Not | And | Or
)


def children(node: Expression) -> tuple[Expression, ...]:
    match node:
        case Literal() | Identifier() | Utc():
            return ()
        case Unary() | Like() | IsNull() | Not():
            return (node.operand,)
        case Arithmetic() | Comparison():
            return (node.left, node.right)
        case In():
            return (node.operand, *node.options)
        case And() | Or():
            return node.operands
