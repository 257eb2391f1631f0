"""The binary encoding of the commands of a quorum queue's log.

One entry holds all commands of one step, with its time and the index of its first message::

    now_ms u64 | first u64 | command*            command: tag u8 | length u32 | content

Integers are little-endian. Runs of delivery and publish numbers are written as a range. Messages are batches
(`message.batch`), and an entry records where they begin, so that a message can be read again without decoding
the commands. Every message of an entry has an index, `first` and those behind it, whether the queue accepts
it or not: indexes are known before a command is applied. Commands contain the `PeerId` and handle of their
sender, so that equal commands make equal bytes on every node.

The content of `Letters` is ``node u32 | incarnation u32 | first u64 | last u64 | heard u64 | command*``.

Commands without effect are omitted.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from enum import Enum
from sys import byteorder
from typing import Any, Final, NamedTuple, assert_never

from amqp10broker.dataclass import dataclass
from amqp10broker.message.batch import BATCH_MAX, decode_batch, encode_batch
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import (
    TICK,
    AttachPublisher,
    Cancel,
    Configure,
    ConsumerRef,
    Credit,
    Delete,
    DeliveryOutcome,
    DetachPublisher,
    GiveBack,
    PeerId,
    Publish,
    PublisherRef,
    Purge,
    RequestRef,
    Settle,
    Subscribe,
    Tick,
    Unsubscribe,
)
from amqp10broker.queues.quorum.commands import (
    CHANGES_NOTHING,
    DlxSettle,
    Letters,
    NodeBack,
    NodeGone,
    NodeSuspect,
    QuorumChange,
    QuorumCommand,
    RaiseVersion,
    SearchResult,
    Selected,
    SessionGone,
)
from amqp10broker.queues.selecting import encoded
from amqp10broker.queues.settings import DEFAULTS, QueueSettings

_ENTRY: Final = struct.Struct("<QQ")
_START: Final = struct.Struct("<BI")
_PEER: Final = struct.Struct("<IIQ")
_REF: Final = struct.Struct("<IIQQ")
_RANGE: Final = struct.Struct("<BQI")
_COUNT: Final = struct.Struct("<BI")
_PUBLISH: Final = struct.Struct("<BB")
_SUBSCRIBE: Final = struct.Struct("<Bqq")
_CREDIT: Final = struct.Struct("<IQBQQ")
_SETTLE: Final = struct.Struct("<BBI")
_GIVE_BACK: Final = struct.Struct("<IQQB")
_UNSUBSCRIBE: Final = struct.Struct("<QBB")
_DELETE: Final = struct.Struct("<B")
_NODE: Final = struct.Struct("<II")
_LETTERS: Final = struct.Struct("<IIQQQ")
_VERSION: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<I")
_LOOK: Final = struct.Struct("<IIQQQQQQQ")

_PUBLISH_TAG: Final = 1
_CREDIT_TAG: Final = 2
_SETTLE_TAG: Final = 3
_GIVE_BACK_TAG: Final = 4
_SUBSCRIBE_TAG: Final = 5
_CANCEL_TAG: Final = 6
_UNSUBSCRIBE_TAG: Final = 7
_ATTACH_TAG: Final = 8
_DETACH_TAG: Final = 9
_PURGE_TAG: Final = 10
_DELETE_TAG: Final = 11
_CONFIGURE_TAG: Final = 12
_TICK_TAG: Final = 13
_DLX_SETTLE_TAG: Final = 14
_NODE_GONE_TAG: Final = 15
_SESSION_GONE_TAG: Final = 16
_LETTERS_TAG: Final = 17
_NODE_SUSPECT_TAG: Final = 18
_NODE_BACK_TAG: Final = 19
_RAISE_TAG: Final = 20
_SELECT_TAG: Final = 21
"""A `Subscribe` that selects: ``length u32 | selection | as without``."""
_SELECTED_TAG: Final = 22

_NO_TIMEOUT: Final = -1
_OUTCOMES: Final = tuple(DeliveryOutcome)
_OUTCOME_NUMBERS: Final = {delivery_outcome: number for number, delivery_outcome in enumerate(_OUTCOMES)}


class Place(NamedTuple):
    """The position of a run of messages in an entry."""

    first: int
    messages: int
    at: int
    """Offset of the batch from the start of the entry."""
    length: int


@dataclass(slots=True, eq=False)
class Encoded:
    pieces: list[bytes]
    places: list[Place]
    end: int


@dataclass(frozen=True, slots=True)
class Decoded:
    now_ms: int
    first: int
    commands: list[QuorumChange]


def encode_commands(commands: Sequence[QuorumCommand], now_ms: int, first: int, version: int = 1) -> Encoded:
    """Encode commands as one entry.

    Args:
        commands: in order, each `Publish` with at most `BATCH_MAX` messages. Commands without effect are
            omitted.
        version: the machine version in the log at this place, not the newest of this broker. All versions
            write alike so far.

    Raises:
        NewerMachine: this broker does not support the version.
    """
    machine_version.check(version)
    pieces = [_ENTRY.pack(now_ms, first)]
    places: list[Place] = []
    _, first = _encode_all(commands, pieces, places, _ENTRY.size, first)
    return Encoded(pieces, places, first)


def _encode_all(
    commands: Sequence[QuorumCommand], pieces: list[bytes], places: list[Place], at: int, first: int
) -> tuple[int, int]:
    for command in commands:
        if isinstance(command, CHANGES_NOTHING):
            continue
        if type(command) is Letters:
            start = len(pieces)
            pieces.append(b"")
            inner = at + _START.size
            at, first = _encode_all(command.commands, pieces, places, inner + _LETTERS.size, first)
            head = _LETTERS.pack(
                command.node, command.incarnation, command.first, command.last, command.heard
            )
            pieces[start] = _START.pack(_LETTERS_TAG, at - inner) + head
            continue
        tag, content = _encode(command)
        length = sum(map(len, content))
        pieces.append(_START.pack(tag, length))
        pieces += content
        at += _START.size + length
        if tag == _PUBLISH_TAG:
            assert isinstance(command, Publish)
            count = len(command.messages)
            if count:
                batch = sum(map(len, content[3:]))
                places.append(Place(first, count, at - batch, batch))
                first += count
    return at, first


def framed(command: QuorumChange) -> list[bytes]:
    tag, content = _encode(command)
    return [_START.pack(tag, sum(map(len, content))), *content]


def _ref_bytes(ref: ConsumerRef | PublisherRef | RequestRef) -> bytes:
    return _REF.pack(*ref.reply_to, ref.handle)


def _encode(command: QuorumChange) -> tuple[int, list[bytes]]:
    match command:
        case Letters():
            raise AssertionError("letters are in no letters")
        case Publish():
            assert len(command.messages) <= BATCH_MAX
            batch = encode_batch(command.messages) if command.messages else []
            start = _PUBLISH.pack(command.settled, bool(batch))
            return _PUBLISH_TAG, [_ref_bytes(command.publisher), start, encode_numbers(command.ids), *batch]
        case Credit():
            return _CREDIT_TAG, [
                _ref_bytes(command.consumer),
                _CREDIT.pack(
                    command.delivery_count, command.credit, command.drain, command.seen, command.room
                ),
            ]
        case Settle():
            start = _SETTLE.pack(
                _OUTCOME_NUMBERS[command.delivery_outcome], command.answer, len(command.annotations)
            )
            keys = encode_numbers(command.keys)
            return _SETTLE_TAG, [_ref_bytes(command.consumer), start, keys, command.annotations]
        case GiveBack():
            batch = encode_batch(command.messages) if command.messages else []
            start = _GIVE_BACK.pack(command.delivery_count, command.seen, command.epoch, bool(batch))
            return _GIVE_BACK_TAG, [_ref_bytes(command.consumer), start, encode_numbers(command.keys), *batch]
        case Subscribe() if command.filters is not None and (wanted := encoded(command.filters)):
            _, plain = _encode(replace(command, filters=None))
            return _SELECT_TAG, [_LENGTH.pack(len(wanted)), wanted, *plain]
        case Selected():
            return _SELECTED_TAG, [piece for look in command.looks for piece in _encode_look(look)]
        case Subscribe():
            flags = command.settled | command.exclusive << 1 | command.counted << 2 | command.answer << 3
            timeout_ms = _NO_TIMEOUT if command.timeout_ms is None else command.timeout_ms
            start = _SUBSCRIBE.pack(flags, command.priority, timeout_ms)
            name = command.name.encode(errors="surrogatepass")
            return _SUBSCRIBE_TAG, [_ref_bytes(command.consumer), start, name]
        case Cancel():
            return _CANCEL_TAG, [_ref_bytes(command.consumer)]
        case Unsubscribe():
            batch = encode_batch(command.unsent_messages) if command.unsent_messages else []
            start = _UNSUBSCRIBE.pack(command.seen, _OUTCOME_NUMBERS[command.delivery_outcome], bool(batch))
            keys = encode_numbers(command.unsent)
            return _UNSUBSCRIBE_TAG, [_ref_bytes(command.consumer), start, keys, *batch]
        case AttachPublisher():
            return _ATTACH_TAG, [_ref_bytes(command.publisher)]
        case DetachPublisher():
            return _DETACH_TAG, [_ref_bytes(command.publisher)]
        case Purge():
            return _PURGE_TAG, [_ref_bytes(command.request)]
        case Delete():
            flags = (command.request is not None) | command.if_unused << 1 | command.if_empty << 2
            request = [] if command.request is None else [_ref_bytes(command.request)]
            return _DELETE_TAG, [_DELETE.pack(flags), *request]
        case Configure():
            return _CONFIGURE_TAG, [encode_settings(command.settings)]
        case Tick():
            return _TICK_TAG, []
        case NodeGone():
            return _NODE_GONE_TAG, [_NODE.pack(command.node, command.incarnation)]
        case NodeSuspect():
            return _NODE_SUSPECT_TAG, [_NODE.pack(command.node, command.incarnation)]
        case NodeBack():
            return _NODE_BACK_TAG, [_NODE.pack(command.node, command.incarnation)]
        case SessionGone():
            return _SESSION_GONE_TAG, [_PEER.pack(*command.session)]
        case DlxSettle():
            return _DLX_SETTLE_TAG, [encode_numbers(command.keys)]
        case RaiseVersion():
            return _RAISE_TAG, [_VERSION.pack(command.version)]
        case _:
            assert_never(command)


def _encode_look(look: SearchResult) -> list[bytes]:
    lines = bytes(line for line, _ in look.taken)
    keys = encode_numbers([key for _, key in look.taken])
    return [_LOOK.pack(*look.consumer.reply_to, look.consumer.handle, *look.at), keys, lines]


def decode_commands(payload: bytes) -> Decoded:
    """Decode an entry of `encode_commands`. Raises `ValueError` if the payload is not a valid entry."""
    try:
        now_ms, first = _ENTRY.unpack_from(payload)
        return Decoded(now_ms, first, _decode(payload, _ENTRY.size))
    except (struct.error, KeyError, IndexError) as error:
        raise ValueError(f"no commands of a quorum queue: {error!r}") from error


def entry_head(payload: bytes, at: int) -> tuple[int, int, int]:
    """Return the time, first index and raised version of the entry at an offset, without decoding its
    commands.

    The version is 0 for all entries but those of a `RaiseVersion`, which stand alone. Raises `ValueError` if
    the entry is cut off.
    """
    try:
        now_ms, first = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size
        version = 0
        if len(payload) > at and payload[at] == _RAISE_TAG:
            (version,) = _VERSION.unpack_from(payload, at + _START.size)
    except struct.error as error:
        raise ValueError(f"no commands of a quorum queue: {error!r}") from error
    return now_ms, first, version


Ref = tuple[PeerId, int]


def _read_ref(content: bytes) -> tuple[Ref, bytes]:
    *peer, handle = _REF.unpack_from(content)
    return (PeerId(*peer), handle), content[_REF.size :]


def read_framed(data: bytes, at: int, end: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Iterate over consecutive items in the format of `framed`.

    Args:
        end: end of the last item; None: end of the data.

    Yields:
        For each item its tag, and the start and end of its content.

    Raises:
        ValueError: the last item is cut off.
    """
    size = len(data) if end is None else end
    while at < size:
        try:
            tag, length = _START.unpack_from(data, at)
        except struct.error as error:
            raise ValueError("a command of a queue is cut off") from error
        start = at + _START.size
        at = start + length
        if at > size:
            raise ValueError("a command of a queue is cut off")
        yield tag, start, at


