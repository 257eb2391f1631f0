"""What a node's folder holds when the node has just become one of a cluster.

The founder's catalog, with what the configuration puts into it, becomes the cluster's. A node that joins has
nothing: the leader sends it the state.
"""

from __future__ import annotations

import random
import secrets

from amqp10broker import __version__
from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.nodes import ClusterFacts, NodeFacts
from amqp10broker.catalog.queue import QueueSpec
from amqp10broker.catalog.restore import all_entries
from amqp10broker.config import Config
from amqp10broker.queues.machine_version import carried_out
from amqp10broker.queues.volatile import VolatileQueue
from amqp10broker.replication import system_store
from amqp10broker.replication.bootstrap import Membership, founded
from amqp10broker.replication.ids import member_id
from amqp10broker.security.passwords import Passwords
from amqp10broker.tasks.askers import Askers
from amqp10broker.tasks.bootstrap import bootstrap_folder
from amqp10broker.tasks.data import OF_THE_NODE, Data
from amqp10broker.tasks.forming import FIRST
from amqp10broker.tasks.letter_box import InlineQueue


def prepare_folder(data: Data, config: Config, membership: Membership) -> None:
    """Have a folder hold a member of the metadata's group. Nothing happens if it does. Waits for the disk.

    Args:
        data: the folder; nothing of it is used yet.
        config: of the founder, what is to be there from the beginning.
        membership: of the node.

    Raises:
        StorageError, RefusedError: it cannot be written.
        ConfigError: the definitions file cannot be read or holds something that cannot be.
    """
    log = data.catalog_log
    if system_store.is_member(log):
        return
    if membership.number != FIRST:
        system_store.joined(log, lambda key: key in OF_THE_NODE)
    else:
        scratch = Catalog(
            NoQueues(),
            default_queue_type=config.default_queue_type,
            relaxed_quorum_checks=config.quorum_relaxed_checks_on_redeclaration,
            choose=random.randrange,
        )
        passwords = Passwords(scratch.users, secrets.token_bytes)
        bootstrap_folder(scratch, config, passwords, data)
        me = membership.members[0]
        node = NodeFacts(
            me.name,
            me.number,
            me.address.host,
            me.address.port,
            data.incarnation,
            version=__version__,
            machines=carried_out(),
        )
        cluster = ClusterFacts(membership.cluster, me.name, carried_out()[1])
        entries = founded(all_entries(scratch, passwords.exportable), node, cluster)
        system_store.found(log, member_id(FIRST), entries)
    log.sync()


class NoQueues:
    """Runs no queues: the catalog is made only to be kept."""

    def start_queue(self, queue: QueueSpec) -> InlineQueue:
        return InlineQueue(VolatileQueue(queue.name), Askers())
