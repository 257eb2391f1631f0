"""Letters and effects as bytes: what comes back is what went in, and others are refused with `BadLetter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.cluster.effects_codec import (
    decode_leader,
    decode_resumed,
    decode_told,
    encode_leader,
    encode_resumed,
    encode_told,
)
from amqp10broker.cluster.letters_codec import (
    BadLetter,
    decode_browse,
    decode_letters,
    decode_resume,
    encode_browse,
    encode_letters,
    encode_resume,
)
from amqp10broker.cluster.remote_queue.messages import (
    Browse,
    LeaderIs,
    LetterBatch,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
)
from amqp10broker.message.batch import BATCH_MAX
from amqp10broker.message.filters.bloom import BloomFilter
from amqp10broker.message.filters.filters import Filters, from_amqp10
from amqp10broker.message.filters.offset_spec import AtTime, First, Interval, Last, Next, Offset
from amqp10broker.queues import commands as c
from amqp10broker.queues import effects as e
from amqp10broker.queues.quorum.node_links import ConsumerFacts

PEER = c.PeerId(2, 3, 4)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
peers = st.builds(c.PeerId, u32, u32, u64)
consumers = st.builds(c.ConsumerRef, peers, u64)
publishers = st.builds(c.PublisherRef, peers, u64)
requests = st.builds(c.RequestRef, peers, u64)
messages = st.tuples(st.sampled_from((b"\x00Su", b"\x91abc")), st.binary(max_size=8))
numbers = st.lists(u64, max_size=5) | st.builds(
    lambda first, count: list(range(first, first + count)), st.integers(0, 1000), st.integers(0, 5)
)
names = st.text(max_size=8)
delivery_outcomes = st.sampled_from(c.DeliveryOutcome)


def with_messages(build: Callable[[Any, Any], Any]) -> st.SearchStrategy[Any]:
    """Something of as many numbers as messages."""
    pairs = st.lists(st.tuples(u64, messages), max_size=5)
    return pairs.map(lambda each: build([number for number, _ in each], [message for _, message in each]))


def drawn(build: Callable[..., Any], *args: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A record whose last two fields are numbers and messages."""
    return st.tuples(*args).flatmap(lambda given: with_messages(lambda ids, all_: build(*given, ids, all_)))


COMMANDS: st.SearchStrategy[c.Command] = st.one_of(
    drawn(lambda to, settled, ids, all_: c.Publish(to, ids, all_, settled), publishers, st.booleans()),
    st.builds(c.Credit, consumers, u32, u64, st.booleans(), u64, u64),
    st.builds(c.Settle, consumers, numbers, delivery_outcomes, st.binary(max_size=5), st.booleans()),
    drawn(
        lambda to, count, seen, epoch, keys, all_: c.GiveBack(to, keys, all_, count, seen, epoch),
        consumers, u32, u64, u64,
    ),
    st.builds(
        c.Subscribe, consumers, st.booleans(), exclusive=st.booleans(), counted=st.booleans(),
        answer=st.booleans(), priority=st.integers(-5, 5), timeout_ms=st.none() | st.integers(0, 10),
        name=names,
    ),
    st.builds(c.Cancel, consumers),
    drawn(
        lambda target, seen, outcome, keys, all_: c.Unsubscribe(target, keys, all_, seen, outcome),
        consumers, u64, delivery_outcomes,
    ),
    st.builds(c.AttachPublisher, publishers),
    st.builds(c.DetachPublisher, publishers),
    st.builds(c.Purge, requests),
    st.builds(c.Inspect, requests),
    st.builds(c.Touch),
    st.builds(c.Delete, requests, st.booleans(), st.booleans()),
)  # fmt: skip

DELIVERIES = drawn(
    lambda target, epoch, spent, again, shown, keys, all_: e.Deliver(
        target, keys, all_, epoch, spent, again, shown
    ),
    consumers, u64, st.booleans(), st.booleans(), st.just(()) | st.tuples(u64, u64, u64, u64),
)  # fmt: skip

EFFECTS: st.SearchStrategy[e.Effect] = st.one_of(
    st.builds(e.Confirmed, publishers, numbers, st.booleans()),
    st.builds(e.Unconfirmed, publishers, numbers, st.booleans(), st.booleans(), names),
    st.builds(e.PublishRejected, publishers, numbers, st.booleans(), names),
    DELIVERIES,
    st.builds(e.Settled, consumers, numbers),
    st.builds(e.CreditReply, consumers, u32, u64, u64, st.booleans(), u64),
    st.builds(e.QueueDeleted, consumers | publishers, names),
    st.builds(e.QueueDown, consumers, names),
    st.builds(e.Subscribed, consumers),
    st.builds(e.SubscribeRefused, consumers, names, st.sampled_from(e.Refusal)),
    st.builds(e.ActiveChanged, consumers, st.booleans()),
    st.builds(e.TimedOut, consumers, numbers, names),
    st.builds(
        e.Answer,
        requests,
        u64,
        u64,
        st.none() | st.sampled_from(e.Refusal),
        st.none() | st.integers(0, 2**63),
    ),
)

