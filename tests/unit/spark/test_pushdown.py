"""Conditions that are taken over: only rows that Spark would have dropped are left out."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from amqp10broker.message.filters.sql_parser import tokenize
from amqp10broker.spark.stream.source import Pushed, push

OFFSET = ("offset",)


def pushed(*filters: Filter) -> tuple[Pushed, list[Filter]]:
    into = Pushed()
    return into, list(push(filters, into))


@pytest.mark.parametrize(
    ("condition", "low", "high"),
    [
        (GreaterThan(OFFSET, 5), 6, None),
        (GreaterThanOrEqual(OFFSET, 5), 5, None),
        (LessThan(OFFSET, 5), 0, 5),
        (LessThanOrEqual(OFFSET, 5), 0, 6),
        (EqualTo(OFFSET, 5), 5, 6),
        (LessThan(OFFSET, -3), 0, 0),
    ],
)
def test_conditions_on_the_offset_become_a_range(condition: Filter, low: int, high: int | None) -> None:
    into, left = pushed(condition)
    assert (into.low, into.high, left) == (low, high, [])


@pytest.mark.parametrize(
    "condition",
    [
        In(OFFSET, (1, 2)),
        Not(EqualTo(OFFSET, 1)),
        IsNotNull(OFFSET),
        EqualNullSafe(OFFSET, 5),
        EqualTo(("body",), b"x"),
        GreaterThan(("subject",), "a"),
        EqualTo(("applicationProperties", "k"), "v"),
    ],
)
def test_the_rest_is_left_to_spark(condition: Filter) -> None:
    into, left = pushed(condition)
    assert left == [condition]
    assert into == Pushed()


@pytest.mark.parametrize(
    ("column", "value", "sql"),
    [
        ("subject", "it's", "p.subject = 'it''s'"),
        ("messageId", "a", "p.message_id = 'a'"),
        ("messageId", "17", "(p.message_id = '17' OR p.message_id = 17)"),
        ("messageId", "017", "p.message_id = '017'"),
        ("messageId", "0x00ff", "(p.message_id = '0x00ff' OR p.message_id = 0x00FF)"),
        ("messageId", "0xABCD", "p.message_id = '0xABCD'"),
    ],
)
def test_texts_become_sql_and_are_checked_again(column: str, value: str, sql: str) -> None:
    """A column shows ids of other types as text, and the condition must let them through."""
    condition = EqualTo((column,), value)
    into, left = pushed(condition)
    assert left == [condition]
    assert into.sql(None) == sql
    assert into.sql("a > 1 OR b") == f"(a > 1 OR b) AND {sql}"


@pytest.mark.parametrize(
    "value",
    ["0x", "12345678901234567890", "00000000-0000-0000-0000-000000000001", "x" * 4096, "line\nbreak"],
)
def test_ids_that_no_sql_says_exactly(value: str) -> None:
    into, left = pushed(EqualTo(("messageId",), value))
    assert into.sql(None) is None
    assert len(left) == 1


@pytest.mark.parametrize("given", [" OR ".join(["a = 1"] * 49), "a = '" + "x" * 4000 + "'"])
def test_a_long_filter_leaves_no_room(given: str) -> None:
    """200 tokens and 4096 characters are all that a broker takes; Spark checks what stays outside."""
    into, left = pushed(*(EqualTo(("subject",), f"{number}" * 80) for number in range(5)))
    assert into.sql(given) == given
    assert len(left) == 5


def test_as_many_conditions_as_there_is_room_for() -> None:
    into, _ = pushed(EqualTo(("subject",), "x" * 4090), EqualTo(("subject",), "y"))
    assert into.sql("a") == "(a) AND p.subject = 'y'"
    into, _ = pushed(*(EqualTo(("subject",), f"{number}") for number in range(100)))
    sql = into.sql(None)
    assert sql is not None
    assert sql.count("p.subject") > 20
    assert tokenize(sql)
