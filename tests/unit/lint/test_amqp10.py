"""Rules that clients of both protocols break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqp10broker.observe.frames.records import KnownLink
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import content_frames, method_frame
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.tools import lint
from tests.support.rawframes import (
    attach_receiver,
    attach_sender,
    begin,
    credit,
    disposition,
    flow,
    frame,
    open_frame,
    transfer,
)
from tests.support.tape import Tape

MANY = lint.OFTEN + 5
Client = Callable[[bool], Tape]
"""Records a client that breaks a rule, or comes close to it."""


def session(*, window: int = 1000) -> Tape:
    tape = Tape()
    tape.came(open_frame(container_id="c", idle_time_out=10_000), begin(incoming_window=window))
    begun = amqp10.Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1000, outgoing_window=1000)
    tape.went(frame(0, begun))
    return tape


def receiver(tape: Tape, handle: int = 0, **given: Any) -> None:
    tape.came(attach_receiver(handle, "/queues/q", **given))
    name = f"in-0-{handle}-/queues/q"
    source = amqp10.Source(address="/queues/q")
    answer = amqp10.Attach(name=name, handle=handle, role=False, source=source, initial_delivery_count=0)
    tape.went(frame(0, answer))


def sender(tape: Tape, handle: int = 0, address: str = "/queues/q") -> None:
    tape.came(attach_sender(handle, address))
    answer = amqp10.Attach(
        name=f"out-0-{handle}-{address}", handle=handle, role=True, target=amqp10.Target(address=address)
    )
    tape.went(frame(0, answer), flow(handle=handle, delivery_count=0, link_credit=1000))


def outcome(first: int, state: Any = None, last: int | None = None) -> bytes:
    return frame(
        0,
        amqp10.Disposition(
            role=amqp10.Role.RECEIVER, first=first, last=last, settled=True, state=state or amqp10.Accepted()
        ),
    )


def consuming(granted: int, *, window: int = 1000) -> Tape:
    tape = session(window=window)
    receiver(tape)
    tape.came(credit(0, granted))
    return tape


def publishing() -> Tape:
    tape = session()
    sender(tape)
    return tape


# --- receivers ------------------------------------------------------------------------------------


def flow_before_attach(breaks: bool) -> Tape:
    tape = session()
    tape.came(attach_receiver(0, "/queues/q"))
    tape.came(credit(0, 10) if breaks else flow(handle=0, link_credit=10))
    return tape


def credit_never_renewed(breaks: bool) -> Tape:
    tape = consuming(1)
    tape.went(transfer(0, 0, b"x"))
    tape.came(disposition(0, state=amqp10.Accepted()))
    tape.later(lint.LONG_S + 1)
    if not breaks:
        tape.came(credit(0, 1, delivery_count=1))
        tape.later(lint.LONG_S + 1)
    return tape


def settles_nothing(breaks: bool) -> Tape:
    tape = consuming(100)
    for number in range(lint.FEW):
        tape.went(transfer(0, number, b"x"))
    if not breaks:
        tape.came(disposition(0, state=amqp10.Accepted()))
    tape.later(lint.LONG_S + 1)
    return tape


def unsettled_grows(breaks: bool) -> Tape:
    tape = consuming(1000)
    for number in range(200):
        tape.went(transfer(0, number, b"x"))
    tape.came(disposition(0, 80 if breaks else 120, state=amqp10.Accepted()))
    tape.later(lint.LONG_S + 1)
    return tape


def window_not_reopened(breaks: bool) -> Tape:
    tape = consuming(100, window=3)
    tape.came(credit(0, 100, incoming_window=3, next_incoming_id=0))
    for number in range(3):
        tape.went(transfer(0, number, b"x", settled=True))
    if not breaks:
        tape.came(flow(next_incoming_id=3, incoming_window=3))
    tape.later(lint.LONG_S + 1)
    return tape


def returns_everything(breaks: bool) -> Tape:
    tape = consuming(1000)
    for number in range(MANY):
        tape.later(1)
        tape.went(transfer(0, number, b"x"))
        tape.came(disposition(number, state=amqp10.Released() if breaks or number % 2 else amqp10.Accepted()))
    return tape


# --- senders --------------------------------------------------------------------------------------


def ended_with(breaks: bool, condition: str) -> Tape:
    tape = publishing()
    error = amqp10.Error(condition=Symbol(condition), description="too much") if breaks else None
    if "session" in condition:
        tape.went(frame(0, amqp10.End(error=error)))
    else:
        tape.went(frame(0, amqp10.Detach(handle=0, closed=True, error=error)))
    return tape


def beyond_credit(breaks: bool) -> Tape:
    return ended_with(breaks, "amqp:link:transfer-limit-exceeded")


def beyond_window(breaks: bool) -> Tape:
    return ended_with(breaks, "amqp:session:window-violation")


def ended_by_error(breaks: bool) -> Tape:
    """The client is not at fault for an error that the broker forced."""
    tape = ended_with(False, "amqp:link:detach-forced")
    condition, text = (
        ("amqp:unauthorized-access", None)
        if breaks
        else ("amqp:internal-error", "Connection forced: tidy up")
    )
    tape.went(frame(0, amqp10.Close(error=amqp10.Error(condition=Symbol(condition), description=text))))
    return tape


def tag_reused(breaks: bool) -> Tape:
    tape = publishing()
    tape.came(transfer(0, 0, b"x", delivery_tag=b"t"))
    if not breaks:
        tape.went(outcome(0))
    tape.came(transfer(0, 1, b"x", delivery_tag=b"t"))
    return tape


def sends_settled(breaks: bool) -> Tape:
    tape = publishing()
    for number in range(lint.FEW):
        tape.came(transfer(0, number, b"x", settled=breaks))
    return tape


def sends_refused(breaks: bool) -> Tape:
    tape = publishing()
    for number in range(lint.FEW):
        tape.came(transfer(0, number, b"x"))
    for number in range(lint.FEW):
        tape.went(outcome(number, amqp10.Rejected() if breaks or number % 2 else amqp10.Accepted()))
    tape.came(transfer(0, 99, b"x"))
    return tape


def no_heartbeat(breaks: bool) -> Tape:
    tape = Tape()
    tape.came(open_frame(container_id="c", idle_time_out=None if breaks else 10_000))
    return tape


PERSISTENT = encode_properties(BasicProperties(delivery_mode=2))
TRANSIENT = encode_properties(BasicProperties())


def opened(*, heartbeat: int = 60) -> Tape:
    tape = Tape(WireProtocol.AMQP_091)
    properties = {"capabilities": {"consumer_cancel_notify": True}}
    tape.came(
        method_frame(0, methods.ConnectionStartOk(properties, "PLAIN", b"\0guest\0guest", "en_US")),
        method_frame(0, methods.ConnectionTuneOk(2047, 131_072, heartbeat)),
        method_frame(1, methods.ChannelOpen()),
    )
    tape.went(method_frame(1, methods.ChannelOpenOk()))
    return tape


def publish(key: str = "q", properties: bytes = TRANSIENT) -> bytes:
    method = methods.BasicPublish(exchange="", routing_key=key)
    return content_frames(1, method, properties, b"x", 131_072)


def delivery(tag: int, properties: bytes = TRANSIENT) -> bytes:
    method = methods.BasicDeliver("t", tag, False, "", "q")
    return content_frames(1, method, properties, b"x", 131_072)


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return method_frame(1, methods.BasicAck(tag, multiple))


def consuming_091(*, no_ack: bool = False) -> Tape:
    tape = opened()
    tape.came(method_frame(1, methods.BasicQos(prefetch_count=100)))
    tape.went(method_frame(1, methods.BasicQosOk()))
    tape.came(method_frame(1, methods.BasicConsume(queue="q", consumer_tag="t", no_ack=no_ack)))
    tape.went(method_frame(1, methods.BasicConsumeOk("t")))
    return tape


def unconfirmed(breaks: bool) -> Tape:
    tape = opened()
    if not breaks:
        tape.came(method_frame(1, methods.ConfirmSelect()))
    tape.came(*(publish(properties=PERSISTENT) for _ in range(lint.FEW)))
    return tape


def returns_ignored(breaks: bool) -> Tape:
    tape = opened()
    returned = methods.BasicReturn(312, "NO_ROUTE", "", "nobody")
    for _ in range(lint.FEW):
        tape.came(publish("nobody"))
        tape.went(content_frames(1, returned, TRANSIENT, b"x", 131_072))
    tape.came(publish("nobody" if breaks else "q"))
    return tape


def auto_ack(breaks: bool) -> Tape:
    tape = consuming_091(no_ack=True)
    tape.went(*(delivery(tag, PERSISTENT if breaks else TRANSIENT) for tag in range(1, lint.FEW + 1)))
    return tape


def settles_nothing_091(breaks: bool) -> Tape:
    tape = consuming_091()
    tape.went(*(delivery(tag) for tag in range(1, lint.FEW + 1)))
    if not breaks:
        tape.came(ack(0, multiple=True))
    tape.later(lint.LONG_S + 1)
    return tape


def returns_everything_091(breaks: bool) -> Tape:
    tape = consuming_091()
    for tag in range(1, MANY + 1):
        tape.later(1)
        tape.went(delivery(tag))
        tape.came(method_frame(1, methods.BasicNack(tag, False, True)) if breaks or tag % 2 else ack(tag))
    return tape


def ended_by_error_091(breaks: bool) -> Tape:
    tape = opened()
    if breaks:
        tape.went(method_frame(1, methods.ChannelClose(404, "NOT_FOUND - no queue 'q'", 60, 40)))
        tape.came(method_frame(1, methods.ChannelCloseOk()))
    else:
        tape.came(method_frame(1, methods.ChannelClose(200, "", 0, 0)))
        tape.went(method_frame(0, methods.ConnectionClose(320, "CONNECTION_FORCED", 0, 0)))
    return tape


def no_heartbeat_091(breaks: bool) -> Tape:
    return opened(heartbeat=0 if breaks else 60)


CASES = [
    (lint.NO_HEARTBEAT, no_heartbeat),
    (lint.FLOW_BEFORE_ATTACH, flow_before_attach),
    (lint.CREDIT_NEVER_RENEWED, credit_never_renewed),
    (lint.SETTLES_NOTHING, settles_nothing),
    (lint.UNSETTLED_GROWS, unsettled_grows),
    (lint.WINDOW_NOT_REOPENED, window_not_reopened),
    (lint.RETURNS_EVERYTHING, returns_everything),
    (lint.BEYOND_CREDIT, beyond_credit),
    (lint.BEYOND_WINDOW, beyond_window),
    (lint.ENDED_BY_ERROR, ended_by_error),
    (lint.TAG_REUSED, tag_reused),
    (lint.SENDS_SETTLED, sends_settled),
    (lint.SENDS_REFUSED, sends_refused),
    (lint.NO_HEARTBEAT, no_heartbeat_091),
    (lint.UNCONFIRMED, unconfirmed),
    (lint.RETURNS_IGNORED, returns_ignored),
    (lint.AUTO_ACK, auto_ack),
    (lint.SETTLES_NOTHING, settles_nothing_091),
    (lint.RETURNS_EVERYTHING, returns_everything_091),
    (lint.ENDED_BY_ERROR, ended_by_error_091),
]
EACH = pytest.mark.parametrize(("rule", "client"), CASES, ids=[client.__name__ for _, client in CASES])


@EACH
def test_a_client_that_breaks_a_rule_is_reported_for_that_rule(rule: lint.Rule, client: Client) -> None:
    """No other rule reports it; the finding names the connection and the frames that show it."""
    (finding,) = client(True).findings()
    assert finding.rule is rule
    assert finding.said
    assert finding.connection == 1
    assert finding.evidence


@EACH
def test_a_client_that_comes_close_is_clean(rule: lint.Rule, client: Client) -> None:
    assert client(False).rules() == set()


def test_of_a_link_that_was_there_before_nothing_is_guessed() -> None:
    known = [
        KnownLink(0, 1, 0, "receiver", "in", "/queues/q", 0, 0),
        KnownLink(0, 1, 0, "sender", "out", "/queues/q", 1, 1),
    ]
    tape = Tape(known=known)
    tape.went(transfer(0, 0, b"x"))
    tape.came(disposition(0, state=amqp10.Accepted()), credit(0, 1, delivery_count=1))
    tape.later(60)
    tape.came(transfer(1, 0, b"x"))
    tape.came(frame(0, amqp10.Detach(handle=1, closed=True)), frame(0, amqp10.Detach(handle=0, closed=True)))
    assert tape.rules() == set()
