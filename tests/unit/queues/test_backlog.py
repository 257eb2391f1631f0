"""A long backlog of a classic queue: its head in memory, the rest in pages that the store keeps elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.message.message import Message, make_head
from amqp10broker.queues.classic.backlog import (
    HEAD_MESSAGES_MAX,
    HEADS_IN_MEMORY,
    PAGE_MESSAGES_MAX,
    Backlog,
    Handle,
    Store,
)

HEAD = make_head(None, None, "", "q")
MANY = 100_000
BATCH = 1000
MOST = HEAD_MESSAGES_MAX + PAGE_MESSAGES_MAX + BATCH
"""A batch that meets a head with room goes there as a whole."""


class CountingStore(Store):
    """Counts the messages that are in pages, as if they were elsewhere."""

    in_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.paged = 0
        self.looks = 0

    def look(self, handle: Handle, ranks: Sequence[int]) -> tuple[Sequence[Message], Sequence[int] | None]:
        self.looks += 1
        return super().look(handle, ranks)

    def page_out(
        self, level: int, first: int, messages: Sequence[Message], expiries: Sequence[int] | None
    ) -> Handle:
        self.paged += len(messages)
        return super().page_out(level, first, messages, expiries)

    def page_in(self, handle: Handle) -> tuple[Sequence[Message], Sequence[int] | None]:
        messages, expiries = super().page_in(handle)
        self.paged -= len(messages)
        return messages, expiries


def fill(store: CountingStore) -> Backlog:
    """A backlog of many messages, which never holds more than it may."""
    backlog = Backlog(0, store)
    for first in range(0, MANY, BATCH):
        backlog.extend([(HEAD, b"%d" % number) for number in range(first, first + BATCH)], None)
        assert backlog.count - store.paged <= MOST
    return backlog


def test_what_is_far_from_the_head_is_in_pages() -> None:
    """However long the backlog: no more than the head and a page are messages in memory."""
    store = CountingStore()
    backlog = fill(store)
    assert backlog.count == MANY
    assert store.paged >= MANY - MOST


def test_pages_come_back_in_order_and_one_at_a_time() -> None:
    """Who consumes a long backlog gets it in order, and the rest stays where it is."""
    store = CountingStore()
    backlog = fill(store)
    taken: list[bytes] = []
    while len(taken) < MANY:
        _, messages, _, _ = backlog.take(3000)
        assert messages
        taken += [content for _, content in messages]
        assert MANY - len(taken) - store.paged <= MOST
    assert taken == [b"%d" % number for number in range(MANY)]
    assert store.paged == 0


def test_a_page_is_read_once_while_it_is_looked_through() -> None:
    """Who looks for something goes through windows; a page stays where it is, and is unpacked once."""
    store = CountingStore()
    backlog = fill(store)
    position = seen = 0
    while (window := backlog.window(position, 100)) is not None:
        assert window.positions == range(position, position + len(window.messages))
        position += len(window.messages)
        seen += len(window.messages)
    assert seen == MANY
    assert store.looks == len(backlog._pages) > 0
    assert backlog.count == MANY


def test_what_is_taken_from_the_middle_leaves_room() -> None:
    """A page of which little is left is packed anew, and what is left is in order."""
    store = CountingStore()
    backlog = fill(store)
    kept = range(0, MANY, 50)
    position = 0
    while (window := backlog.window(position, 100)) is not None:
        position = window.positions[-1] + 1
        backlog.take_out(window, [at for at, each in enumerate(window.positions) if each % 50])
    assert backlog.count == len(kept)
    stored = [page.stored for page in backlog._pages]
    assert max(stored) <= 4 * PAGE_MESSAGES_MAX // 50
    taken: list[int] = []
    while backlog.count:
        positions, messages, _, _ = backlog.take(1_000)
        assert [content for _, content in messages] == [b"%d" % each for each in positions]
        taken += positions
    assert taken == list(kept)


def test_where_pages_are_in_memory_too_a_backlog_is_longer_before_it_is_packed() -> None:
    store = CountingStore()
    store.in_memory = True
    backlog = Backlog(0, store)
    batch = [(HEAD, b"x")] * 16_384
    while not store.paged:
        backlog.extend(batch, None)
    most = HEADS_IN_MEMORY * HEAD_MESSAGES_MAX
    assert most < backlog.count <= most + 2 * len(batch)
