"""The bytes of commands and effects of queues: in the log of quorum queues, and between nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from enum import Enum
from struct import Struct
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
    OneOf,
    Varying,
    as_bytes,
    choice,
    optional,
    source_name,
    via,
)
from amqp10broker.message.batch import decode_batch, encode_batch
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    AttachPublisher,
    Cancel,
    Configure,
    ConsumerRef,
    Credit,
    Delete,
    DeliveryOutcome,
    DetachPublisher,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    Purge,
    RequestRef,
    Settle,
    Tick,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.effects import (
    ActiveChanged,
    Answer,
    Confirmed,
    CreditReply,
    Deliver,
    PublishRejected,
    QueueDeleted,
    QueueDown,
    Refusal,
    Settled,
    Subscribed,
    SubscribeRefused,
    TimedOut,
    Unconfirmed,
)
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
    """Encode settings as JSON without those that have their default."""
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


PEER: Final = Layout(PeerId, node=U32, incarnation=U32, session=U64)
CONSUMER: Final = Layout(ConsumerRef, reply_to=PEER, handle=U64)
PUBLISHER: Final = Layout(PublisherRef, reply_to=PEER, handle=U64)
REQUEST: Final = Layout(RequestRef, reply_to=PEER, handle=U64)
MESSAGES: Final = Varying(_write_messages, _read_messages)
"""At most `BATCH_MAX` messages, as one batch."""
SETTINGS: Final = as_bytes(encode_settings, decode_settings)
_PLACES: Final = Struct("<4Q")
SHOWN: Final = Fixed(
    "?32s",
    f"{{0}}, {source_name(_PLACES.pack)}(*{{0}}) if {{0}} else b''",
    f"{source_name(_PLACES.unpack)}({{1}}) if {{0}} else ()",
)
"""How far a browser was shown (`Deliver.shown`)."""
_OUTCOME: Final = choice(DeliveryOutcome)
_REFUSAL: Final = choice(Refusal)
_LINK: Final = via(
    "?IIQQ",
    lambda ref: (type(ref) is ConsumerRef, *ref.reply_to, ref.handle),
    lambda consumes, *peer_handle: (ConsumerRef if consumes else PublisherRef)(
        PeerId(*peer_handle[:3]), peer_handle[3]
    ),
)


def _publish(
    publisher: PublisherRef, settled: bool, ids: Sequence[int], messages: Sequence[Message]
) -> Publish:
    if len(ids) != len(messages):
        raise ValueError("a publish has other numbers than messages")
    return Publish(publisher, ids, messages, settled)


def _deliver(
    consumer: ConsumerRef,
    epoch: int,
    spent: bool,
    again: bool,
    shown: Sequence[int],
    keys: Sequence[int],
    messages: Sequence[Message],
) -> Deliver:
    if len(keys) != len(messages):
        raise ValueError("a delivery has other numbers than messages")
    return Deliver(consumer, keys, messages, epoch, spent, again, shown)


# --- commands -------------------------------------------------------------------------------------

SUBSCRIPTION: Final[dict[str, Field]] = {
    "consumer": CONSUMER,
    "settled": FLAG,
    "exclusive": FLAG,
    "counted": FLAG,
    "answer": FLAG,
    "priority": I64,
    "timeout_ms": optional(U64),
}
"""The first fields of a `Subscribe`."""

OF_SESSIONS: Final[dict[int, Layout[Any]]] = {
    1: Layout(Publish, _publish, publisher=PUBLISHER, settled=FLAG, ids=NUMBERS, messages=MESSAGES),
    2: Layout(Credit, consumer=CONSUMER, delivery_count=U32, credit=U64, drain=FLAG, seen=U64, room=U64),
    3: Layout(
        Settle, consumer=CONSUMER, delivery_outcome=_OUTCOME, answer=FLAG, keys=NUMBERS, annotations=BYTES
    ),
    4: Layout(
        GiveBack, consumer=CONSUMER, delivery_count=U32, seen=U64, epoch=U64, keys=NUMBERS, messages=MESSAGES
    ),
    6: Layout(Cancel, consumer=CONSUMER),
    7: Layout(
        Unsubscribe, consumer=CONSUMER, seen=U64, delivery_outcome=_OUTCOME, unsent=NUMBERS,
        unsent_messages=MESSAGES,
    ),
    8: Layout(AttachPublisher, publisher=PUBLISHER),
    9: Layout(DetachPublisher, publisher=PUBLISHER),
    10: Layout(Purge, request=REQUEST),
    11: Layout(
        Delete, request=optional(REQUEST), if_unused=FLAG, if_empty=FLAG
    ),
}  # fmt: skip
"""Commands that sessions send and logs contain."""

OF_THE_QUEUE: Final[dict[int, Layout[Any]]] = {
    12: Layout(Configure, settings=SETTINGS),
    13: Layout(Tick),
}
UNLOGGED: Final[dict[int, Layout[Any]]] = {
    0x81: Layout(Inspect, request=REQUEST),
    0x82: Layout(Touch),
}
"""Commands that sessions send and no log contains."""

# --- effects --------------------------------------------------------------------------------------

EFFECT: Final[OneOf[Any]] = OneOf(
    "effect of a queue",
    {
        1: Layout(Confirmed, publisher=PUBLISHER, settled=FLAG, ids=NUMBERS),
        2: Layout(Unconfirmed, publisher=PUBLISHER, settled=FLAG, failed=FLAG, ids=NUMBERS, queue=TEXT),
        3: Layout(PublishRejected, publisher=PUBLISHER, settled=FLAG, ids=NUMBERS, queue=TEXT),
        4: Layout(
            Deliver, _deliver, consumer=CONSUMER, epoch=U64, spent=FLAG, again=FLAG, shown=SHOWN,
            keys=NUMBERS, messages=MESSAGES,
        ),
        5: Layout(Settled, consumer=CONSUMER, keys=NUMBERS),
        6: Layout(
            CreditReply, consumer=CONSUMER, delivery_count=U32, credit=U64, available=U64, drain=FLAG,
            epoch=U64,
        ),
        7: Layout(QueueDeleted, ref=_LINK, queue=TEXT),
        8: Layout(QueueDown, consumer=CONSUMER, queue=TEXT),
        9: Layout(Subscribed, consumer=CONSUMER),
        10: Layout(SubscribeRefused, consumer=CONSUMER, why=_REFUSAL, queue=TEXT),
        11: Layout(ActiveChanged, consumer=CONSUMER, active=FLAG),
        12: Layout(TimedOut, consumer=CONSUMER, keys=NUMBERS, queue=TEXT),
        13: Layout(
            Answer, request=REQUEST, ready=U64, consumers=U64, refused=choice((None, *Refusal)),
            next_offset=optional(U64),
        ),
    },
)  # fmt: skip
