"""Commands of a quorum queue as bytes, and the state as a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from amqp10broker.message.message import decode_batch
from amqp10broker.queues.commands import (
    AttachPublisher,
    Cancel,
    Configure,
    Credit,
    Delete,
    DeliveryOutcome,
    DetachPublisher,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    Purge,
    Settle,
    Subscribe,
    Tick,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.quorum.commands import (
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
    decode_commands,
    encode_commands,
)
from amqp10broker.queues.quorum.snapshot import decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow, QueueSettings, RetryType
from tests.support.askers import new_asker
from tests.support.quorum_bench import Bench, message

BIG = 2**64 - 1
SESSION = new_asker("s")
CONSUMER = SESSION.consumer()
SETTLING = SESSION.consumer()
PUBLISHER = SESSION.publisher()
REQUEST = SESSION.request()
FIRST: list[QuorumCommand] = [
    AttachPublisher(PUBLISHER),
    Subscribe(CONSUMER, False, counted=False, answer=True, priority=-5, timeout_ms=0),
    Subscribe(SETTLING, True, exclusive=True, priority=2**63 - 1),
]
COMMANDS: list[QuorumCommand] = [
    *FIRST,
    Publish(PUBLISHER, [4, 7], [message("a"), message("bc", priority=9)], True),
    Publish(PUBLISHER, range(3), [message("x")] * 3, False),
    Publish(PUBLISHER, [], [], False),
    Credit(CONSUMER, 2**32 - 1, 2**32 - 1, True, BIG),
    Credit(SETTLING, 0, 0, False, 0),
    Credit(SETTLING, 0, 5, False, 0, 2_000_000),
    *(
        Settle(CONSUMER, [1, 5, BIG], delivery_outcome, b"\xc1\x01\x00", True)
        for delivery_outcome in DeliveryOutcome
    ),
    Settle(CONSUMER, [], DeliveryOutcome.ACCEPT),
    GiveBack(CONSUMER, [8, 9], [], 3, 4, 5),
    GiveBack(SETTLING, [8], [message("d")], 3, 4, BIG),
    Cancel(CONSUMER),
    Unsubscribe(SETTLING, [9], [message("e")], 7, DeliveryOutcome.REQUEUE_FAILED),
    Unsubscribe(CONSUMER, range(2, 4), [], 7, DeliveryOutcome.DISCARD),
    Purge(REQUEST),
    Delete(),
    Delete(REQUEST, if_unused=True),
    Delete(REQUEST, if_empty=True),
    Configure(QueueSettings(max_length=3, dead_letter_exchange="ü")),
    Tick(),
    DlxSettle([3, 1, 2]),
    DetachPublisher(PUBLISHER),
    NodeGone(3, 2**32 - 1),
    SessionGone(PeerId(1, 2, 2**64 - 1)),
    NodeSuspect(3, 2**32 - 1),
    NodeBack(2**32 - 1, 4),
    RaiseVersion(2**32 - 1),
    Subscribe(CONSUMER, True, priority=-3, name="ü", filters=b"which"),
    Selected([]),
    Selected(
        [
            SearchResult(CONSUMER, (0, 1, 2, 3, BIG), []),
            SearchResult(SETTLING, (9,) * 5, [(2, BIG), (0, 7), (2, 8)]),
        ]
    ),
    Letters(3, 4, 1, 0, BIG, []),
    Letters(3, 4, 7, BIG, 5, [FIRST[0], Publish(PUBLISHER, [4, 7], [message("a"), message("b")], True)]),
]


def plain(command: QuorumCommand) -> list[Any]:
    found: list[Any] = [type(command)]
    for field in fields(command):
        value = getattr(command, field.name)
        if isinstance(command, Letters) and field.name == "commands":
            value = [plain(each) for each in value]
        found.append(list(value) if isinstance(value, range) else value)
    return found


def entry_of(commands: Sequence[QuorumCommand], now_ms: int = 0, first: int = 0) -> bytes:
    return b"".join(encode_commands(commands, now_ms, first).pieces)


def test_every_command_comes_back_as_it_was() -> None:
    decoded = decode_commands(entry_of(COMMANDS, 1234, 77))
    assert (decoded.now_ms, decoded.first) == (1234, 77)
    assert [plain(each) for each in decoded.commands] == [plain(each) for each in COMMANDS]
    assert {type(each) for each in COMMANDS} == set(QuorumChange.__args__), "one of each kind"


def test_what_changes_nothing_is_in_no_entry() -> None:
    publish = Publish(PUBLISHER, [1], [message("a")], False)
    assert entry_of([Inspect(REQUEST), publish, Touch(), Inspect(REQUEST)]) == entry_of([publish])


def test_a_name_that_is_no_text_does_no_harm() -> None:
    """Of a link, as its client wrote it."""
    data = entry_of([Subscribe(CONSUMER, False, name="a\udc80 \u00fc")])
    (found,) = decode_commands(data).commands
    assert isinstance(found, Subscribe)
    assert found.name == "a\udc80 \u00fc"


def test_an_entry_says_where_its_messages_begin() -> None:
    publishes = [Publish(PUBLISHER, [1], [message("abc")], False), Tick(), COMMANDS[3], COMMANDS[5]]
    encoded = encode_commands(publishes, 0, 40)
    payload = b"".join(encoded.pieces)
    assert [(place.first, place.messages) for place in encoded.places] == [(40, 1), (41, 2)]
    assert encoded.end == 43
    for place, publish in zip(encoded.places, (publishes[0], publishes[2]), strict=True):
        assert isinstance(publish, Publish)
        assert decode_batch(payload[place.at : place.at + place.length]) == list(publish.messages)


def test_every_cut_record_is_refused() -> None:
    payload = entry_of(COMMANDS[:12], 5)
    whole = decode_commands(payload).commands
    for length in range(len(payload)):
        try:
            found = decode_commands(payload[:length]).commands
        except ValueError:
            continue
        assert len(found) < len(whole), "only whole commands may be missing"


@pytest.mark.parametrize("payload", [b"", b"1234567", b"\0" * 15, b"\0" * 16 + b"\x63\0\0\0\0"])
def test_what_is_no_record_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):
        decode_commands(payload)


@pytest.mark.parametrize("numbers", [[], [5], [BIG], range(7, 900), [3, 2, 1], [1, 3], [1, 2, 4, 3], [5, 5]])
def test_ranges_of_numbers_are_short(numbers: Sequence[int]) -> None:
    settled = Settle(CONSUMER, numbers, DeliveryOutcome.ACCEPT)
    data = entry_of([settled])
    (found,) = decode_commands(data).commands
    assert isinstance(found, Settle)
    assert list(found.keys) == list(numbers)
    if isinstance(numbers, range):
        assert len(data) < 100


# --- snapshots ------------------------------------------------------------------------------------


def full_bench() -> Bench:
    bench = Bench(
        dead_letter_exchange="dlx",
        dead_letter_strategy=DeadLetterStrategy.AT_LEAST_ONCE,
        overflow=Overflow.REJECT_PUBLISH,
        max_length=9,
        retry_type=RetryType.FAILED,
        retry_min_ms=1000,
    )
    bench.do(AttachPublisher(bench.publisher))
    bench.publish("a", "b", "c")
    bench.publish("d", "e", priority=9, ttl_ms=5000)
    consumer = bench.consumer(5, priority=3, timeout_ms=7000)
    keys = bench.held(consumer)
    bench.settle(consumer, DeliveryOutcome.DISCARD, keys[:1])
    bench.settle(
        consumer, DeliveryOutcome.REQUEUE_FAILED, keys[1:2], annotations=b"\xc1\x05\x02\xa3\x01x\x41"[:7]
    )
    bench.settle(consumer, DeliveryOutcome.REQUEUE, keys[2:4])
    bench.consumer(2, settled=True)
    bench.publish("f", "g", ttl_ms=3000)
    return bench


@pytest.mark.rabbitmq("quorum_queue_SUITE", "consumer_message_is_delevered_after_snapshot")
def test_a_snapshot_is_the_state() -> None:
    bench = full_bench()
    data = encode_snapshot(bench.queue)
    restored = decode_snapshot("q", data)
    assert encode_snapshot(restored) == data
    for name in ("ready", "unsettled", "delayed", "dlx", "consumers", "publishers", "settings"):
        assert getattr(restored, name) == getattr(bench.queue, name), name
    assert restored.deadline() == bench.queue.deadline()
    assert (bench.queue.delayed, bench.queue.dlx, bench.queue.consumers) == (1, 1, 2)


def test_a_snapshot_of_a_long_backlog_is_short() -> None:
    bench = Bench()
    bench.publish_all([message("same")] * 20_000)
    assert len(encode_snapshot(bench.queue)) < 1000


def test_a_cut_snapshot_is_refused() -> None:
    bench = full_bench()
    data = encode_snapshot(bench.queue)
    for length in (0, 3, 40, len(data) - 8):
        with pytest.raises(ValueError):
            decode_snapshot("q", data[:length])