BATCHES = st.builds(
    LetterBatch, u32, st.integers(1, 2**64 - 1), u64, st.lists(COMMANDS, min_size=1, max_size=5)
)
FACTS = st.builds(ConsumerFacts, u32, u64, u64, u64, st.none() | st.booleans(), u64)


def by_session(effects: Sequence[e.Effect]) -> dict[c.PeerId, list[e.Effect]]:
    """Effects as a queue gives them."""
    found: dict[c.PeerId, list[e.Effect]] = {}
    for effect in effects:
        found.setdefault(asker(effect), []).append(effect)
    return found


def asker(effect: e.Effect) -> c.PeerId:
    """Whom an effect is for."""
    for name in ("consumer", "publisher", "ref", "request"):
        ref = getattr(effect, name, None)
        if ref is not None:
            peer: c.PeerId = ref.reply_to
            return peer
    raise AssertionError(effect)


def plain(value: Any) -> Any:
    """A record as something that compares by value."""
    if is_dataclass(value):
        return type(value).__name__, [(each.name, plain(getattr(value, each.name))) for each in fields(value)]
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    if isinstance(value, list | range) or type(value) is tuple:
        return [plain(item) for item in value]
    return value


@given(BATCHES)
def test_letters_come_back_as_they_went(batch: LetterBatch) -> None:
    assert plain(decode_letters(b"".join(encode_letters(batch)))) == plain(batch)


BROWSES = st.builds(
    Browse,
    u32,
    st.lists(
        st.one_of(
            st.builds(
                c.Subscribe,
                consumers,
                st.booleans(),
                counted=st.just(False),
                answer=st.booleans(),
                browse=st.just(True),
                shown=st.just(()) | st.tuples(u64, u64, u64, u64),
                name=names,
            ),
            st.builds(c.Credit, consumers, u32, u64, st.booleans(), u64, u64),
            st.builds(c.GiveBack, consumers, numbers, st.just([]), u32, u64, u64),
            st.builds(c.Unsubscribe, consumers, numbers, st.just([]), u64, delivery_outcomes),
        ),
        min_size=1,
        max_size=5,
    ),
)


@given(BROWSES)
def test_what_browsers_ask_comes_back_as_it_went(browse: Browse) -> None:
    assert plain(decode_browse(b"".join(encode_browse(browse)))) == plain(browse)


@given(BROWSES, st.lists(st.tuples(u32, st.integers(0, 255)), max_size=4), u32)
def test_damaged_questions_of_browsers_are_read_or_refused(
    browse: Browse, changes: list[tuple[int, int]], end: int
) -> None:
    damaged(b"".join(encode_browse(browse)), changes, end, decode_browse)


@pytest.mark.parametrize(
    "commands", [[], [c.Purge(c.RequestRef(PEER, 1))], [c.Subscribe(c.ConsumerRef(PEER, 1), False)]]
)
def test_nobody_asks_as_a_browser_who_is_none(commands: list[c.Command]) -> None:
    """It would be carried out without the log."""
    with pytest.raises(BadLetter, match="no browser asks one of them"):
        decode_browse(b"".join(encode_browse(Browse(1, commands))))


@given(st.lists(EFFECTS, max_size=5), u32, u64, u64)
def test_effects_come_back_as_they_went(effects: list[e.Effect], token: int, index: int, done: int) -> None:
    told = RemoteEffects(token, index, done, by_session(effects))
    assert plain(decode_told(b"".join(encode_told(told)))) == plain(told)


@given(st.dictionaries(st.builds(c.ConsumerRef, st.just(PEER), u64), u64, max_size=4), u32, u64)
def test_what_was_heard_comes_back_as_it_went(seen: dict[c.ConsumerRef, int], token: int, heard: int) -> None:
    resume = ResumeRemote(token, PEER.incarnation, heard, 7, seen)
    assert plain(decode_resume(b"".join(encode_resume(resume)), PEER.node)) == plain(resume)


