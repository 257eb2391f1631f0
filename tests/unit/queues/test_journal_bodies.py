"""What the messages of a durable quorum queue come to when the journal has been read."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.message.message import Message, make_head
from amqp10broker.queues.journal import Page, Spool
from amqp10broker.queues.quorum.bodies import JournalBodies

HEAD = make_head(None, None, "", "q")
PAGES = 20


class _CountedPacks(Spool):
    def __init__(self) -> None:
        super().__init__()
        self.read_packs = 0

    def read(self, page: Page) -> bytes:
        self.read_packs += 1
        return super().read(page)


class _NoAccounts:
    def add_live(self, file: int, length: int) -> None:
        pass

    def add_dead(self, file: int, length: int) -> None:
        pass


def bodies_of(packs: _CountedPacks, indexes: range) -> JournalBodies:
    bodies = JournalBodies(_NoAccounts(), packs)
    bodies.recovering = True
    messages: Sequence[Message] = [(HEAD, b"%d" % index) for index in indexes]
    bodies.put(indexes[0], messages)
    packs.read_packs = 0
    return bodies


def test_a_start_reads_no_message_again_to_know_that_it_is_there() -> None:
    packs = _CountedPacks()
    indexes = range(PAGES * 4096)
    bodies = bodies_of(packs, indexes)
    assert bodies.keep_only(indexes) == []
    assert packs.read_packs == 0
    assert len(bodies) == len(indexes)


def test_what_nobody_needs_goes_and_what_is_missing_is_told() -> None:
    bodies = bodies_of(_CountedPacks(), range(10, 20))
    assert bodies.keep_only([15, 11, 30, 25, 15]) == [25, 30]
    assert len(bodies) == 2
    assert [body for _, body in bodies.fetch([11, 15])] == [b"11", b"15"]
