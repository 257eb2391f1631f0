"""Commands of a quorum queue as bytes: what its log says.

One record holds all commands of one wake, with the time they were given at::

    now_ms u64 | command*            command: tag u8 | length u32 | content

Integers are little-endian. Numbers of deliveries and publishes stand as a range where they are one.
Messages are batches (`message.batch`), and a record says where they begin, so that a message can be read
again without reading the commands.

Consumers and publishers have numbers in the log, given by `Refs`. A publisher that never attached has
number 0: nobody needs to know it again.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from sys import byteorder
from typing import Any, Final, assert_never

from amqp10broker.message.batch import BATCH_MAX, decode_batch, encode_batch
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    NO_BOUND,
    AttachPublisher,
    Cancel,
    Configure,
    Credit,
    Delete,
    DetachPublisher,
    GiveBack,
    Inspect,
    Publish,
    Purge,
    ReplyTo,
    RequestRef,
    Settle,
    Subscribe,
    Touch,
    Unsubscribe,
    Verdict,
)
from amqp10broker.queues.quorum_commands import DlxSettle, NodeRestarted, QuorumCommand, Tick
from amqp10broker.queues.quorum_refs import Refs
from amqp10broker.queues.settings import DEFAULTS, QueueSettings

_TIME: Final = struct.Struct("<Q")
_START: Final = struct.Struct("<BI")
_RANGE: Final = struct.Struct("<BQI")
_COUNT: Final = struct.Struct("<BI")
_PUBLISH: Final = struct.Struct("<IBB")
_SUBSCRIBE: Final = struct.Struct("<IBqq")
_NUMBER: Final = struct.Struct("<I")
_CREDIT: Final = struct.Struct("<IIQBQ")
_ROOM: Final = struct.Struct("<Q")
"""Stands behind `_CREDIT` since 2026-11-22. What was carried out without it must be carried out so again."""
_SETTLE: Final = struct.Struct("<IBBI")
_GIVE_BACK: Final = struct.Struct("<IIQQB")
_UNSUBSCRIBE: Final = struct.Struct("<IQBB")
_DELETE: Final = struct.Struct("<B")

_PUBLISH_TAG: Final = 1
_CREDIT_TAG: Final = 2
_SETTLE_TAG: Final = 3
_GIVE_BACK_TAG: Final = 4
_SUBSCRIBE_TAG: Final = 5
_CANCEL_TAG: Final = 6
_UNSUBSCRIBE_TAG: Final = 7
_ATTACH_TAG: Final = 8
_DETACH_TAG: Final = 9
_INSPECT_TAG: Final = 10
_PURGE_TAG: Final = 11
_DELETE_TAG: Final = 12
_CONFIGURE_TAG: Final = 13
_TOUCH_TAG: Final = 14
_TICK_TAG: Final = 15
_RESTARTED_TAG: Final = 16
_DLX_SETTLE_TAG: Final = 17

_NO_TIMEOUT: Final = -1
_VERDICTS: Final = tuple(Verdict)
_VERDICT_NUMBERS: Final = {verdict: number for number, verdict in enumerate(_VERDICTS)}


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record.

    Attributes:
        pieces: its payload, in pieces that belong together in this order.
        batches: for each `Publish` with messages: where its batch begins in the payload.
        lengths: bytes of each of these.
    """

    pieces: list[bytes]
    batches: list[int]
    lengths: list[int]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A record that was read.

    Attributes:
        now_ms: when its commands were given.
        commands: what they are.
        batches: as in `Encoded`.
    """

    now_ms: int
    commands: list[QuorumCommand]
    batches: list[int]


def encode_commands(commands: Sequence[QuorumCommand], now_ms: int, refs: Refs) -> Encoded:
    """Commands as one record.

    Args:
        commands: in order; none publishes more than `BATCH_MAX` messages.
        now_ms: when they are given.
        refs: of this queue; gets to know who comes and goes.
    """
    pieces = [_TIME.pack(now_ms)]
    batches: list[int] = []
    lengths: list[int] = []
    at = _TIME.size
    for command in commands:
        tag, content = _encode(command, refs)
        length = sum(map(len, content))
        pieces.append(_START.pack(tag, length))
        pieces += content
        at += _START.size + length
        if tag == _PUBLISH_TAG:
            assert isinstance(command, Publish)
            if command.messages:
                lengths.append(sum(map(len, content[2:])))
                batches.append(at - lengths[-1])
    return Encoded(pieces, batches, lengths)


def _encode(command: QuorumCommand, refs: Refs) -> tuple[int, list[bytes]]:
    match command:
        case Publish():
            number = refs.number_of_publisher(command.publisher)
            assert len(command.messages) <= BATCH_MAX
            batch = encode_batch(command.messages) if command.messages else []
            start = _PUBLISH.pack(number, command.settled, bool(batch))
            return _PUBLISH_TAG, [start, encode_numbers(command.ids), *batch]
        case Credit():
            number = refs.number_of_consumer(command.consumer)
            return _CREDIT_TAG, [
                _CREDIT.pack(number, command.delivery_count, command.credit, command.drain, command.seen),
                _ROOM.pack(command.room),
            ]
        case Settle():
            number = refs.number_of_consumer(command.consumer)
            start = _SETTLE.pack(
                number, _VERDICT_NUMBERS[command.verdict], command.answer, len(command.annotations)
            )
            return _SETTLE_TAG, [start, encode_numbers(command.keys), command.annotations]
        case GiveBack():
            number = refs.number_of_consumer(command.consumer)
            batch = _returned(number, command.messages, refs)
            start = _GIVE_BACK.pack(number, command.delivery_count, command.seen, command.epoch, bool(batch))
            return _GIVE_BACK_TAG, [start, encode_numbers(command.keys), *batch]
        case Subscribe():
            number = refs.add_consumer(command.consumer, settled=command.settled)
            flags = command.settled | command.exclusive << 1 | command.counted << 2 | command.answer << 3
            timeout_ms = _NO_TIMEOUT if command.timeout_ms is None else command.timeout_ms
            return _SUBSCRIBE_TAG, [_SUBSCRIBE.pack(number, flags, command.priority, timeout_ms)]
        case Cancel():
            return _CANCEL_TAG, [_NUMBER.pack(refs.number_of_consumer(command.consumer))]
        case Unsubscribe():
            number = refs.number_of_consumer(command.consumer)
            batch = _returned(number, command.unsent_messages, refs)
            start = _UNSUBSCRIBE.pack(number, command.seen, _VERDICT_NUMBERS[command.verdict], bool(batch))
            return _UNSUBSCRIBE_TAG, [start, encode_numbers(command.unsent), *batch]
        case AttachPublisher():
            return _ATTACH_TAG, [_NUMBER.pack(refs.add_publisher(command.publisher))]
        case DetachPublisher():
            number = refs.number_of_publisher(command.publisher)
            refs.forget_publisher(command.publisher)
            return _DETACH_TAG, [_NUMBER.pack(number)]
        case Inspect():
            return _INSPECT_TAG, []
        case Purge():
            return _PURGE_TAG, []
        case Delete():
            flags = (command.request is not None) | command.if_unused << 1 | command.if_empty << 2
            return _DELETE_TAG, [_DELETE.pack(flags)]
        case Configure():
            return _CONFIGURE_TAG, [encode_settings(command.settings)]
        case Touch():
            return _TOUCH_TAG, []
        case Tick():
            return _TICK_TAG, []
        case NodeRestarted():
            refs.forget_all()
            return _RESTARTED_TAG, []
        case DlxSettle():
            return _DLX_SETTLE_TAG, [encode_numbers(command.keys)]
        case _:
            assert_never(command)


def _returned(number: int, messages: Sequence[Message], refs: Refs) -> list[bytes]:
    """Only of a settled consumer's deliveries may the queue have no copy any more."""
    return encode_batch(messages) if messages and refs.settles(number) else []


