"""Entries of a quorum queue: their bytes, bodies, journal and snapshots."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import amqp10broker.queues.quorum
from amqp10broker.errors import DamagedFile
from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.message import Message, decode_batch
from amqp10broker.queues.commands import (
    JOINED_MAX,
    AttachPublisher,
    Cancel,
    Configure,
    Confirmed,
    Credit,
    Delete,
    Deliver,
    DeliveryOutcome,
    DetachPublisher,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    PublishRejected,
    Purge,
    Settle,
    Subscribe,
    Tick,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.journal import Page, Spool
from amqp10broker.queues.quorum.bodies import OPEN_PAGES_MAX, PEEKS_MAX, PagedBodies
from amqp10broker.queues.quorum.commands import (
    COMMANDS,
    EMPTY,
    HARD,
    RELOCATED,
    STATE,
    DlxSettle,
    NodeBack,
    NodeBatch,
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
    joined,
)
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.quorum.ordered_entries import BLOCK_MAX, NEVER, OrderedEntries
from amqp10broker.queues.quorum.queue import QuorumQueue, decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import DEFAULTS, DeadLetterStrategy, Overflow, QueueSettings, RetryType
from amqp10broker.raft.messages import Kind, Ready, run_of
from tests.support.memory_journal import MemoryJournal
from tests.support.queue_bench import Bench, E, message, only
from tests.support.quorum_single import Alone, store_on
from tests.support.reply_addresses import new_reply_to

HEAD = make_head(None, None, "", "q")
HERE = new_reply_to()
PUBLISHER = HERE.publisher()
NOW_MS = 1000


def opened(
    journal: MemoryJournal, settings: QueueSettings = DEFAULTS, now_ms: int = NOW_MS
) -> tuple[QuorumQueue, QuorumStore]:
    store = store_on(journal)
    store.restore(journal.records)
    return store.recovered(settings, now_ms), store


def kinds(journal: MemoryJournal) -> list[int]:
    """Return the kinds of the records, without those with which a group of one begins."""
    return [record.kind for record in journal.records if record.kind not in (HARD, EMPTY)]


def publish(*numbers: int, publisher: PublisherRef = PUBLISHER, settled: bool = False) -> Publish:
    return Publish(publisher, numbers, [(HEAD, b"%d" % number) for number in numbers], settled)


def fail(*_: object) -> None:
    raise RuntimeError("a fault of ours")


def received(queue: QuorumQueue, kind: type[E]) -> list[E]:
    (told,) = queue.take_effects().values()
    return only(told, kind)


def write(store: QuorumStore, payload: bytes, *, first: int | None = None, term: int = 1) -> None:
    run = run_of(first or store.last + 1, term, Kind.COMMAND, (payload,))
    store.write(Ready(1, None, None, (run,), [], None, (), None), lambda: None)


def append(store: QuorumStore, commands: Sequence[QuorumCommand]) -> int:
    """Propose commands and have them written; return the index of the first message."""
    first = store.next_index
    write(store, store.propose(commands, NOW_MS).payload)
    return first


def bodies(queue: QuorumQueue, store: QuorumStore) -> list[bytes]:
    indexes = sorted(queue.live_indexes())
    return [body for _, body in store.bodies.fetch(indexes)] if indexes else []


def test_an_entry_is_in_the_journal_before_it_is_carried_out() -> None:
    """Several may be under way, as in a log whose entries wait for other members."""
    queue, store = opened(MemoryJournal())
    firsts = [append(store, [publish(number)]) for number in range(3)]
    assert queue.ready == 0
    assert firsts == [0, 1, 2]
    assert store.apply(store.last - 1) is not None
    assert store.apply(store.last - 1) is not None
    assert store.apply(store.last - 1) is None, "the last is not committed"
    assert store.apply(store.last) is not None
    assert bodies(queue, store) == [b"0", b"1", b"2"]
    assert [each.ids for each in received(queue, Confirmed)] == [(0,), (1,), (2,)]


def test_another_member_needs_only_the_bytes() -> None:
    """It has them before the first member has applied them, and ends in the same state."""
    queue, store = opened(MemoryJournal())
    other, follower = opened(MemoryJournal())
    other.follow()
    consumer = HERE.consumer()
    for commands in (
        [Subscribe(consumer, False, name="c"), Credit(consumer, 0, 2, False, 0)],
        [publish(1, 2, 3)],
        [
            Settle(consumer, [0], DeliveryOutcome.ACCEPT),
            Settle(consumer, [1], DeliveryOutcome.REQUEUE_FAILED),
        ],
        [Configure(QueueSettings(delivery_limit=None)), Settle(consumer, [1], DeliveryOutcome.REQUEUE)],
    ):
        append(store, commands)
        write(follower, store.tail[-1].payload)
        assert follower.tail[-1].commands is None
        assert (follower.next_index, follower.now_ms) == (store.next_index, store.now_ms)
        assert follower.apply(follower.last) is not None
        assert store.apply(store.last) is not None
        assert encode_snapshot(other) == encode_snapshot(queue)
        assert not other.take_effects()
    assert bodies(other, follower) == bodies(queue, store)


def test_entries_are_never_of_an_earlier_time() -> None:
    journal = MemoryJournal()
    alone = Alone(journal)
    alone.carry_out([publish(1)], NOW_MS + 500)
    assert alone.store.propose([Tick()], NOW_MS).now_ms == NOW_MS + 500
    queue, store = opened(journal.again(), now_ms=3)
    assert queue.messages.now_ms == NOW_MS + 500
    assert store.propose([Tick()], 4).now_ms == NOW_MS + 500
    assert store.propose([Tick()], NOW_MS + 501).now_ms == NOW_MS + 501


def test_messages_that_are_not_taken_use_up_their_indexes() -> None:
    """So all members have the index of each message before its outcome is decided."""
    journal = MemoryJournal()
    full = QueueSettings(max_length=2, overflow=Overflow.REJECT_PUBLISH)
    alone = Alone(journal, full)
    alone.carry_out([publish(1, 2, 3), publish(4)], NOW_MS)
    assert [each.ids for each in received(alone.queue, PublishRejected)] == [(3,), (4,)]
    assert alone.store.propose([publish(5)], NOW_MS).places[0].first == 4
    queue, store = opened(journal.again(), full)
    assert bodies(queue, store) == [b"1", b"2"]
    assert store.propose([publish(5)], NOW_MS).places[0].first == 4


def test_a_return_to_the_tail_keeps_its_index_and_needs_no_record() -> None:
    journal = MemoryJournal()
    unlimited = QueueSettings(delivery_limit=None)
    alone = Alone(journal, unlimited)
    consumer = HERE.consumer()
    alone.carry_out([publish(1, 2, 3), Subscribe(consumer, False), Credit(consumer, 0, 1, False, 0)], NOW_MS)
    alone.carry_out([Settle(consumer, [0], DeliveryOutcome.REQUEUE), publish(4)], NOW_MS)
    assert set(kinds(journal)) == {STATE, COMMANDS}
    alone = Alone(journal.again(), unlimited)
    consumer = HERE.consumer()
    alone.carry_out([Subscribe(consumer, False), Credit(consumer, 0, 9, False, 0)], NOW_MS)
    (delivery,) = received(alone.queue, Deliver)
    assert list(delivery.keys) == [1, 2, 0, 3]
    assert [body for _, body in delivery.messages] == [b"2", b"3", b"1", b"4"]


def test_an_entry_that_the_queue_fails_at_is_not_carried_out_by_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = MemoryJournal()
    alone = Alone(journal)
    alone.carry_out([publish(1)], NOW_MS)
    for number in (2, 3):
        append(alone.store, [publish(number)])
    monkeypatch.setattr(QuorumQueue, "_publish", fail)
    with pytest.raises(RuntimeError):
        alone.store.apply(alone.store.last)
    alone.store.abandon()
    # Still there when the broker is started again.
    again = journal.again()
    monkeypatch.undo()
    alone = Alone(again)
    assert bodies(alone.queue, alone.store) == [b"1"]
    alone.carry_out([publish(4)], NOW_MS)
    assert bodies(*opened(again.again())) == [b"1", b"4"]


def test_messages_of_an_entry_that_was_replaced_are_nowhere_when_others_have_their_indexes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds when its record is read before any state, because the previous one was cleaned away."""
    journal = MemoryJournal(600)
    alone = Alone(journal)
    while len(journal.files) == 1:
        alone.carry_out([publish(1)], NOW_MS)
    before = alone.store.next_index
    monkeypatch.setattr(QuorumQueue, "_publish", fail)
    with pytest.raises(RuntimeError):
        alone.carry_out([publish(*range(100, 110))], NOW_MS)
    alone.store.abandon()
    monkeypatch.undo()
    journal = journal.again()
    alone = Alone(journal)
    list(alone.store.relocate(1))
    journal.drop_oldest()
    found = [record.kind for record in journal.records]
    assert found.count(STATE) == 1
    assert found.index(STATE) > 2, "the entry and the empty one are before the state"
    alone.carry_out([publish(2, 3, 4)], NOW_MS)
    journal = journal.again()
    alone = Alone(journal)
    queue, store = alone.queue, alone.store
    assert bodies(queue, store) == [b"1"] * before + [b"2", b"3", b"4"]
    consumer = HERE.consumer()
    alone.carry_out([Subscribe(consumer, False), Credit(consumer, 0, 100, False, 0)], NOW_MS)
    alone.carry_out([Settle(consumer, queue.live_indexes(), DeliveryOutcome.ACCEPT)], NOW_MS)
    assert len(store.bodies) == 0, "pages are kept for messages that nobody has"