def decode_framed(tag: int, data: bytes, start: int, end: int) -> QuorumChange:
    """Decode one command from a tag and range that `read_framed` returned. Raises `ValueError` if the content
    is not a valid command.
    """
    try:
        return _decode_one(tag, data, start, end)
    except (struct.error, KeyError, IndexError) as error:
        raise ValueError(f"no command of a queue: {error!r}") from error


def _decode(payload: bytes, at: int) -> list[QuorumChange]:
    return [_decode_one(tag, payload, start, end) for tag, start, end in read_framed(payload, at)]


def _decode_one(tag: int, data: bytes, start: int, end: int) -> QuorumChange:
    if tag == _LETTERS_TAG:
        return _decode_letters(data, start, end)
    if tag != _PUBLISH_TAG:
        return _DECODERS[tag](data[start:end])
    # Bodies are copied once, into the messages.
    head = data[start : start + _REF.size]
    ref, rest = _read_ref(head)
    at = start + len(head) - len(rest)
    settled, there = _PUBLISH.unpack_from(data, at)
    ids, at = decode_numbers(data, at + _PUBLISH.size)
    messages = decode_batch(data, at, end) if there else []
    if len(messages) != len(ids):
        raise ValueError("a publish has other numbers than messages")
    return Publish(PublisherRef(*ref), ids, messages, bool(settled))


