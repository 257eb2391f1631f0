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
    ) -> int:
        """Take messages with consecutive positions; they are safe when the returned ticket is.

        Args:
            level: of priority.
            first: position of the first message.
            messages: which.
            expiries: when each expires, in milliseconds of wall clock, 0: never. None: none does.
        """

    def forget(self, level: int, positions: Sequence[int]) -> None:
        """Messages are gone. Positions that were never kept are ignored."""

    def delivered(self, level: int, position: int) -> None:
        """Somebody was given the messages up to this position: after a restart they are redelivered."""

    def page_out(
        self, level: int, first: int, messages: Sequence[Message], expiries: Sequence[int] | None
    ) -> Handle:
        """Take over consecutive messages and when they expire, so that their objects can go."""

    def page_in(self, handle: Handle) -> tuple[Sequence[Message], Sequence[int] | None]:
        """The messages of a page and when they expire, for the last time."""

    def drop_page(self, handle: Handle) -> None:
        """A page will not be asked for."""


class _Packed(NamedTuple):
    """A page in memory."""

    messages: bytes
    expiries: array[int] | None


class MemoryStore:
    """A store without a disk."""

    durable: Final = False
    in_memory = True

    def keep(
        self, level: int, first: int, messages: Sequence[Message], expiries: Sequence[int] | None
    ) -> int:
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
        times = None if expiries is None else array("Q", expiries)
        return _Packed(b"".join(encode_batch(messages)), times)

    def page_in(self, handle: Handle) -> tuple[Sequence[Message], Sequence[int] | None]:
        """Unpack them."""
        assert isinstance(handle, _Packed)
        return decode_batch(handle.messages), handle.expiries

    def drop_page(self, handle: Handle) -> None:
        """The bytes go with the page."""
