"""The timeline of a channel beside the channel: behind every frame it says what the channel is then.

A ring takes a few numbers before each frame and works out the rest when somebody asks. The witness looks at
the whole channel behind each frame. Both listen to the walks of `tests/support/channel_random_walk.py`.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqp10broker.observe.timeline import CHANNEL_NAMES, ChannelMark, ChannelRing
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import AckRun, ContentOpened, PublishRun
from amqp10broker.sessions.amqp091 import consuming as consumers
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.amqp091.consuming import ChannelConsumer
from tests.property.test_channel_world import UNSENT_MAX, walk
from tests.support import channel_harness
from tests.support.examples import tried

COUNTED = ("unacknowledged", "global_prefetch", "channel_unacknowledged", "unconfirmed")
"""What moves with frames alone."""
LOOKED_AT = tuple(name for name in CHANNEL_NAMES if name not in COUNTED)


class Witness:
    """Looks at everything behind every frame, and after every turn asks the ring for the same."""

    def __init__(self, channel: channel_harness.ChannelEnds, consumer: ChannelConsumer | None) -> None:
        service = channel.service
        self.channel, self.service, self.consumer = channel, service, consumer
        self.consuming, self.publishing = service.consuming, service.publishing
        self.held = service.consuming.held
        self.frames: list[list[Any]] = []
        self.told = service.publishing.told
        self.seen = self.look()
        self.open = False
        clock = count()
        self.ring = ChannelRing(service, consumer, self.mark, clock.__next__, type_of)
        # The number of the step that is compared first, of the one that comes next, and what was at the end.
        self.first = self.next = 0
        self.last = dict(zip(CHANNEL_NAMES, self.ring.before(0), strict=True))

    def mark(self) -> ChannelMark:
        """Act as `runtime/observe/watches.py` does for a running channel; nothing waits for sockets here."""
        if self.consumer is None:
            return (self.channel.credit.credit, 0, False, 0, 0, False)
        credit = self.consumer.credit
        return (self.channel.credit.credit, 0, False, credit.granted, credit.waiting, credit.closed)

    def look(self, told_since: int = 0) -> tuple[Any, ...]:
        """Return `COUNTED` of the channel, less what the next frame reports."""
        unacked = None if self.consumer is None else self.consumer.unacked
        publishing = self.publishing
        untold = publishing.next_seq - 1 - publishing.told + told_since if publishing.confirming else None
        return (unacked, self.consuming.global_prefetch, len(self.held), untold)

    def settle(self, *, confirming: bool = False) -> None:
        """The state now belongs to the last frame: no value changes without a frame."""
        told = self.publishing.told
        seen = self.look(told - self.told if confirming else 0)
        self.told = told
        if self.open:
            self.frames[-1][-1] = seen
            self.open = False
        else:
            assert seen == self.seen, "something moved without a frame"
        self.seen = seen

    def add(self, direction: str, what: str, frames: int = 1) -> None:
        self.frames.append([direction, what, frames, None])
        self.open = True

    # --- a tap that asks the ring behind each of its words ----------------------------------------

    def received(self, item: object) -> None:
        self.settle()
        if type(item) is PublishRun:
            self.add("in", "basic.publish", len(item.bodies))
        elif type(item) is AckRun:
            self.add("in", "basic.ack", len(item.tags))
        elif type(item) is not ContentOpened:
            self.add("in", getattr(item, "method").NAME)  # noqa: B009
        self.ring.received(item)

    def sent(self, method: methods.Method) -> None:
        # What confirms do is done before they are written.
        self.settle(confirming=type(method) in (methods.BasicAck, methods.BasicNack))
        self.add("out", method.NAME)
        self.ring.sent(method)

    def sent_content(self, frames: bytes) -> None:
        if self.open:
            self.settle()
        self.add("out", "content")
        self.ring.sent_content(frames)

    def delivered(self, consumer: ChannelConsumer, first_tag: int, deliveries: int) -> None:
        self.settle()
        self.add("out", "basic.deliver", deliveries)
        self.ring.delivered(consumer, first_tag, deliveries)

    # --- the end of a turn ------------------------------------------------------------------------

    def turn_over(self, met: Counter[str]) -> None:
        """Compare the steps of this turn, and the step before once more: it stays as it was."""
        self.settle()
        ring, first = self.ring, self.next
        ring.turn_over()
        before = dict(zip(CHANNEL_NAMES, ring.before(self.first), strict=True))
        frames = iter(self.frames)
        for number, (_, link, step, record) in enumerate(ring.steps(self.first, 10_000), self.first):
            values = dict(zip(CHANNEL_NAMES, step, strict=True))
            shown = ring.shown(record)
            if shown["direction"] is None:
                assert {name: values[name] for name in COUNTED} == {name: before[name] for name in COUNTED}
                assert number in (first, self.first)
                assert number < first or ring.next == number + 1, "the turn had a frame that it belongs to"
            else:
                direction, what, together, behind = next(frames)
                assert (shown["direction"], shown["frames"]) == (direction, together)
                assert what in ("content", shown["frame"].split()[0])
                assert tuple(values[name] for name in COUNTED) == behind, (what, record)
                met[what] += values != before
                met["of others"] += not link
            if number == first - 1:
                assert values == self.last
            before = values
        assert next(frames, None) is None, "a frame is missing"
        if ring.next > self.next:
            self.first = ring.next - 1
            self.frames = self.frames[-1:] if shown["direction"] else []
        self.next = ring.next
        self.last = before
        if ring.ended is None:
            self._compare_marks(before)

    def _compare_marks(self, shown: dict[str, Any]) -> None:
        assert shown == dict(zip(CHANNEL_NAMES, self.ring.before(self.ring.next), strict=True))
        assert shown["reader_credit"] == self.channel.credit.credit
        if self.consumer is not None:
            credit = self.consumer.credit
            assert (shown["queue_credit"], shown["unsent"]) == (credit.left, self.consumer.unsent)
            assert shown["prefetch"] == self.consumer.terms.prefetch


def type_of(method: methods.Method) -> str:
    return method.NAME


class Witnesses:
    """Of every channel of every world, and of each of its consumers."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self.of: dict[BrokerChannel, dict[Any, Witness]] = {}

    def settle(self, service: BrokerChannel) -> None:
        """The channel continues with the next letter, or with writing."""
        for each in self.of.get(service, {}).values():
            each.settle()

    def turn_over(self, channel: channel_harness.ChannelEnds, service: BrokerChannel) -> None:
        mine = self.of.setdefault(service, {})
        for link, each in list(mine.items()):
            each.turn_over(self.met)
            if each.ring.ended is not None:
                self.met[each.ring.ended] += 1
                del mine[link]
        if service is not channel.service or service.state is not ChannelState.OPEN:
            del self.of[service]
            service.listen(())
            return
        for consumer in (None, *service.consuming.consumers.values()):
            if consumer not in mine:
                mine[consumer] = Witness(channel, consumer)
        service.listen(tuple(mine.values()))


