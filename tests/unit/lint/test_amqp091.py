"""Each rule of AMQP 0-9-1: a client that breaks it, and one that comes close and does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import content_frames, method_frame
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.tools.lint.findings import (
    AUTO_ACK,
    ENDED_BY_ERROR,
    FEW,
    LONG_S,
    NO_HEARTBEAT,
    OFTEN,
    RETURNS_EVERYTHING,
    RETURNS_IGNORED,
    SETTLES_NOTHING,
    UNCONFIRMED,
    Rule,
)
from tests.support.tape import Tape

MANY = OFTEN + 5
PERSISTENT = encode_properties(BasicProperties(delivery_mode=2))
TRANSIENT = encode_properties(BasicProperties())


def opened(*, heartbeat: int = 60, told: bool = True) -> Tape:
    tape = Tape(WireProtocol.AMQP_091)
    properties = {"capabilities": {"consumer_cancel_notify": told}}
    tape.came(
        method_frame(0, methods.ConnectionStartOk(properties, "PLAIN", b"\0guest\0guest", "en_US")),
        method_frame(0, methods.ConnectionTuneOk(2047, 131_072, heartbeat)),
    )
    return tape


def channel(tape: Tape, *, number: int = 1) -> None:
    tape.came(method_frame(number, methods.ChannelOpen()))
    tape.went(method_frame(number, methods.ChannelOpenOk()))


def publish(key: str = "q", properties: bytes = TRANSIENT, number: int = 1) -> bytes:
    return content_frames(
        number, methods.BasicPublish(exchange="", routing_key=key), properties, b"x", 131_072
    )


def delivery(tag: int, properties: bytes = TRANSIENT) -> bytes:
    method = methods.BasicDeliver("t", tag, False, "", "q")
    return content_frames(1, method, properties, b"x", 131_072)


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return method_frame(1, methods.BasicAck(tag, multiple))


def consuming(*, prefetch: int = 100, no_ack: bool = False, told: bool = True) -> Tape:
    tape = opened(told=told)
    channel(tape)
    if prefetch:
        tape.came(method_frame(1, methods.BasicQos(prefetch_count=prefetch)))
        tape.went(method_frame(1, methods.BasicQosOk()))
    tape.came(method_frame(1, methods.BasicConsume(queue="q", consumer_tag="t", no_ack=no_ack)))
    tape.went(method_frame(1, methods.BasicConsumeOk("t")))
    return tape


def unconfirmed(breaks: bool) -> Tape:
    tape = opened()
    channel(tape)
    if not breaks:
        tape.came(method_frame(1, methods.ConfirmSelect()))
    tape.came(*(publish(properties=PERSISTENT) for _ in range(FEW)))
    return tape


def returns_ignored(breaks: bool) -> Tape:
    tape = opened()
    channel(tape)
    returned = methods.BasicReturn(312, "NO_ROUTE", "", "nobody")
    for _ in range(FEW):
        tape.came(publish("nobody"))
        tape.went(content_frames(1, returned, TRANSIENT, b"x", 131_072))
    tape.came(publish("nobody" if breaks else "q"))
    return tape


def auto_ack(breaks: bool) -> Tape:
    tape = consuming(no_ack=True)
    tape.went(*(delivery(tag, PERSISTENT if breaks else TRANSIENT) for tag in range(1, FEW + 1)))
    return tape


def settles_nothing(breaks: bool) -> Tape:
    tape = consuming()
    tape.went(*(delivery(tag) for tag in range(1, FEW + 1)))
    if not breaks:
        tape.came(ack(0, multiple=True))
    tape.later(LONG_S + 1)
    return tape


def returns_everything(breaks: bool) -> Tape:
    tape = consuming()
    for tag in range(1, MANY + 1):
        tape.later(1)
        tape.went(delivery(tag))
        tape.came(method_frame(1, methods.BasicNack(tag, False, True)) if breaks or tag % 2 else ack(tag))
    return tape


def ended_by_error(breaks: bool) -> Tape:
    tape = opened()
    channel(tape)
    if breaks:
        tape.went(method_frame(1, methods.ChannelClose(404, "NOT_FOUND - no queue 'q'", 60, 40)))
        tape.came(method_frame(1, methods.ChannelCloseOk()))
    else:
        tape.came(method_frame(1, methods.ChannelClose(200, "", 0, 0)))
        tape.went(method_frame(0, methods.ConnectionClose(320, "CONNECTION_FORCED", 0, 0)))
    return tape


def no_heartbeat(breaks: bool) -> Tape:
    return opened(heartbeat=0 if breaks else 60)


CASES: dict[Rule, Callable[[bool], Tape]] = {
    NO_HEARTBEAT: no_heartbeat,
    UNCONFIRMED: unconfirmed,
    RETURNS_IGNORED: returns_ignored,
    AUTO_ACK: auto_ack,
    SETTLES_NOTHING: settles_nothing,
    RETURNS_EVERYTHING: returns_everything,
    ENDED_BY_ERROR: ended_by_error,
}


@pytest.mark.parametrize("rule", CASES, ids=lambda rule: rule.id)
def test_a_client_that_breaks_a_rule_is_told_of_that_one(rule: Rule) -> None:
    """And of no other, with what shows it."""
    (finding,) = CASES[rule](True).findings()
    assert finding.rule is rule
    assert finding.said
    assert finding.evidence


@pytest.mark.parametrize("rule", CASES, ids=lambda rule: rule.id)
def test_a_client_that_comes_close_is_clean(rule: Rule) -> None:
    assert CASES[rule](False).rules() == set()
