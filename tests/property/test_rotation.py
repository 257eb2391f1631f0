"""Consumers of a queue with credit get messages one each in rotation, however credit and messages come."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.message.message import make_head
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import NO_BOUND, ConsumerRef, Credit, Deliver, Publish, Subscribe
from amqp10broker.queues.machine import TURN_MAX
from amqp10broker.queues.quorum.queue import QuorumQueue
from tests.support.askers import new_asker

HEAD = make_head(None, None, "", "q")


def quorum() -> QuorumQueue:
    return QuorumQueue("q", now_ms=0)


class Model:
    """One message at a time goes to the first of those that have credit, which is the last of them then."""

    def __init__(self) -> None:
        self.ready: deque[tuple[int, int]] = deque()
        self.rings: dict[int, deque[list[Any]]] = {}
        self.got: dict[ConsumerRef, list[int]] = {}

    def credit(self, ref: ConsumerRef, priority: int, credit: int, room: int) -> None:
        self.got[ref] = []
        self.rings.setdefault(priority, deque()).append([ref, credit, room])
        self.serve()

    def publish(self, messages: list[tuple[int, int]]) -> None:
        self.ready += messages
        self.serve()

    def serve(self) -> None:
        while self.ready and self.rings:
            ring = self.rings[max(self.rings)]
            first = ring.popleft()
            number, size = self.ready.popleft()
            self.got[first[0]].append(number)
            first[1] -= 1
            first[2] -= size
            if first[1] and first[2] > 0:
                ring.append(first)
            elif not ring:
                del self.rings[max(self.rings)]


KINDS = pytest.mark.parametrize(
    "make", [lambda: ClassicQueue("q", durable=False), quorum], ids=["classic", "quorum"]
)


def steps_of(consumers: int, credit_max: int) -> Any:
    """Consumers that come with credit, and publishes, which are the sizes of messages."""
    asked = st.tuples(
        st.sampled_from([0, 0, 0, 1]),
        st.integers(1, credit_max),
        st.one_of(st.just(NO_BOUND), st.integers(1, 400)),
    )
    publish = st.lists(st.integers(0, 50), min_size=1, max_size=120)
    return st.tuples(st.just(consumers), st.lists(st.one_of(asked, publish), min_size=1, max_size=25))


@KINDS
@given(given=st.one_of(steps_of(8, 60), steps_of(25, 15)))
@settings(max_examples=150, deadline=None)
def test_each_message_goes_to_the_next_in_rotation(make: Any, given: tuple[int, list[Any]]) -> None:
    """Seed 001: in a round robin manner; among few consumers, or such as ask for few at a time."""
    consumers, steps = given
    queue, model, party = make(), Model(), new_asker("s")
    publisher, published = party.publisher(), 0
    got: dict[ConsumerRef, list[int]] = {}
    for step in steps:
        if isinstance(step, list):
            ids = range(published, published + len(step))
            queue.apply(Publish(publisher, ids, [(HEAD, bytes(size)) for size in step], True), 0)
            model.publish(list(zip(ids, step, strict=True)))
            published += len(step)
        elif len(model.got) < consumers:
            priority, credit, room = step
            ref = party.consumer()
            queue.apply(Subscribe(ref, settled=False, priority=priority), 0)
            queue.apply(Credit(ref, 0, credit, drain=False, seen=0, room=room), 0)
            model.credit(ref, priority, credit, room)
        for effect in queue.take_effects().get(party.id, []):
            if isinstance(effect, Deliver):
                got.setdefault(effect.consumer, []).extend(effect.keys)
    assert got == {ref: numbers for ref, numbers in model.got.items() if numbers}
    assert queue.ready == len(model.ready)


@KINDS
@pytest.mark.parametrize("batch", [1, 7, 40, 2000])
def test_many_consumers_that_ask_for_many_have_had_as_much_within_a_turn(make: Any, batch: int) -> None:
    """Each batch is cut into few parts, and the next goes to the next consumers."""
    queue, party = make(), new_asker("s")
    got = {party.consumer(): 0 for _ in range(30)}
    for ref in got:
        queue.apply(Subscribe(ref, settled=False), 0)
        queue.apply(Credit(ref, 0, 1000, drain=False, seen=0), 0)
    publish = Publish(party.publisher(), range(batch), [(HEAD, b"")] * batch, True)
    for _ in range(2000 // batch):
        queue.apply(publish, 0)
        for effect in queue.take_effects().get(party.id, []):
            if isinstance(effect, Deliver):
                got[effect.consumer] += len(effect.keys)
    assert sum(got.values()) == 2000 // batch * batch
    assert max(got.values()) - min(got.values()) <= TURN_MAX
