"""Effects of a queue for the sessions of another node, as the body of a frame.

::

    EFFECTS    token u32 | index u64 | done u64 | effect*         effect: tag u8 | length u32 | content
    RESUMED    token u32 | index u64 | last u64 | deleted u8 | kept u32 | effect* |
               consumers u32 | consumer* | effect*
    LEADER_IS  term u64 | flags u8

Integers are little-endian. Effects stand in the order in which they are to be applied; each names its
receiver. Numbers of deliveries and publishes are ranges where possible, messages are a batch
(`queues.quorum.command_codec`, `message.batch`).

The decoders raise `BadLetter` and nothing else for invalid bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, assert_never

from amqp10broker.cluster.letters_codec import SHOWN, BadLetter
from amqp10broker.cluster.remote_queue.messages import LeaderIs, RemoteEffects, RemoteResumed
from amqp10broker.message.batch import BATCH_MAX, decode_batch, encode_batch
from amqp10broker.queues.commands import ConsumerRef, PeerId, PublisherRef, RequestRef
from amqp10broker.queues.effects import (
    ActiveChanged,
    Answer,
    Confirmed,
    CreditReply,
    Deliver,
    Effect,
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
from amqp10broker.queues.quorum.command_codec import decode_numbers, encode_numbers, read_framed
from amqp10broker.queues.quorum.node_links import ConsumerFacts

_TOLD: Final = struct.Struct("<IQQ")
_RESUMED: Final = struct.Struct("<IQQB")
_COUNT: Final = struct.Struct("<I")
_CONSUMER: Final = struct.Struct("<IIQQIQQQQB")
_LEADER: Final = struct.Struct("<QB")
_START: Final = struct.Struct("<BI")
_REF: Final = struct.Struct("<IIQQ")
_FLAGS: Final = struct.Struct("<B")
_DELIVER: Final = struct.Struct("<QB")
_REPLY: Final = struct.Struct("<IQQBQ")
_ANSWER: Final = struct.Struct("<QQBQ")
_NO_OFFSET: Final = 2**64 - 1

_REFUSALS: Final = (None, *Refusal)
_ACTIVES: Final = (None, False, True)


class _Content(NamedTuple):
    """Where an effect's content stands."""

    data: bytes
    at: int
    end: int


Ref = tuple[PeerId, int]


def encode_told(told: RemoteEffects) -> list[bytes]:
    """Effects in pieces that belong together in this order."""
    pieces = [_TOLD.pack(told.token, told.index, told.done)]
    for effects in told.effects.values():
        _write(effects, pieces)
    return pieces


def decode_told(body: bytes) -> RemoteEffects:
    """Decode the output of `encode_told`. Raises `BadLetter` if the body is invalid."""
    try:
        token, index, done = _TOLD.unpack_from(body)
        by_session: dict[PeerId, list[Effect]] = {}
        for peer, effect in _read(body, _TOLD.size):
            by_session.setdefault(peer, []).append(effect)
    except (struct.error, ValueError, IndexError, KeyError, OverflowError) as error:
        raise BadLetter(f"no effects of a queue: {error}") from error
    return RemoteEffects(token, index, done, by_session)


def encode_resumed(resumed: RemoteResumed) -> list[bytes]:
    """The answer to `Resume`, in pieces that belong together in this order."""
    kept: list[bytes] = []
    _write(resumed.kept, kept)
    start = _RESUMED.pack(resumed.token, resumed.index, resumed.last, resumed.deleted)
    pieces = [start, _COUNT.pack(sum(map(len, kept))), *kept, _COUNT.pack(len(resumed.consumers))]
    for ref, state in resumed.consumers.items():
        numbers = (state.delivery_count, state.credit, state.available, state.epoch, state.missed)
        pieces.append(_CONSUMER.pack(*ref.reply_to, ref.handle, *numbers, _ACTIVES.index(state.active)))
    _write(resumed.deliveries, pieces)
    return pieces