def test_what_stands_behind_a_lost_file_that_was_given_up_is_there() -> None:
    """Each message has the index that its entry gives, whatever is missing before it."""
    journal = MemoryJournal(10**6)
    alone = Alone(journal)
    for number in range(3):
        alone.carry_out([publish(number)], NOW_MS)
    assert kinds(journal) == [STATE, COMMANDS, COMMANDS, COMMANDS]
    del journal.files[1][-2]
    queue, store = opened(journal.again())
    assert queue.live_indexes() == [0, 2]
    assert bodies(queue, store) == [b"0", b"2"]
    assert store.propose([publish(3)], NOW_MS).places[0].first == 3


def test_entries_out_of_order_are_damage() -> None:
    journal = MemoryJournal(10**6)
    alone = Alone(journal)
    for number in range(3):
        alone.carry_out([publish(number)], NOW_MS)
    records = journal.files[1]
    records.append(records[-2]._replace(term=2))
    with pytest.raises(DamagedFile, match=r"entry 4 of term 2 does not follow entry 4"):
        opened(journal.again())


@pytest.mark.parametrize("file_bytes", range(250, 1_050, 50))
def test_power_that_goes_between_a_state_and_what_stands_behind_it_again(file_bytes: int) -> None:
    """The next start writes both again: entries needed behind a state must not be in files before it. The
    file with the torn state may begin with entries that a later state includes: their messages count.
    """
    journal = MemoryJournal(file_bytes)
    queue, store = opened(journal)
    last = None
    for number in range(6):
        last = append(store, [publish(number)])
    assert last == 5
    store._write_state(queue)
    records = journal.files[max(journal.files)]
    while records and records[-1].kind != STATE:
        records.pop()
        if not records:
            del journal.files[max(journal.files)], journal.live[max(journal.live)]
            records = journal.files[max(journal.files)]
    first = records[-1].file
    journal = journal.again()
    alone = Alone(journal)
    assert len(bodies(alone.queue, alone.store)) == 6
    for file in range(1, first):
        list(alone.store.relocate(file))
        journal.drop_oldest()
    assert bodies(*opened(journal.again())) == [b"%d" % number for number in range(6)]


