"""What an observer of a channel tells: what is published, what consumers get, and why they wait."""

from __future__ import annotations

from functools import partial
from typing import Any

from amqp10broker.metadata.queue import QUORUM
from amqp10broker.observe.flow import PROBE_WAKES_MAX, Observer, channel_samples
from amqp10broker.observe.flow_events import EventKind
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    ChannelClose,
    ChannelOpen,
    ConfirmSelect,
    QueueDelete,
    TxCommit,
    TxSelect,
)
from amqp10broker.sessions.diagnosis.waits import Wait, WaitContext
from tests.support.channel_world import World, WorldChannel
from tests.support.declaring import declare
from tests.support.watching import Seen, reasons, total

S = 1_000_000_000


class Watched:
    """A channel with a queue `q` that is observed when the test says so, each time a millisecond later."""

    def __init__(self, **arguments: Any) -> None:
        self.channel: WorldChannel = World().channel()
        self.world = self.channel.world
        declare(self.world.catalog, self.world.vhost, "q", arguments=arguments)
        self.seen = Seen()
        self.observer = self.observe_anew()
        self.around = WaitContext()
        self.probing = False

    def observe_anew(self) -> Observer:
        samples = partial(channel_samples, self.channel.service)
        return Observer(samples, 7, 1, self.seen.add, self.seen.link)

    def probe(self) -> None:
        self.probing = True
        self.observer.begin_probe()

    def look(self, *, after_ns: int = 1_000_000, whole: bool = False) -> None:
        self.seen.now_ns += after_ns
        self.observer.observe(
            self.seen.now_ns,
            self.seen.now_ns + S,
            self.around._replace(reader_credit=self.channel.credit.credit),
            whole=whole,
        )
        if self.probing:
            self.observer.probe(self.seen.now_ns, self.seen.now_ns + S)

    def publish(self, count: int) -> None:
        self.channel.publish("q", *[b"x"] * count)
        self.look()


def test_what_is_published_is_counted_once() -> None:
    """Before and after confirm.select, which counts from 1 again, and after the channel was opened anew."""
    watched = Watched()
    watched.publish(3)
    watched.channel.publish("q", b"x", b"x")
    watched.channel.say(ConfirmSelect())
    watched.publish(10)
    assert total(watched.seen.take(), EventKind.LINK_IN) == 15
    watched.channel.publish("q", b"x")
    watched.channel.say(ChannelClose(200, "", 0, 0), ChannelOpen())
    watched.observer.finish(watched.seen.now_ns + 1, S)
    assert total(watched.seen.take(), EventKind.LINK_IN) == 1


def test_a_channel_opened_anew_counts_from_the_beginning() -> None:
    watched = Watched()
    watched.publish(3)
    service = watched.channel.service
    service._reset()
    watched.channel.publish("q", b"x")
    watched.look()
    assert total(watched.seen.take(), EventKind.LINK_IN) == 4


def test_messages_of_a_transaction_count_when_it_is_committed() -> None:
    watched = Watched()
    watched.channel.say(TxSelect())
    watched.publish(3)
    assert watched.seen.take() == []
    watched.channel.say(TxCommit())
    watched.look()
    assert total(watched.seen.take(), EventKind.LINK_IN) == 3


def test_what_the_client_has_left_is_told() -> None:
    """link_credit: contents that the reader may still give; queue_credit: messages without confirmation."""
    watched = Watched()
    watched.world.box("q").stalled = True
    watched.channel.say(ConfirmSelect())
    watched.publish(5)
    watched.publish(5)
    events = watched.seen.take(EventKind.LINK_IN)
    assert [(event.n, event.link_credit, event.queue_credit) for event in events][-1] == (5, 395, 5)


def test_a_channel_that_is_not_read_says_why() -> None:
    watched = Watched()
    watched.publish(5)
    for reason, around in (
        (Wait.CREDIT_FLOW.number, WaitContext(holds_reader=True)),
        (Wait.BLOCKED_BY_ALARM.number, WaitContext(blocked_ms=0)),
        (Wait.READER_HELD.number, WaitContext(held_by="channel 2")),
    ):
        watched.around = around
        watched.look()
        watched.around = WaitContext()
        watched.look(after_ns=7)
        assert reasons(watched.seen.take(), EventKind.LINK_IN)[reason] == 7


def test_confirms_are_timed() -> None:
    watched = Watched()
    watched.channel.say(ConfirmSelect())
    watched.publish(1)
    watched.probe()
    watched.world.box("q").stalled = True
    watched.publish(4)
    watched.publish(2)
    watched.world.box("q").stalled = False
    watched.world.rest()
    watched.look()
    events = watched.seen.take(EventKind.CONFIRM)
    assert [(event.n, event.value_ns) for event in events] == [(4, 2_000_000), (2, 1_000_000)]


def unsent(watched: Watched) -> None:
    watched.channel.budget_bytes = 0
    watched.channel.consume("q", "c")
    watched.channel.publish("q", b"x", b"x", b"x")
    watched.look()


def test_what_goes_back_unsent_is_not_told() -> None:
    """Neither of a consumer that is cancelled, nor of one whose queue is deleted."""
    for end in (BasicCancel("c"), QueueDelete("q")):
        watched = Watched()
        unsent(watched)
        watched.channel.say(end)
        watched.look()
        assert total(watched.seen.take(), EventKind.LINK_OUT) == 0


def waits(watched: Watched) -> dict[int, int]:
    watched.look(whole=True)
    watched.seen.take()
    watched.look(after_ns=5, whole=True)
    return reasons(watched.seen.take(), EventKind.LINK_OUT)


def test_a_quorum_queue_limits_a_consumer_without_prefetch() -> None:
    watched = Watched(**{"x-queue-type": "quorum"})
    watched.channel.consume("q", "c")
    (consumer,) = watched.channel.service.consuming.consumers.values()
    consumer.unacked = QUORUM.held_max or 0
    assert waits(watched) == {Wait.PREFETCH_FULL.number: 5}


def test_a_probe_times_what_comes_next() -> None:
    """Publishing and consuming, no more wakes than it may; then it says that it is done."""
    watched = Watched()
    watched.channel.say(ConfirmSelect())
    watched.channel.consume("q", "c")
    watched.publish(2)
    watched.seen.take()
    watched.observer.begin_probe()
    for wakes in range(PROBE_WAKES_MAX + 1):
        watched.channel.publish("q", b"x")
        watched.seen.now_ns += 10
        assert watched.observer.probe(watched.seen.now_ns, S) is True, wakes
    assert total(watched.seen.take(), EventKind.CONFIRM) == PROBE_WAKES_MAX
    watched.channel.say(BasicAck(2 + PROBE_WAKES_MAX, True))
    watched.seen.now_ns += 10
    assert watched.observer.probe(watched.seen.now_ns, S) is False
    events = watched.seen.take(EventKind.SETTLE)
    assert [(event.n, event.value_ns) for event in events] == [
        (1, 10 * (wakes + 2)) for wakes in reversed(range(PROBE_WAKES_MAX))
    ]
