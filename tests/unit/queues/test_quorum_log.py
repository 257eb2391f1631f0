"""Commands of a quorum queue as bytes, and the state as a snapshot."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from amqp10broker.message.batch import decode_batch
from amqp10broker.queues.commands import (
    NO_BOUND,
    AttachPublisher,
    Cancel,
    Configure,
    ConsumerRef,
    Credit,
    Delete,
    DetachPublisher,
    GiveBack,
    Inspect,
    Publish,
    PublisherRef,
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
from amqp10broker.queues.quorum_log import (
    decode_commands,
    decode_numbers,
    decode_settings,
    encode_commands,
    encode_numbers,
    encode_settings,
)
from amqp10broker.queues.quorum_refs import Refs
from amqp10broker.queues.quorum_snapshot import decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow, QueueSettings, RetryType
from tests.support.quorum_bench import Bench, message

BIG = 2**64 - 1
SESSION = ReplyTo("s")
CONSUMER = ConsumerRef(SESSION)
SETTLING = ConsumerRef(SESSION)
PUBLISHER = PublisherRef(SESSION)
REQUEST = RequestRef(SESSION)
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
    *(Settle(CONSUMER, [1, 5, BIG], verdict, b"\xc1\x01\x00", True) for verdict in Verdict),
    Settle(CONSUMER, [], Verdict.ACCEPT),
    GiveBack(CONSUMER, [8, 9], [], 3, 4, 5),
    GiveBack(SETTLING, [8], [message("d")], 3, 4, BIG),
    Cancel(CONSUMER),
    Unsubscribe(SETTLING, [9], [message("e")], 7, Verdict.REQUEUE_FAILED),
    Unsubscribe(CONSUMER, range(2, 4), [], 7, Verdict.DISCARD),
    Inspect(REQUEST),
    Purge(REQUEST),
    Delete(),
    Delete(REQUEST, if_unused=True),
    Delete(REQUEST, if_empty=True),
    Configure(QueueSettings(max_length=3, dead_letter_exchange="ü")),
    Touch(),
    Tick(),
    DlxSettle([3, 1, 2]),
    DetachPublisher(PUBLISHER),
    NodeRestarted(),
]


def plain(command: QuorumCommand) -> list[Any]:
    """A command's fields, with references told apart by nothing but their kind."""
    found: list[Any] = [type(command)]
    for field in fields(command):
        value = getattr(command, field.name)
        if isinstance(value, range):
            value = list(value)
        if isinstance(value, ConsumerRef | PublisherRef | RequestRef):
            value = type(value)
        found.append(value)
    return found


def test_every_command_comes_back_as_it_was() -> None:
    encoded = encode_commands(COMMANDS, 1234, Refs())
    decoded = decode_commands(b"".join(encoded.pieces), Refs())
    assert decoded.now_ms == 1234
    assert [plain(each) for each in decoded.commands] == [plain(each) for each in COMMANDS]
    assert {type(each) for each in COMMANDS} == set(QuorumCommand.__args__), "one of each kind"


def test_a_credit_of_an_old_journal_has_no_bound_of_bytes() -> None:
    """What was handed out for it then must be handed out again when the log is carried out."""
    commands: list[QuorumCommand] = [*FIRST, Credit(CONSUMER, 0, 256, False, 0, 1_000)]
    data = b"".join(encode_commands(commands, 5, Refs()).pieces)
    room = (1_000).to_bytes(8, "little")
    assert data.endswith(room)
    length_at = len(data) - len(room) - 25 - 4
    old = data[:length_at] + (25).to_bytes(4, "little") + data[length_at + 4 : -len(room)]
    credit = decode_commands(old, Refs()).commands[-1]
    assert isinstance(credit, Credit)
    assert (credit.credit, credit.room) == (256, NO_BOUND)


def test_references_that_are_one_come_back_as_one() -> None:
    decoded = decode_commands(b"".join(encode_commands(COMMANDS, 0, Refs()).pieces), Refs()).commands
    consumers = [each.consumer for each in decoded if hasattr(each, "consumer")]
    given = [each.consumer for each in COMMANDS if hasattr(each, "consumer")]
    assert [consumers.index(each) for each in consumers] == [given.index(each) for each in given]


def test_numbers_are_not_used_again_after_a_restart_of_the_node() -> None:
    refs = Refs()
    encode_commands([*FIRST, NodeRestarted()], 0, refs)
    other = ConsumerRef(SESSION)
    encode_commands([Subscribe(other, False)], 0, refs)
    assert refs.number_of_consumer(other) == 4
    assert refs.number_of_consumer(CONSUMER) == refs.number_of_publisher(PUBLISHER) == 0