def _decode_letters(data: bytes, start: int, end: int) -> Letters:
    node, incarnation, first, last, heard = _LETTERS.unpack_from(
        data[start : min(start + _LETTERS.size, end)]
    )
    commands: list[QuorumCommand] = []
    for tag, at, behind in read_framed(data, start + _LETTERS.size, end):
        if tag == _LETTERS_TAG:
            raise ValueError("letters of a node are in its letters")
        commands.append(_decode_one(tag, data, at, behind))
    return Letters(node, incarnation, first, last, heard, commands)


def _decode_credit(content: bytes) -> Credit:
    ref, rest = _read_ref(content)
    delivery_count, credit, drain, seen, room = _CREDIT.unpack_from(rest)
    return Credit(ConsumerRef(*ref), delivery_count, credit, bool(drain), seen, room)


def _decode_settle(content: bytes) -> Settle:
    ref, rest = _read_ref(content)
    delivery_outcome, answer, length = _SETTLE.unpack_from(rest)
    keys, at = decode_numbers(rest, _SETTLE.size)
    if len(rest) != at + length:
        raise ValueError("annotations of a settlement are cut off")
    return Settle(ConsumerRef(*ref), keys, _OUTCOMES[delivery_outcome], rest[at:], bool(answer))


def _decode_give_back(content: bytes) -> GiveBack:
    ref, rest = _read_ref(content)
    delivery_count, seen, epoch, there = _GIVE_BACK.unpack_from(rest)
    keys, at = decode_numbers(rest, _GIVE_BACK.size)
    messages = decode_batch(rest, at) if there else []
    return GiveBack(ConsumerRef(*ref), keys, messages, delivery_count, seen, epoch)


