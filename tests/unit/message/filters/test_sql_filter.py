"""What SQL filters say of a message: a test for each of the cases of RabbitMQ's suite for expressions.

True, False, and None for unknown; only a message for which it is True passes.
"""

from __future__ import annotations

import inspect
import math
import sys
from typing import Any
from uuid import UUID

import pytest

from amqp10broker.message import amqp091
from amqp10broker.message.filters.fields import FilterError
from amqp10broker.message.filters.sql_eval import compile_sql
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10.types import (
    Byte,
    Char,
    Decimal64,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tests.support.filtering import NOW_MS, evaluate, message

PARCEL = message(
    {
        "city": "Riga",
        "country": Symbol("LV"),
        "note": "Handle with care, 100% glass",
        "code": "AB_42",
        "empty": "",
        "quote": "it's",
        "snow": "a\u2603b",
        "pieces": UShort(3),
        "weight": 7.5,
        "level": Int(-4),
        "zero": ULong(0),
        "big": Long(2**62),
        "small": Float(0.25),
        "express": True,
        "paid": False,
        "nothing": None,
        "raw": b"\x01\xff",
        "bytes0": b"",
        "letter": Char("x"),
        "decimal": Decimal64(b"\0" * 8),
        "uuid": UUID(int=255),
        "sent": Timestamp(NOW_MS - 5000),
        "Case": 1,
        "case": 2,
    },
    priority=6,
    subject="parcel",
    group_sequence=9,
)


def check(cases: str, on: Any = PARCEL) -> None:
    wrong = []
    for line in cases.strip().splitlines():
        wanted, _, text = line.strip().partition(" ")
        found = evaluate(text.strip(), on)
        if found is not {"T": True, "F": False, "U": None}[wanted]:
            wrong.append((line.strip(), found))
    assert wrong == []


CASES = {
    # Three-valued logic: unknown is neither, and what is no boolean counts as unknown.
    "logical_operators": """
        F express AND paid
        F paid AND missing
        U express AND missing
        U missing AND express
        T express OR missing
        U paid OR missing
        U missing OR paid
        F paid OR paid
        U NOT (missing AND express)
        T NOT (missing AND paid)
        F NOT (missing OR express)
        U NOT (missing OR paid)
        U NOT NOT missing
        T pieces OR express
        U NOT pieces
        F express AND missing AND paid
        U express AND missing AND express
        T paid OR missing OR express
        U paid OR missing OR paid
    """,
    # Of numbers, texts and binaries; booleans are equal or not.
    "comparison_operators": """
        T pieces = 3
        F pieces <> 3
        F pieces != 3
        T pieces < 4
        T 2 < pieces
        F pieces < 3
        T pieces <= 3
        T pieces >= 3
        F pieces > 3
        T 4 > pieces
        T level < pieces
        T weight = 7.5
        F city = 'riga'
        T city > 'Oslo'
        T 'Z' < 'a'
        T country = 'LV'
        F express = FALSE
        T express <> paid
        F express > paid
        F express >= TRUE
        F TRUE <= express
    """,
    "single_quoted_strings": """
        T quote = 'it''s'
        T 'a''''b' = "a''b"
        T snow = 'a\u2603b'
    """,
    # The same with the other quotes, wherever a string can be.
    "double_quoted_strings": """
        T city = "Riga"
        T "a""b" = 'a"b'
        T code LIKE "AB!_%" ESCAPE "!"
        T city IN ("Oslo", 'Riga')
        F city NOT LIKE "R%"
    """,
    # Patterns match texts; of anything else the answer is unknown, of null too.
    "like_operator": """
        T city LIKE 'R_ga'
        T city LIKE '%ig%'
        T note LIKE 'Handle%100!% _lass' ESCAPE '!'
        T note NOT LIKE '%wood%'
        F note NOT LIKE '%glass'
        T code LIKE 'AB\\_%' ESCAPE '\\'
        F code LIKE 'AB%2_'
        T snow LIKE 'a_b'
        F empty LIKE '_'
        U missing LIKE '%'
        U missing NOT LIKE '%'
        U pieces LIKE '3'
        U raw LIKE '%'
    """,
    # Equal to one of the expressions; unknown of null on the left only.
    "in_operator": """
        T city NOT IN ('Oslo')
        T 'Riga' IN (country, city)
        T pieces IN (1, 2, 3.0)
        F 1 IN (express)
        F 1 IN ('1', 0x31)
        U missing IN (1)
        U nothing IN (1)
        F pieces IN (missing)
        F pieces IN (1, 1 / 0, missing)
        T pieces NOT IN (1, missing)
        F decimal IN (decimal)
    """,
    # A property that is null is as one that is not there; what is computed from it is unknown.
    "null_handling": """
        T nothing IS NULL
        F city IS NULL
        F zero IS NULL
        U missing = 0
        U missing <> 0
        U missing = missing
        U missing <> nothing
        U express = missing
        U 1 / 0 = 1 / 0
        T missing IS NULL AND city IS NOT NULL
    """,
    # Digits on both sides of the point, and a capital E.
    "scientific_notation": """
        T 1.2E3 = 1200
        T 1.2E+3 = 1200
        T -5.0E-2 = -0.05
        T weight = 0.75E1
    """,
    # NOT, AND, OR; multiplication before addition; parentheses before all.
    "precedence_and_parentheses": """
        T pieces + 2 * 3 = 9
        T (pieces + 2) * 3 = 15
        T 10 - 4 - 3 = 3
        T 8 / 4 / 2 = 1
        T express OR express AND paid
        F (express OR express) AND paid
        T NOT paid AND express
        T NOT city = 'Oslo' AND pieces > 1
        T (pieces > 1) = express
    """,
    # Values of different types compare as false, with each operator; numbers are one type.
    "type_handling": """
        T pieces = 3.0
        F pieces = '3'
        F pieces <> '3'
        F pieces < '3'
        F express = 1
        F city <> raw
        F raw <> city
        F pieces <> express
        F decimal = 0
        F decimal <> 0
        F decimal = decimal
        T letter = 'x'
        U decimal + 1 = 1
    """,
    "complex_expressions": """
        T (country IN ('LV', 'LT') OR city = 'Oslo') AND (pieces * 2 >= 6) AND NOT paid
        T weight * pieces * (1 - small) > 16.8 AND pieces >= 0 AND pieces <= 100 AND level + 4 = 0
        T NOT (city = 'Oslo' OR (h.priority < 5 AND p.subject IN ('letter', 'parcel')))
    """,
    "case_sensitivity": """
        T Case = 1
        T case = 2
        U CASE = 1
    """,
}


@pytest.mark.rabbitmq(
    "amqp_filter_sql_unit_SUITE",
    "case_sensitivity",
    "comparison_operators",
    "complex_expressions",
    "double_quoted_strings",
    "in_operator",
    "like_operator",
    "logical_operators",
    "null_handling",
    "precedence_and_parentheses",
    "scientific_notation",
    "single_quoted_strings",
    "type_handling",
)
@pytest.mark.parametrize(
    "line", [line.strip() for lines in CASES.values() for line in lines.strip().splitlines()]
)
def test_what_an_expression_says_of_a_message(line: str) -> None:
    check(line)


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "arithmetic_operators")
def test_arithmetic_operators() -> None:
    """Division uses floating-point numbers; the remainder has the sign of the dividend."""
    check(
        """
        T pieces + 4 = 7
        T pieces - 4 = -1
        T pieces * weight = 22.5
        T pieces / 2 = 1.5
        T 6 / pieces = 2.0
        T pieces % 2 = 1
        T 7 % level = 3
        T -7 % 4 = -3
        T -7 % level = -3
        T 100 % 7 % 2 = 0
        T 100 % (7 % 4) = 1
        T -level = 4
        T +level = -4
        T 1 - -level = -3
        T -(-level) = -4
        U pieces / 0
        U pieces / 0.0 = 1
        U pieces % zero = 0
        U weight % 2 = 1
        U missing + 1 = 1
        U 1 * nothing = 0
        U city + 1 = 1
        U 1 - 'a' = 1
        U express + 1 = 2
        U -city = 1
        U +express = 1
        U -missing IN (1)
        U raw * 2 = 2
        """
    )
    assert evaluate("+pieces", PARCEL) == 3
    assert type(evaluate("4 / 2", PARCEL)) is float


