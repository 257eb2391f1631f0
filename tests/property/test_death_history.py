"""The history in a message against a model: any chain of events, returns and changes of protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.errors import PreconditionFailed
from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import MessageReader, decode_head
from amqp10broker.message.convert import routing_headers, to_amqp091, to_amqp10
from amqp10broker.message.dead_letter_heads import Cause
from amqp10broker.message.death_history import Death, is_cycle
from amqp10broker.message.message import Message
from amqp10broker.message.traits import acquired, traits_of
from amqp10broker.protocols.amqp091.content import split
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties
from tests.property.test_conversion import any_properties, payloads
from tests.support.dead_letters import dead_lettered, deaths_of
from tests.support.examples import tried

names = st.sampled_from(["a", "b", "c", "é", ""])
reasons = st.sampled_from(["rejected", "expired", "maxlen", "delivery_limit"])


@dataclass(frozen=True)
class Die:
    queue: str
    reason: str
    wait_ms: int
    exchange: str
    routing_key: str | None


@dataclass(frozen=True)
class Return:
    """A consumer had it and gave it back."""

    failed: bool


@dataclass(frozen=True)
class Convert:
    """As a stream does, or a consumer of the other protocol: to 1.0, or to 0-9-1."""

    to_10: bool


steps = st.lists(
    st.one_of(
        st.builds(Die, names, reasons, st.integers(0, 10**7), names, st.none() | st.text("kxyé", max_size=4)),
        st.builds(Return, st.booleans()),
        st.builds(Convert, st.booleans()),
    ),
    max_size=12,
)


class Model:
    """What dead-lettering is about, in plain words: a list of events, counted when asked."""

    def __init__(self, exchange: str, keys: tuple[str, ...], ttl_ms: int | None) -> None:
        self.exchange = exchange
        self.keys = keys
        self.ttl_ms = ttl_ms
        self.events: list[tuple[str, str, int, str, tuple[str, ...], int | None]] = []

    def die(self, step: Die, now_ms: int) -> None:
        self.events.append((step.queue, step.reason, now_ms, self.exchange, self.keys, self.ttl_ms))
        self.ttl_ms = None
        self.exchange = step.exchange
        if step.routing_key is not None:
            self.keys = (step.routing_key,)

    def deaths(self) -> tuple[Death, ...]:
        """Each queue and reason has one record: the last event sets its place, the first its contents."""
        newest_first = dict.fromkeys((queue, reason) for queue, reason, *_ in reversed(self.events))
        records = []
        for pair in newest_first:
            of_it = [each for each in self.events if each[:2] == pair]
            queue, reason, first_ms, exchange, keys, ttl_ms = of_it[0]
            records.append(Death(queue, reason, len(of_it), first_ms, of_it[-1][2], exchange, keys, ttl_ms))
        return tuple(records)

    def is_cycle(self, queue: str) -> bool:
        """No event from the newest back to the last one in that queue is a rejection."""
        for died_in, reason, *_ in reversed(self.events):
            if reason == "rejected":
                return False
            if died_in == queue:
                return True
        return False


def published(in_10: bool, key: str, cc: list[str], ttl_ms: int | None) -> Message:
    forged = Death("a", "expired", 7, 1, 1, "ex", ("k",))
    properties = BasicProperties(
        headers={"CC": cc, "x-death": [forged.to_table()]}, expiration=None if ttl_ms is None else str(ttl_ms)
    )
    message = (amqp091.make_head("ex", key, encode_properties(properties)), b"a")
    return to_amqp10(message) if in_10 else message


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_headers_should_be_appended_for_each_event")
@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_headers_cycle")
@settings(max_examples=tried(300), deadline=None)
@given(
    st.booleans(),
    st.text("kxyé", max_size=4),
    st.lists(st.sampled_from(["c1", "c2"]), unique=True),
    st.none() | st.integers(0, 2**32 - 1),
    steps,
)
def test_the_history_is_what_happened(
    in_10: bool, key: str, cc: list[str], ttl_ms: int | None, walk: list[Die | Return | Convert]
) -> None:
    """It has records, counts, order, times, keys, cycles, time to live and the count of failures."""
    message = published(in_10, key, cc, ttl_ms)
    model = Model("ex", (key, *cc), ttl_ms)
    now_ms = 1_700_000_000_000
    for step in walk:
        match step:
            case Die():
                now_ms += step.wait_ms
                cause = Cause(step.queue, step.reason, now_ms, step.exchange, step.routing_key)
                dead = dead_lettered(message[0], cause)
                message = (dead.head, message[1])
                model.die(step, now_ms)
                assert dead.routing_keys == model.keys
                assert dead.deaths == model.deaths()
            case Return():
                message = acquired(message, failed=step.failed)
            case Convert():
                message = to_amqp10(message) if step.to_10 else to_amqp091(message)
        assert deaths_of(message[0]) == model.deaths()
        assert traits_of(message[0]).ttl_ms == model.ttl_ms
        for queue in ("a", "b", "c"):
            assert is_cycle(deaths_of(message[0]), queue) == model.is_cycle(queue)
    failures = sum(1 for step in walk if isinstance(step, Return) and step.failed)
    assert amqp091.delivery_count(to_amqp091(message)[0]) == failures


@given(st.lists(st.tuples(names, reasons), max_size=20))
def test_records_stay_few(events: list[tuple[str, str]]) -> None:
    """A queue and reason has one record, so the history of a message that cycles does not grow."""
    head = amqp091.make_head("ex", "k", b"\x00\x00")
    cause = Cause("", "", 0, "dlx", None)
    for queue, reason in events:
        head = dead_lettered(head, replace(cause, queue=queue, reason=reason)).head
    deaths = deaths_of(head)
    assert len(deaths) == len(set(events))
    assert sum(death.count for death in deaths) == len(events)


causes = st.builds(
    Cause, st.text(max_size=40), reasons, st.integers(0, 2**42), names, st.none() | st.text(max_size=300)
)


@given(any_properties, st.lists(causes, min_size=1, max_size=3))
def test_whatever_a_client_of_amqp091_published_can_die(
    properties: BasicProperties, chain: list[Cause]
) -> None:
    """Its properties stay, except headers and expiration; consumers of either protocol can read it."""
    try:
        given_head, _ = amqp091.read_content(
            "ex", "k", encode_properties(properties), user="u", impersonator=True
        )
    except PreconditionFailed:
        return
    head = given_head
    for cause in chain:
        dead = dead_lettered(head, cause)
        head = dead.head
        assert deaths_of(head) == dead.deaths
    before, after = (decode_properties(split(each)[2]) for each in (given_head, head))
    kept = before.headers or {}
    for name in set(kept) - {"CC", "x-death"}:
        if not name.startswith(("x-first-death-", "x-last-death-")):
            assert repr(after.headers[name]) == repr(kept[name])
    before.headers = after.headers = before.expiration = None
    assert after == before
    # A ttl of AMQP 1.0 has 32 bits.
    clipped = [replace(each, ttl_ms=each.ttl_ms and min(each.ttl_ms, 2**32 - 1)) for each in dead.deaths]
    assert list(deaths_of(to_amqp10((head, b"body"))[0])) == clipped
    routing_headers((head, b"body"))


@given(payloads, st.lists(causes, min_size=1, max_size=3))
def test_whatever_a_client_of_amqp10_published_can_die(payload: bytes, chain: list[Cause]) -> None:
    """Its annotations stay, except those of the broker's own names; either protocol can read it."""
    head, bare = MessageReader("x", "k", "u", impersonator=True).read(payload)
    kept = decode_head(head)[1]
    for cause in chain:
        dead = dead_lettered(head, cause)
        head = dead.head
        assert deaths_of(head) == dead.deaths
    annotations = decode_head(head)[1]
    own = ("x-first-death-", "x-last-death-", "x-opt-deaths", "x-exchange", "x-routing-key", "x-cc")
    for name in kept:
        if not name.startswith(own):
            assert repr(annotations[name]) == repr(kept[name])
    assert deaths_of(to_amqp091((head, bare))[0]) == dead.deaths
    routing_headers((head, bare))
