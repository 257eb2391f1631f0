"""The start of a node that is not in a cluster yet. It queries the nodes of its list until it founds or joins
one (`cluster.bootstrap` decides).
"""

from __future__ import annotations

import os
import random
import secrets
import stat
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from amqp10broker import __version__, portable
from amqp10broker.auth.passwords import Passwords
from amqp10broker.cluster import transactions
from amqp10broker.cluster.bootstrap import (
    Address,
    ClusterIdentity,
    ClusterRefused,
    FoundCluster,
    Join,
    MemberAt,
    NodeAnswer,
    WaitForNodes,
    founded,
    next_step,
    taken,
    target_nodes,
)
from amqp10broker.cluster.hello import HelloRefused
from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, ConfigError, PreconditionFailed, RefusedError, Unavailable
from amqp10broker.metadata.catalog import Catalog, CatalogRequest, all_entries
from amqp10broker.metadata.definitions import DUE_LATER, DeclareDue
from amqp10broker.metadata.queue import ClusterFacts, NodeFacts
from amqp10broker.queues.machine_version import carried_out
from amqp10broker.raft.ids import member_id
from amqp10broker.runtime.journal.bootstrap import bootstrap_folder, due_now, tell_left_out
from amqp10broker.runtime.journal.data import OF_THE_NODE, Data
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.cluster")

LOOK_EACH_S: Final = 0.1
"""The pause between two rounds of queries to the nodes of the list."""
LOOK_S: Final = 2.0
"""The time limit for one node's answer to a query."""
JOIN_S: Final = 35.0
"""The time limit for letting a node in, which is a change of the metadata."""
TOLD_EACH_S: Final = 10.0
"""The interval of log entries about the nodes for which this one waits."""
PATIENCE_S: Final = 300.0
"""How long the node waits: RabbitMQ's time for a metadata leader at start."""

FIRST: Final = 1
"""The number of the node that founds a cluster."""


AskNode = Callable[[tuple[str, int], dict[str, Any], float], Awaitable[dict[str, Any]]]
"""Queries a node by its address, with a time limit in seconds."""


@dataclass(eq=False)
class Former:
    _name: str
    _at: Address
    _listed: Mapping[str, Address]
    _ask: AskNode
    _new_id: Callable[[], str]
    has_data: bool
    _said: str = ""

    async def find(self) -> ClusterIdentity:
        """Repeat the queries until this node is in a cluster. Raises `ClusterRefused` if it cannot be."""
        started = told = trio.current_time()
        while True:
            heard = await self._look()
            step = next_step(self._name, tuple(self._listed), heard, has_data=self.has_data)
            if isinstance(step, FoundCluster):
                _log.info("a cluster begins with this node", node=self._name)
                me = MemberAt(FIRST, self._name, self._at)
                return ClusterIdentity(self._new_id(), FIRST, self._name, (me,))
            if isinstance(step, Join):
                membership = await self._join(step.by)
                if membership is not None:
                    _log.info("joined a cluster", node=self._name, by=step.by, number=membership.number)
                    return membership
                step = WaitForNodes((step.by,), f"node '{step.by}' cannot let this node in yet: {self._said}")
            now = trio.current_time()
            if now - started > PATIENCE_S:
                raise ClusterRefused(
                    f"no cluster was found for {PATIENCE_S:.0f} s: {step.why}; waited for "
                    f"{', '.join(step.names)}: start them, or correct cluster_nodes"
                )
            if now - told > TOLD_EACH_S:
                told = now
                _log.warning("waiting for other nodes", names=", ".join(step.names), reason=step.why)
            await trio.sleep(LOOK_EACH_S)

    async def _look(self) -> dict[str, NodeAnswer]:
        heard: dict[str, NodeAnswer] = {}
        refused: list[str] = []
        async with trio.open_nursery() as nursery:
            for name, address in self._listed.items():
                if name != self._name:
                    nursery.start_soon(self._look_at, name, address, heard, refused)
        if refused:
            raise ClusterRefused(refused[0])
        return heard

    async def _look_at(
        self, name: str, address: Address, heard: dict[str, NodeAnswer], refused: list[str]
    ) -> None:
        try:
            answer = await self._ask(
                (address.host, address.port), {"what": "look", "name": self._name}, LOOK_S
            )
            found = NodeAnswer(
                str(answer["name"]),
                None if answer["cluster"] is None else str(answer["cluster"]),
                bool(answer["taken"]),
            )
        except HelloRefused as error:
            refused.append(f"node '{name}' at {address}: {error}")
        except (BrokerError, KeyError, TypeError):
            return
        else:
            if found.name != name:
                refused.append(
                    f"the list of nodes says that node '{name}' is at {address}, where node '{found.name}' "
                    "is: correct cluster_nodes"
                )
            heard[name] = found

    async def _join(self, by: str) -> ClusterIdentity | None:
        try:
            return await _asked_to_join(self._ask, self._listed[by], self._name, self._at)
        except HelloRefused as error:
            raise ClusterRefused(f"node '{by}' at {self._listed[by]}: {error}") from error
        except RefusedError as error:
            if error.resource == NAME_TAKEN:
                raise taken(self._name, by) from error
            self._said = str(error)
        except (BrokerError, KeyError, TypeError, ValueError) as error:
            self._said = str(error)
        return None