def test_arithmetic_beyond_floating_point_numbers_is_unknown() -> None:
    huge = "9" * 400
    check(
        f"""
        T {huge} + 1 > {huge}
        U {huge} / 3 > 1
        U {huge} + 0.5 > 1
        U {huge} * weight > 1
        T {huge} > weight
        T 1.0E308 * 10 > {huge}
        """
    )


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "binary_constants")
def test_binary_constants() -> None:
    """They compare byte by byte and with binaries only; a UUID is sixteen bytes."""
    check(
        """
        T raw = 0x01FF
        F raw = 0x01
        T raw > 0x01
        T raw < 0x02
        T bytes0 < raw
        F bytes0 = 0x00
        T raw IN (0x00, 0x01FF)
        T raw NOT IN (0x00)
        T 0xAB <> 0xAC
        F 0x05 = 5
        F raw = 1
        F 0x52696761 = city
        F city = 0x52696761
        U 0x01 + 0x01 = 0x02
        U raw LIKE '%'
        T raw IS NOT NULL
        T uuid = 0x000000000000000000000000000000FF
        F uuid = 0x000000000000000000000000000000FE
        T p.user_id = 0x6D65
        """,
        message({"raw": b"\x01\xff", "bytes0": b"", "city": "Riga", "uuid": UUID(int=255)}, user_id=b"me"),
    )


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "literals")
def test_literals() -> None:
    """A literal may stand anywhere, also by itself."""
    check(
        """
        T TRUE
        F FALSE
        T TRUE = TRUE
        T 5 = 5.0
        T 0 = 0.0
        T 5.001 > 5
        T pieces = 0003
        T 'a' = 'a'
        T 0x00 = 0x00
        T 9007199254740993 > 9007199254740992.0
        """
    )
    assert evaluate("5", PARCEL) == 5
    assert evaluate("'a'", PARCEL) == "a"
    for text in ("5. > 0", ".5 > 0", "5E2 > 0", "5.E2 > 0", "1.5e3 > 0"):
        with pytest.raises(FilterError):
            compile_sql(text)