@given(
    st.lists(EFFECTS, max_size=3),
    st.lists(DELIVERIES, max_size=3),
    st.dictionaries(consumers, FACTS, max_size=3),
    st.booleans(),
)
def test_a_state_comes_back_as_it_went(
    kept: list[e.Effect], deliveries: list[e.Deliver], facts: dict[c.ConsumerRef, ConsumerFacts], gone: bool
) -> None:
    resumed = RemoteResumed(1, 2, 3, gone, kept, deliveries, facts)
    assert plain(decode_resumed(b"".join(encode_resumed(resumed)))) == plain(resumed)


@given(st.builds(LeaderIs, u64, st.booleans(), st.booleans(), st.booleans()))
def test_a_leader_comes_back_as_it_went(leader: LeaderIs) -> None:
    assert decode_leader(b"".join(encode_leader(leader))) == leader


DECODERS: tuple[Callable[[bytes], object], ...] = (
    decode_letters,
    lambda body: decode_resume(body, 1),
    decode_told,
    decode_resumed,
    decode_leader,
    decode_browse,
)


@given(st.binary(max_size=200), st.sampled_from(DECODERS))
def test_any_bytes_are_read_or_refused(body: bytes, decode: Callable[[bytes], object]) -> None:
    try:
        decode(body)
    except BadLetter:
        return


@given(BATCHES, st.lists(st.tuples(u32, st.integers(0, 255)), max_size=4), u32)
def test_damaged_letters_are_read_or_refused(
    batch: LetterBatch, changes: list[tuple[int, int]], end: int
) -> None:
    damaged(b"".join(encode_letters(batch)), changes, end, decode_letters)


@given(st.lists(EFFECTS, max_size=4), st.lists(st.tuples(u32, st.integers(0, 255)), max_size=4), u32)
def test_damaged_effects_are_read_or_refused(
    effects: list[e.Effect], changes: list[tuple[int, int]], end: int
) -> None:
    told = RemoteEffects(1, 2, 3, by_session(effects))
    damaged(b"".join(encode_told(told)), changes, end, decode_told)
    resumed = RemoteResumed(1, 2, 3, False, effects, [], {})
    damaged(b"".join(encode_resumed(resumed)), changes, end, decode_resumed)


def damaged(body: bytes, changes: list[tuple[int, int]], end: int, decode: Callable[[bytes], object]) -> None:
    """Read a body of which bytes were changed, and the end is missing, or not."""
    wrong = bytearray(body)
    for at, value in changes:
        wrong[at % len(wrong)] = value
    cut = end % (2 * len(wrong))
    try:
        decode(bytes(wrong[:cut]) if cut else bytes(wrong))
    except BadLetter:
        return


def test_no_node_sends_what_no_session_says() -> None:
    body = b"".join(encode_letters(LetterBatch(1, 1, 0, [c.Touch()])))
    tick = body[:20] + b"\x0d\0\0\0\0"
    with pytest.raises(BadLetter, match="no session says Tick"):
        decode_letters(tick)


@pytest.mark.parametrize(
    "offset", [First(), Last(), Next(), Offset(7), AtTime(1234), Interval(600_000), None]
)
def test_a_subscription_to_a_stream_says_where_it_begins(offset: Any) -> None:
    wanted = Filters(offset, BloomFilter(("a", "b"), True), None, 99)
    subscribe = c.Subscribe(
        c.ConsumerRef(PEER, 1), False, position=offset, filters=wanted, enqueued_time=True, name="n"
    )
    (found,) = decode_letters(b"".join(encode_letters(LetterBatch(1, 1, 0, [subscribe])))).commands
    assert found == subscribe


def test_a_subscription_to_a_stream_says_which_messages_it_wants() -> None:
    from amqp10broker.protocols.amqp10.types import Described, Symbol

    entries = {Symbol("sql-filter"): Described(Symbol("amqp:sql-filter"), "properties.subject = 'x'")}
    wanted = from_amqp10(entries).filters
    subscribe = c.Subscribe(c.ConsumerRef(PEER, 1), False, position=None, filters=wanted)
    (found,) = decode_letters(b"".join(encode_letters(LetterBatch(1, 1, 0, [subscribe])))).commands
    assert isinstance(found, c.Subscribe)
    assert isinstance(found.filters, Filters)
    assert found.filters.messages is not None
    assert found.filters.messages.entries == entries


def test_more_deliveries_than_a_batch_holds_go_as_several() -> None:
    keys = range(BATCH_MAX + 1)
    deliver = e.Deliver(c.ConsumerRef(PEER, 1), keys, [(b"\0", b"")] * len(keys), 0, True)
    told = decode_told(b"".join(encode_told(RemoteEffects(1, 1, 1, {PEER: [deliver]}))))
    parts = told.effects[PEER]
    assert [(len(each.keys), each.spent) for each in parts if isinstance(each, e.Deliver)] == [
        (BATCH_MAX, False),
        (1, True),
    ]