BIG = 2**64 - 1
SESSION = new_reply_to("s")
CONSUMER = SESSION.consumer()
SETTLING = SESSION.consumer()
PUBLISHER_LOG = SESSION.publisher()
REQUEST = SESSION.request()
FIRST: list[QuorumCommand] = [
    AttachPublisher(PUBLISHER_LOG),
    Subscribe(CONSUMER, False, counted=False, answer=True, priority=-5, timeout_ms=0),
    Subscribe(SETTLING, True, exclusive=True, priority=2**63 - 1),
]
COMMANDS_LOG: list[QuorumCommand] = [
    *FIRST,
    Publish(PUBLISHER_LOG, [4, 7], [message("a"), message("bc", priority=9)], True),
    Publish(PUBLISHER_LOG, range(3), [message("x")] * 3, False),
    Publish(PUBLISHER_LOG, [], [], False),
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
    DetachPublisher(PUBLISHER_LOG),
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
    NodeBatch(3, 4, 1, 0, BIG, []),
    NodeBatch(
        3, 4, 7, BIG, 5, [FIRST[0], Publish(PUBLISHER_LOG, [4, 7], [message("a"), message("b")], True)]
    ),
]


def plain(command: QuorumCommand) -> list[Any]:
    found: list[Any] = [type(command)]
    for field in fields(command):
        value = getattr(command, field.name)
        if isinstance(command, NodeBatch) and field.name == "commands":
            value = [plain(each) for each in value]
        found.append(list(value) if isinstance(value, range) else value)
    return found


