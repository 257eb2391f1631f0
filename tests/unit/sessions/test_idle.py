"""Why a consumer without deliveries waits, and who waits longest."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from amqp10broker.errors import BadRequest
from amqp10broker.message.filters.filter_set import from_amqp10
from amqp10broker.message.filters.stream_filters import OffsetWord
from amqp10broker.metadata.catalog import VHOST, Catalog
from amqp10broker.metadata.queue import DeclaredQueue, QueueHandle, QueueSpec
from amqp10broker.operations import snapshot
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    TICK,
    Command,
    ConsumerRef,
    Credit,
    Deliver,
    DeliveryOutcome,
    PeerId,
    Publish,
    ReplyTo,
    Settle,
    Subscribe,
)
from amqp10broker.queues.queue_status import QueueStats
from amqp10broker.queues.quorum.commands import NodeBack, NodeSuspect
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import DEFAULTS, QueueSettings, RetryType
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.sessions.diagnosis.idle import idle_wait, why_idle
from amqp10broker.sessions.diagnosis.survey import Selection, Survey
from amqp10broker.sessions.diagnosis.wait_reasons import Wait
from tests.support import streams
from tests.support.declaring import bind, declare, declare_exchange
from tests.support.queue_bench import message
from tests.support.queue_handles import MachineHandle
from tests.support.topologies import NoHost


class Handle(MachineHandle[Any]):
    """A queue that follows here."""

    def post(self, command: Command) -> None:
        raise AssertionError(command)


AWAY = ReplyTo(PeerId(2, 1, 1), "s")
"""A session of another node."""


def test_a_consumer_whose_node_is_not_heard_waits_although_messages_are_ready() -> None:
    """No message of the queue reaches it, however many are ready."""
    machine = QuorumQueue("q", settings=DEFAULTS, now_ms=0)
    queue = DeclaredQueue("q", "/", "quorum", True, None, False, {}, Handle(machine))
    vhost = Catalog(NoHost().start_queue).lookup_vhost("/")
    ref = AWAY.consumer()
    for command in (Subscribe(ref, False), Credit(ref, 0, 5, False, 0), NodeSuspect(2, 1)):
        machine.apply(command, 0)
    publisher = ReplyTo(PeerId(1, 1, 1), "p").publisher()
    machine.apply(Publish(publisher, [1], [message("a")], False), 0)
    assert machine.ready == 1
    waiting = why_idle(queue, ref, 4000, 1000, vhost)
    assert (waiting.wait, waiting.for_ms) == (Wait.NO_LEADER, 3000)
    assert waiting.why.startswith("the leader of queue 'q' has not heard this node")
    machine.apply(NodeBack(2, 1), 0)
    assert idle_wait(queue, ref) is Wait.UNSETTLED_HERE


def test_a_browser_does_not_wait_for_the_single_active_consumer() -> None:
    """It is never that consumer: it waits for messages that it has not seen."""
    machine = QuorumQueue("q", settings=QueueSettings(single_active_consumer=True), now_ms=0)
    queue = DeclaredQueue("q", "/", "quorum", True, None, False, {}, Handle(machine))
    active, browser = AWAY.consumer(), AWAY.consumer()
    asked = [
        Subscribe(active, False),
        Publish(AWAY.publisher(), [1], [message("a")], False),
        Subscribe(browser, False, counted=False, browse=True),
        Credit(browser, 0, 5, False, 0),
    ]
    for command in machine.browsers.marked(asked):
        machine.apply(command, 0)
    assert machine.queue_status().active == active
    assert idle_wait(queue, browser) is Wait.NO_MESSAGE_MATCHES


class Bench:
    """A queue with consumers that have credit, and what the broker says of each."""

    def __init__(self, kind: str, **settings: Any) -> None:
        made = QueueSettings(**settings)
        self.machine: Any = (
            ClassicQueue("q", durable=False, settings=made, now_ms=0)
            if kind == "classic"
            else QuorumQueue("q", settings=made, now_ms=0)
        )
        self.catalog = Catalog(self.start_queue)
        self.queue = DeclaredQueue("q", "/", kind, True, None, False, {}, Handle(self.machine))
        self.session = ReplyTo(PeerId(1, 1, 1), "session 0, link 'l'")
        self.keys: dict[ConsumerRef, list[int]] = {}
        self.now = 0

    def start_queue(self, queue: QueueSpec) -> QueueHandle:
        return self.queue.handle

    def do(self, *commands: Command) -> None:
        for command in commands:
            self.machine.apply(command, self.now)
        for effect in (each for told in self.machine.take_effects().values() for each in told):
            if isinstance(effect, Deliver):
                self.keys.setdefault(effect.consumer, []).extend(effect.keys)

    def publish(self, count: int) -> None:
        messages = [message(str(number)) for number in range(count)]
        self.do(Publish(self.session.publisher(), range(count), messages, False))

    def consumer(self, credit: int) -> ConsumerRef:
        ref = self.session.consumer()
        self.do(Subscribe(ref, False, name=self.session.label), Credit(ref, 0, credit, False, 0))
        return ref

    def settle(self, ref: ConsumerRef, outcome: DeliveryOutcome, count: int) -> None:
        keys, self.keys[ref] = self.keys[ref][:count], self.keys[ref][count:]
        self.do(Settle(ref, keys, outcome))

    def says(self, ref: ConsumerRef, code: Wait, *parts: str) -> None:
        waiting = why_idle(self.queue, ref, self.now, 0, self.catalog.lookup_vhost("/"))
        assert (waiting.wait, [part for part in parts if part not in waiting.why]) == (code, []), waiting.why


KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


@KINDS
def test_the_queue_is_empty(kind: str) -> None:
    bench = Bench(kind)
    ref = bench.consumer(10)
    bench.says(ref, Wait.QUEUE_EMPTY_NOTHING_ROUTED, "nothing was ever put into queue 'q'", "no exchange is")
    declare(bench.catalog, VHOST, "q")
    declare_exchange(bench.catalog, VHOST, "x", "topic", durable=True)
    bind(bench.catalog, VHOST, Binding("x", Destination("queue", "q"), "right.*"))
    bench.says(ref, Wait.QUEUE_EMPTY_NOTHING_ROUTED, "it is bound to 'x'")
    bench.publish(1)
    bench.settle(ref, DeliveryOutcome.ACCEPT, 1)
    bench.now = 3_000
    bench.says(ref, Wait.QUEUE_EMPTY, "has no ready message, the last one was handed out 3.0 s ago")

    bench = Bench(kind, message_ttl_ms=1)
    bench.publish(3)
    bench.now = 1_000
    bench.do(TICK)
    bench.says(bench.consumer(10), Wait.QUEUE_EMPTY_EXPIRED, "3 messages expired in it, the last")

    bench = Bench(kind, max_length=0)
    bench.publish(3)
    bench.says(bench.consumer(10), Wait.QUEUE_EMPTY, "its length limit has dropped 3 and rejected 0")


@KINDS
def test_all_messages_are_unsettled(kind: str) -> None:
    """Another consumer holds them and is named with their number, or this one does."""
    bench = Bench(kind)
    bench.publish(3)
    holder, idle = bench.consumer(10), bench.consumer(10)
    whole = "all 3 messages of queue 'q' are unsettled"
    bench.says(idle, Wait.UNSETTLED_ELSEWHERE, whole, "session 0, link 'l'", "(it has never settled any)")
    bench.settle(holder, DeliveryOutcome.ACCEPT, 1)
    here = "all 2 messages of queue 'q' are unsettled, here"
    bench.says(holder, Wait.UNSETTLED_HERE, here, "it settled last")


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "query_single_active_consumer_consumer_info_test", note="shown by `status`"
)
@KINDS
def test_another_consumer_is_the_active_one(kind: str) -> None:
    bench = Bench(kind, single_active_consumer=True)
    active, waits = bench.consumer(1), bench.consumer(10)
    says = "single active consumer, and that is session 0, link 'l'"
    bench.says(waits, Wait.NOT_ACTIVE, says, "it would take the next message")
    bench.publish(3)
    bench.says(waits, Wait.NOT_ACTIVE, "holds 1 unsettled delivery for", "it takes no more at present")
    assert idle_wait(bench.queue, active) is None


def test_messages_wait_to_be_tried_again() -> None:
    bench = Bench("quorum", retry_type=RetryType.ALL, retry_min_ms=600_000)
    bench.publish(1)
    ref = bench.consumer(10)
    bench.settle(ref, DeliveryOutcome.REQUEUE, 1)
    bench.says(ref, Wait.MESSAGES_DELAYED, "1 message of queue 'q' came back", "the first in 600 s")


def test_a_consumer_let_a_delivery_time_out() -> None:
    """It gets nothing until it settles, although there is a message and it has credit."""
    bench = Bench("quorum", consumer_timeout_ms=1)
    bench.publish(1)
    ref = bench.consumer(10)
    bench.now = 1_000
    bench.do(TICK)
    assert bench.machine.ready == 1
    bench.says(ref, Wait.TIMED_OUT, "taken back after the consumer timeout")


def test_the_end_of_a_stream() -> None:
    """A stream without messages has no end; otherwise the reason has the start and the read position."""
    bench = streams.Bench()
    queue = DeclaredQueue("s", "/", "stream", True, None, False, {}, Handle(bench.queue))
    vhost = Catalog(NoHost().start_queue).lookup_vhost("/")

    def says(reader: streams.Reader) -> tuple[Wait | None, str]:
        reader.read(10)
        waiting = why_idle(queue, reader.ref, 0, 0, vhost)
        return waiting.wait, waiting.why

    assert says(bench.reader())[0] is Wait.QUEUE_EMPTY_NOTHING_ROUTED
    bench.publish(3)
    wait, why = says(bench.reader(OffsetWord.NEXT))
    assert (wait, "the next offset is 3, and it began there: older messages" in why) == (
        Wait.STREAM_END,
        True,
    )
    wait, why = says(bench.reader())
    assert (wait, why) == (Wait.STREAM_END, "it is at the end of stream 's': the next offset is 3")
    described = Described(Symbol("amqp:sql-filter"), "FALSE")
    picky = bench.reader(filters=from_amqp10({Symbol("sql-filter"): described}).filters)
    wait, why = says(picky)
    assert (wait, "its filter passed 0 of 3 messages" in why) == (Wait.FILTER_PASSED_NONE, True)


NO_WAIT = snapshot.WaitView()


def wait(code: str, for_s: float | None, why: str | None = None) -> snapshot.WaitView:
    return snapshot.WaitView(code, why, for_s)


def link(name: str, queue: str, waits: snapshot.WaitView = NO_WAIT) -> snapshot.LinkView:
    return snapshot.LinkView(
        *(name, 0, "receiver", f"/queues/{queue}", queue, 0, 0, 0, 0, False, 0, 0, 0, None, None, {}, waits)
    )


def session(channel: int, *links: snapshot.LinkView) -> snapshot.SessionView:
    return snapshot.SessionView(channel, 1, 1, 0, 0, 0, 0, 0, None, {}, links)


def consumer(tag: str, queue: str, waits: snapshot.WaitView = NO_WAIT) -> snapshot.ConsumerView:
    return snapshot.ConsumerView(tag, queue, False, 1, 1, 0, waits)


def connection(number: int, user: str) -> snapshot.ConnectionView:
    facts = ("protocol", f"p{number}", user, "/", None, {}, "running", 1, 1, None, 0, 0, 0, None)
    return snapshot.ConnectionView(number, *facts, {})


def amqp10(number: int, *links: snapshot.LinkView, user: str = "ann") -> snapshot.ConnectionView:
    return replace(connection(number, user), sessions=(session(0, *links), session(1)))


def amqp091(
    number: int, waits: snapshot.WaitView, *consumers: snapshot.ConsumerView
) -> snapshot.ConnectionView:
    channel = snapshot.ChannelView(1, "open", False, False, 0, 0, 0, 0, 0, consumers, None, {}, waits)
    return replace(connection(number, "bob"), channels=(channel,))


def queue(name: str, ready: int, unsettled: int, *, full: bool = False) -> snapshot.QueueView:
    figures = QueueStats(messages_ready=ready, messages_unsettled=unsettled, full=full)
    return snapshot.QueueView(name, "/", "classic", True, figures, {}, {}, None)


CONNECTIONS = (
    amqp10(1, link("a", "orders", wait("queue-empty", 500.0))),
    amqp10(
        2,
        link("b", "orders", wait("no-credit-used-up", 3.0)),
        link("c", "bills", wait("peer-window-closed", 9.0)),
    ),
    amqp10(3, link("d", "bills"), user="eve"),
    amqp091(
        4,
        wait("credit-flow", 1.0),
        consumer("t", "orders", wait("prefetch-full", 70.0, "three of three")),
        consumer("u", "bills"),
    ),
    amqp10(5, link("e", "orders", wait("no-credit-drained", None))),
)
QUEUES = (queue("orders", 5, 0), queue("bills", 1, 1, full=True), queue("idle", 0, 0))


@dataclass(frozen=True)
class Found:
    connections: tuple[snapshot.ConnectionView, ...]
    waiting: tuple[snapshot.WaitingView, ...]
    queues: list[snapshot.QueueView]
    summary: snapshot.SummaryView


def survey(**chosen: Any) -> Found:
    selection = Selection.read("status", chosen)
    found = Survey(selection, len(CONNECTIONS))
    for each in CONNECTIONS:
        if selection.wants(each.id, each.user):
            found.add(each)
    queues = found.queues(QUEUES)
    return Found(found.connections(), found.waiting(), queues[: selection.limit], found.summary(queues))


def waiting(found: Found) -> list[str]:
    return [each.name or "channel" for each in found.waiting]


def test_what_waits_longest_stands_first_and_who_is_idle_is_counted_apart() -> None:
    """An empty queue is no fault: its wait is neither in the sum nor in the list."""
    found = survey()
    assert waiting(found) == ["t", "c", "b", "channel", "e"]
    assert snapshot.document(found.summary) == {
        "chosen": False,
        "connections": 5,
        "connections_in_all": 5,
        "links": 5,
        "consumers": 2,
        "channels": 1,
        "waiting": 5,
        "links_waiting": 3,
        "consumers_waiting": 1,
        "channels_waiting": 1,
        "reasons": {
            "queue-empty": 1,
            "no-credit-used-up": 1,
            "peer-window-closed": 1,
            "credit-flow": 1,
            "prefetch-full": 1,
            "no-credit-drained": 1,
        },
        "queues": 3,
        "queues_full": 1,
        "idle_reasons": ["queue-empty"],
    }
    assert found.connections == CONNECTIONS
    assert snapshot.document(found.waiting[0]) == {
        "kind": "consumer",
        "connection": 4,
        "user": "bob",
        "vhost": "/",
        "peer": "p4",
        "local": "",
        "channel": 1,
        "name": "t",
        "role": None,
        "queue": "orders",
        "waits": "prefetch-full",
        "waits_why": "three of three",
        "waits_for_s": 70.0,
        "to_do": "let the client acknowledge deliveries, or set a larger prefetch.",
        "idle": False,
    }


@pytest.mark.parametrize(
    ("chosen", "connections", "waits", "queues"),
    [
        ({"connection": 2}, [2], ["c", "b"], ["orders", "bills"]),
        ({"user": "eve"}, [3], [], ["bills"]),
        ({"queue": "orders"}, [1, 2, 4, 5], ["t", "b", "channel", "e"], ["orders"]),
        ({"queue": "b*"}, [2, 3, 4], ["c", "channel"], ["bills"]),
        ({"link": "c"}, [2], ["c"], ["bills"]),
        ({"link": "[tu]"}, [4], ["t"], ["orders", "bills"]),
        ({"reason": "peer-window-closed"}, [2], ["c"], ["bills"]),
        ({"reason": "no-credit"}, [2, 5], ["b", "e"], ["orders"]),
        ({"reason": "queue-empty"}, [1], ["a"], ["orders"]),
        ({"reason": "*-full"}, [4], ["t"], ["orders"]),
        ({"longer_s": 5}, [1, 2, 4], ["t", "c"], ["orders", "bills"]),
        ({"queue": "orders", "longer_s": 2, "user": "ann"}, [1, 2], ["b"], ["orders"]),
        ({"connection": 99}, [], [], []),
    ],
    ids=str,
)
def test_it_is_chosen_by(
    chosen: dict[str, Any], connections: list[int], waits: list[str], queues: list[str]
) -> None:
    """All filters given must match; other parts of a connection, and other queues, are left out."""
    found = survey(**chosen)
    assert [each.id for each in found.connections] == connections
    assert waiting(found) == waits
    assert [each.name for each in found.queues] == queues
    assert found.summary.connections == len(connections)
    assert found.summary.connections_in_all == 5


def test_a_bound_leaves_the_worst_connections_the_longest_waits_and_the_fullest_queues() -> None:
    """The summary still counts all of them."""
    found = survey(limit=2)
    assert [each.id for each in found.connections] == [4, 2]
    assert waiting(found) == ["t", "c"]
    assert [each.name for each in found.queues] == ["bills", "orders"]
    assert (found.summary.waiting, found.summary.queues) == (5, 3)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ({"usr": "x"}, "'usr' cannot be chosen by; did you mean user?"),
        ({"user": 1}, "'user' must be a text"),
        ({"longer_s": "1"}, "'longer_s' must be a number of 0 or more"),
        ({"limit": -1}, "'limit' must be a number of 0 or more"),
        ({"connection": True}, "'connection' must be a number of 0 or more"),
        ({"reason": "no-credti"}, "there is no reason 'no-credti'; did you mean no-credit?"),
        ({"reason": "prefetchfull"}, "there is no reason 'prefetchfull'; did you mean prefetch-full?"),
    ],
)
def test_what_nobody_can_be_chosen_by_is_refused(chosen: dict[str, Any], text: str) -> None:
    """An empty answer to a mistyped filter would claim that nothing waits."""
    with pytest.raises(BadRequest, match=re.escape(text)):
        Selection.read("status", chosen)
