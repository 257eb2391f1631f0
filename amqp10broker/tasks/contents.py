"""What a start makes of the records of a data folder, tried without starting: for `storage check`.

The catalog is declared with nobody to run its queues, and each classic and quorum queue takes in its records
of the journal, as a start does it. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.changes import Value
from amqp10broker.catalog.plan import Key
from amqp10broker.catalog.queue import QueueSpec
from amqp10broker.catalog.queue_kind import CLASSIC, KINDS, QUORUM
from amqp10broker.catalog.restore import restore
from amqp10broker.errors import ConfigError, StorageError
from amqp10broker.persistence.classic_store import ClassicStore
from amqp10broker.persistence.quorum_store import QuorumStore
from amqp10broker.persistence.spool import Scratch, Spool
from amqp10broker.queues.volatile import VolatileQueue
from amqp10broker.storage.record import RECORD_BYTES, Record
from amqp10broker.tasks.askers import Askers
from amqp10broker.tasks.data import FURNISHED, OF_THE_NODE, last_incarnation
from amqp10broker.tasks.letter_box import InlineQueue

_NOW_MS: Final = 0


class Contents:
    """A `storage.check.Contents`.

    Attributes:
        streams: numbers of those that are declared.
    """

    def __init__(self) -> None:
        """Nothing is declared so far."""
        self.streams: Collection[int] = ()
        self._stores: dict[int, ClassicStore | QuorumStore] = {}
        self._specs: dict[int, QueueSpec] = {}

    def declare(self, path: str, entries: Iterable[tuple[Key, Value]]) -> None:
        """Declare what the catalog says.

        Args:
            path: of the catalog, for the error.
            entries: all.

        Raises:
            StorageError: something needs what is not installed, or cannot be understood.
        """
        found = dict(entries)
        if FURNISHED not in found:
            return  # a first start that did not come to its end: the next one begins anew
        host = _Host()
        try:
            catalog = Catalog(host)
            restore(catalog, (entry for entry in found.items() if entry[0] not in OF_THE_NODE))
        except ConfigError as error:
            raise StorageError(path, str(error), "nothing was changed") from error
        self._specs = {spec.number: spec for spec in host.specs}
        self.streams = {spec.number for spec in host.specs if KINDS[spec.type].own_files}
        spool = Spool(_no_scratch)
        incarnation = last_incarnation(found.get) + 1
        for number, spec in self._specs.items():
            if (make := _STORES.get(spec.type)) is not None:
                self._stores[number] = make(spec, spool, incarnation)

    def take(self, records: Sequence[Record]) -> None:
        """Give records of the journal to their queues, in order.

        Raises:
            DamagedFile: one cannot be understood.
        """
        for record in records:
            store = self._stores.get(record.group)
            if store is not None:
                store.restore([record])

    def faults(self) -> Iterator[StorageError]:
        """What queues lack, when all records have been taken."""
        for number, store in self._stores.items():
            if isinstance(store, QuorumStore):
                try:
                    store.recovered(self._specs[number].settings, _NOW_MS)
                except StorageError as error:
                    yield error


class _Host:
    def __init__(self) -> None:
        self.specs: list[QueueSpec] = []

    def start_queue(self, queue: QueueSpec) -> InlineQueue:
        """Note it; what runs in its place holds nothing."""
        self.specs.append(queue)
        return InlineQueue(VolatileQueue(queue.name), Askers())


class _Nowhere:
    """A journal that takes everything and has nothing: what is in it was read already."""

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        return 0, 0, 0

    def read(self, file: int, offset: int) -> bytes:
        raise AssertionError("nothing is read again")

    def read_run(self, file: int, offset: int, length: int) -> Sequence[Record]:
        raise AssertionError("nothing is read again")

    def add_live(self, file: int, length: int) -> None:
        """Not counted."""

    def add_dead(self, file: int, length: int) -> None:
        """Not counted."""


_STORES: Final[Mapping[str, Callable[[QueueSpec, Spool, int], ClassicStore | QuorumStore]]] = {
    CLASSIC.name: lambda spec, spool, _: ClassicStore(spec.number, _Nowhere(), spool, RECORD_BYTES),
    QUORUM.name: lambda spec, spool, incarnation: QuorumStore(
        spec.number, spec.name, _Nowhere(), when_durable=lambda *_: None, incarnation=incarnation
    ),
}
"""Of the kinds that have records in the journal."""


def _no_scratch() -> Scratch:
    raise OSError("nothing is written")