def entry_of(commands: Sequence[QuorumCommand], now_ms: int = 0, first: int = 0) -> bytes:
    return b"".join(encode_commands(commands, now_ms, first).pieces)


def test_every_command_comes_back_as_it_was() -> None:
    decoded = decode_commands(entry_of(COMMANDS_LOG, 1234, 77))
    assert (decoded.now_ms, decoded.first) == (1234, 77)
    assert [plain(each) for each in decoded.commands] == [plain(each) for each in COMMANDS_LOG]
    assert {type(each) for each in COMMANDS_LOG} == set(QuorumChange.__args__), "one of each kind"


def test_what_changes_nothing_is_in_no_entry() -> None:
    publish = Publish(PUBLISHER_LOG, [1], [message("a")], False)
    assert entry_of([Inspect(REQUEST), publish, Touch(), Inspect(REQUEST)]) == entry_of([publish])


def test_a_name_that_is_no_text_does_no_harm() -> None:
    data = entry_of([Subscribe(CONSUMER, False, name="a\udc80 \u00fc")])
    (found,) = decode_commands(data).commands
    assert isinstance(found, Subscribe)
    assert found.name == "a\udc80 \u00fc"


def test_an_entry_says_where_its_messages_begin() -> None:
    publishes = [
        Publish(PUBLISHER_LOG, [1], [message("abc")], False),
        Tick(),
        COMMANDS_LOG[3],
        COMMANDS_LOG[5],
    ]
    encoded = encode_commands(publishes, 0, 40)
    payload = b"".join(encoded.pieces)
    assert [(place.first, place.messages) for place in encoded.places] == [(40, 1), (41, 2)]
    assert encoded.end == 43
    for place, publish in zip(encoded.places, (publishes[0], publishes[2]), strict=True):
        assert isinstance(publish, Publish)
        assert decode_batch(payload[place.at : place.at + place.length]) == list(publish.messages)


def test_every_cut_record_is_refused() -> None:
    payload = entry_of(COMMANDS_LOG[:12], 5)
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


TWO = SESSION.publisher()


def plain_run(commands: list[QuorumCommand]) -> list[object]:
    return [
        (each.publisher, list(each.ids), [body.decode() for _, body in each.messages], each.settled)
        if isinstance(each, Publish)
        else each
        for each in commands
    ]


def test_neighbours_of_one_publisher_are_one() -> None:
    first = publish(1)
    found = joined([first, publish(2, 3), publish(4)])
    assert plain_run(found) == [(PUBLISHER, [1, 2, 3, 4], ["1", "2", "3", "4"], False)]
    assert list(first.ids) == [1], "what others gave is not changed"


def test_others_stay_apart_and_in_order() -> None:
    tick = Tick()
    commands: list[QuorumCommand] = [
        publish(1),
        publish(1, publisher=TWO),
        publish(2),
        tick,
        publish(3),
        publish(4, settled=True),
    ]
    assert plain_run(joined(commands)) == plain_run(commands)


def test_a_run_ends_when_it_is_long_enough() -> None:
    many = publish(*range(JOINED_MAX))
    assert joined([many, publish(1)])[0] is many