@pytest.mark.parametrize(
    "kind", [UByte, UShort, UInt, ULong, Byte, Short, Int, Long, Timestamp, Float, float]
)
def test_every_type_of_number_is_a_number(kind: Any) -> None:
    number = message({"n": kind(5), "m": kind(2)})
    check(
        """
        T n = 5
        T n = 5.0
        T n > m
        T n + m = 7
        T n IN (5)
        T 5 IN (n)
        T -n = -5
        F n = '5'
        F n <> TRUE
        """,
        number,
    )
    assert evaluate("n % m", number) == (None if kind in (Float, float) else 1)


def test_not_a_number_and_infinity_are_numbers() -> None:
    """They come from messages; NaN equals nothing."""
    odd = message({"nan": math.nan, "inf": math.inf})
    check(
        """
        F [nan] = [nan]
        T [nan] <> [nan]
        F [nan] < 1
        F [nan] IN (1, [nan])
        T [inf] > 1
        T -[inf] < 1
        U [inf] % 2 = 1
        F [inf] - [inf] = 0
        """,
        odd,
    )


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "whitespace_handling")
def test_whitespace_handling() -> None:
    """It may be left out where it is not needed; in a string it is kept."""
    assert evaluate("city='Riga'AND pieces=3", PARCEL) is True
    assert evaluate("\t\n city\f=\r'Riga'\n", PARCEL) is True
    assert evaluate("note = 'Handle with care,  100% glass'", PARCEL) is False


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "identifiers", differs="a name may begin with _")
def test_identifiers() -> None:
    """Any key of application-properties can be written, if need be in brackets."""
    keys = ["x", "A_1", "_u", "\u2603", "two words", "", " ", "AND", "not", "-", "[ k ]", "]", "][", "p.to"]
    odd = message(dict.fromkeys(keys, True), to="there")
    for key in keys:
        bracketed = key.replace("[", "[[").replace("]", "]]")
        assert evaluate(f"[{bracketed}]", odd) is True
    check("T x\nT a.x\nT application_properties.A_1\nT _u\nT p.to = 'there'\nT [p.to] = TRUE", odd)


def test_a_key_that_is_no_string_is_no_application_property() -> None:
    """A symbol of the same letters is not one either."""
    odd = message({Symbol("k"): 1, ULong(5): 2, "other": 3})
    assert evaluate("k IS NULL", odd) is True
    assert evaluate("other", odd) == 3


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "header_section")
def test_header_section() -> None:
    """The priority is 4 if the message has none."""
    check("T h.priority = 6\nT header.priority > 5\nF h.priority < 6")
    check("T h.priority = 4\nT h.priority IS NOT NULL", message())


FIELDS = message(
    message_id="id-7",
    user_id=b"me",
    to="/queues/q",
    subject="greeting",
    reply_to="/queues/r",
    correlation_id=ULong(789),
    content_type=Symbol("text/plain"),
    content_encoding=Symbol("gzip"),
    absolute_expiry_time=1_700_000_060_000,
    creation_time=1_700_000_000_000,
    group_id="g",
    group_sequence=4294967295,
    reply_to_group_id="h",
)


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "properties_section")
def test_properties_section() -> None:
    check(
        """
        T p.message_id = 'id-7'
        T p.message_id LIKE 'id%'
        T p.user_id = 0x6D65
        T p.to = '/queues/q'
        T p.subject IN ('greeting', 'order')
        T p.reply_to LIKE '%r'
        T p.correlation_id = 789
        T 500 < p.correlation_id
        T p.content_type = 'text/plain'
        T p.content_type LIKE 'text/%'
        T p.content_encoding NOT IN ('deflate')
        T p.absolute_expiry_time = 1700000060000
        T p.creation_time < p.absolute_expiry_time
        T p.group_id = 'g'
        T p.group_sequence = 4294967295
        T p.reply_to_group_id <> 'g'
        T p.reply_to_group_id IS NOT NULL
        T properties.subject = 'greeting' AND properties.group_id = 'g'
        """,
        FIELDS,
    )
    check(
        "T p.subject IS NULL\nU p.message_id = 'x'\nT p.group_sequence IS NOT NULL", message(group_sequence=0)
    )
    check("T p.message_id IS NULL\nT p.reply_to_group_id IS NULL", message())


