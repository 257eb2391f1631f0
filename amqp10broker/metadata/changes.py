"""Storage of the durable changes of the catalog, plan by plan.

A plan is stored before it counts, so that a failed write refuses it without effect. Deletions are stored
after the fact, because they must be possible when the disk is full. Without a recorder (a broker in memory
only) every call returns at its first line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.metadata.entry_codec import Conceal, encoded
from amqp10broker.metadata.plan import NUMBERS, Key, Put
from amqp10broker.metadata.queue import QUEUE_NUMBER_MAX

if TYPE_CHECKING:
    from amqp10broker.storage.catalog_log import CatalogLog

Value = Any
"""An entry's record, as JSON can hold it."""

NUMBERS_RESERVED: Final = 1024
"""Numbers that are reserved at one time, because the journal waits meanwhile."""


class Changes:
    """Passes plans on to the recorder, as entries."""

    __slots__ = ("_conceal", "_recorder", "highest_reserved")

    def __init__(self) -> None:
        self.highest_reserved = 0
        self._recorder: CatalogLog | None = None
        self._conceal: Conceal = lambda record: record

    def tell(self, recorder: CatalogLog, conceal: Conceal) -> None:
        self._recorder = recorder
        self._conceal = conceal

    @property
    def told(self) -> bool:
        return self._recorder is not None

    def keep(self, puts: Sequence[Put]) -> None:
        """Keep what a plan puts and what outlives the process, all of it or nothing. Raises `RefusedError` if
        it cannot be kept: the plan must not be applied.
        """
        if self._recorder is None:
            return
        kept = [(put.key, encoded(put.key, put.record, self._conceal)) for put in puts if put.kept]
        if kept:
            self._reserve(puts)
            self._recorder.put(kept)

    def forget(self, keys: Sequence[Key]) -> None:
        """Keep no more what is gone; nothing happens if it never outlived the process."""
        if self._recorder is not None and keys:
            self._recorder.forget(keys)

    def _reserve(self, puts: Sequence[Put]) -> None:
        highest = max((put.record.number for put in puts if put.key[0] == "queue"), default=0)
        if highest > self.highest_reserved:
            assert self._recorder is not None
            reserved = min(highest - 1 + NUMBERS_RESERVED, QUEUE_NUMBER_MAX)
            self._recorder.put_ahead([_highest(reserved)])
            self.highest_reserved = reserved

    def give_numbers_back(self, highest_given: int) -> None:
        """Reserve no more numbers than were given: at the end, when none will be given any more."""
        if self._recorder is not None and self.highest_reserved > highest_given:
            self._recorder.put([_highest(highest_given)])
            self.highest_reserved = highest_given


def _highest(number: int) -> tuple[Key, Value]:
    return NUMBERS, encoded(NUMBERS, number)
