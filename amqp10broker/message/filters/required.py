"""Bytes without which no message passes a filter.

Most filters ask for a text that a field must be. To look for some bytes in a message costs a fraction of
reading its fields, so that the many messages that a selective filter does not let through cost little.
"""

from __future__ import annotations

from amqp10broker.message.filters import sql_ast as ast
from amqp10broker.message.filters.fields import Section
from amqp10broker.message.filters.sql_like import longest_part


def text_bytes(value: str | bytes) -> bytes:
    """How a text or binary lies in a message; nothing if it is too short to be looked for.

    A single character is: a value of the type char equals it, and is encoded otherwise.
    """
    content = value.encode() if isinstance(value, str) else value
    return content if len(value) > 1 else b""


def required_by(expression: ast.Expression) -> bytes:
    """The longest text or binary that an expression asks a field to be, or to have in it; empty if none."""
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
