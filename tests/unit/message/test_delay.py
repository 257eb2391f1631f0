"""What a message's head says of its delay."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.dead_lettering import Cause
from amqp10broker.message.traits import TIME_MAX_MS, Delay, Traits, traits_of
from amqp10broker.protocols.amqp091.codec import Int64
from amqp10broker.protocols.amqp091.codec import Timestamp as Timestamp091
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10.types import Long, Symbol, Timestamp, ULong
from tests.support.dead_lettered import dead_lettered

NOW = 1_800_000_000_000
AT = Delay(NOW + 5, from_arrival=False)
AFTER = Delay(5, from_arrival=True)


def head10(annotations: dict[str, Any]) -> bytes:
    return make_head(None, {Symbol(key): value for key, value in annotations.items()}, "", "q")


def head091(headers: dict[str, Any], **properties: Any) -> bytes:
    return amqp091.make_head("", "q", encode_properties(BasicProperties(headers=headers, **properties)))


@pytest.mark.parametrize(
    ("annotations", "delay"),
    [
        ({"x-opt-delivery-time": Long(NOW + 5)}, AT),
        ({"x-opt-delivery-time": Timestamp(NOW + 5)}, AT),
        ({"x-opt-delivery-time": ULong(NOW + 5)}, AT),
        ({"x-opt-delivery-delay": Long(5)}, AFTER),
        ({"x-opt-delivery-delay": 5}, AFTER),
        ({"x-opt-delivery-time": Long(NOW + 5), "x-opt-delivery-delay": Long(9)}, AT),
        ({"x-opt-delivery-delay": Long(0)}, None),
        ({"x-opt-delivery-delay": Long(-1)}, None),
        ({"x-opt-delivery-time": "tomorrow"}, None),
        ({"x-opt-delivery-time": True}, None),
        ({"x-opt-delivery-other": Long(5)}, None),
        ({}, None),
    ],
)
def test_an_annotation_of_amqp10_delays(annotations: dict[str, Any], delay: Delay | None) -> None:
    """The value counts and not its type; the time goes before the delay."""
    assert traits_of(head10(annotations)).delay == delay


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"x-opt-delivery-time": Int64(NOW + 5)}, AT),
        ({"x-opt-delivery-time": Timestamp091(NOW // 1000)}, Delay(NOW, from_arrival=False)),
        ({"x-opt-delivery-delay": 5}, AFTER),
        ({"x-opt-delivery-time": "tomorrow"}, None),
        ({"other": 5}, None),
    ],
)
def test_a_header_of_amqp091_delays(headers: dict[str, Any], delay: Delay | None) -> None:
    """It has the name of the annotation. A timestamp of that protocol is in seconds."""
    assert traits_of(head091(headers)).delay == delay
    with_more = head091(headers, priority=3, expiration="60", delivery_mode=2)
    assert traits_of(with_more) == Traits(True, 3, 60, delay)


@pytest.mark.parametrize(
    "head", [head10({"x-opt-delivery-delay": Long(5)}), head091({"x-opt-delivery-delay": 5})]
)
def test_a_dead_letter_has_no_delay(head: bytes) -> None:
    """The annotation stays: consumers see what the publisher wrote."""
    dead = dead_lettered(head, Cause("q", "expired", NOW, "dlx", None)).head
    assert (traits_of(head).delay, traits_of(dead).delay) == (AFTER, None)
    assert b"x-opt-delivery-delay" in dead


def test_records_of_death_that_a_client_wrote_make_no_dead_letter() -> None:
    head = head10({"x-opt-deaths": [], "x-opt-delivery-delay": Long(5)})
    assert traits_of(head).delay == AFTER


@pytest.mark.parametrize(
    ("delay", "due"),
    [
        (AT, NOW + 5),
        (AFTER, NOW + 5),
        (Delay(-7, from_arrival=False), 0),
        (Delay(TIME_MAX_MS, from_arrival=True), TIME_MAX_MS),
    ],
)
def test_when_a_message_is_due(delay: Delay, due: int) -> None:
    assert delay.due_ms(NOW) == due
