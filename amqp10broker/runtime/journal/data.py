"""The data folder of a running broker: opened and read at start, updated with every change, closed at the
end. It does not sync: the committer reads `CatalogLog.fds_to_sync` before any confirm.

The folder of a stopped node can become that of a cluster of one, when the other nodes are lost for good
(`Standalone`). Its metadata becomes a group of one with a new cluster id, so that lost nodes which start
again belong to another cluster. Its whole log counts, because it is no longer known which part was decided.

The folder also records which nodes are lost. At every start the groups of quorum queues that still have
members there become groups of this node alone (`raft.groups`). Node numbers are never reused, so that is
harmless later. All of it is one change of one file.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

from amqp10broker.cluster.bootstrap import ClusterIdentity
from amqp10broker.cluster.transactions import (
    CatalogTransaction,
    SystemStore,
    found,
    is_member,
    left_alone,
)
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, RefusedError, StorageError
from amqp10broker.metadata.catalog import Catalog, Value, all_entries, restore
from amqp10broker.metadata.entry_codec import Conceal, encoded
from amqp10broker.metadata.plan import CLUSTER, NODE_NUMBERS, Key
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.vhost_requests import keys_of_queues_where
from amqp10broker.raft.ids import member_id, node_of
from amqp10broker.raft.messages import Kind
from amqp10broker.runtime.log import Log
from amqp10broker.storage.catalog_log import CatalogLog, open_catalog_log
from amqp10broker.storage.check import missing_files
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import DataFolder, open_data_folder, remove_contents

_log = Log("amqp10broker.data")

FURNISHED: Final[Key] = ("furnished",)
"""The key of the entry with the content of a first start that was completed."""

INCARNATION: Final[Key] = ("incarnation",)
"""The key of the number of the last start."""

MEMBERSHIP: Final[Key] = ("membership",)
"""The key of this node's cluster."""

LOST: Final[Key] = ("lost",)
"""The key of the highest node number of the cluster that `cluster force-standalone` left."""

OF_THE_NODE: Final = (FURNISHED, INCARNATION, MEMBERSHIP, LOST)
"""The keys of entries that are not a part of the catalog."""