def test_a_record_says_where_its_messages_begin() -> None:
    publishes = [Publish(PUBLISHER, [1], [message("abc")], False), Tick(), COMMANDS[3]]
    encoded = encode_commands(publishes, 0, Refs())
    payload = b"".join(encoded.pieces)
    assert decode_commands(payload, Refs()).batches == encoded.batches
    for at, publish in zip(encoded.batches, (publishes[0], publishes[2]), strict=True):
        assert isinstance(publish, Publish)
        length = len(b"".join(encode_commands([publish], 0, Refs()).pieces))
        start = encode_commands([publish], 0, Refs()).batches[0]
        assert decode_batch(payload[at : at + length - start]) == list(publish.messages)


def test_every_cut_record_is_refused() -> None:
    payload = b"".join(encode_commands(COMMANDS[:12], 5, Refs()).pieces)
    whole = decode_commands(payload, Refs()).commands
    for length in range(len(payload)):
        try:
            found = decode_commands(payload[:length], Refs()).commands
        except ValueError:
            continue
        assert len(found) < len(whole), "only whole commands may be missing"


@pytest.mark.parametrize("payload", [b"", b"1234567", b"\0" * 8 + b"\x63\0\0\0\0"])
def test_what_is_no_record_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):
        decode_commands(payload, Refs())


@pytest.mark.parametrize("numbers", [[], [5], [BIG], range(7, 900), [3, 2, 1], [1, 3], [1, 2, 4, 3], [5, 5]])
def test_numbers_come_back_and_ranges_are_short(numbers: list[int]) -> None:
    data = encode_numbers(numbers)
    found, end = decode_numbers(b"xx" + data + b"y", 2)
    assert list(found) == list(numbers)
    assert end == 2 + len(data)
    if isinstance(numbers, range):
        assert len(data) < 20


def test_settings_come_back() -> None:
    settings = QueueSettings(
        overflow=Overflow.REJECT_PUBLISH,
        dead_letter_strategy=DeadLetterStrategy.AT_LEAST_ONCE,
        retry_type=RetryType.ALL,
        delivery_limit=None,
        single_active_consumer=True,
        dead_letter_exchange="",
    )
    assert decode_settings(encode_settings(settings)) == settings
    assert encode_settings(QueueSettings()) == b"{}"
    assert decode_settings(b'{"of_a_later_version": 1}') == QueueSettings()


# --- snapshots ------------------------------------------------------------------------------------


def full_bench() -> Bench:
    """A queue with something in every place."""
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
    bench.settle(consumer, Verdict.DISCARD, keys[:1])
    bench.settle(consumer, Verdict.REQUEUE_FAILED, keys[1:2], annotations=b"\xc1\x05\x02\xa3\x01x\x41"[:7])
    bench.settle(consumer, Verdict.REQUEUE, keys[2:4])
    bench.consumer(2, settled=True)
    bench.publish("f", "g", ttl_ms=3000)
    return bench


def test_a_snapshot_is_the_state() -> None:
    bench = full_bench()
    data = encode_snapshot(bench.queue, bench.refs)
    refs = Refs()
    restored = decode_snapshot("q", data, refs)
    assert encode_snapshot(restored, refs) == data
    for name in ("ready", "unsettled", "delayed", "dlx", "consumers", "publishers", "next_index", "settings"):
        assert getattr(restored, name) == getattr(bench.queue, name), name
    assert restored.deadline() == bench.queue.deadline()
    assert (bench.queue.delayed, bench.queue.dlx, bench.queue.consumers) == (1, 1, 2)


def test_a_snapshot_of_a_long_backlog_is_short() -> None:
    bench = Bench()
    bench.publish_all([message("same")] * 20_000)
    assert len(encode_snapshot(bench.queue, Refs())) < 1000


def test_a_cut_snapshot_is_refused() -> None:
    bench = full_bench()
    data = encode_snapshot(bench.queue, bench.refs)
    for length in (0, 3, 40, len(data) - 8):
        with pytest.raises(ValueError):
            decode_snapshot("q", data[:length], Refs())


def test_a_snapshot_of_a_newer_format_says_what_to_do() -> None:
    data = encode_snapshot(Bench().queue, Refs()).replace(b'"format":1', b'"format":2')
    with pytest.raises(ValueError, match="start a newer broker"):
        decode_snapshot("q", data, Refs())


def test_settings_of_the_snapshot_are_those_of_the_queue() -> None:
    bench = Bench(max_length=7)
    restored = decode_snapshot("q", encode_snapshot(bench.queue, Refs()), Refs())
    assert restored.settings == replace(QueueSettings(), max_length=7)
