"""The folder of a stopped node is made that of a cluster of one, when the other nodes are lost for good.

What the folder says of the metadata becomes a group of one with a new cluster id, so that the lost nodes are
those of another cluster, should they come back. All that its log holds counts, as nobody can say any more
what of it was decided. The folder also notes which nodes are lost: at every start the groups of quorum queues
that still have members there are made those of this node alone (`raft.groups`). Node numbers are never
given again, so that changes nothing later on. It is all one change of one file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from amqp10broker.cluster.bootstrap import ClusterIdentity
from amqp10broker.cluster.transactions import CatalogTransaction, SystemStore, Value, found, is_member
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.metadata.catalog import Catalog, restore
from amqp10broker.metadata.entry_codec import encoded
from amqp10broker.metadata.node_requests import keys_of_queues_where
from amqp10broker.metadata.plan import CLUSTER, NODE_NUMBERS, Key
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.raft.entries import Kind
from amqp10broker.raft.ids import member_id, node_of
from amqp10broker.runtime.journal.data import LOST, MEMBERSHIP, Data

_READ_BYTES: Final = 1024 * 1024

UNHEARD_OF: Final = 1000
"""So many nodes may have joined, and queues may have members there, that the folder has not heard of."""


class NotInACluster(BrokerError):
    """The folder cannot be made standalone; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Standalone:
    """The plan of a standalone node. `gone`: virtual host and name of the queues that were at lost nodes
    only. `highest`: numbers of nodes up to this one are lost, but its own.
    """

    membership: ClusterIdentity
    lost: tuple[str, ...]
    kept: int
    gone: tuple[tuple[str, str], ...]
    entries: tuple[tuple[Key, Value], ...]
    highest: int

    def carry_out(self, data: Data) -> None:
        """Write it to the folder that it was made of. Waits for the disk. Raises `StorageError`."""
        beside = [(MEMBERSHIP, self.membership.document()), (LOST, self.highest)]
        found(data.catalog_log, member_id(self.membership.number), self.entries, beside)
        data.catalog_log.sync()


def standalone(data: Data, new_id: Callable[[], str]) -> Standalone:
    """Return the plan for the node of a folder; nothing is changed. Raises `NotInACluster` if it is in none,
    or has nothing of it yet, and `StorageError` if its content is malformed.
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