def decode_resumed(body: bytes) -> RemoteResumed:
    """Decode the output of `encode_resumed`. Raises `BadLetter` if the body is invalid."""
    try:
        token, index, last, deleted = _RESUMED.unpack_from(body)
        at = _RESUMED.size
        (length,) = _COUNT.unpack_from(body, at)
        at += _COUNT.size
        kept = [effect for _, effect in _read(body[at : at + length], 0)]
        at += length
        (count,) = _COUNT.unpack_from(body, at)
        at += _COUNT.size
        consumers: dict[ConsumerRef, ConsumerFacts] = {}
        for _ in range(count):
            node, incarnation, session, handle, *numbers, active = _CONSUMER.unpack_from(body, at)
            at += _CONSUMER.size
            ref = ConsumerRef(PeerId(node, incarnation, session), handle)
            delivery_count, credit, available, epoch, missed = numbers
            consumers[ref] = ConsumerFacts(delivery_count, credit, available, epoch, _ACTIVES[active], missed)
        deliveries = [effect for _, effect in _read(body, at)]
        if not all(isinstance(each, Deliver) for each in deliveries):
            raise ValueError("among deliveries are other effects")
    except (struct.error, ValueError, IndexError, KeyError, OverflowError) as error:
        raise BadLetter(f"no state of a queue: {error}") from error
    only = [each for each in deliveries if isinstance(each, Deliver)]
    return RemoteResumed(token, index, last, bool(deleted), kept, only, consumers)


def encode_leader(leader: LeaderIs) -> list[bytes]:
    return [_LEADER.pack(leader.term, leader.again | leader.no_more << 1 | leader.full << 2)]


def decode_leader(body: bytes) -> LeaderIs:
    """Decode the output of `encode_leader`. Raises `BadLetter` if the body is invalid."""
    try:
        term, flags = _LEADER.unpack(body)
    except struct.error as error:
        raise BadLetter(f"no announcement of a leader: {error}") from error
    return LeaderIs(term, bool(flags & 1), bool(flags & 2), bool(flags & 4))


# -- one effect


def _write(effects: Iterable[Effect], pieces: list[bytes]) -> None:
    for effect in effects:
        if isinstance(effect, Deliver) and len(effect.keys) > BATCH_MAX:
            for part in _cut(effect):
                _write_one(part, pieces)
        else:
            _write_one(effect, pieces)


def _write_one(effect: Effect, pieces: list[bytes]) -> None:
    tag, ref, content = _encode(effect)
    pieces.append(_START.pack(tag, _REF.size + sum(map(len, content))) + _REF.pack(*ref.reply_to, ref.handle))
    pieces += content


def _cut(deliver: Deliver) -> list[Deliver]:
    count = len(deliver.keys)
    return [
        Deliver(
            deliver.consumer,
            deliver.keys[start : start + BATCH_MAX],
            deliver.messages[start : start + BATCH_MAX],
            deliver.epoch,
            deliver.spent and start + BATCH_MAX >= count,
            deliver.again,
            deliver.shown if start + BATCH_MAX >= count else (),
        )
        for start in range(0, count, BATCH_MAX)
    ]


_CONFIRMED: Final = 1
_UNCONFIRMED: Final = 2
_REJECTED: Final = 3
_DELIVERED: Final = 4
_SETTLED: Final = 5
_CREDIT_REPLY: Final = 6
_CONSUMERS_QUEUE_DELETED: Final = 7
_PUBLISHERS_QUEUE_DELETED: Final = 8
_SUBSCRIBED: Final = 9
_SUBSCRIBE_REFUSED: Final = 10
_ACTIVE_CHANGED: Final = 11
_TIMED_OUT: Final = 12
_ANSWERED: Final = 13
_QUEUE_DOWN: Final = 14
_SHOWN: Final = 15
"""A delivery to a browser of a quorum queue."""


