"""Selectors of JMS: what they say of a message (Jakarta Messaging 3.1, section 3.8).

True, False, and None for unknown; only a message for which it is True is selected.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.message.filters.fields import FilterError
from amqp10broker.message.filters.sql_eval import compile_selector
from amqp10broker.protocols.amqp10.types import Float, Symbol, Timestamp, UByte, UInt
from tests.support.filtering import evaluate, message

ORDER = message(
    {
        "n": 5,
        "half": 2.5,
        "single": Float(0.5),
        "byte": UByte(200),
        "text": "it's",
        "city": Symbol("Riga"),
        "flag": True,
        "off": False,
        "nothing": None,
        "raw": b"\1",
        "$total_1": 7,
        "größe": 3,
        "a.b": 1,
        "x-y": 2,
        "like": 8,
    },
    priority=6,
    durable=True,
    message_id="ID:7",
    correlation_id="c",
    subject="kind",
    creation_time=Timestamp(1_000),
    absolute_expiry_time=Timestamp(2_000),
    reply_to="answers",
    to="orders",
    user_id=b"me",
    group_id="g",
    group_sequence=UInt(4),
)
PLAIN = message()


def selects(text: str, on: Any = ORDER) -> Any:
    return evaluate(text, on, compiled=compile_selector)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Literals.
        ("n = 5", True),
        ("n = 5L", True),
        ("n = 0x5", True),
        ("n = 05", True),
        ("byte = 0xC8L", True),
        ("byte = 0310", True),
        ("half = 2.5", True),
        ("half = 2.5d", True),
        ("half = .25e1", True),
        ("half = 25E-1", True),
        ("n = 5.", True),
        ("n = 5f", True),
        ("single = 0.5F", True),
        ("text = 'it''s'", True),
        ("flag = TRUE", True),
        ("flag = true", True),
        ("off = False", True),
        ("-n = -5", True),
        ("+n = 5", True),
        # Comparisons; of what is of other types, false.
        ("n <> '5'", False),
        ("flag = 1", False),
        # Booleans are conditions.
        # Three values.
        ("missing = 1", None),
        ("NOT (missing = 1)", None),
        ("missing = 1 OR flag", True),
        ("missing = 1 AND flag", None),
        ("nothing IS NULL", True),
        ("n IS NOT NULL", True),
        ("missing IN ('a')", None),
        ("missing LIKE '%'", None),
        # Between, in, like.
        ("n BETWEEN 5 AND 6", True),
        ("n BETWEEN 6 AND 7", False),
        ("n NOT BETWEEN 6 AND 7", True),
        ("n between 1 + 3 and 2 * 3", True),
        ("NOT n BETWEEN 1 AND 9 OR flag", True),
        ("n BETWEEN 1 AND 9 AND half BETWEEN 3 AND 4", False),
        ("(n BETWEEN 1 AND 9) = TRUE", True),
        ("city IN ('Oslo', 'Riga')", True),
        ("city NOT IN ('Oslo', 'Riga')", False),
        ("text LIKE 'it_s'", True),
        # Arithmetic: of two integers as in Java.
        ("n / 2 = 2", True),
        ("-n / 2 = -2", True),
        ("n / 2.0 = 2.5", True),
        ("5 / 0 = 1", None),
        ("n * 2 + 1 = 11", True),
        ("text + 1 = 2", None),
        # Names.
        ("$total_1 = 7", True),
        ("größe = 3", True),
        ("a.b = 1", True),
        ('"x-y" = 2', True),
        ('"like" = 8', True),
        ("N = 5", None),
    ],
)
def test_expression(text: str, value: Any) -> None:
    assert selects(text) is value or selects(text) == value != (selects(text) is None)


@pytest.mark.parametrize(
    "text",
    [
        "JMSPriority = 6",
        "JMSDeliveryMode = 'PERSISTENT'",
        "JMSDeliveryMode LIKE 'PER%'",
        "JMSMessageID = 'ID:7'",
        "JMSCorrelationID = 'c'",
        "JMSType = 'kind'",
        "JMSTimestamp = 1000",
        "JMSExpiration BETWEEN 1999 AND 2001",
        "JMSReplyTo = 'answers'",
        "JMSDestination = 'orders'",
        "JMSXGroupID = 'g'",
        "JMSXGroupSeq = 4",
        "amqp.subject = 'kind'",
        "amqp.message_id = 'ID:7'",
        "amqp.group_sequence = 4",
        "amqp.priority = 6",
    ],
)
def test_fields_of_jms_and_of_amqp(text: str) -> None:
    assert selects(text) is True
    # No name of JMS is a property of the application.
    assert selects(text, message(dict.fromkeys(("JMSPriority", "JMSType", "amqp.subject"), 0))) is not True


def test_a_message_that_says_nothing_has_the_defaults_of_its_header() -> None:
    """Its priority is 4, it is not persistent or redelivered, and all other fields are null."""
    assert (
        selects("JMSPriority = 4 AND JMSDeliveryMode = 'NON_PERSISTENT' AND NOT JMSRedelivered", PLAIN)
        is True
    )
    assert selects("JMSType IS NULL AND JMSTimestamp IS NULL AND JMSXGroupSeq IS NULL", PLAIN) is True


def test_a_header_field_is_not_looked_for_in_the_properties() -> None:
    """The search for required bytes would skip matches: the words of JMS are not in the message."""
    assert compile_selector("JMSDeliveryMode = 'PERSISTENT'").required == b""
    assert compile_selector("JMSType = 'kind'").required == b"kind"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 1),
        ("n == 5", 4),
        ("n != 5", 3),
        ("n = 08", 5),
        ("n = 1e999", 5),
        ("n BETWEEN 1", 12),
        ("n BETWEEN 1 OR 2", 17),
        ("(n BETWEEN 1)", 13),
        ("n BETWEEN 1 AND NOT flag", 17),
        ("n BETWEEN NOT flag AND 2", 11),
        ("n IN (1 BETWEEN 0 AND 2)", 24),
        ("text LIKE 'a' ESCAPE 'xy'", 22),
        ("5 IS NULL", 3),
        ("n % 2 = 1", 3),
        ("amqp.nothing = 1", 1),
        ("n = 5)", 6),
    ],
)
def test_what_is_no_selector_is_refused_with_its_place(text: str, position: int) -> None:
    with pytest.raises(FilterError) as refused:
        compile_selector(text)
    assert f"(at character {position})" in str(refused.value)


@pytest.mark.parametrize("text", ["n = 1 OR " * 100 + "flag", "x" * 4097])
def test_it_is_as_long_as_an_sql_filter_at_most(text: str) -> None:
    with pytest.raises(FilterError, match="are allowed"):
        compile_selector(text)


@given(st.text(st.sampled_from("aN05.eEfL'\"()=<>+-*/, $_!") | st.characters(), max_size=40))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    try:
        selects(text)
    except FilterError:
        return
