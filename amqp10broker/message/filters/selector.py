"""Selectors of JMS as filters: their lexer; grammar and evaluation are those of SQL filters.

The language is the conditional expression of SQL-92 of Jakarta Messaging 3.1, section 3.8. Its keywords
are case-insensitive and its names are those of Java, and of JMS header fields. Beyond the specification a
name may contain dots, or be anything between double quotes; a list of IN may have any values; and the
field of a message is also ``amqp.subject`` and the like, which clients write that translate selectors
themselves.
"""

from __future__ import annotations

import math
import re
from typing import Final

from amqp10broker.message.filters.errors import FilterError
from amqp10broker.message.filters.fields import (
    DELIVERY_MODE,
    PRIORITY,
    PROPERTIES,
    REDELIVERED,
    MessageField,
    Section,
)
from amqp10broker.message.filters.sql_eval import SqlFilter, compile_expression
from amqp10broker.message.filters.sql_lexer import Token, TokenKind, tokens_of
from amqp10broker.message.filters.sql_parser import Dialect, parse_tokens

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