def _encode(effect: Effect) -> tuple[int, ConsumerRef | PublisherRef | RequestRef, list[bytes]]:
    match effect:
        case Confirmed():
            flags = _FLAGS.pack(effect.settled)
            return _CONFIRMED, effect.publisher, [flags, encode_numbers(effect.ids)]
        case Deliver():
            start = _DELIVER.pack(effect.epoch, effect.spent | effect.again << 1 | bool(effect.messages) << 2)
            batch = encode_batch(effect.messages) if effect.messages else []
            numbers = encode_numbers(effect.keys)
            if effect.shown:
                return _SHOWN, effect.consumer, [SHOWN.pack(*effect.shown), start, numbers, *batch]
            return _DELIVERED, effect.consumer, [start, numbers, *batch]
        case CreditReply():
            content = _REPLY.pack(
                effect.delivery_count, effect.credit, effect.available, effect.drain, effect.epoch
            )
            return _CREDIT_REPLY, effect.consumer, [content]
        case Unconfirmed():
            flags = _FLAGS.pack(effect.settled | effect.failed << 1)
            ids = encode_numbers(effect.ids)
            return _UNCONFIRMED, effect.publisher, [flags, ids, _name(effect.queue)]
        case PublishRejected():
            flags = _FLAGS.pack(effect.settled)
            return _REJECTED, effect.publisher, [flags, encode_numbers(effect.ids), _name(effect.queue)]
        case Settled():
            return _SETTLED, effect.consumer, [encode_numbers(effect.keys)]
        case QueueDeleted():
            consumes = isinstance(effect.ref, ConsumerRef)
            tag = _CONSUMERS_QUEUE_DELETED if consumes else _PUBLISHERS_QUEUE_DELETED
            return tag, effect.ref, [_name(effect.queue)]
        case QueueDown():
            return _QUEUE_DOWN, effect.consumer, [_name(effect.queue)]
        case Subscribed():
            return _SUBSCRIBED, effect.consumer, []
        case SubscribeRefused():
            flags = _FLAGS.pack(_REFUSALS.index(effect.why))
            return _SUBSCRIBE_REFUSED, effect.consumer, [flags, _name(effect.queue)]
        case ActiveChanged():
            return _ACTIVE_CHANGED, effect.consumer, [_FLAGS.pack(effect.active)]
        case TimedOut():
            return _TIMED_OUT, effect.consumer, [encode_numbers(effect.keys), _name(effect.queue)]
        case Answer():
            refused = _REFUSALS.index(effect.refused)
            offset = _NO_OFFSET if effect.next_offset is None else effect.next_offset
            return _ANSWERED, effect.request, [_ANSWER.pack(effect.ready, effect.consumers, refused, offset)]
        case _:
            assert_never(effect)


def _read(data: bytes, at: int) -> Iterable[tuple[PeerId, Effect]]:
    for tag, start, end in read_framed(data, at):
        *peer, handle = _REF.unpack_from(data, start)
        reply_to = PeerId(*peer)
        yield reply_to, _READERS[tag]((reply_to, handle), _Content(data, start + _REF.size, end))


def _name(name: str) -> bytes:
    return name.encode(errors="surrogatepass")


def _read_name(content: _Content, at: int) -> str:
    return content.data[at : content.end].decode(errors="surrogatepass")


def _numbers(content: _Content, at: int) -> tuple[Sequence[int], int]:
    numbers, at = decode_numbers(content.data, at)
    if at > content.end:
        raise ValueError("numbers of an effect are cut off")
    return numbers, at


def _flags(content: _Content) -> int:
    (flags,) = _FLAGS.unpack_from(content.data, content.at)
    return int(flags)


def _read_confirmed(ref: Ref, content: _Content) -> Effect:
    ids, _ = _numbers(content, content.at + _FLAGS.size)
    return Confirmed(PublisherRef(*ref), ids, bool(_flags(content)))


