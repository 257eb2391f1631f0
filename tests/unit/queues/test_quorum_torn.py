"""A quorum queue's log that ends between a decision and the messages that were put again by it."""

from __future__ import annotations

from amqp10broker.message.message import Message, make_head
from amqp10broker.queues.commands import (
    Credit,
    GiveBack,
    Publish,
    Subscribe,
)
from amqp10broker.queues.quorum.commands import RELOCATED, QuorumCommand
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from tests.support.askers import new_asker
from tests.support.quorum_alone import Alone, store_on
from tests.support.small_journal import SmallJournal

HEAD = make_head(None, None, "", "q")
HERE = new_asker("1.1")
PUBLISHER = HERE.publisher()
NOW_MS = 1000


def opened(journal: SmallJournal, settings: QueueSettings) -> tuple[QuorumQueue, QuorumStore]:
    store = store_on(journal)
    store.restore(journal.records)
    return store.recovered(settings, NOW_MS), store


def bodies(queue: QuorumQueue, store: QuorumStore) -> list[bytes]:
    return sorted(body for _, body in store.bodies.fetch(sorted(queue.live_indexes())))


def check_torn(settings: QueueSettings, commands: list[list[QuorumCommand]]) -> None:
    """Lose what stands behind the last record of commands; then restart, clean, and restart again."""
    journal = SmallJournal(10**6)
    alone = Alone(journal, settings, NOW_MS)
    for each in commands:
        alone.carry_out(each, NOW_MS)
    expected = bodies(alone.queue, alone.store)
    torn = journal.again()
    assert torn.files[1].pop().kind == RELOCATED

    queue, store = opened(torn, settings)

    assert bodies(queue, store) == expected
    torn.files[2], torn.live[2] = [], 0
    for _ in store.relocate(1):
        pass
    torn.drop_oldest()
    again = torn.again()
    assert bodies(*opened(again, settings)) == expected


def two_messages() -> list[Message]:
    return [(HEAD, b"1"), (HEAD, b"2")]


def test_a_settled_delivery_that_comes_back_is_not_lost() -> None:
    """The queue had let it go: the session's copy is all there is."""
    consumer = HERE.consumer()
    check_torn(
        DEFAULTS,
        [
            [Publish(PUBLISHER, [1, 2], two_messages(), False)],
            [Subscribe(consumer, True), Credit(consumer, 0, 1, False, 0)],
            [Credit(consumer, 1, 0, False, 1)],
            [GiveBack(consumer, [0], [(HEAD, b"1")], 0, 0, 1)],
        ],
    )