def _decode_subscribe(content: bytes) -> Subscribe:
    ref, rest = _read_ref(content)
    flags, priority, timeout_ms = _SUBSCRIBE.unpack_from(rest)
    return Subscribe(
        ConsumerRef(*ref),
        bool(flags & 1),
        exclusive=bool(flags & 2),
        counted=bool(flags & 4),
        answer=bool(flags & 8),
        priority=priority,
        timeout_ms=None if timeout_ms == _NO_TIMEOUT else timeout_ms,
        name=rest[_SUBSCRIBE.size :].decode(errors="surrogatepass"),
    )


def _decode_select(content: bytes) -> Subscribe:
    (length,) = _LENGTH.unpack_from(content)
    end = _LENGTH.size + length
    return replace(_decode_subscribe(content[end:]), filters=content[_LENGTH.size : end])


def _decode_selected(content: bytes) -> Selected:
    looks: list[SearchResult] = []
    at = 0
    while at < len(content):
        *peer, handle, returns, high, normal, tail, again = _LOOK.unpack_from(content, at)
        keys, at = decode_numbers(content, at + _LOOK.size)
        lines = content[at : at + len(keys)]
        at += len(keys)
        taken = list(zip(lines, keys, strict=True))
        ref = ConsumerRef(PeerId(*peer), handle)
        looks.append(SearchResult(ref, (returns, high, normal, tail, again), taken))
    return Selected(looks)


