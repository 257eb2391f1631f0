"""The store of a classic queue in memory; `journal_store` has that of a durable queue.

A store has two uses. *Keeping*: messages that must survive a restart are given to it when they are published,
and removed later. *Paging*: the middle of a long backlog is stored as pages, packed bytes or places on disk,
and loaded when it is needed. In memory nothing is kept, and pages are packed: a million messages of 100 bytes
take 110 MB that way, and as objects twice that.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from amqp10broker.message.batch import decode_batch, encode_batch
from amqp10broker.message.message import Message

PAGE_MESSAGES_MAX: Final = 4096
"""Messages of one page: enough that a page costs little, few enough to load it at once."""
PAGE_BYTES_MAX: Final = 1024 * 1024
"""A page is closed when it has so many bytes of content."""

Handle = object
"""A page's handle, opaque to all but its store."""

DELAYED: Final = 256
"""The level, for stores, of messages that wait for their time; priorities end at 255. Such messages have
positions of their own until they join the level of their priority.
"""


def chosen(
    messages: Sequence[Message], expiries: Sequence[int] | None, ranks: Sequence[int]
) -> tuple[Sequence[Message], Sequence[int] | None]:
    if len(ranks) == len(messages):
        return messages, expiries
    times = None if expiries is None else [expiries[rank] for rank in ranks]
    return [messages[rank] for rank in ranks], times


class _Packed(NamedTuple):
    messages: bytes
    expiries: array[int] | None


class Store:
    """The store of one classic queue, here in memory. Positions are numbers in one priority level. `durable`:
    messages given to `keep` survive a restart. If not, `keep` is never called. `in_memory`: pages are stored
    in memory.
    """

    durable = False
    in_memory = True

    def keep(
        self,
        level: int,
        first: int,
        messages: Sequence[Message],
        expiries: Sequence[int] | None,
        *,
        dues: Sequence[int] | None = None,
        moved: Sequence[int] | None = None,
    ) -> int:
        """Store messages with consecutive positions; they are safe when the returned ticket is. `expiries`:
        ms of wall clock, 0: never. None: no message expires. `moved`: former positions in `DELAYED`, which
        are removed atomically: a restart finds the messages here or there, never in both.
        """
        raise AssertionError("nothing survives in memory")

    def forget(self, level: int, positions: Sequence[int]) -> None:
        """Remove messages. Positions that were never kept are ignored."""

    def delivered(self, level: int, position: int) -> None:
        """Note that messages up to a position were delivered: after a restart they count as redelivered."""

    def page_out(
        self, level: int, first: int, messages: Sequence[Message], expiries: Sequence[int] | None
    ) -> Handle:
        return self.pack(level, messages, expiries)

    def pack(self, level: int, messages: Sequence[Message], expiries: Sequence[int] | None) -> Handle:
        """Store messages as `page_out` does, with positions that need not be consecutive."""
        times = None if expiries is None else array("Q", expiries)
        return _Packed(b"".join(encode_batch(messages)), times)

    def is_packed(self, handle: Handle) -> bool:
        """Return whether the page takes room of its own, for removed messages too, until it is dropped."""
        return True

    def page_in(self, handle: Handle) -> tuple[Sequence[Message], Sequence[int] | None]:
        assert isinstance(handle, _Packed)
        return decode_batch(handle.messages), handle.expiries

    def look(self, handle: Handle, ranks: Sequence[int]) -> tuple[Sequence[Message], Sequence[int] | None]:
        """Return messages of a page and their expiries, without removing it."""
        return chosen(*self.page_in(handle), ranks)

    def look_delayed(
        self, handle: Handle
    ) -> tuple[Sequence[int], Sequence[Message], Sequence[int] | None, Sequence[int]]:
        """Return positions, messages, expiries and due times of a page of `DELAYED` that is kept."""
        raise AssertionError("nothing survives in memory")

    def drop_page(self, handle: Handle) -> None:
        """Remove a page, which will not be read again."""
