"""The tree of an SQL filter: `sql_parser` builds it, `sql_eval` compiles it."""

from __future__ import annotations

from typing import TypeAlias

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters.fields import MessageField


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
    """LIKE; NOT LIKE is `Not` of it."""

    operand: Expression
    pattern: str
    escape: str | None


@dataclass(frozen=True, slots=True)
class In:
    """IN; NOT IN is `Not` of it."""

    operand: Expression
    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """IS NULL; IS NOT NULL is `Not` of it."""

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
    """Return the direct subexpressions of a node."""
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