def decode_commands(payload: bytes, refs: Refs) -> Decoded:
    """What `encode_commands` made.

    Args:
        payload: of one record.
        refs: of this queue, as it was when the record was written.

    Raises:
        ValueError: it is no such record.
    """
    commands: list[QuorumCommand] = []
    batches: list[int] = []
    try:
        now_ms = _TIME.unpack_from(payload)[0]
        at = _TIME.size
        while at < len(payload):
            tag, length = _START.unpack_from(payload, at)
            start = at + _START.size
            at = start + length
            if at > len(payload):
                raise ValueError("a command of a quorum queue is cut off")
            command = _DECODERS[tag](payload[start:at], refs)
            if type(command) is Publish and command.messages:
                batches.append(start + _messages_at(payload, start + _PUBLISH.size))
            commands.append(command)
    except (struct.error, KeyError, IndexError) as error:
        raise ValueError(f"no commands of a quorum queue: {error!r}") from error
    return Decoded(now_ms, commands, batches)


def _messages_at(payload: bytes, at: int) -> int:
    """Where messages begin behind a `Publish` and its ids, counted from the former."""
    return _PUBLISH.size + _numbers_size(payload, at)


def _decode_publish(content: bytes, refs: Refs) -> Publish:
    number, settled, there = _PUBLISH.unpack_from(content)
    ids, at = decode_numbers(content, _PUBLISH.size)
    messages = decode_batch(content, at) if there else []
    return Publish(refs.publisher(number), ids, messages, bool(settled))