def _read_unconfirmed(ref: Ref, content: _Content) -> Effect:
    flags = _flags(content)
    ids, at = _numbers(content, content.at + _FLAGS.size)
    name = _read_name(content, at)
    return Unconfirmed(PublisherRef(*ref), ids, bool(flags & 1), bool(flags & 2), name)


def _read_rejected(ref: Ref, content: _Content) -> Effect:
    ids, at = _numbers(content, content.at + _FLAGS.size)
    return PublishRejected(PublisherRef(*ref), ids, bool(_flags(content)), _read_name(content, at))


def _read_deliver(ref: Ref, content: _Content) -> Deliver:
    epoch, flags = _DELIVER.unpack_from(content.data, content.at)
    keys, at = _numbers(content, content.at + _DELIVER.size)
    messages = decode_batch(content.data, at, content.end) if flags & 4 else []
    if len(messages) != len(keys):
        raise ValueError("a delivery has other numbers than messages")
    return Deliver(ConsumerRef(*ref), keys, messages, epoch, bool(flags & 1), bool(flags & 2))


def _read_shown(ref: Ref, content: _Content) -> Effect:
    shown = SHOWN.unpack_from(content.data, content.at)
    deliver = _read_deliver(ref, content._replace(at=content.at + SHOWN.size))
    return replace(deliver, shown=shown)


def _read_settled(ref: Ref, content: _Content) -> Effect:
    return Settled(ConsumerRef(*ref), _numbers(content, content.at)[0])


def _read_reply(ref: Ref, content: _Content) -> Effect:
    delivery_count, credit, available, drain, epoch = _REPLY.unpack_from(content.data, content.at)
    return CreditReply(ConsumerRef(*ref), delivery_count, credit, available, bool(drain), epoch)


def _read_refused(ref: Ref, content: _Content) -> Effect:
    why = _REFUSALS[_flags(content)]
    if why is None:
        raise ValueError("a subscription is refused for no reason")
    return SubscribeRefused(ConsumerRef(*ref), _read_name(content, content.at + _FLAGS.size), why)


def _read_timed_out(ref: Ref, content: _Content) -> Effect:
    keys, at = _numbers(content, content.at)
    return TimedOut(ConsumerRef(*ref), keys, _read_name(content, at))


def _read_answer(ref: Ref, content: _Content) -> Effect:
    ready, consumers, refused, offset = _ANSWER.unpack_from(content.data, content.at)
    next_offset = None if offset == _NO_OFFSET else offset
    return Answer(RequestRef(*ref), ready, consumers, _REFUSALS[refused], next_offset)


_READERS: Final[dict[int, Callable[[Ref, _Content], Effect]]] = {
    _CONFIRMED: _read_confirmed,
    _UNCONFIRMED: _read_unconfirmed,
    _REJECTED: _read_rejected,
    _DELIVERED: _read_deliver,
    _SHOWN: _read_shown,
    _SETTLED: _read_settled,
    _CREDIT_REPLY: _read_reply,
    _CONSUMERS_QUEUE_DELETED: lambda ref, content: QueueDeleted(
        ConsumerRef(*ref), _read_name(content, content.at)
    ),
    _PUBLISHERS_QUEUE_DELETED: lambda ref, content: QueueDeleted(
        PublisherRef(*ref), _read_name(content, content.at)
    ),
    _SUBSCRIBED: lambda ref, content: Subscribed(ConsumerRef(*ref)),
    _SUBSCRIBE_REFUSED: _read_refused,
    _ACTIVE_CHANGED: lambda ref, content: ActiveChanged(ConsumerRef(*ref), bool(_flags(content))),
    _TIMED_OUT: _read_timed_out,
    _ANSWERED: _read_answer,
    _QUEUE_DOWN: lambda ref, content: QueueDown(ConsumerRef(*ref), _read_name(content, content.at)),
}
