"""Where a classic queue keeps what it need not, or must not, hold in memory as objects.

Two things are asked of a store. *Keeping*: messages that must survive a restart are given to it when
they are published, and it is told when they are gone. *Paging*: of a long backlog the middle is handed
out as pages, packed bytes or places on disk, and taken back in when its turn comes.

`MemoryStore` keeps nothing and packs pages in memory: a million messages of 100 bytes take 110 MB that
way, and as objects twice that. The store that writes to disk is in the room `persistence`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from amqp10broker.message.batch import decode_batch, encode_batch
from amqp10broker.message.message import Message

PAGE_MESSAGES_MAX: Final = 4096
"""Messages of one page: enough that a page costs little, few enough that one is taken in at once."""
PAGE_BYTES_MAX: Final = 1024 * 1024
"""A page is closed when it has so many bytes of content, whatever its messages are."""

Handle = object
"""A page as its store knows it."""

DELAYED: Final = 256
"""The level, if one asks a store, of messages that wait for their time: it is none, for those end at 255.
Such messages have positions of their own, by which they are kept until they join the level of their
priority."""


class Store(Protocol):
    """What a classic queue asks of its store. Positions are numbers in one level of priority."""

    @property
    def durable(self) -> bool:
        """Whether messages given to `keep` survive a restart. If not, `keep` is never called."""

    @property
    def in_memory(self) -> bool:
        """Whether pages are in memory."""

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
        """Take messages with consecutive positions; they are safe when the returned ticket is.

        Args:
            level: of priority, or `DELAYED`.
            first: position of the first message.
            messages: which.
            expiries: when each expires, in milliseconds of wall clock, 0: never. None: none does.
            dues: when the time of each comes; of those in `DELAYED` and no others.
            moved: their positions in `DELAYED`, where they are not any more from now on: a restart finds them
                here or there, and never in both.
        """

    def forget(self, level: int, positions: Sequence[int]) -> None:
        """Messages are gone. Positions that were never kept are ignored."""

    def delivered(self, level: int, position: int) -> None:
        """Somebody was given the messages up to this position: after a restart they are redelivered."""

    def page_out(
        self, level: int, first: int, messages: Sequence[Message], expiries: Sequence[int] | None
    ) -> Handle:
        """Take over consecutive messages and when they expire, so that their objects can go."""

    def pack(self, level: int, messages: Sequence[Message], expiries: Sequence[int] | None) -> Handle:
        """Take over messages as `page_out` does; their positions need not be consecutive."""

    def is_packed(self, handle: Handle) -> bool:
        """Whether the page takes room of its own until it is dropped, for messages that are gone too."""

    def page_in(self, handle: Handle) -> tuple[Sequence[Message], Sequence[int] | None]:
        """The messages of a page and when they expire, for the last time."""

    def look(self, handle: Handle, ranks: Sequence[int]) -> tuple[Sequence[Message], Sequence[int] | None]:
        """Messages of a page, which stays, and when they expire.

        Args:
            handle: of the page.
            ranks: which of those that it had when it was made, counted from 0, growing. Others may be gone.
        """

    def look_delayed(
        self, handle: Handle
    ) -> tuple[Sequence[int], Sequence[Message], Sequence[int] | None, Sequence[int]]:
        """Of a page of `DELAYED` that is kept: positions, messages, when they expire, when they are due."""

    def drop_page(self, handle: Handle) -> None:
        """A page will not be asked for."""


def chosen(
    messages: Sequence[Message], expiries: Sequence[int] | None, ranks: Sequence[int]
) -> tuple[Sequence[Message], Sequence[int] | None]:
    """Some of these messages, and when they expire."""
    if len(ranks) == len(messages):
        return messages, expiries
    times = None if expiries is None else [expiries[rank] for rank in ranks]
    return [messages[rank] for rank in ranks], times


class _Packed(NamedTuple):
    """A page in memory."""

    messages: bytes
    expiries: array[int] | None


class MemoryStore:
    """A store without a disk."""

    durable: Final = False
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
        """Never called."""
        raise AssertionError("nothing survives in memory")

    def look_delayed(
        self, handle: Handle
    ) -> tuple[Sequence[int], Sequence[Message], Sequence[int] | None, Sequence[int]]:
        """Never called."""
        raise AssertionError("nothing survives in memory")

    def forget(self, level: int, positions: Sequence[int]) -> None:
        """Nothing was kept."""

    def delivered(self, level: int, position: int) -> None:
        """Nothing was kept."""

    def page_out(
        self, level: int, first: int, messages: Sequence[Message], expiries: Sequence[int] | None
    ) -> Handle:
        """Pack messages."""
        return self.pack(level, messages, expiries)

    def pack(self, level: int, messages: Sequence[Message], expiries: Sequence[int] | None) -> Handle:
        """See `Store`."""
        times = None if expiries is None else array("Q", expiries)
        return _Packed(b"".join(encode_batch(messages)), times)

    def page_in(self, handle: Handle) -> tuple[Sequence[Message], Sequence[int] | None]:
        """Unpack them."""
        assert isinstance(handle, _Packed)
        return decode_batch(handle.messages), handle.expiries

    def is_packed(self, handle: Handle) -> bool:
        """All are."""
        return True

    def look(self, handle: Handle, ranks: Sequence[int]) -> tuple[Sequence[Message], Sequence[int] | None]:
        """See `Store`."""
        return chosen(*self.page_in(handle), ranks)

    def drop_page(self, handle: Handle) -> None:
        """The bytes go with the page."""
