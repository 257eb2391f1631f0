"""What an observer of a session tells: every delivery once, every moment once, and why a link waited."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.observe.flow import PROBE_WAKES_MAX, Observer, session_samples
from amqp10broker.observe.flow_events import EventKind
from amqp10broker.queues.commands import TimedOut
from amqp10broker.sessions.diagnosis.waits import Wait, WaitContext
from tests.support.clocked_queue import ClockedQueue
from tests.support.declaring import declare
from tests.support.scene import Scene
from tests.support.watching import Seen, reasons, total
from tests.support.world import WorldQueue

S = 1_000_000_000


class Watched:
    """A scene that is observed after each line, one millisecond apart."""

    def __init__(self, *queues: str, begin: str = "C> BEGIN") -> None:
        self.scene = Scene(*queues)
        if begin != "C> BEGIN":
            self.scene.do("C> END", begin)
        self.client = self.scene.world.clients["C"]
        self.seen = Seen()
        self.probing = False
        self.observe_anew()

    def observe_anew(self) -> None:
        """With another observer, the session that there is now."""
        self.service = self.client.sessions[0].service
        self.observer = Observer(partial(session_samples, self.service), 7, 0, self.seen.add, self.seen.link)

    def probe(self) -> None:
        self.probing = True
        self.observer.begin_probe()

    def look(self, *, after_ns: int = 1_000_000, whole: bool = False) -> None:
        self.seen.now_ns += after_ns
        now_ns = self.seen.now_ns
        self.observer.observe(
            now_ns,
            now_ns + S,
            WaitContext(writer_blocked=self.client.blocked),
            whole=whole,
        )
        if self.probing:
            self.observer.probe(now_ns, now_ns + S)

    def do(self, *lines: str) -> None:
        for line in lines:
            self.scene.do(line)
            self.look()


def test_a_link_is_named_once_when_it_is_seen_first() -> None:
    """With its name and its address; another link of the same handle is another."""
    watched = Watched("q")
    watched.scene.do(
        "C> ATTACH h=0 name=a target=/queues/q", "C> ATTACH h=1 name=b source=/queues/q role=receiver"
    )
    watched.look()
    first = watched.seen.now_ns
    watched.look()
    watched.scene.do("C> DETACH h=0 closed=true", "C> ATTACH h=0 name=c target=/queues/q")
    watched.look()
    assert watched.seen.links == [
        (first, EventKind.LINK_IN, 0, 0, "a", "/queues/q"),
        (first, EventKind.LINK_OUT, 0, 1, "b", "/queues/q"),
        (watched.seen.now_ns, EventKind.LINK_IN, 0, 0, "c", "/queues/q"),
    ]


def test_a_link_that_has_begun_since_is_told_whole() -> None:
    """With what came before the first look; a link counts from the number its client began with."""
    watched = Watched("q")
    watched.scene.do("C> ATTACH h=0 idc=4294967290 target=/queues/q", "C> TRANSFER h=0 did=0..19")
    watched.look()
    (event,) = watched.seen.take(EventKind.LINK_IN)
    assert (event.n, event.value_ns) == (20, 0)


def test_deliveries_out_are_those_that_were_written() -> None:
    """Not those that went back because the client lowered its credit, and not what a drain gave up."""
    watched = Watched("q", begin="C> BEGIN iw=3")
    watched.scene.do("publish q 10")
    watched.do("C> ATTACH h=1 source=/queues/q", "C> FLOW h=1 dc=0 cr=8", "C> FLOW h=1 dc=3 cr=0 iw=100")
    watched.do("C> FLOW h=1 dc=3 cr=9 iw=100 drain=true")
    events = watched.seen.take(EventKind.LINK_OUT)
    assert total(events, EventKind.LINK_OUT) == 10
    assert [event.n for event in events if event.n] == [3, 7]


def test_what_the_queue_took_back_before_it_was_sent_is_not_told() -> None:
    """A consumer that has held deliveries too long, one of them written."""
    watched = Watched("q", begin="C> BEGIN iw=1")
    watched.scene.do("publish q 3")
    watched.do("C> ATTACH h=1 source=/queues/q", "C> FLOW h=1 dc=0 cr=3")
    (consumer,) = watched.service.consumers
    keys = [key for _, key in watched.service.session.outbound.unsettled.values()]
    assert (consumer.credit.written, consumer.credit.waiting) == (1, 2)
    watched.service.on_effects([TimedOut(consumer.ref, range(min(keys), min(keys) + 3), "q")])
    watched.look()
    assert total(watched.seen.take(), EventKind.LINK_OUT) == 1
    assert consumer.credit.waiting == 0


REASONS: dict[int, tuple[str, ...]] = {
    Wait.NO_CREDIT_NEVER_GRANTED.number: ("C> ATTACH h=1 source=/queues/q",),
    Wait.QUEUE_EMPTY_NOTHING_ROUTED.number: ("C> ATTACH h=1 source=/queues/q", "C> FLOW h=1 dc=0 cr=8"),
    Wait.QUEUE_CREDIT_IN_FLIGHT.number: (
        "C> ATTACH h=1 source=/queues/q", "stall q", "C> FLOW h=1 dc=0 cr=8",
    ),
    Wait.DRAINING.number: (
        "C> ATTACH h=1 source=/queues/q", "stall q", "C> FLOW h=1 dc=0 cr=8 drain=true",
    ),
    Wait.PEER_WINDOW_CLOSED.number: (
        "publish q 3", "C> END", "C> BEGIN iw=0", "C> ATTACH h=1 source=/queues/q", "C> FLOW h=1 dc=0 cr=8",
    ),
    Wait.WRITER_BLOCKED.number: (
        "publish q 3", "C> ATTACH h=1 source=/queues/q", "block C", "C> FLOW h=1 dc=0 cr=8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_why_a_consumer_waits_is_told(reason: int) -> None:
    """What is found holds until the next look."""
    watched = Watched("q")
    for line in REASONS[reason]:
        watched.scene.do(line)
    watched.observe_anew()
    watched.look(after_ns=0)
    watched.look(after_ns=5, whole=True)
    watched.look(after_ns=7, whole=True)
    assert reasons(watched.seen.take(), EventKind.LINK_OUT) == {reason: 12}


def test_a_consumer_that_is_not_the_active_one() -> None:
    watched = Watched()
    scene = watched.scene

    def start_queue(spec: QueueSpec) -> Any:
        queue = ClockedQueue(spec)
        running = scene.world.queues[spec.name] = WorldQueue(scene.world, queue)  # type: ignore[arg-type]
        return running

    scene.world.start_queue = start_queue  # type: ignore[method-assign]
    declare(
        scene.world.catalog,
        scene.world.vhost,
        "q",
        arguments={"x-queue-type": "quorum", "x-single-active-consumer": True},
    )
    scene.receiver("/queues/q", 1)
    scene.receiver("/queues/q", 2)
    scene.do("C> FLOW h=1 dc=0 cr=1", "C> FLOW h=2 dc=0 cr=9")
    scene.world.publish("q", 3)
    watched.look()
    watched.look(after_ns=5, whole=True)
    (waits,) = [event for event in watched.seen.take() if event.handle == 2]
    assert (waits.reason, waits.value_ns, waits.queue_depth) == (Wait.NOT_ACTIVE.number, 5, 2)


# --- latencies ------------------------------------------------------------------------------------


def test_confirms_are_timed() -> None:
    """So many came then, so many are confirmed now."""
    watched = Watched("q")
    watched.do("C> ATTACH h=0 target=/queues/q", "withhold q")
    watched.probe()
    watched.do("C> TRANSFER h=0 did=0..4", "C> TRANSFER h=0 did=5..9", "confirm q 3", "confirm q 4")
    events = watched.seen.take(EventKind.CONFIRM)
    assert [(event.n, event.value_ns) for event in events] == [
        (3, 2_000_000), (2, 3_000_000), (2, 2_000_000),
    ]  # fmt: skip
    assert {(event.connection, event.handle) for event in events} == {(7, 0)}


def test_a_probe_times_what_comes_next() -> None:
    """Not what was under way, and no more wakes than it may; then it says that it is done."""
    watched = Watched("q")
    watched.do("C> ATTACH h=0 target=/queues/q", "withhold q", "C> TRANSFER h=0 did=0..4")
    watched.seen.take()
    watched.observer.begin_probe()

    def wake(line: str) -> bool:
        watched.scene.do(line)
        watched.seen.now_ns += 10
        return watched.observer.probe(watched.seen.now_ns, S)

    for wakes in range(PROBE_WAKES_MAX + 2):
        assert wake(f"C> TRANSFER h=0 did={5 + wakes}"), "confirms are still to come"
    assert watched.seen.events == []
    assert wake("confirm q 6")
    (first,) = watched.seen.take()
    assert (first.kind, first.n, first.value_ns) == (EventKind.CONFIRM, 1, 10 * (PROBE_WAKES_MAX + 2))
    assert not wake("confirm q 5"), "what came behind the probe is not waited for"
    assert [event.n for event in watched.seen.take()] == [1] * (PROBE_WAKES_MAX - 1)
