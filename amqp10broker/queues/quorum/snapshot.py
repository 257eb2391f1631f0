"""The binary encoding of a quorum queue's state, without messages.

A snapshot stands for all commands before it: a queue that is restored and applies the commands behind it is
in the same state as one that applied them all. Equal states make equal bytes. Live messages are written as
ranges of indexes::

    length u32 | JSON of that length | arrays, as the JSON states: ranges, sizes, expiries, ...
"""

from __future__ import annotations

import json
import struct
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Any, Final

from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import ConsumerRef, PeerId, PublisherRef, RequestRef
from amqp10broker.queues.effects import (
    Answer,
    CreditReply,
    DeadLetterReason,
    PublishRejected,
    Refusal,
    TimedOut,
)
from amqp10broker.queues.quorum.bodies import ranges_of
from amqp10broker.queues.quorum.command_codec import (
    decode_settings,
    encode_settings,
    from_little_endian,
    little_endian,
)
from amqp10broker.queues.quorum.consumer import (
    SIZE_BITS,
    ConsumerSelection,
    QuorumConsumer,
    delivered_at,
    size_of,
)
from amqp10broker.queues.quorum.journal_bodies import BodyStore
from amqp10broker.queues.quorum.later import LATER_COLUMNS
from amqp10broker.queues.quorum.node_links import NodeLink, StoredEffect
from amqp10broker.queues.quorum.ordered_entries import OrderedEntries
from amqp10broker.queues.quorum.queue import QuorumQueue

_LENGTH: Final = struct.Struct("<I")


class _Writer:
    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.parts: list[bytes] = []

    def numbers(self, numbers: Iterable[int]) -> None:
        plain = array("Q", numbers)
        runs = array(
            "Q", chain.from_iterable((value, sum(1 for _ in same)) for value, same in groupby(plain))
        )
        if len(runs) < len(plain):
            self._put("R", runs)
        else:
            self._put("P", plain)

    def ranges(self, sorted_indexes: Iterable[int]) -> None:
        self._put("I", array("Q", chain.from_iterable(ranges_of(sorted_indexes))))

    def _put(self, kind: str, numbers: array[int]) -> None:
        self.kinds.append(f"{kind}{len(numbers)}")
        self.parts.append(little_endian(numbers))


class _SnapshotReader:
    def __init__(self, kinds: list[str], data: bytes, at: int) -> None:
        self._kinds = iter(kinds)
        self._data = data
        self._at = at

    def next(self) -> list[int]:
        kind = next(self._kinds)
        stop = self._at + 8 * int(kind[1:])
        if stop > len(self._data):
            raise ValueError("a snapshot of a quorum queue is cut off")
        numbers = from_little_endian("Q", self._data[self._at : stop])
        self._at = stop
        if kind[0] == "P":
            return numbers.tolist()
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        if kind[0] == "R":
            return [value for value, count in pairs for _ in range(count)]
        return [index for first, end in pairs for index in range(first, end)]


