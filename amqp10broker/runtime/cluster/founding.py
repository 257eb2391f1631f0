"""The folder of a new member of a cluster, and the later declarations of the founder.

The founder's catalog, with its configuration, becomes the cluster's. Its queues follow when the other nodes
are there (`declare_when_whole`). A joining node is empty: the leader sends it everything.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from amqp10broker import __version__
from amqp10broker.auth.passwords import Passwords
from amqp10broker.cluster import system_store
from amqp10broker.cluster.bootstrap import ClusterIdentity, founded, target_size
from amqp10broker.config import Config
from amqp10broker.errors import BrokerError
from amqp10broker.metadata.catalog import Catalog, CatalogRequest
from amqp10broker.metadata.definitions_due import DUE_LATER, DeclareDue
from amqp10broker.metadata.nodes import ClusterFacts, NodeFacts
from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.metadata.restore import all_entries
from amqp10broker.queues.machine_version import carried_out
from amqp10broker.queues.volatile import VolatileQueue
from amqp10broker.raft.ids import member_id
from amqp10broker.runtime.cluster.forming import FIRST
from amqp10broker.runtime.journal.bootstrap import bootstrap_folder
from amqp10broker.runtime.journal.data import OF_THE_NODE, Data
from amqp10broker.runtime.journal.definitions_file import due_now, tell_left_out
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.queues.handles import InlineQueue
from amqp10broker.runtime.queues.reply_registry import ReplyRegistry

_log = Log("amqp10broker.cluster")

LOOK_EACH_S: Final = 0.25
AGAIN_S: Final = 10.0


def prepare_folder(data: Data, config: Config, membership: ClusterIdentity) -> None:
    """Have a folder hold a member of the metadata's group. Nothing happens if it does. Waits for the disk.
    Raises `StorageError` or `RefusedError` if it cannot be written, and `ConfigError` if the definitions file
    cannot be read or holds something that cannot be.
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
            rules=config.rules,
            choose=random.randrange,
        )
        passwords = Passwords(scratch.users, secrets.token_bytes, config.password_hash_export)
        later = target_size(config.cluster_target_size, config.cluster_nodes) > 1
        bootstrap_folder(scratch, config, passwords, data, queues_later=later)
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
        due = later and (config.definitions is not None or bool(config.queues))
        cluster = ClusterFacts(
            membership.cluster, scratch.cluster_name(me.name), carried_out()[1], queues_due=due
        )
        entries = founded(all_entries(scratch, passwords.exportable), node, cluster)
        system_store.found(log, member_id(FIRST), entries)
    log.sync()


async def declare_when_whole(
    config: Config,
    catalog: Catalog,
    propose: Callable[[CatalogRequest[Any]], Awaitable[Any]],
) -> None:
    """Declare the queues of the founder's configuration once the expected number of nodes runs.

    A conflict with a queue of a client is left out and logged; an unreadable file is tried again.
    """
    size, said = target_size(config.cluster_target_size, config.cluster_nodes), ""
    while catalog.cluster is not None and catalog.cluster.queues_due:
        if sum(node.incarnation > 0 and catalog.runs(node.number) for node in catalog.nodes.values()) < size:
            await trio.sleep(LOOK_EACH_S)
            continue
        try:
            report = await propose(DeclareDue(due_now(config, catalog)))
        except BrokerError as error:
            if str(error) != said:
                said = str(error)
                _log.error("the queues of the configuration cannot be declared yet", reason=said)
            await trio.sleep(AGAIN_S)
        else:
            tell_left_out(report.skipped)
            counts = {section: report.loaded.get(section, 0) for section in DUE_LATER}
            _log.info("the cluster is whole: the queues of the configuration are declared", **counts)


class NoQueues:
    """Runs no queues: the catalog is made only to be kept."""

    def start_queue(self, queue: QueueSpec) -> InlineQueue:
        return InlineQueue(VolatileQueue(queue.name), ReplyRegistry())
