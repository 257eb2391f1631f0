"""The lexer, the tree and the grammar of an SQL filter (AMQP Filter Expressions, section 6), in RabbitMQ's
dialect (`docs/filters.md`).

An operator-precedence parser with stacks of its own: a deeply nested expression does not use up the
interpreter's stack. From the weakest to the strongest::

    OR
    AND
    NOT x
    x = y  <>  <  <=  >  >=    x [NOT] LIKE 's' [ESCAPE 'c']    x [NOT] IN (y, ...)    name IS [NOT] NULL
                               x [NOT] BETWEEN y AND z (in selectors only)
    + -
    * / %
    +x -x
    literal, name, UTC(), (x)

Comparisons do not chain (``a = b = c``), and the operands of an operator bind at least as strongly as the
operator itself, so that NOT is only found where a condition can begin. A sign stands before something of
the last line only: ``--1`` is written ``-(-1)``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias
from uuid import UUID

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters.fields import PRIORITY, PROPERTIES, FilterError, MessageField, Section
from amqp10broker.protocols.amqp10 import types as t10

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
    """The text of a keyword or symbol; a literal's value; an identifier's part before the dot, and name."""
    position: int


KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "LIKE", "ESCAPE", "IN", "IS", "NULL", "TRUE", "FALSE", "UTC"}
)

RESERVED: Final = KEYWORDS | {"EXISTS", "LOWER", "UPPER", "LEFT", "RIGHT", "SUBSTRING", "DATE", "NAN", "INF"}
"""Reserved in any case of letters: a property of such a name is written in brackets; ``and`` is an error."""

# The pattern never looks back further than one token, so the time is linear in the text.
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
    """Return the tokens of an expression, and one of kind END. `make` gets a match that is not space, and its
    position; `no_token` makes the error for a character that begins no token.
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
        # Otherwise it would be a subtraction that never matches.
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


BOOLEAN: Final = 1
NUMBER: Final = 2
"""Integers, floating-point numbers and times: 10 equals 10.0."""
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
"""By the class of the value, so that True is not 1. Null, decimals and compound values have no kind."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: bool | int | float | str | bytes


@dataclass(frozen=True, slots=True)
class Identifier:
    field: MessageField


@dataclass(frozen=True, slots=True)
class Utc:
    """The time of the evaluation, in ms since 1970."""


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
    """A chain of them is one node, which bounds the tree's depth."""

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


_OR: Final = 1
_AND: Final = 2
_NOT: Final = 3
_COMPARISON: Final = 4
_ADDITIVE: Final = 5
_MULTIPLICATIVE: Final = 6
_SIGN: Final = 7
_PRIMARY: Final = 8
_OPEN: Final = 0
"""A parenthesis: nothing is reduced across it."""

_BINARY: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">="), _COMPARISON),
    **dict.fromkeys("+-", _ADDITIVE),
    **dict.fromkeys("*/%", _MULTIPLICATIVE),
}
_BETWEEN: Final = "BETWEEN"
"""It is open like a parenthesis until its AND has come."""
_BETWEEN_AND: Final = "BETWEEN AND"

_SECTIONS: Final = {
    "header": Section.HEADER,
    "h": Section.HEADER,
    "properties": Section.PROPERTIES,
    "p": Section.PROPERTIES,
    "application_properties": Section.APPLICATION_PROPERTIES,
    "a": Section.APPLICATION_PROPERTIES,
    None: Section.APPLICATION_PROPERTIES,
}
_PROPERTIES: Final = {name.replace("-", "_"): name for name in PROPERTIES}


@dataclass(frozen=True, slots=True)
class _Operand:
    node: Expression
    level: int
    """The level of its outermost operator."""
    bare: bool = False


@dataclass(frozen=True, slots=True)
class _Operator:
    text: str
    """``(`` for a parenthesis, ``IN`` for that of a list; a sign and NOT take one operand."""
    level: int
    position: int


@dataclass(frozen=True, slots=True)
class _List:
    operand: Expression
    negated: bool
    options: list[Expression]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The differences between the languages. `field`: gets the part before a name's dot, name, position."""

    field: Callable[[str | None, str, int], MessageField]
    divide: str


def parse(text: str) -> Expression:
    return parse_tokens(tokenize(text), _SQL)


def parse_tokens(tokens: Sequence[Token], dialect: Dialect) -> Expression:
    return _Parser(tokens, dialect).parse()