def encode_snapshot(queue: QuorumQueue) -> bytes:
    messages, consumers, publishers = queue.parts()
    ready = messages.ready
    out = _Writer()
    for line in (ready.returns, ready.high, ready.normal, ready.tail):
        keys, sizes, expiries = line.columns()
        out.ranges(keys)
        out.numbers(sizes)
        out.numbers(expiries)
    out.numbers(ready.indexes_of_returns())
    out.numbers(ready.indexes_of_tail())
    out.numbers(chain.from_iterable(ready.returns_to_tail()))
    out.numbers(chain.from_iterable(ready.delayed_entries()))
    places, held_expiries = ready.memory_of_held()
    # Places are -1 or more, and the arrays are unsigned.
    out.numbers(chain.from_iterable((index, place + 1) for index, place in places))
    out.numbers(chain.from_iterable(held_expiries))
    for consumer in consumers.by_ref.values():
        out.numbers(consumer.unsettled)
        out.numbers(delivered_at(value) for value in consumer.unsettled.values())
        out.numbers(size_of(value) for value in consumer.unsettled.values())
    kinds = sorted(dict.fromkeys(messages.counts.values()))
    number_of = {counts: number for number, counts in enumerate(kinds)}
    counted = sorted(messages.counts.items())
    out.ranges(index for index, _ in counted)
    out.numbers(number_of[counts] for _, counts in counted)
    pending = messages.pending.entries
    out.numbers(pending)
    out.numbers(size for _, size in pending.values())
    if ready.later.count:
        indexes, *columns = ready.later.columns()
        out.ranges(indexes)
        for column in columns:
            out.numbers(column)
    holder = consumers.activity.holder
    state = {
        "version": queue.version,
        "now_ms": messages.now_ms,
        "next_index": messages.next_index,
        "full": messages.full,
        "settings": encode_settings(messages.settings).decode(),
        "ready": list(ready.numbers()),
        "counts": [[acquired, failures, b64encode(notes).decode()] for acquired, failures, notes in kinds],
        "pending": [reason.value for reason, _ in pending.values()],
        "publishers": [[*ref.reply_to, ref.handle] for ref in publishers],
        "consumers": [_consumer_fields(each) for each in consumers.by_ref.values()],
        "consumers_made": consumers.made,
        "unused_since": consumers.unused_since,
        "turns": [each.number for each in consumers.turns.in_order()],
        "holder": None if holder is None else holder.number,
        "suspects": [[*key, since] for key, since in consumers.suspects.items()],
        "gone": [[*each] for each in queue.node_links.gone.items()],
        "lanes": [[*key, *_link_fields(link)] for key, link in queue.node_links.by_node.items()],
        "arrays": out.kinds,
    }
    if ready.later.count:
        state["later"] = ready.later.count
    selecting = consumers.selecting
    if selecting:
        state["selecting"] = [_selection_fields(each) for each in selecting.by_ref.values()]
        state["again"] = [selecting.again.first, [[*place] for place in selecting.again.places]]
    head = json.dumps(state, separators=(",", ":"), sort_keys=True).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *out.parts))


_FIELDS: Final = (
    "number",
    "settled",
    "counted",
    "priority",
    "timeout_ms",
    "credit",
    "delivery_count",
    "handed_out",
    "turn",
    "epoch",
    "cancelled",
    "silent",
    "active",
    "room",
    "name",
)


def _consumer_fields(consumer: QuorumConsumer) -> list[Any]:
    ref = [*consumer.ref.reply_to, consumer.ref.handle]
    return [ref, *(getattr(consumer, name) for name in _FIELDS)]


def _selection_fields(consumer: QuorumConsumer) -> list[Any]:
    selection = consumer.selection
    assert selection is not None
    return [consumer.number, b64encode(selection.wanted).decode(), [*selection.at], selection.ends]


def _head(data: bytes) -> tuple[Any, int]:
    try:
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        return json.loads(data[_LENGTH.size : end]), end
    except struct.error as error:
        raise ValueError("a snapshot of a quorum queue is cut off") from error


def version_of(data: bytes) -> int:
    """Return the machine version of a snapshot. Raises `ValueError` if the data is not a snapshot."""
    return int(_head(data)[0]["version"])


def decode_snapshot(name: str, data: bytes, bodies: BodyStore | None = None) -> QuorumQueue:
    """Restore a queue from a snapshot.

    Args:
        bodies: the store that contains the messages; None: in memory, where the caller puts them.

    Raises:
        NewerMachine: this broker does not support the snapshot's version.
        ValueError: the data is not a snapshot.
    """
    state, start = _head(data)
    version = machine_version.check(state["version"])
    settings = decode_settings(state["settings"].encode())
    queue = QuorumQueue(name, settings=settings, now_ms=state["now_ms"], bodies=bodies)
    queue.version = version
    messages, consumers, publishers = queue.parts()
    messages.next_index = state["next_index"]
    messages.full = state["full"]
    arrays = _SnapshotReader(state["arrays"], data, start)
    ready = messages.ready
    for line in (ready.returns, ready.high, ready.normal, ready.tail):
        _fill(line, arrays.next(), arrays.next(), arrays.next())
    returned = arrays.next()
    tail, behind = arrays.next(), _pairs(arrays.next())
    delayed = list(zip(*[iter(arrays.next())] * 5, strict=True))
    places = [(index, place - 1) for index, place in _pairs(arrays.next())]
    returns_made, high_turns = state["ready"]
    ready.restore((returns_made, high_turns), returned, tail, behind, delayed, places, _pairs(arrays.next()))
    for fields in state["consumers"]:
        consumer = _consumer(fields)
        values = zip(arrays.next(), arrays.next(), arrays.next(), strict=True)
        consumer.unsettled = {key: when << SIZE_BITS | size for key, when, size in values}
        consumers.by_ref[consumer.ref] = consumer
    kinds = [(acquired, failures, b64decode(notes)) for acquired, failures, notes in state["counts"]]
    messages.counts = {
        index: kinds[number] for index, number in zip(arrays.next(), arrays.next(), strict=True)
    }
    for index, size, reason in zip(arrays.next(), arrays.next(), state["pending"], strict=True):
        messages.pending.add(index, DeadLetterReason(reason), size)
    if state.get("later"):
        ready.later.restore([arrays.next() for _ in range(LATER_COLUMNS)])
    for fields in state["publishers"]:
        publishers[PublisherRef(*_ref(fields))] = None
    by_number = {consumer.number: consumer for consumer in consumers.by_ref.values()}
    for number, wanted, at, ends in state.get("selecting", []):
        by_number[number].selection = ConsumerSelection(b64decode(wanted), at, ends)
    again = consumers.selecting.again
    again.first, places = state.get("again", (0, []))
    again.places.extend((line, key) for line, key in places)
    consumers.restore(
        made=state["consumers_made"],
        unused_since=state["unused_since"],
        turns=[by_number[number] for number in state["turns"]],
        holder=None if state["holder"] is None else by_number[state["holder"]],
        suspects={(node, incarnation): since for node, incarnation, since in state["suspects"]},
    )
    links = queue.node_links
    links.gone = dict(state["gone"])
    for node, incarnation, *fields in state["lanes"]:
        links.by_node[node, incarnation] = _link(name, fields)
    return queue