def _decode_unsubscribe(content: bytes) -> Unsubscribe:
    ref, rest = _read_ref(content)
    seen, delivery_outcome, there = _UNSUBSCRIBE.unpack_from(rest)
    unsent, at = decode_numbers(rest, _UNSUBSCRIBE.size)
    messages = decode_batch(rest, at) if there else []
    return Unsubscribe(ConsumerRef(*ref), unsent, messages, seen, _OUTCOMES[delivery_outcome])


def _decode_request(content: bytes) -> RequestRef:
    return RequestRef(*_read_ref(content)[0])


def _decode_delete(content: bytes) -> Delete:
    (flags,) = _DELETE.unpack_from(content)
    request = _decode_request(content[_DELETE.size :]) if flags & 1 else None
    return Delete(request, if_unused=bool(flags & 2), if_empty=bool(flags & 4))


_DECODERS: Final[dict[int, Callable[[bytes], QuorumChange]]] = {
    _CREDIT_TAG: _decode_credit,
    _SETTLE_TAG: _decode_settle,
    _GIVE_BACK_TAG: _decode_give_back,
    _SUBSCRIBE_TAG: _decode_subscribe,
    _CANCEL_TAG: lambda content: Cancel(ConsumerRef(*_read_ref(content)[0])),
    _UNSUBSCRIBE_TAG: _decode_unsubscribe,
    _ATTACH_TAG: lambda content: AttachPublisher(PublisherRef(*_read_ref(content)[0])),
    _DETACH_TAG: lambda content: DetachPublisher(PublisherRef(*_read_ref(content)[0])),
    _PURGE_TAG: lambda content: Purge(_decode_request(content)),
    _DELETE_TAG: _decode_delete,
    _CONFIGURE_TAG: lambda content: Configure(decode_settings(content)),
    _TICK_TAG: lambda content: TICK,
    _DLX_SETTLE_TAG: lambda content: DlxSettle(decode_numbers(content, 0)[0]),
    _NODE_GONE_TAG: lambda content: NodeGone(*_NODE.unpack(content)),
    _NODE_SUSPECT_TAG: lambda content: NodeSuspect(*_NODE.unpack(content)),
    _NODE_BACK_TAG: lambda content: NodeBack(*_NODE.unpack(content)),
    _SESSION_GONE_TAG: lambda content: SessionGone(PeerId(*_PEER.unpack(content))),
    _RAISE_TAG: lambda content: RaiseVersion(*_VERSION.unpack(content)),
    _SELECT_TAG: _decode_select,
    _SELECTED_TAG: _decode_selected,
}


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """Encode 64-bit numbers in their order, as a range if they are consecutive."""
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
    """Decode the result of `encode_numbers`; return the numbers and the offset behind them."""
    end = at + _numbers_size(data, at)
    if end > len(data):
        raise ValueError("numbers of a queue are cut off")
    if data[at]:
        _, first, count = _RANGE.unpack_from(data, at)
        return range(first, first + count), end
    return from_little_endian("Q", data[at + _COUNT.size : end]).tolist(), end


def _numbers_size(data: bytes, at: int) -> int:
    if data[at]:
        return _RANGE.size
    return _COUNT.size + 8 * int(_COUNT.unpack_from(data, at)[1])


def little_endian(numbers: array[int]) -> bytes:
    """Return an array's bytes in little-endian order."""
    if byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def from_little_endian(typecode: str, data: bytes) -> array[int]:
    """Decode an array of little-endian items. Raises `ValueError` if the length is not a multiple of the item
    size.
    """
    numbers: array[int] = array(typecode)
    numbers.frombytes(data)
    if byteorder == "big":
        numbers.byteswap()
    return numbers


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
