"""Bytes that every message that passes a filter contains.

Most filters compare a field with a text. A search for some bytes in a message costs a fraction of reading
its fields, so that the many messages that a selective filter rejects cost little.
"""

from __future__ import annotations

from amqp10broker.message.filters import sql_ast as ast
from amqp10broker.message.filters.fields import Section
from amqp10broker.message.filters.sql_like import longest_part


def text_bytes(value: str | bytes) -> bytes:
    """Return the encoding of a text or binary in a message; empty if it is too short to be searched for.

    A single character is too short: a value of the type char equals it, and is encoded otherwise.
    """
    content = value.encode() if isinstance(value, str) else value
    return content if len(value) > 1 else b""


def required_by(expression: ast.Expression) -> bytes:
    """Return the longest text or binary that an expression requires in a field; empty if none."""
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