def _link_fields(link: NodeLink) -> list[Any]:
    return [link.last, link.heard, [[index, *_kept_fields(effect)] for index, _, effect in link.kept]]


def _kept_fields(effect: StoredEffect) -> list[Any]:
    match effect:
        case PublishRejected():
            return ["R", [*effect.publisher.reply_to, effect.publisher.handle], [*effect.ids], effect.settled]
        case TimedOut():
            return ["T", [*effect.consumer.reply_to, effect.consumer.handle], [*effect.keys]]
        case CreditReply():
            ref = [*effect.consumer.reply_to, effect.consumer.handle]
            return ["C", ref, effect.delivery_count, effect.credit, effect.available, effect.epoch]
        case Answer():
            refused = None if effect.refused is None else effect.refused.value
            ref = [*effect.request.reply_to, effect.request.handle]
            return ["A", ref, effect.ready, effect.consumers, refused]


def _link(name: str, fields: list[Any]) -> NodeLink:
    last, heard, kept = fields
    return NodeLink(last, heard, [_kept(name, *each) for each in kept])


def _kept(name: str, index: int, kind: str, ref: list[int], *rest: Any) -> tuple[int, PeerId, StoredEffect]:
    peer, handle = _ref(ref)
    match kind, rest:
        case "R", (ids, settled):
            return index, peer, PublishRejected(PublisherRef(peer, handle), ids, settled, name)
        case "T", (keys,):
            return index, peer, TimedOut(ConsumerRef(peer, handle), keys, name)
        case "C", (count, credit, available, epoch):
            reply = CreditReply(ConsumerRef(peer, handle), count, credit, available, True, epoch)
            return index, peer, reply
        case "A", (ready, consumers, refused):
            reason = None if refused is None else Refusal(refused)
            return index, peer, Answer(RequestRef(peer, handle), ready, consumers, reason)
        case _:
            raise ValueError(f"a snapshot of a quorum queue keeps an effect '{kind}', which is none")


def _fill(line: OrderedEntries, keys: Sequence[int], sizes: Sequence[int], expiries: Sequence[int]) -> None:
    step = 4096
    for at in range(0, len(keys), step):
        some = expiries[at : at + step] if any(expiries[at : at + step]) else None
        line.append(keys[at : at + step], sizes[at : at + step], some)


def _pairs(numbers: list[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _ref(fields: list[int]) -> tuple[PeerId, int]:
    *peer, handle = fields
    return PeerId(*peer), handle


def _consumer(fields: list[Any]) -> QuorumConsumer:
    values = dict(zip(_FIELDS, fields[1:], strict=True))
    made = ("number", "settled", "counted", "priority", "timeout_ms")
    consumer = QuorumConsumer(
        ConsumerRef(*_ref(fields[0])),
        values["number"],
        settled=values["settled"],
        counted=values["counted"],
        priority=values["priority"],
        timeout_ms=values["timeout_ms"],
    )
    for name, value in values.items():
        if name not in made:
            setattr(consumer, name, value)
    return consumer
