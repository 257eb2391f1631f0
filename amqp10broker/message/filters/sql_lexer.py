"""The lexer of an SQL filter (AMQP Filter Expressions, section 6), in RabbitMQ's dialect (`docs/filters.md`).

One regular expression finds all tokens, and never looks back further than one token, so the time is linear
in the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters.errors import FilterError

CHARACTERS_MAX: Final = 4096
TOKENS_MAX: Final = 200


class TokenKind(Enum):
    KEYWORD = "keyword"
    SYMBOL = "symbol"
    LITERAL = "literal"
    IDENTIFIER = "identifier"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    value: str | int | float | bytes | bool | tuple[str | None, str]
    """The text of a keyword or symbol; the value of a literal; of an identifier, the part before the dot,
    None without one, and the name.
    """
    position: int
    """Of its first character in the text, from 0."""


KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "LIKE", "ESCAPE", "IN", "IS", "NULL", "TRUE", "FALSE", "UTC"}
)

RESERVED: Final = KEYWORDS | {"EXISTS", "LOWER", "UPPER", "LEFT", "RIGHT", "SUBSTRING", "DATE", "NAN", "INF"}
"""Reserved words of the specification, in whatever case: a property with such a name is written in brackets.
The set also makes ``and`` an error, because it is not a keyword.
"""

_WORD: Final = "[A-Za-z_][A-Za-z0-9_]*"
_TOKEN: Final = re.compile(
    rf"""
      (?P<space>[ \t\f\n\r]+)
    | (?P<binary>0x(?P<digits>[0-9A-F]*))
    | (?P<number>[0-9]+(?P<fraction>\.[0-9]+(?:E[+-]?[0-9]+)?)?)
    | (?P<string>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | \[(?P<delimited>(?:[^\[\]]|\[\[|\]\])*)\]
    | (?P<hyphened>(?:application|message|delivery)-(?:properties|annotations)\.)
    | (?:(?P<section>{_WORD})\.)?(?P<word>{_WORD})
    | (?P<symbol><>|!=|<=|>=|[=<>+\-*/%(),])
    """,
    re.VERBOSE,
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
CONTROL: Final = re.compile("[\x00-\x1f\x7f]")


def tokenize(text: str) -> list[Token]:
    return tokens_of(text, _TOKEN, _token, _no_token)


def tokens_of(
    text: str,
    pattern: re.Pattern[str],
    make: Callable[[re.Match[str], int], Token],
    no_token: Callable[[str], str],
) -> list[Token]:
    """Return the tokens of an expression, and one of kind END behind them. `make` takes a match that is not
    space, and its position; `no_token` makes the error for a character with which no token begins.
    """
    if len(text) > CHARACTERS_MAX:
        raise FilterError(f"the expression is {len(text)} characters long; {CHARACTERS_MAX} are allowed")
    if (surrogate := _SURROGATE.search(text)) is not None:
        raise FilterError("the expression is not valid Unicode", surrogate.start())
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        found = pattern.match(text, position)
        if found is None:
            raise FilterError(no_token(text[position]), position)
        if found["space"] is None:
            tokens.append(make(found, position))
        position = found.end()
    if len(tokens) > TOKENS_MAX:
        raise FilterError(f"the expression has {len(tokens)} tokens; {TOKENS_MAX} are allowed")
    tokens.append(Token(TokenKind.END, "the end", len(text)))
    return tokens


def _token(found: re.Match[str], position: int) -> Token:
    if found["word"] is not None:
        return _word(found["section"], found["word"], position)
    if (symbol := found["symbol"]) is not None:
        return Token(TokenKind.SYMBOL, "<>" if symbol == "!=" else symbol, position)
    if (string := found["string"]) is not None:
        quote = string[0]
        return Token(TokenKind.LITERAL, string[1:-1].replace(quote * 2, quote), position)
    if (delimited := found["delimited"]) is not None:
        if CONTROL.search(delimited):
            raise FilterError("a control character in a name", position)
        return Token(TokenKind.IDENTIFIER, (None, delimited.replace("[[", "[").replace("]]", "]")), position)
    if found["hyphened"] is not None:
        # Otherwise it would be a subtraction that never matches anything.
        raise FilterError(f"write '{found['hyphened'].replace('-', '_')}' with an underscore", position)
    if (digits := found["digits"]) is not None:
        if not digits or len(digits) % 2:
            raise FilterError("a binary is written 0x with pairs of the digits 0-9A-F", position)
        return Token(TokenKind.LITERAL, bytes.fromhex(digits), position)
    if found["fraction"] is None:
        return Token(TokenKind.LITERAL, int(found["number"]), position)
    number = float(found["number"])
    if number == math.inf:
        raise FilterError("the number is larger than any floating-point number", position)
    return Token(TokenKind.LITERAL, number, position)


def _word(section: str | None, word: str, position: int) -> Token:
    if section is None and word in KEYWORDS:
        if word in ("TRUE", "FALSE"):
            return Token(TokenKind.LITERAL, word == "TRUE", position)
        return Token(TokenKind.KEYWORD, word, position)
    if section is None and word.upper() in RESERVED:
        hint = f"write {word.upper()}, or" if word.upper() in KEYWORDS else "write"
        raise FilterError(
            f"'{word}' is a reserved word; {hint} [{word}] for a property of that name", position
        )
    return Token(TokenKind.IDENTIFIER, (section, word), position)


def _no_token(character: str) -> str:
    if character in "'\"":
        return "a string has no end"
    if character == "[":
        return "a name in brackets has no end, or a bracket in it is not doubled"
    return f"{character!r} cannot be here"