class _Parser:
    def __init__(self, tokens: Sequence[Token], dialect: Dialect) -> None:
        self._tokens = tokens
        self._dialect = dialect
        self._next = 0
        self._operands: list[_Operand] = []
        self._operators: list[_Operator] = []
        self._lists: list[_List] = []
        # For each BETWEEN that is being read: whether NOT precedes it.
        self._betweens: list[bool] = []

    def parse(self) -> Expression:
        while True:
            self._operand()
            if self._rest():
                break
        (operand,) = self._operands
        return operand.node

    # Read one operand, with its signs and NOT.

    def _operand(self) -> None:
        while True:
            token = self._take()
            if token.kind is TokenKind.LITERAL:
                assert not isinstance(token.value, tuple)
                self._push(Literal(token.value), _PRIMARY, bare=True)
                return
            if token.kind is TokenKind.IDENTIFIER:
                assert isinstance(token.value, tuple)
                field = self._dialect.field(*token.value, token.position)
                self._push(Identifier(field), _PRIMARY, bare=True)
                return
            signed = bool(self._operators) and self._operators[-1].level == _SIGN
            if token.value == "UTC" and token.kind is TokenKind.KEYWORD:
                self._expect("(")
                self._expect(")")
                self._push(Utc(), _PRIMARY)
                return
            if token.value == "(":
                self._operators.append(_Operator("(", _OPEN, token.position))
            elif token.value in ("+", "-") and not signed:
                self._operators.append(_Operator(str(token.value), _SIGN, token.position))
            elif token.value == "NOT" and (not self._operators or self._operators[-1].level <= _NOT):
                if self._operators and self._operators[-1].text in ("IN", _BETWEEN):
                    raise _unexpected(token)
                self._operators.append(_Operator("NOT", _NOT, token.position))
            else:
                raise _unexpected(token)

    # Read an operand's continuation, up to an operator that needs another operand.

    def _rest(self) -> bool:
        while True:
            token = self._take()
            if token.kind is TokenKind.END:
                self._reduce(_OPEN + 1)
                self._check_between(token)
                if self._operators:
                    raise FilterError("a parenthesis is not closed", self._operators[-1].position)
                return True
            if token.kind not in (TokenKind.SYMBOL, TokenKind.KEYWORD):
                raise _unexpected(token)
            text = str(token.value)
            level = _BINARY.get(text)
            if level is not None:
                self._binary(token, text, level)
                return False
            if text == ")":
                self._close(token)
            elif text == ",":
                self._option(token)
                return False
            elif self._condition(token, text):
                return False

    def _binary(self, token: Token, text: str, level: int) -> None:
        if text == "AND":
            self._reduce(_ADDITIVE)
            if self._operators and self._operators[-1].text == _BETWEEN:
                self._check_left(token, _ADDITIVE)
                self._operators[-1] = _Operator(_BETWEEN_AND, _COMPARISON, token.position)
                return
        self._reduce(level)
        self._check_left(token, level)
        self._operators.append(_Operator(text, level, token.position))

    def _check_left(self, token: Token, level: int) -> None:
        left = self._operands[-1].level
        if left < level or left == level == _COMPARISON:
            raise _unexpected(token)

    def _condition(self, token: Token, text: str) -> bool:
        self._reduce(_COMPARISON)
        self._check_left(token, _COMPARISON)
        negated = text == "NOT"
        if negated:
            token = self._take()
            text = str(token.value) if token.kind is TokenKind.KEYWORD else ""
        operand = self._operands.pop()
        if text == "LIKE":
            self._push_condition(self._like(operand.node), negated)
            return False
        if text == "IN":
            position = self._expect("(").position
            self._operators.append(_Operator("IN", _OPEN, position))
            self._lists.append(_List(operand.node, negated, []))
            return True
        if text == _BETWEEN:
            self._operands.append(operand)
            self._betweens.append(negated)
            self._operators.append(_Operator(_BETWEEN, _OPEN, token.position))
            return True
        if text == "IS" and not negated:
            if not operand.bare or not isinstance(operand.node, Identifier):
                raise FilterError("only a name can be tested with IS NULL", token.position)
            negated = self._skip("NOT")
            self._expect("NULL")
            self._push_condition(IsNull(operand.node), negated)
            return False
        raise _unexpected(token)

    def _like(self, operand: Expression) -> Like:
        pattern = self._string("the pattern of LIKE")
        if not self._skip("ESCAPE"):
            return Like(operand, pattern, None)
        position = self._tokens[self._next].position
        escape = self._string("what follows ESCAPE")
        if len(escape) != 1:
            raise FilterError("what follows ESCAPE must be one character", position)
        return Like(operand, pattern, escape)

    def _string(self, what: str) -> str:
        token = self._take()
        if token.kind is not TokenKind.LITERAL or not isinstance(token.value, str):
            raise FilterError(f"{what} must be a string in quotes", token.position)
        return token.value

    def _option(self, token: Token) -> None:
        self._reduce(_OPEN + 1)
        self._check_between(token)
        if not self._operators or self._operators[-1].text != "IN":
            raise _unexpected(token)
        self._check_left(token, _ADDITIVE)
        self._lists[-1].options.append(self._operands.pop().node)

    def _check_between(self, token: Token) -> None:
        if self._operators and self._operators[-1].text == _BETWEEN:
            raise FilterError("BETWEEN needs AND and another value", token.position)

    def _close(self, token: Token) -> None:
        self._reduce(_OPEN + 1)
        self._check_between(token)
        if not self._operators:
            raise _unexpected(token)
        if self._operators[-1].text == "IN":
            self._option(token)
            self._operators.pop()
            found = self._lists.pop()
            self._push_condition(In(found.operand, tuple(found.options)), found.negated)
        else:
            self._operators.pop()
            self._push(self._operands.pop().node, _PRIMARY)
            self._sign()

    # Stacks.

    def _push(self, node: Expression, level: int, *, bare: bool = False) -> None:
        self._operands.append(_Operand(node, level, bare))
        if bare or isinstance(node, Utc):
            self._sign()

    def _sign(self) -> None:
        if self._operators and self._operators[-1].level == _SIGN:
            text = self._operators.pop().text
            self._operands.append(_Operand(Unary(text, self._operands.pop().node), _SIGN))

    def _push_condition(self, node: Expression, negated: bool) -> None:
        self._operands.append(_Operand(Not(node) if negated else node, _COMPARISON))

    def _reduce(self, level: int) -> None:
        while self._operators and self._operators[-1].level >= level:
            operator = self._operators.pop()
            last = self._operands.pop()
            if operator.level == _NOT:
                node: Expression = Not(last.node)
            elif operator.text == _BETWEEN_AND:
                if last.level < _ADDITIVE:
                    raise FilterError("what follows AND of BETWEEN is no value", operator.position)
                low, operand = self._operands.pop().node, self._operands.pop().node
                node = And((Comparison(">=", operand, low), Comparison("<=", operand, last.node)))
                node = Not(node) if self._betweens.pop() else node
            else:
                node = _combine(operator, self._operands.pop(), last.node, self._dialect)
            self._operands.append(_Operand(node, operator.level))

    # Tokens.

    def _take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind is not TokenKind.END:
            self._next += 1
        return token

    def _skip(self, text: str) -> bool:
        token = self._tokens[self._next]
        if token.kind is TokenKind.KEYWORD and token.value == text:
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        token = self._take()
        if token.kind not in (TokenKind.SYMBOL, TokenKind.KEYWORD) or token.value != text:
            raise FilterError(f"{text} is expected", token.position)
        return token