@pytest.fixture(scope="module", autouse=True)
def witnesses() -> Any:
    found = Witnesses()
    handle, pump = BrokerChannel.handle, BrokerChannel.pump
    wake = channel_harness.ChannelEnds.wake

    def handled(self: BrokerChannel, letter: Any) -> None:
        found.settle(self)
        handle(self, letter)

    def pumped(self: BrokerChannel, budget_bytes: int) -> int:
        found.settle(self)
        return pump(self, budget_bytes)

    def woken(self: channel_harness.ChannelEnds, budget_bytes: int | None = None) -> int:
        service = self.service
        spent = wake(self, budget_bytes)
        found.turn_over(self, service)
        return spent

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerChannel, "handle", handled)
        patch.setattr(BrokerChannel, "pump", pumped)
        patch.setattr(channel_harness.ChannelEnds, "wake", woken)
        patch.setattr(consumers, "UNSENT_MAX", UNSENT_MAX)
        yield found


@settings(max_examples=tried(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_the_timeline_is_what_the_channel_was_behind_every_frame(seed: int) -> None:
    """Steps publish, consume, get, settle, recover, commit, roll back, cancel, close or delete."""
    walk(seed)


def test_the_walks_compare_what_is_interesting(witnesses: Witnesses) -> None:
    """A walk without comparisons proves nothing."""
    witnesses.met.clear()
    for seed in range(20):
        walk(seed)
    for thing in (
        *("basic.publish", "basic.ack", "basic.nack", "basic.reject", "basic.deliver", "basic.qos"),
        *("basic.recover", "tx.rollback", "confirm.select", "content", "of others"),
        *("the channel is closed", "the consumer is cancelled"),
    ):
        assert witnesses.met[thing] >= 3, (thing, witnesses.met)