class Data:
    """The data folder that this broker has locked. `when_written`: called after each change of the catalog
    that must be synced. `incarnation`: the number of this start of the node, above all earlier ones; durable
    when `bootstrap.bootstrap_folder` returns.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.when_written: Callable[[], None] = lambda: None
        self._catalog: Catalog | None = None
        self._open(path)

    def _open(self, path: str) -> None:
        disk = self.disk
        self.folder: DataFolder = open_data_folder(disk, path, f"process {os.getpid()}")
        try:
            started = perf_counter()
            for fault in missing_files(disk, self.folder):
                raise fault
            part = self.folder.inventory.part("catalog")
            self.folder.inventory.when_written = lambda: self.when_written()
            self.catalog_log: CatalogLog = open_catalog_log(
                disk, self.folder, part, lambda: self.when_written()
            )
            self.incarnation = last_incarnation(self.catalog_log.get) + 1
            self.catalog_log.store([(INCARNATION, self.incarnation)])
        except BaseException:
            self.folder.close()
            raise
        self._read_s = perf_counter() - started
        for log in (self.folder.inventory, self.catalog_log):
            if log.reader is not None and log.reader.torn is not None:
                _log.warning(
                    "the last changes were not written whole and never durable; they are cut off",
                    path=log.path,
                    bytes=log.reader.torn.bytes,
                )

    # --- of a node of a cluster ---------------------------------------------------------------------

    @property
    def served(self) -> bool:
        """Whether a broker has been up with this folder before."""
        return self.catalog_log.get(FURNISHED) is not None

    @property
    def membership(self) -> ClusterIdentity | None:
        """This node's membership, or None. Raises `StorageError` if the record is malformed."""
        found = self.catalog_log.get(MEMBERSHIP)
        if found is None:
            return None

        try:
            return ClusterIdentity.of(found)
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                self.catalog_log.path,
                f"what it says of the cluster cannot be understood: {error}",
                "nothing was changed: start the version that wrote it",
            ) from error

    @property
    def lost(self) -> int:
        """Other nodes with numbers up to this one are lost for good; 0: no node is lost."""
        return int(self.catalog_log.get(LOST) or 0)

    def belong(self, membership: ClusterIdentity) -> None:
        """Record durably to which cluster this node belongs. Waits for the disk. Raises `StorageError`."""
        self.catalog_log.store([(MEMBERSHIP, membership.document())])
        self.catalog_log.sync()

    def discard(self, why: str) -> None:
        """Delete the folder's content, before any use of it, and begin a new one. Raises `StorageError`."""
        assert self._catalog is None, "it is in use"
        path = self.folder.path
        self.catalog_log.close()
        self.folder.inventory.close()
        self.folder.close()
        remove_contents(self.disk, path)
        _log.warning("the data of this node was discarded", reason=why, path=path)
        self._open(path)

    # --- what is declared ---------------------------------------------------------------------------

    def load(self, catalog: Catalog, conceal: Conceal) -> Mapping[str, str] | None:
        """Load the declarations into a new catalog, and record every change from now on. Returns the argument
        of `furnished`; None if the folder is new. Raises `ConfigError` if a part needs a missing package.
        """
        log = self.catalog_log
        started = perf_counter()
        furnished = log.get(FURNISHED)
        if furnished is None or log.reader is None:
            # These are entries of a first start that was not completed: no client was ever served from it.
            log.forget([key for key, _ in log.entries() if key not in OF_THE_NODE])
            log.put(all_entries(catalog, conceal))
            _log.info("data folder is new", path=self.folder.path)
        else:
            with _no_collector():
                counts = restore(catalog, (entry for entry in log.entries() if entry[0] not in OF_THE_NODE))
            _log.info(
                "catalog recovered",
                path=self.folder.path,
                bytes=log.reader.end,
                changes=log.reader.records,
                seconds=round(self._read_s + perf_counter() - started, 3),
                vhosts=counts.get("vhost", 0),
                users=counts.get("user", 0),
                exchanges=counts.get("exchange", 0),
                queues=counts.get("queue", 0),
                bindings=counts.get("binding", 0),
                policies=counts.get("policy", 0) + counts.get("operator_policy", 0),
            )
        catalog.changes.recorder, catalog.changes.conceal = log, conceal
        self._catalog = catalog
        return None if furnished is None else dict(furnished["default_records"])

    def load_state(self, catalog: Catalog) -> None:
        """Load the state that the system group has agreed on, as far as it is here, into a new catalog.
        Raises `ConfigError` as `load`.
        """

        with _no_collector():
            restore(catalog, left_alone(self.catalog_log))
        self._catalog = catalog

    def furnished(self, default_records: Mapping[str, str]) -> None:
        """Note that the configuration was applied: the next start is not the first. Raises `RefusedError`."""
        self.catalog_log.put([(FURNISHED, {"default_records": dict(default_records)})])

    def close(self) -> None:
        """Make everything durable, and unlock the folder. Raises `StorageError` if it may not be durable."""
        try:
            try:
                if self._catalog is not None:
                    self._catalog.changes.give_numbers_back(self._catalog.highest_number)
            except RefusedError as error:
                # Some numbers are never used then.
                _log.warning("queue numbers not given back", reason=error.description)
            try:
                self.catalog_log.close()
                self.catalog_log.mark()
            finally:
                self.folder.inventory.close()
        finally:
            self.folder.close()


def last_incarnation(get: Callable[[Key], Any]) -> int:
    """Return the number of the last start; 0 in folders from before starts were counted."""
    return int(get(INCARNATION) or 0)


@contextmanager
def _no_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def opened_data(path: str | None) -> Iterator[Data | None]:
    """Open a data folder while a broker runs; None without one. Raises `StorageError`."""
    if path is None:
        yield None
        return
    data = Data(Disk(), os.path.abspath(path))
    try:
        yield data
    except BaseException:
        # The first failure is the one to report.
        try:
            data.close()
        except StorageError as error:
            _log.error("data folder not closed in order", path=path, reason=str(error))
        except Exception as error:
            _log.error("data folder not closed in order", path=path, exc_info=error)
        raise
    data.close()


@dataclass(frozen=True, slots=True)
class Afterwards:
    """The change of a node's folder after its broker has stopped, because a folder in use cannot be emptied.
    A crash in between leaves it as it was. `membership`: the cluster that has let the node in; None: the node
    has left its own, and ends.
    """

    membership: ClusterIdentity | None

    def carry_out(self, path: str) -> None:
        """Empty the folder, and record its cluster in it. Waits for the disk. Raises `StorageError`."""
        data = Data(Disk(), os.path.abspath(path))
        try:
            data.discard("the node has left its cluster" if self.membership is None else "the node joins one")
            if self.membership is not None:
                data.belong(self.membership)
        finally:
            data.close()