def _combine(operator: _Operator, left: _Operand, right: Expression, dialect: Dialect) -> Expression:
    # The level distinguishes a chain from one in parentheses, which stays a separate tree.
    if operator.level in (_OR, _AND):
        kind = Or if operator.level == _OR else And
        chained = isinstance(left.node, kind) and left.level == operator.level
        before = children(left.node) if chained else (left.node,)
        return kind((*before, right))
    if operator.level == _COMPARISON:
        return Comparison(operator.text, left.node, right)
    return Arithmetic(dialect.divide if operator.text == "/" else operator.text, left.node, right)


def _field(section: str | None, name: str, position: int) -> MessageField:
    part = _SECTIONS.get(section)
    if part is None:
        raise FilterError(
            f"section '{section}' is none of header, h, properties, p, application_properties, a", position
        )
    if part is Section.HEADER and name != PRIORITY:
        raise FilterError(f"of the header only priority can be asked for, not '{name}'", position)
    if part is Section.PROPERTIES:
        known = _PROPERTIES.get(name)
        if known is None:
            raise FilterError(
                f"'{name}' is no field of properties; there are {', '.join(_PROPERTIES)}", position
            )
        return MessageField(part, known)
    return MessageField(part, name)


_SQL: Final = Dialect(_field, "/")


def _unexpected(token: Token) -> FilterError:
    match token.kind:
        case TokenKind.END:
            shown = "the end of the expression"
        case TokenKind.IDENTIFIER:
            assert isinstance(token.value, tuple)
            shown = f"'{token.value[1]}'"
        case _:
            shown = f"'{token.value!s}'"
    return FilterError(f"{shown} cannot be here", token.position)