def _decode_credit(content: bytes, refs: Refs) -> Credit:
    number, delivery_count, credit, drain, seen = _CREDIT.unpack_from(content)
    room = NO_BOUND if len(content) == _CREDIT.size else _ROOM.unpack_from(content, _CREDIT.size)[0]
    return Credit(refs.consumer(number), delivery_count, credit, bool(drain), seen, room)


def _decode_settle(content: bytes, refs: Refs) -> Settle:
    number, verdict, answer, length = _SETTLE.unpack_from(content)
    keys, at = decode_numbers(content, _SETTLE.size)
    if len(content) != at + length:
        raise ValueError("annotations of a settlement are cut off")
    return Settle(refs.consumer(number), keys, _VERDICTS[verdict], content[at:], bool(answer))


def _decode_give_back(content: bytes, refs: Refs) -> GiveBack:
    number, delivery_count, seen, epoch, there = _GIVE_BACK.unpack_from(content)
    keys, at = decode_numbers(content, _GIVE_BACK.size)
    messages = decode_batch(content, at) if there else []
    return GiveBack(refs.consumer(number), keys, messages, delivery_count, seen, epoch)


def _decode_subscribe(content: bytes, refs: Refs) -> Subscribe:
    number, flags, priority, timeout_ms = _SUBSCRIBE.unpack(content)
    settled = bool(flags & 1)
    return Subscribe(
        refs.consumer(number, settled=settled),
        settled,
        exclusive=bool(flags & 2),
        counted=bool(flags & 4),
        answer=bool(flags & 8),
        priority=priority,
        timeout_ms=None if timeout_ms == _NO_TIMEOUT else timeout_ms,
    )


def _decode_unsubscribe(content: bytes, refs: Refs) -> Unsubscribe:
    number, seen, verdict, there = _UNSUBSCRIBE.unpack_from(content)
    unsent, at = decode_numbers(content, _UNSUBSCRIBE.size)
    messages = decode_batch(content, at) if there else []
    return Unsubscribe(refs.consumer(number), unsent, messages, seen, _VERDICTS[verdict])


def _decode_detach(content: bytes, refs: Refs) -> DetachPublisher:
    ref = refs.publisher(_NUMBER.unpack(content)[0])
    refs.forget_publisher(ref)
    return DetachPublisher(ref)


