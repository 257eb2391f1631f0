"""Why a queue gives a consumer nothing that it could take, by the state of each kind of queue."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.message.filters.filters import from_amqp10
from amqp10broker.message.filters.stream import Next
from amqp10broker.metadata.catalog import VHOST, Catalog
from amqp10broker.metadata.queue import DeclaredQueue, QueueHandle, QueueSpec
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
from amqp10broker.queues.quorum.commands import NodeBack, NodeSuspect
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import DEFAULTS, QueueSettings, RetryType
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.sessions.diagnosis.idle import idle_wait, why_idle
from amqp10broker.sessions.diagnosis.waits import Wait
from tests.support import streams
from tests.support.declaring import bind, declare, declare_exchange
from tests.support.handles import MachineHandle
from tests.support.quorum_bench import message
from tests.support.topologies import NoHost


class Handle(MachineHandle[Any]):
    """A queue that follows here."""

    def post(self, command: Command) -> None:
        raise AssertionError(command)


AWAY = ReplyTo(PeerId(2, 1, 1), "s")
"""A session of another node."""


def test_a_consumer_whose_node_is_not_heard_waits_although_messages_are_ready() -> None:
    """Nothing of the queue comes to it, however many there are."""
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
    """It is never that one: it waits for what it has not seen."""
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
    """Nothing was ever put into it, by whatever way; all was taken; all expired; a limit dropped all."""
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
    """At another consumer, which is named with what it holds; or here."""
    bench = Bench(kind)
    bench.publish(3)
    holder, idle = bench.consumer(10), bench.consumer(10)
    whole = "all 3 messages of queue 'q' are unsettled"
    bench.says(idle, Wait.UNSETTLED_ELSEWHERE, whole, "session 0, link 'l'", "(it has never settled any)")
    bench.settle(holder, DeliveryOutcome.ACCEPT, 1)
    here = "all 2 messages of queue 'q' are unsettled, here"
    bench.says(holder, Wait.UNSETTLED_HERE, here, "it settled last")


@KINDS
def test_another_consumer_is_the_active_one(kind: str) -> None:
    """Which one, and whether it takes more itself."""
    bench = Bench(kind, single_active_consumer=True)
    active, waits = bench.consumer(1), bench.consumer(10)
    says = "single active consumer, and that is session 0, link 'l'"
    bench.says(waits, Wait.NOT_ACTIVE, says, "it would take the next message")
    bench.publish(3)
    bench.says(waits, Wait.NOT_ACTIVE, "holds 1 unsettled delivery for", "it takes no more at present")
    assert idle_wait(bench.queue, active) is None


def test_messages_wait_to_be_tried_again() -> None:
    """A quorum queue with a delayed retry."""
    bench = Bench("quorum", retry_type=RetryType.ALL, retry_min_ms=600_000)
    bench.publish(1)
    ref = bench.consumer(10)
    bench.settle(ref, DeliveryOutcome.REQUEUE, 1)
    bench.says(ref, Wait.MESSAGES_DELAYED, "1 message of queue 'q' came back", "the first in 600 s")


def test_a_consumer_let_a_delivery_time_out() -> None:
    """It gets nothing until the queue hears of it, although there is a message and it has credit."""
    bench = Bench("quorum", consumer_timeout_ms=1)
    bench.publish(1)
    ref = bench.consumer(10)
    bench.now = 1_000
    bench.do(TICK)
    assert bench.machine.ready == 1
    bench.says(ref, Wait.TIMED_OUT, "taken back after the consumer timeout")


def test_the_end_of_a_stream() -> None:
    """Where nothing was published there is none; at another one it is told from where and what was read."""
    bench = streams.Bench()
    queue = DeclaredQueue("s", "/", "stream", True, None, False, {}, Handle(bench.queue))
    vhost = Catalog(NoHost().start_queue).lookup_vhost("/")

    def says(reader: streams.Reader) -> tuple[Wait | None, str]:
        reader.read(10)
        waiting = why_idle(queue, reader.ref, 0, 0, vhost)
        return waiting.wait, waiting.why

    assert says(bench.reader())[0] is Wait.QUEUE_EMPTY_NOTHING_ROUTED
    bench.publish(3)
    wait, why = says(bench.reader(Next()))
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