NAME_TAKEN: Final = "name of a node"
"""The resource of the refusal of a node that tries to join under a name that is in use."""


async def let_in(ask: AskNode, by: str, where: Address, name: str, at: Address) -> ClusterIdentity:
    """Request that a node lets this one into its cluster; nothing is changed here. Raises
    `PreconditionFailed` if it is not let in, or the other cannot be reached, and `Unavailable` if it cannot
    be decided now.
    """
    resource = f"node '{by}'"
    try:
        told = await ask((where.host, where.port), {"what": "look", "name": name}, LOOK_S)
        if told["name"] != by:
            raise PreconditionFailed(resource, f"node '{told['name']}' is at {where}, not node '{by}'")
        if told["cluster"] is None:
            raise Unavailable(resource, f"node '{by}' is in no cluster yet: try again when it is")
        if told["taken"]:
            raise PreconditionFailed(resource, str(taken(name, by)))
        return await _asked_to_join(ask, where, name, at)
    except RefusedError:
        raise
    except BrokerError as error:
        raise PreconditionFailed(resource, f"node '{by}' at {where}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise PreconditionFailed(resource, f"node '{by}' at {where} has not answered as a node") from error


async def _asked_to_join(ask: AskNode, where: Address, name: str, at: Address) -> ClusterIdentity:
    question = {
        "what": "join",
        "name": name,
        "host": at.host,
        "port": at.port,
        "version": __version__,
        "machines": list(carried_out()),
    }
    return ClusterIdentity.of(await ask((where.host, where.port), question, JOIN_S))


WHOLE_EACH_S: Final = 0.25
AGAIN_S: Final = 10.0


def prepare_folder(data: Data, config: Config, membership: ClusterIdentity) -> None:
    """Write a member of the metadata's group into a folder, unless it has one. Waits for the disk.

    The founder's catalog, with its configuration, becomes the cluster's. A joining node is empty: the leader
    sends it everything. Raises `StorageError` or `RefusedError` if the member cannot be written, and
    `ConfigError` for the definitions file.
    """
    log = data.catalog_log
    if transactions.is_member(log):
        return
    if membership.number != FIRST:
        transactions.joined(log, lambda key: key in OF_THE_NODE)
    else:
        scratch = Catalog(
            default_queue_type=config.default_queue_type,
            relaxed_quorum_checks=config.quorum_relaxed_checks_on_redeclaration,
            rules=config.rules,
            choose=random.randrange,
        )
        passwords = Passwords(scratch.users, secrets.token_bytes, config.password_hash_export)
        later = target_nodes(config.cluster_target_size, config.cluster_nodes) > 1
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
        transactions.found(log, member_id(FIRST), entries)
    log.sync()


async def declare_when_whole(
    config: Config,
    catalog: Catalog,
    propose: Callable[[CatalogRequest[Any]], Awaitable[Any]],
) -> None:
    """Declare the queues of the founder's configuration when the expected number of nodes runs. A conflict
    with a queue of a client is left out and logged; an unreadable file is tried again.
    """
    size, said = target_nodes(config.cluster_target_size, config.cluster_nodes), ""
    while catalog.cluster is not None and catalog.cluster.queues_due:
        if sum(node.incarnation > 0 and catalog.runs(node.number) for node in catalog.nodes.values()) < size:
            await trio.sleep(WHOLE_EACH_S)
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


BYTES_MIN: Final = 16
BYTES_MAX: Final = 255
_SOURCE: Final = "cluster_secret_file"


def read_secret(path: str) -> bytes:
    """Read the secret, without white space around it. Raises `ConfigError`."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            secret = file.read(2 * BYTES_MAX).strip()
    except OSError as error:
        raise ConfigError(
            f"{_SOURCE} {path}",
            f"cannot be read: {error.strerror}",
            "copy it from another node; of the first, make it with 'amqp10broker cluster new-secret FILE'",
        ) from error
    if portable.open_to_others(found):
        mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
        raise ConfigError(
            f"{_SOURCE} {path}", f"may be read by others ({mode})", "take that away with chmod 600"
        )
    if not BYTES_MIN <= len(secret) <= BYTES_MAX:
        raise ConfigError(
            f"{_SOURCE} {path}", f"holds {len(secret)} bytes", f"must hold {BYTES_MIN} to {BYTES_MAX}"
        )
    return secret