_pid_log = Log("amqp10broker.broker")


PID: Final = "pid"


@contextmanager
def pid_file(folder: str) -> Iterator[None]:
    """Write this process's number into a folder that it has locked."""
    path = os.path.join(folder, PID)
    try:
        # It is written aside and renamed, so that half of it is never seen.
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        os.replace(f"{path}.new", path)
    except OSError as error:
        # As with the lock, a full disk must not prevent a start.
        _pid_log.warning("the process's number cannot be written", path=path, reason=error.strerror)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)


_READ_BYTES: Final = 1024 * 1024

UNHEARD_OF: Final = 1000
"""The number of nodes, unknown to the folder, that may have joined and have members of queues."""


class NotInACluster(BrokerError):
    """The folder cannot be made standalone; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Standalone:
    """The plan of a standalone node. `gone`: virtual host and name of the queues that were on lost nodes
    only. `highest`: nodes up to this number are lost, except this one.
    """

    membership: ClusterIdentity
    lost: tuple[str, ...]
    kept: int
    gone: tuple[tuple[str, str], ...]
    entries: tuple[tuple[Key, Value], ...]
    highest: int

    def carry_out(self, data: Data) -> None:
        """Apply the plan to the folder for which it was made. Waits for the disk. Raises `StorageError`."""
        beside = [(MEMBERSHIP, self.membership.document()), (LOST, self.highest)]
        found(data.catalog_log, member_id(self.membership.number), self.entries, beside)
        data.catalog_log.sync()


def standalone(data: Data, new_id: Callable[[], str]) -> Standalone:
    """Return the plan for the node of a folder; nothing is changed. Raises `NotInACluster`, and
    `StorageError` if the folder's content is malformed.
    """
    path, before = data.folder.path, data.membership
    if before is None or not is_member(data.catalog_log):
        raise NotInACluster(f"{path}: the node of this folder is in no cluster: it starts alone as it is")
    found = _last_state(SystemStore(data.catalog_log))
    if CLUSTER not in found or ("node", before.name) not in found:
        raise NotInACluster(
            f"{path}: node '{before.name}' had joined its cluster and got nothing of it yet: "
            "take the folder of another node"
        )
    catalog = Catalog()
    restore(catalog, found.items())
    me = before.number

    def lost(queue: DeclaredQueue) -> bool:
        return bool(queue.home and queue.home != me) or (
            bool(queue.members) and me not in map(node_of, queue.members)
        )

    gone = [(vhost.name, queue.name) for vhost in catalog.vhosts.values() for queue in vhost if lost(queue)]
    others = sorted(node.name for node in catalog.nodes.values() if node.number != me)
    dropped = {*keys_of_queues_where(catalog, lost), *(("node", name) for name in others)}
    membership = ClusterIdentity(
        new_id(), me, before.name, tuple(each for each in before.members if each.number == me)
    )
    highest = catalog.highest_node + UNHEARD_OF
    assert catalog.cluster is not None, "its entry is there"
    cluster = replace(catalog.cluster, id=membership.cluster)
    begun = {
        **{key: _alone(key, value, me) for key, value in found.items() if key not in dropped},
        CLUSTER: encoded(CLUSTER, cluster),
        NODE_NUMBERS: encoded(NODE_NUMBERS, highest),
    }
    kept = sum(key[0] == "queue" for key in begun)
    return Standalone(membership, tuple(others), kept, tuple(gone), tuple(begun.items()), highest)


def _last_state(store: SystemStore) -> dict[Key, Value]:
    at = store.applied + 1
    assert store.stored is not None
    while at <= store.stored.last:
        for run in store.read(at, store.stored.last, _READ_BYTES):
            if run.kind is Kind.COMMAND:
                for index, payload in enumerate(run.payloads, run.first):
                    store.machine.apply(index, CatalogTransaction.decode(payload))
            at = run.last + 1
    return dict(store.machine.entries())


def _alone(key: Key, value: Value, me: int) -> Value:
    if key[0] != "queue" or not value.get("members"):
        return value
    return {**value, "members": [each for each in value["members"] if node_of(each) == me]}