def test_a_settled_delivery_that_comes_back_is_not_lost() -> None:
    """The queue had released it: the session's copy is the only one, and the log behind it is torn off."""
    journal, consumer = MemoryJournal(10**6), HERE.consumer()
    alone = Alone(journal, DEFAULTS, NOW_MS)
    commands: list[list[QuorumCommand]] = [
        [publish(1, 2)],
        [Subscribe(consumer, True), Credit(consumer, 0, 1, False, 0)],
        [Credit(consumer, 1, 0, False, 1)],
        [GiveBack(consumer, [0], [(HEAD, b"1")], 0, 0, 1)],
    ]
    for each in commands:
        alone.carry_out(each, NOW_MS)
    torn = journal.again()
    assert torn.files[1].pop().kind == RELOCATED
    queue, store = opened(torn)
    assert bodies(queue, store) == [b"1", b"2"]
    torn.files[2], torn.live[2] = [], 0
    list(store.relocate(1))
    torn.drop_oldest()
    assert bodies(*opened(torn.again())) == [b"1", b"2"]


OF_ONE_MEMBER = {"durability.py", "log_store.py", "bodies.py", "records.py", "state_transfer.py"}
"""What one member has on its disk, and knows of other nodes: no part of the replicated state."""
FOLDER = Path(amqp10broker.queues.quorum.__file__).parent
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name not in OF_ONE_MEMBER)
CALLS = {"set", "frozenset", "hash", "id", "float", "vars", "dir", "round"}
METHODS = {"popitem", "intersection", "difference", "symmetric_difference", "union"}
MODULES = {"time", "random", "secrets", "uuid", "datetime", "os", "weakref", "math", "statistics"}
SETS = {
    # Only asked what is in it, and no part of the state.
    ("messages.py", "self._handed_out"),
    # Places of one page that are emptied, in whatever order.
    ("bodies.py", "self.dropped"),
}