def _decode_delete(content: bytes, refs: Refs) -> Delete:
    flags = _DELETE.unpack(content)[0]
    return Delete(_nobody() if flags & 1 else None, if_unused=bool(flags & 2), if_empty=bool(flags & 4))


def _decode_restarted(content: bytes, refs: Refs) -> NodeRestarted:
    refs.forget_all()
    return NodeRestarted()


def _nobody() -> RequestRef:
    return RequestRef(ReplyTo("request of the log"))


_DECODERS: Final[dict[int, Callable[[bytes, Refs], QuorumCommand]]] = {
    _PUBLISH_TAG: _decode_publish,
    _CREDIT_TAG: _decode_credit,
    _SETTLE_TAG: _decode_settle,
    _GIVE_BACK_TAG: _decode_give_back,
    _SUBSCRIBE_TAG: _decode_subscribe,
    _CANCEL_TAG: lambda content, refs: Cancel(refs.consumer(_NUMBER.unpack(content)[0])),
    _UNSUBSCRIBE_TAG: _decode_unsubscribe,
    _ATTACH_TAG: lambda content, refs: AttachPublisher(
        refs.publisher(_NUMBER.unpack(content)[0], attaches=True)
    ),
    _DETACH_TAG: _decode_detach,
    _INSPECT_TAG: lambda content, refs: Inspect(_nobody()),
    _PURGE_TAG: lambda content, refs: Purge(_nobody()),
    _DELETE_TAG: _decode_delete,
    _CONFIGURE_TAG: lambda content, refs: Configure(decode_settings(content)),
    _TOUCH_TAG: lambda content, refs: Touch(),
    _TICK_TAG: lambda content, refs: Tick(),
    _RESTARTED_TAG: _decode_restarted,
    _DLX_SETTLE_TAG: lambda content, refs: DlxSettle(decode_numbers(content, 0)[0]),
}


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """Numbers of 64 bits in their order: as a range if they are one."""
    count = len(numbers)
    if not count:
        return _COUNT.pack(0, 0)
    first = numbers[0]
    if numbers[-1] - first == count - 1 and (
        isinstance(numbers, range) or list(numbers) == list(range(first, first + count))
    ):
        return _RANGE.pack(1, first, count)
    return _COUNT.pack(0, count) + little_endian(array("Q", numbers))


def decode_numbers(data: bytes, at: int) -> tuple[Sequence[int], int]:
    """What `encode_numbers` made, and where it ends."""
    end = at + _numbers_size(data, at)
    if data[at]:
        _, first, count = _RANGE.unpack_from(data, at)
        return range(first, first + count), end
    return from_little_endian("Q", data[at + _COUNT.size : end]).tolist(), end


def _numbers_size(data: bytes, at: int) -> int:
    if data[at]:
        return _RANGE.size
    return _COUNT.size + 8 * int(_COUNT.unpack_from(data, at)[1])


def little_endian(numbers: array[int]) -> bytes:
    """An array's bytes, the same on every machine."""
    if byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def from_little_endian(typecode: str, data: bytes) -> array[int]:
    """What `little_endian` made.

    Raises:
        ValueError: it is no whole number of items.
    """
    numbers: array[int] = array(typecode)
    numbers.frombytes(data)
    if byteorder == "big":
        numbers.byteswap()
    return numbers


def encode_settings(settings: QueueSettings) -> bytes:
    """Settings as JSON, what is as by default left out."""
    given = {
        name: value.value if isinstance(value, Enum) else value
        for name, value in asdict(settings).items()
        if value != getattr(DEFAULTS, name)
    }
    return json.dumps(given, sort_keys=True).encode()


def decode_settings(data: bytes) -> QueueSettings:
    """What `encode_settings` made; settings that this version does not know are left out."""
    known: dict[str, Any] = {}
    given = json.loads(data)
    for field in fields(QueueSettings):
        if field.name in given:
            value = given[field.name]
            default = getattr(DEFAULTS, field.name)
            known[field.name] = type(default)(value) if isinstance(default, Enum) else value
    return QueueSettings(**known)
