"""The bytes of commands and effects of queues: in the log of quorum queues, and between nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from enum import Enum
from typing import Any, Final

from amqp10broker.layout import (
    BYTES,
    FLAG,
    I64,
    NUMBERS,
    TEXT,
    U32,
    U64,
    Field,
    Fixed,
    Layout,
    Many,
    OneOf,
    Varying,
    as_bytes,
    choice,
    optional,
    source_name,
)
from amqp10broker.message.message import Message, decode_batch, encode_batch
from amqp10broker.queues import commands as c
from amqp10broker.queues.settings import DEFAULTS, QueueSettings


def _write_messages(messages: Sequence[Message], pieces: list[bytes]) -> None:
    batch = encode_batch(messages) if messages else []
    pieces.append(sum(map(len, batch)).to_bytes(4, "little"))
    pieces += batch


def _read_messages(data: bytes, at: int) -> tuple[Sequence[Message], int]:
    start = at + 4
    end = start + int.from_bytes(data[at:start], "little")
    if start == end:
        return [], end
    if end > len(data):
        raise ValueError("a batch of messages is cut off")
    return decode_batch(data, start, end), end


def encode_settings(settings: QueueSettings) -> bytes:
    given = {
        name: value.value if isinstance(value, Enum) else value
        for name, value in asdict(settings).items()
        if value != getattr(DEFAULTS, name)
    }
    return json.dumps(given, sort_keys=True).encode()


def decode_settings(data: bytes) -> QueueSettings:
    """Decode the result of `encode_settings`; unknown settings are ignored."""
    known: dict[str, Any] = {}
    given = json.loads(data)
    for field in fields(QueueSettings):
        if field.name in given:
            value = given[field.name]
            default = getattr(DEFAULTS, field.name)
            known[field.name] = type(default)(value) if isinstance(default, Enum) else value
    return QueueSettings(**known)


PEER: Final = Layout(c.PeerId, node=U32, incarnation=U32, session=U64)
CONSUMER: Final = Layout(c.ConsumerRef, reply_to=PEER, handle=U64)
PUBLISHER: Final = Layout(c.PublisherRef, reply_to=PEER, handle=U64)
REQUEST: Final = Layout(c.RequestRef, reply_to=PEER, handle=U64)
MESSAGES: Final = Varying(_write_messages, _read_messages)
"""A batch of messages behind its length. Without messages the length is 0."""
SETTINGS: Final = as_bytes(encode_settings, decode_settings)
SHOWN: Final = Many(U64, tuple)
_OUTCOME: Final = choice(c.DeliveryOutcome)
_REFUSAL: Final = choice(c.Refusal)
_LINK: Final = Fixed(
    "?IIQQ",
    f"type({{0}}) is {source_name(c.ConsumerRef)}, *{{0}}[0], {{0}}[1]",
    f"({source_name(c.ConsumerRef)} if {{0}} else {source_name(c.PublisherRef)})"
    f"({source_name(c.PeerId)}({{1}}, {{2}}, {{3}}), {{4}})",
)


def _publish(
    publisher: c.PublisherRef, settled: bool, ids: Sequence[int], messages: Sequence[Message]
) -> c.Publish:
    if len(ids) != len(messages):
        raise ValueError("a publish has other numbers than messages")
    return c.Publish(publisher, ids, messages, settled)


def _deliver(
    consumer: c.ConsumerRef,
    epoch: int,
    spent: bool,
    again: bool,
    shown: Sequence[int],
    keys: Sequence[int],
    messages: Sequence[Message],
) -> c.Deliver:
    if len(keys) != len(messages):
        raise ValueError("a delivery has other numbers than messages")
    return c.Deliver(consumer, keys, messages, epoch, spent, again, shown)


SUBSCRIPTION: Final[dict[str, Field]] = {
    "consumer": CONSUMER,
    "settled": FLAG,
    "exclusive": FLAG,
    "counted": FLAG,
    "answer": FLAG,
    "priority": I64,
    "timeout_ms": optional(U64),
}

OF_SESSIONS: Final[dict[int, Layout[Any]]] = {
    1: Layout(c.Publish, _publish, publisher=PUBLISHER, settled=FLAG, ids=NUMBERS, messages=MESSAGES),
    2: Layout(c.Credit, consumer=CONSUMER, delivery_count=U32, credit=U64, drain=FLAG, seen=U64, room=U64),
    3: Layout(
        c.Settle, consumer=CONSUMER, delivery_outcome=_OUTCOME, answer=FLAG, keys=NUMBERS, annotations=BYTES
    ),
    4: Layout(
        c.GiveBack, consumer=CONSUMER, delivery_count=U32, seen=U64, epoch=U64, keys=NUMBERS,
        messages=MESSAGES,
    ),
    6: Layout(c.Cancel, consumer=CONSUMER),
    7: Layout(
        c.Unsubscribe, consumer=CONSUMER, seen=U64, delivery_outcome=_OUTCOME, unsent=NUMBERS,
        unsent_messages=MESSAGES,
    ),
    8: Layout(c.AttachPublisher, publisher=PUBLISHER),
    9: Layout(c.DetachPublisher, publisher=PUBLISHER),
    10: Layout(c.Purge, request=REQUEST),
    11: Layout(c.Delete, request=optional(REQUEST), if_unused=FLAG, if_empty=FLAG),
}  # fmt: skip
"""Commands that sessions send and logs contain."""

OF_THE_QUEUE: Final[dict[int, Layout[Any]]] = {
    12: Layout(c.Configure, settings=SETTINGS),
    13: Layout(c.Tick),
}
UNLOGGED: Final[dict[int, Layout[Any]]] = {
    0x81: Layout(c.Inspect, request=REQUEST),
    0x82: Layout(c.Touch),
}
"""Commands that sessions send and no log contains."""

EFFECT: Final[OneOf[Any]] = OneOf(
    "effect of a queue",
    {
        1: Layout(c.Confirmed, publisher=PUBLISHER, settled=FLAG, ids=NUMBERS),
        2: Layout(c.Unconfirmed, publisher=PUBLISHER, settled=FLAG, failed=FLAG, ids=NUMBERS, queue=TEXT),
        3: Layout(c.PublishRejected, publisher=PUBLISHER, settled=FLAG, ids=NUMBERS, queue=TEXT),
        4: Layout(
            c.Deliver, _deliver, consumer=CONSUMER, epoch=U64, spent=FLAG, again=FLAG, shown=SHOWN,
            keys=NUMBERS, messages=MESSAGES,
        ),
        5: Layout(c.Settled, consumer=CONSUMER, keys=NUMBERS),
        6: Layout(
            c.CreditReply, consumer=CONSUMER, delivery_count=U32, credit=U64, available=U64, drain=FLAG,
            epoch=U64,
        ),
        7: Layout(c.QueueDeleted, ref=_LINK, queue=TEXT),
        8: Layout(c.QueueDown, consumer=CONSUMER, queue=TEXT),
        9: Layout(c.Subscribed, consumer=CONSUMER),
        10: Layout(c.SubscribeRefused, consumer=CONSUMER, why=_REFUSAL, queue=TEXT),
        11: Layout(c.ActiveChanged, consumer=CONSUMER, active=FLAG),
        12: Layout(c.TimedOut, consumer=CONSUMER, keys=NUMBERS, queue=TEXT),
        13: Layout(
            c.Answer, request=REQUEST, ready=U64, consumers=U64, refused=choice((None, *c.Refusal)),
            next_offset=optional(U64),
        ),
    },
)  # fmt: skip