def faults_of(source: str, name: str) -> list[str]:
    tree = ast.parse(source)
    allowed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and (name, ast.unparse(node.target)) in SETS and node.value:
            allowed.add(id(node.value))
    found: list[str] = []
    for node in ast.walk(tree):
        fault = None
        match node:
            case ast.Call(func=ast.Name(id=called)) if called in CALLS and id(node) not in allowed:
                fault = f"{called}()"
            case ast.Call(func=ast.Attribute(attr=called)) if called in METHODS:
                fault = f".{called}()"
            case ast.Set() | ast.SetComp():
                fault = "a set"
            case ast.Constant(value=float()):
                fault = "a float"
            case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
                fault = "a division that makes a float"
            case ast.Import(names=names) if any(each.name.split(".")[0] in MODULES for each in names):
                fault = "a module of the process's own"
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                fault = "a module of the process's own"
        if fault is not None:
            assert isinstance(node, ast.expr | ast.stmt)
            found.append(f"{name}:{node.lineno}: {fault}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_differs_between_two_members(path: Path) -> None:
    assert faults_of(path.read_text(), path.name) == []


@pytest.mark.parametrize(
    "line",
    [
        "for each in set(x): pass",
        "y = {1, 2}",
        "y = {a for a in x}",
        "y = 0.5",
        "y = a / b",
        "y /= 2",
        "y = hash(x)",
        "y = x.popitem()",
        "import time",
        "from random import choice",
    ],
)
def test_what_would_differ_is_found(line: str) -> None:
    assert len(faults_of(line, "quorum.py")) == 1


def messages(indexes: Sequence[int]) -> list[Message]:
    return [(HEAD, b"%d" % index) for index in indexes]


def test_a_dropped_message_is_not_there() -> None:
    bodies = PagedBodies()
    bodies.put(0, messages(range(10)))
    bodies.drop([3, 4])
    assert len(bodies) == 8
    with pytest.raises(AssertionError, match="not there"):
        bodies.fetch([3])


def test_pages_that_nobody_is_near_are_packed_and_empty_ones_gone() -> None:
    bodies = PagedBodies()
    bodies.put(0, messages(range(20 * 4096)))
    opened = [number for number, page in bodies._pages.items() if page.messages is not None]
    assert len(opened) == OPEN_PAGES_MAX
    bodies.drop(range(4096))
    bodies.drop(range(4096, 8192))
    assert 0 not in bodies._pages
    assert len(bodies) == 18 * 4096


def test_a_packed_page_that_is_mostly_dropped_is_packed_anew() -> None:
    bodies = PagedBodies()
    bodies.put(0, messages(range(10 * 4096)))
    size = len(bodies._pages[0].packed)
    bodies.drop(list(range(0, 4096, 2)))
    bodies.drop(list(range(1, 4000, 2)))
    assert len(bodies._pages[0].packed) < size / 10
    assert bodies.fetch([4001, 4095]) == messages([4001, 4095])


def test_few_messages_of_a_packed_page_are_read_without_opening_it() -> None:
    """Delayed messages become due in any order; a reader of consecutive messages opens the page."""
    read: list[int] = []

    class CountedPacks(Spool):
        def read_at(self, page: Page, at: int, length: int) -> bytes:
            read.append(length)
            return super().read_at(page, at, length)

    bodies = PagedBodies(CountedPacks())
    given = [(make_head(None, None, "", f"k{number % 7}"), b"%d" % number * 9) for number in range(10 * 4096)]
    bodies.put(0, given)
    bodies.drop([5, 6])
    for wanted in ([17], [4095, 9, 4097, 4], [7, 8], [4000]):
        assert bodies.fetch(wanted) == [given[each] for each in wanted]
    assert [bodies._pages[number].messages for number in (0, 1)] == [None, None]
    assert sum(read) < 5 * 4096 * 6 + 1000, "lengths, and a few contents"
    assert bodies.fetch([4001]) == [given[4001]]
    assert bodies._pages[0].messages is not None, "it goes on where it was"
    for each in range(PEEKS_MAX + 1):
        assert bodies._pages[2].messages is None
        assert bodies.fetch([8192 + 3 * each]) == [given[8192 + 3 * each]]
    assert bodies._pages[2].messages is not None, "another would be cheaper so"


@pytest.mark.parametrize("seed", range(3))
def test_a_random_walk_agrees_with_a_dictionary(seed: int) -> None:
    dice = random.Random(seed)
    bodies = PagedBodies()
    model: dict[int, Message] = {}
    first = 0
    for _ in range(300):
        match dice.choice("ppfdd"):
            case "p":
                first += dice.choice([0, 0, 5, 5000])
                count = dice.choice([1, 7, 5000])
                new = messages(range(first, first + count))
                bodies.put(first, new)
                model.update(enumerate(new, first))
                first += count
            case "f" if model:
                chosen = dice.sample(sorted(model), min(len(model), 20))
                assert bodies.fetch(chosen) == [model[index] for index in chosen]
            case "d" if model:
                keys = sorted(model)
                start = dice.randrange(len(keys))
                chosen = dice.choice([keys[start : start + 6000], keys[start::3]])
                bodies.drop(chosen)
                for index in chosen:
                    del model[index]
        assert len(bodies) == len(model)
    keys = sorted(model)
    assert not keys or bodies.fetch(keys) == [model[index] for index in keys]


# --- lines ----------------------------------------------------------------------------------------


def test_a_line_gives_up_to_a_block_at_a_time() -> None:
    line = OrderedEntries()
    line.append(range(BLOCK_MAX), [1] * BLOCK_MAX, None)
    line.append(range(BLOCK_MAX, BLOCK_MAX + 5), [2] * 5, None)
    keys, sizes, expiries = line.take(BLOCK_MAX + 5, 0)
    assert (keys, sizes, expiries) == (list(range(BLOCK_MAX)), [1] * BLOCK_MAX, None)
    assert line.take(9, 0)[0] == list(range(BLOCK_MAX, BLOCK_MAX + 5))
    assert (line.length, line.take(1, 0)) == (0, ([], [], None))


def test_a_line_stops_before_what_has_expired() -> None:
    line = OrderedEntries()
    line.append([1, 2, 3, 4], [1] * 4, [NEVER, 50, 10, NEVER])
    assert line.take(9, 10) == ([1, 2], [1, 1], [NEVER, 50])
    assert line.take(9, 10) == ([], [], [])
    assert line.take_expired(10) == ([3], [1])
    assert line.take(9, 10)[0] == [4]
    assert line.expiring == 0


def test_entries_put_back_are_merged_by_key() -> None:
    line = OrderedEntries()
    line.append(range(10), [1] * 10, None)
    line.take(6, 0)
    line.put_back([(4, 1, NEVER), (5, 1, 99)])
    line.put_back([(1, 1, NEVER), (0, 1, NEVER)])
    line.put_back([(3, 1, NEVER)])
    assert line.length == 9
    taken = [key for _ in range(9) for key in line.take(1, 0)[0]]
    assert taken == [0, 1, 3, 4, 5, 6, 7, 8, 9]