@pytest.mark.rabbitmq("amqp_filter_sql_SUITE", "multiple_sections")
@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "multiple_sections")
def test_multiple_sections() -> None:
    check("T pieces > 2 AND header.priority > 4 AND properties.group_sequence < 10")
    check("F pieces > 2 AND header.priority > 4 AND properties.group_sequence > 10")


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "section_qualifier")
def test_section_qualifier() -> None:
    """It has a long and a short form; other sections cannot be read."""
    check(
        """
        T header.priority = h.priority
        T properties.subject = p.subject
        T application_properties.city = a.city
        T a.city = city
        """
    )
    for text in ("m.x", "message_annotations.x", "d.x", "footer.x", "f.x", "application-properties.x = 1"):
        with pytest.raises(FilterError):
            compile_sql(text)


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "utc_function")
def test_utc_function() -> None:
    """It is the time of evaluation in milliseconds, the same throughout an expression."""
    check(
        f"""
        T UTC() = {NOW_MS}
        T UTC() = UTC()
        T UTC () - sent = 5000
        T sent < UTC( )
        T (UTC()) - 1 < UTC()
        T city = 'Riga' AND UTC() > 0
        T missing IS NULL AND UTC() > 0
        """
    )
    assert compile_sql("UTC() > 0").uses_time
    assert not compile_sql("city = 'UTC()'").uses_time


@pytest.mark.rabbitmq("amqp_filter_sql_unit_SUITE", "parse_errors")
def test_parse_errors() -> None:
    """Lexer, grammar, the pattern of LIKE and the limits all raise the same error."""
    many = "city IN (" + ", ".join(f"'{number}'" for number in range(99)) + ")"
    for text in (
        "\udcff",
        "!!!",
        "AND NOT",
        "city LIKE 'x!' ESCAPE '!'",
        "city LIKE '_x!' ESCAPE '!'",
        "city LIKE '\n'",
        "city LIKE '%\r'",
        "city LIKE '!\r' ESCAPE '!'",
        "x" * 4096 + " IS NULL",
        many,
        "header.invalid",
        "properties.invalid",
        "raw = 0x",
        "raw = 0x1",
        "raw = 0xG1",
        "raw = 0x1G",
        "raw = 0x1a",
        "raw = 0xdead",
        "raw LIKE 0x48",
    ):
        with pytest.raises(FilterError):
            compile_sql(text)


@pytest.mark.parametrize(
    ("text", "required"),
    [
        ("city = 'Riga'", b"Riga"),
        ("'Riga' = city", b"Riga"),
        ("p.user_id = 0x6D65", b"me"),
        ("city = 'Riga' AND note LIKE '%glass%' AND pieces > 2", b"glass"),
        ("city = 'Riga' OR paid", b""),
        ("NOT city = 'Riga'", b""),
        ("city <> 'Riga'", b""),
        ("city = 'R'", b""),
        ("city LIKE 'R_g%'", b""),
        ("pieces = 300", b""),
        ("'Riga' = 'Riga'", b""),
        ("h.priority = 'high'", b""),
    ],
)
def test_bytes_that_a_message_must_have_are_known(text: str, required: bytes) -> None:
    """They are those without which no message passes; one character may be a char, not UTF-8."""
    assert compile_sql(text).required == required


def test_the_deepest_expression_needs_a_fraction_of_the_stack() -> None:
    """It is compiled without recursion and evaluated with one stack frame per level."""
    text = "NOT " * 199 + "paid"
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 260)
    try:
        assert evaluate(text, PARCEL) is True
        assert evaluate("-(" * 66 + "pieces" + ")" * 66, PARCEL) == 3
    finally:
        sys.setrecursionlimit(limit)


def test_a_message_of_amqp091_is_what_it_becomes_in_amqp10() -> None:
    properties = BasicProperties(priority=8, message_id="m1", type="t", headers={"city": "Riga", "pieces": 3})
    old = (amqp091.make_head("x", "k", encode_properties(properties)), b"body")
    check("T city = 'Riga' AND pieces = 3 AND h.priority = 8 AND p.message_id = 'm1'", old)
