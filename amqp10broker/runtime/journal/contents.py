"""A dry run of a start on the records of a data folder, for `storage check`.

The catalog is declared without running queues, and each classic and quorum queue reads its records of the
journal as at a start. In a folder of a cluster's node the catalog is the applied state of its member of the
system group, and the queues are those with records here. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from amqp10broker.cluster.bootstrap import ClusterIdentity
from amqp10broker.cluster.transactions import SystemStore, is_member, left_alone
from amqp10broker.errors import ConfigError, StorageError
from amqp10broker.metadata.catalog import Catalog, Value, restore
from amqp10broker.metadata.plan import Key
from amqp10broker.metadata.queue import CLASSIC, QUORUM, STREAM, DeclaredQueue
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.journal import Spool
from amqp10broker.queues.quorum.commands import CONFIG
from amqp10broker.queues.quorum.log_store import FOUNDER, QuorumStore
from amqp10broker.queues.stream.durability import StreamCommits
from amqp10broker.raft.ids import is_first, node_of
from amqp10broker.runtime.journal.data import FURNISHED, MEMBERSHIP, OF_THE_NODE, last_incarnation
from amqp10broker.storage.disk import Scratch
from amqp10broker.storage.record import Record

_NOW_MS: Final = 0


class Contents:
    def __init__(self) -> None:
        self.streams: Collection[int] = ()
        self._stores: dict[int, ClassicStore | QuorumStore | StreamCommits] = {}
        self._queues: dict[int, DeclaredQueue] = {}
        self._journal = _Nowhere()

    def declare(self, path: str, entries: Iterable[tuple[Key, Value]]) -> None:
        """Declare the content of the catalog. Raises `StorageError` if a start would."""
        found = dict(entries)
        log = _Entries(found)
        if is_member(log):
            node, declared = _of_cluster(path, log)
        elif FURNISHED not in found:
            return  # a first start that did not come to its end: the next one begins anew
        else:
            node, declared = 0, [entry for entry in found.items() if entry[0] not in OF_THE_NODE]
        try:
            catalog = Catalog()
            restore(catalog, declared)
        except ConfigError as error:
            raise StorageError(path, str(error), "nothing was changed") from error
        self._queues = {queue.number: queue for queue in catalog if _is_here(queue, node)}
        self.streams = {number for number, queue in self._queues.items() if queue.kind.own_files}
        incarnation = last_incarnation(found.get) + 1
        for number, queue in self._queues.items():
            if queue.type == CLASSIC.name:
                self._stores[number] = ClassicStore(number, self._journal, Spool(_no_scratch))
            elif queue.type == QUORUM.name:
                self._stores[number] = _quorum_store(queue, self._journal, node, incarnation)
            elif queue.type == STREAM.name:
                self._stores[number] = StreamCommits(number, self._journal)

    def take(self, records: Sequence[Record]) -> None:
        """Give records of the journal to their queues, in order. Raises `DamagedFile`."""
        for record in records:
            store = self._stores.get(record.group)
            if store is not None:
                self._journal.note(record)
                store.restore([record])

    def faults(self) -> Iterator[StorageError]:
        for number, store in self._stores.items():
            if isinstance(store, QuorumStore):
                try:
                    store.recovered(self._queues[number].effective.settings, _NOW_MS)
                except StorageError as error:
                    yield error


class _Entries:
    """Entries of a catalog's log, to be read only."""

    def __init__(self, found: Mapping[Key, Value]) -> None:
        self._found = found

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def get(self, key: Key) -> Value:
        return self._found.get(key)

    def entries(self) -> Iterator[tuple[Key, Value]]:
        return iter(self._found.items())

    def change(self, puts: Sequence[tuple[Key, Value]], forgets: Sequence[Key]) -> None:
        raise AssertionError("nothing is written")

    def when_durable(self, told: Callable[[], None]) -> None:
        raise AssertionError("nothing is written")


def _of_cluster(path: str, log: _Entries) -> tuple[int, list[tuple[Key, Value]]]:
    try:
        number = ClusterIdentity.of(log.get(MEMBERSHIP)).number
        SystemStore(log)
        return number, left_alone(log)
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(
            path,
            f"what it says of the cluster cannot be understood: {error}",
            "nothing was changed: start the version that wrote it",
        ) from error


def _is_here(queue: DeclaredQueue, node: int) -> bool:
    return not node or queue.home == node or node in map(node_of, queue.members)


def _quorum_store(queue: DeclaredQueue, journal: _Nowhere, node: int, incarnation: int) -> QuorumStore:
    me = next((member for member in queue.members if node_of(member) == node), FOUNDER)
    return QuorumStore(
        queue.number,
        queue.name,
        journal,
        when_durable=lambda *_: None,
        me=me,
        members=[member for member in queue.members if is_first(member)],
        joins=not is_first(me),
        node=node,
        incarnation=incarnation,
    )


class _Nowhere:
    """A journal that takes everything and has nothing: what is in it was read already. But for changes of
    members, which a member reads when all its records have been taken.
    """

    def __init__(self) -> None:
        self._changes: dict[tuple[int, int], bytes] = {}
        self._end = 0

    def note(self, record: Record) -> None:
        if record.kind == CONFIG:
            self._changes[record.file, record.offset] = record.payload

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        self._end += 1
        if kind == CONFIG:
            self._changes[0, self._end] = b"".join(payload)
        return 0, 0, self._end

    def read(self, file: int, offset: int) -> bytes:
        return self._changes[file, offset]

    def read_run(self, file: int, offset: int, length: int) -> Sequence[Record]:
        raise AssertionError("nothing is read again")

    def add_live(self, file: int, length: int) -> None: ...

    def add_dead(self, file: int, length: int) -> None: ...


def _no_scratch() -> Scratch:
    raise OSError("nothing is written")
