"""Errands at queues: what they post, what ends them, and what stays behind."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.auth.authorise import Access, CatalogGrants
from amqp10broker.errors import LimitExceeded, NotFound, ResourceLocked, Unavailable
from amqp10broker.message.amqp091 import make_head
from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand
from amqp10broker.queues import commands
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.sessions.jobs import GetSome, PublishOne
from tests.support.channel_harness import Harness
from tests.support.declaring import bind, declare
from tests.support.queue_handles import FakeHandle

MESSAGE = (make_head("", "q", b"\x00\x00"), b"x")


def quiet_queue(world: Harness, name: str) -> DeclaredQueue:
    queue = declare(world.catalog, "/", name)[0]
    queue.handle = FakeHandle()
    return queue


def letters(queue: DeclaredQueue) -> list[Any]:
    handle: Any = queue.handle
    return handle.commands  # type: ignore[no-any-return]


def post(command: QueueCommand) -> None:
    command[0].post(command[1])


def publishing(*names: str) -> tuple[PublishOne, list[DeclaredQueue]]:
    world = Harness()
    queues = [quiet_queue(world, name) for name in names]
    for name in names:
        bind(world.catalog, "/", Binding("amq.fanout", Destination("queue", name)))
    job = PublishOne(
        *(
            world.vhost,
            Access(CatalogGrants(world.catalog.users, "guest"), "/"),
            commands.ReplyTo(commands.PeerId(0, 1, 1), "test"),
            post,
        ),
        exchange="amq.fanout",
        routing_key="q",
        properties={},
        body=b"x",
        size_max=10,
    )
    return job, queues


def confirmed(queue: DeclaredQueue) -> commands.Confirmed:
    publish = letters(queue)[-1]
    assert type(publish) is commands.Publish
    return commands.Confirmed(publish.publisher, publish.ids, publish.settled)


def test_a_message_is_published_when_every_queue_has_taken_it() -> None:
    job, (one, two) = publishing("one", "two")
    assert job.routed
    job.on_effect(confirmed(one))
    assert not job.done
    job.on_effect(confirmed(two))
    assert job.done


def test_a_queue_that_is_deleted_meanwhile_counts_as_one_that_took_it() -> None:
    job, (one,) = publishing("one")
    job.on_effect(commands.Unconfirmed(confirmed(one).publisher, (1,), False))
    assert job.done


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (LimitExceeded, lambda ref: commands.PublishRejected(ref, (1,), False, "one")),
        (Unavailable, lambda ref: commands.Unconfirmed(ref, (1,), False, failed=True, queue="one")),
    ],
)
def test_a_queue_that_does_not_take_it_is_told(error: type[Exception], how: Any) -> None:
    job, (one,) = publishing("one")
    with pytest.raises(error, match="queue 'one' in vhost '/'"):
        job.on_effect(how(confirmed(one).publisher))


def getting(
    most: int = 3, delivery_outcome: commands.DeliveryOutcome = commands.DeliveryOutcome.REQUEUE
) -> tuple[GetSome, DeclaredQueue]:
    queue = quiet_queue(Harness(), "q")
    return GetSome(
        queue, commands.ReplyTo(commands.PeerId(0, 1, 1), "test"), post, most, delivery_outcome
    ), queue


def delivered(job: GetSome, queue: DeclaredQueue, count: int, left: int) -> None:
    ref = letters(queue)[0].consumer
    effects: list[commands.Effect] = (
        [commands.Deliver(ref, tuple(range(count)), (MESSAGE,) * count, 0)] if count else []
    )
    effects.append(commands.CreditReply(ref, 3, 0, left, True, 0))
    for effect in effects:
        job.on_effect(effect)


def test_messages_are_decided_on_when_all_are_there() -> None:
    job, queue = getting(2, commands.DeliveryOutcome.DISCARD_FAILED)
    assert [type(each) for each in letters(queue)] == [commands.Subscribe, commands.Credit]
    assert not letters(queue)[0].counted
    delivered(job, queue, 2, 5)
    assert job.done
    assert (job.messages, job.behind) == ([MESSAGE, MESSAGE], 5)
    job.end()
    settle, leave = letters(queue)[-2:]
    assert (type(settle), settle.keys, settle.delivery_outcome) == (
        commands.Settle,
        [0, 1],
        commands.DeliveryOutcome.DISCARD_FAILED,
    )
    assert type(leave) is commands.Unsubscribe
    assert queue.consumption.counted().discarded == 2


def test_what_is_given_up_before_the_end_was_not_taken() -> None:
    """The requester did not get the result, whatever was decided later."""
    job, queue = getting(3, commands.DeliveryOutcome.ACCEPT)
    job.on_effect(commands.Deliver(letters(queue)[0].consumer, (0,), (MESSAGE,), 0))
    assert not job.done
    job.end()
    assert commands.Settle not in map(type, letters(queue))
    assert letters(queue)[-1].delivery_outcome is commands.DeliveryOutcome.REQUEUE


@pytest.mark.parametrize(
    ("error", "text", "how"),
    [
        (ResourceLocked, "in exclusive use", lambda ref: commands.SubscribeRefused(ref, "q")),
        (
            Unavailable,
            "no leader",
            lambda ref: commands.SubscribeRefused(ref, "q", commands.Refusal.NO_LEADER),
        ),
        (NotFound, "down or inaccessible", lambda ref: commands.QueueDown(ref, "q")),
    ],
)
def test_a_queue_that_gives_nothing_is_told(error: type[Exception], text: str, how: Any) -> None:
    job, queue = getting()
    before = len(letters(queue))
    with pytest.raises(error, match=text):
        job.on_effect(how(letters(queue)[0].consumer))
    job.end()
    assert len(letters(queue)) == before, "it does not know the consumer"


def test_a_queue_that_is_deleted_meanwhile_gave_what_it_gave() -> None:
    job, queue = getting()
    ref = letters(queue)[0].consumer
    job.on_effect(commands.Deliver(ref, (0,), (MESSAGE,), 0))
    job.on_effect(commands.TimedOut(ref, (0,), "q"))
    job.on_effect(commands.QueueDeleted(ref, "q"))
    assert job.done
    assert job.messages == [MESSAGE]
    job.end()
    job.end()
