"""Operations on the cluster (status, name, members), and before and after the stop of a node.

Columns, keys and refusals are RabbitMQ's where it has the same concept. A node in no cluster is a cluster of
one. A missing node raises `NotFound`; a failed check is a result with a line for each reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Final

from amqp10broker.cluster.membership import is_critical
from amqp10broker.errors import PreconditionFailed, Unavailable
from amqp10broker.metadata.patterns import PatternSearch, check_bounded
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.vhost_requests import ForgetNode, SetClusterName
from amqp10broker.operations.members import (
    RAFT_COLUMNS,
    leader_number,
    member_nodes,
    quorum_queues,
    raft_rows,
    shrink,
)
from amqp10broker.operations.node import Caller, ClusterNode, GroupSeen, Steps
from amqp10broker.operations.operation import Check, Command, Name, NodeName, Vhost, operation

LOOK_AGAIN_S: Final = 0.25
CHIEF_S: Final = 5.0
"""The time limit for finding the leader of the metadata, without which a node cannot leave."""
NOT_DRAINED: Final = "not under maintenance"
PRODUCT: Final = "amqp10broker"

PURPOSES: Final = {
    "amqp": "AMQP 0-9-1 and AMQP 1.0",
    "amqp/ssl": "AMQP 0-9-1 and AMQP 1.0 over TLS",
    "clustering": "inter-node communication",
    "http": "HTTP API",
    "https": "HTTP API over TLS",
    "http/web-amqp": "AMQP over WebSocket",
    "https/web-amqp": "AMQP over WebSocket over TLS",
}

Document = dict[str, Any]


def _forgotten(done: Document) -> str:
    queues = ", ".join(f"'{row['name']}' in vhost '{row['vhost']}'" for row in done["failed"])
    failed = f"; its members of these quorum queues are still to be removed: {queues}" if queues else ""
    return f"node '{done['node']}' is out of the cluster{failed}"


@operation(
    "cluster-status",
    "cluster",
    changes=False,
    takes_s=60,
    command=Command("cluster status", "--formatter json", tool=True),
)
async def cluster_status(caller: Caller) -> Document:
    """Show the members of the cluster, which of them run, and where they listen.

    ``disk_nodes`` has all members, ``versions`` those of the broker, and the oldest and newest of the
    replicated machines that it supports; ``partitions`` (each group goes on where its majority is) and
    ``feature_flags`` are empty.
    """
    cluster = caller.node.cluster

    named = dict(sorted(caller.node_names().items(), key=lambda each: each[1]))
    told = {cluster.number: list_listeners.run(caller)}
    told |= await cluster.run_at_each(caller.other_nodes(), "list-listeners", {}, None)
    running = [number for number in named if number in told]  # others have stopped just now
    facts = {node.number: node for node in caller.catalog.nodes.values()}
    return {
        "cluster_name": caller.catalog.cluster_name(caller.node_name),
        "cluster_tags": [],
        "disk_nodes": list(named.values()),
        "running_nodes": [named[number] for number in running],
        "versions": {
            named[number]: {
                PRODUCT: facts[number].version,
                "machine_versions": list(facts[number].machines),
            }
            for number in running
            if number in facts
        },
        "alarms": [
            {"node": named.get(number, f"node {number}"), "alarm": alarm}
            for number, alarms in cluster.alarms().items()
            for alarm in sorted(alarms)
        ],
        "partitions": {},
        "listeners": {named[number]: told[number] for number in running},
        "maintenance_status": {
            name: "under maintenance" if number in facts and facts[number].draining else NOT_DRAINED
            for number, name in named.items()
        },
        "feature_flags": [],
        "queues_without_leader": without_leader(cluster),
    }


def without_leader(cluster: ClusterNode) -> Document:
    """Return the quorum queues here without a leader, and their elections; {}: none."""
    found = cluster.leaderless()
    if found is None:
        return {}
    return {"queues": found.queues, "names": list(found.names), "reason": found.reason}


@operation(
    "list-listeners", "node", changes=False, command=Command("cluster list-listeners", "--format plain")
)
def list_listeners(caller: Caller) -> list[Document]:
    """List where this node listens."""
    cluster = caller.node.cluster
    name = caller.node_names()[cluster.number]
    return [
        {"node": name, "interface": host, "port": port, "protocol": protocol, "purpose": PURPOSES[protocol]}
        for protocol, host, port in cluster.listeners()
    ]


@operation(
    "await-online-nodes",
    "cluster",
    changes=False,
    takes_s=3700,
    command=Command(
        "cluster await-online-nodes", "3 --timeout 60", "{running} nodes of the cluster run", tool=True
    ),
)
async def await_online_nodes(
    caller: Caller,
    count: Annotated[int, "members that shall run", Check(bounds=(1, 255))],
    timeout: Annotated[int, "seconds to wait", Check(bounds=(0, 3600))] = 300,
) -> Document:
    """Wait until so many members of the cluster run.

    Raises `PreconditionFailed` after the time-out.
    """
    cluster = caller.node.cluster

    left = float(timeout)
    while (online := sum(caller.runs(number) for number in caller.node_names())) < count:
        if left <= 0:
            raise PreconditionFailed(
                "cluster",
                f"timed out while waiting. Not enough nodes joined the cluster: {online} of {count} run",
            )
        await cluster.pause(LOOK_AGAIN_S)
        left -= LOOK_AGAIN_S
    return {"running": online}


@operation(
    "has-reached-target-cluster-size",
    "cluster",
    changes=False,
    command=Command("cluster has-reached-target-size", "", "{message}", tool=True),
)
def has_reached_target_cluster_size(caller: Caller) -> Document:
    """Fail if fewer nodes run than make the cluster whole.

    Returns ``{"result": "ok" | "error", "message": str}``, and on failure ``online`` and ``target``.
    """
    cluster = caller.node.cluster
    target, online = cluster.target_size, sum(caller.runs(number) for number in caller.node_names())
    me = caller.node_names()[cluster.number]
    if online >= target:
        return {"result": "ok", "message": f"Target cluster size has been reached on node {me}"}
    return {
        "result": "error",
        "message": f"Target cluster size on node {me} has not been reached: "
        f"{online} of {target} nodes are online",
        "online": online,
        "target": target,
    }


@operation(
    "metadata-store-status",
    "cluster",
    changes=False,
    command=Command("cluster metadata-store-status", "", columns=RAFT_COLUMNS, tool=True),
)
async def metadata_store_status(caller: Caller) -> list[Document]:
    """Show how each member of the group that has the metadata stands."""
    return await raft_rows(caller, None, caller.node_names())


@operation(
    "set-cluster-name",
    "cluster",
    command=Command("cluster set-name", "shop-production", "the cluster is called '{name}'", tool=True),
)
def set_cluster_name(caller: Caller, name: Name) -> Steps[Document]:
    """Give the cluster another name."""
    yield from caller.change(SetClusterName(name))
    return {"name": name}


@operation(
    "forget-cluster-node",
    "cluster",
    takes_s=3600,
    command=Command("cluster forget-node", "c", said=lambda given, done: _forgotten(done), tool=True),
)
def forget_cluster_node(caller: Caller, node: NodeName) -> Steps[Document]:
    """Take a node that does not run out of the cluster, for good.

    Returns ``{"node": name, "failed": [row]}``: queues of which its member could not be removed, as in
    `shrink`; they do not prevent it. Raises `PreconditionFailed` if it runs.
    """
    cluster = caller.node.cluster
    number = caller.node_named(node)
    name = caller.node_names()[number]
    if number == cluster.number or caller.runs(number):
        raise PreconditionFailed(
            f"node '{name}'", f"node '{name}' runs: stop it first, and give the command at another node"
        )
    rows: list[Document] = yield shrink.run(caller, name, True)
    yield from caller.change(ForgetNode(name))
    return {"node": name, "failed": _failed(rows)}


@operation(
    "join-cluster",
    "cluster",
    command=Command(
        "cluster join",
        "a=10.0.0.1:25672",
        said=lambda given, done: (
            f"the node joins the cluster of node '{done['node']}'; what it had is gone"
            if done["joined"]
            else "The node is already a member of this cluster"
        ),
        tool=True,
    ),
)
async def join_cluster(
    caller: Caller, node: Annotated[str, "a node of it: a name that --cluster-nodes has, or NAME=HOST:PORT"]
) -> Document:
    """Have this node, which is alone, join a cluster; its own data is gone then, and clients are closed.

    Returns ``{"node": name, "joined": bool}``; not joined: it is in that cluster already. Raises `BadRequest`
    if the node's address is not known, `PreconditionFailed` if it is this node, or cannot be reached, or this
    one is not alone, and `Unavailable` if the cluster cannot decide it now.
    """
    cluster = caller.node.cluster
    named = caller.node_names()
    me, name = named[cluster.number], node.partition("=")[0].partition("@")[0]
    if name == me:
        raise PreconditionFailed("cluster", f"cannot cluster node with itself: {name}")
    if name in named.values():
        return {"node": name, "joined": False}
    if len(named) > 1:
        raise PreconditionFailed(
            "cluster",
            f"node '{me}' is in a cluster with {', '.join(each for each in named.values() if each != me)}: "
            "take it out of that first, with 'amqp10broker cluster reset' at it",
        )
    cluster.begin_anew(await cluster.let_in_by(node))
    return {"node": name, "joined": True}


@operation(
    "reset",
    "cluster",
    command=Command(
        "cluster reset",
        "--port 5674",
        said=lambda given, done: f"{_forgotten(done)}, has no data any more, and ends",
        tool=True,
    ),
)
async def reset(caller: Caller) -> Document:
    """Have this node leave its cluster and lose all its data; its process ends.

    Raises `Unavailable` without a majority of the cluster; the node is still a member.
    """
    cluster = caller.node.cluster
    me = caller.node_names()[cluster.number]
    if not caller.other_nodes() and len(caller.node_names()) == 1:
        return _blank(cluster, me, [])
    left = CHIEF_S
    while cluster.chief() is None and left > 0:
        await cluster.pause(LOOK_AGAIN_S)
        left -= LOOK_AGAIN_S
    running = caller.other_nodes()
    if cluster.chief() is None or not running:
        raise Unavailable(
            "cluster",
            "the operation timed out: no majority of the cluster's nodes can be reached; node "
            f"'{me}' is a member still",
        )
    await cluster.leave()
    rows = await shrink.run(caller, me, True)
    chief = cluster.chief()
    await cluster.leave_by(chief if chief in running else running[0])
    return _blank(cluster, me, rows)


@operation(
    "force-reset",
    "cluster",
    command=Command(
        "cluster force-reset",
        "--port 5674",
        "node '{node}' has no data any more, and ends; have another node forget it: amqp10broker cluster "
        "forget-node {node}",
        tool=True,
    ),
)
def force_reset(caller: Caller) -> Document:
    """Have this node lose all its data; its process ends, and others must forget the node."""
    cluster = caller.node.cluster
    return _blank(cluster, caller.node_names()[cluster.number], [])


def _blank(cluster: ClusterNode, me: str, rows: list[Document]) -> Document:
    cluster.begin_anew(None)
    return {"node": me, "failed": _failed(rows)}


def _failed(rows: list[Document]) -> list[Document]:
    return [row for row in rows if row["result"] != "ok"]


LOOK_AT_DRAIN_S: Final = 0.5
LEADER_S: Final = 5.0
"""How long a queue may be without a leader before a check fails for it."""

METADATA: Final = {
    "readable_name": "the metadata store",
    "name": "metadata_store",
    "virtual_host": "(not applicable)",
    "type": "process",
}
"""The group of the metadata in lists of queues."""

Checked = dict[str, Any]
"""``{"result": "ok" | "error", "message": str, "queues": [{...}]}`` with RabbitMQ's keys: a line for each
queue for which the check fails; `queues` is absent on success.
"""


@operation(
    "drain",
    "node",
    takes_s=120,
    command=Command(
        "cluster drain",
        "",
        "the node is in maintenance: it accepts no clients and leads nothing; 'amqp10broker cluster revive' "
        "or a restart ends that",
        tool=True,
    ),
)
async def drain(caller: Caller) -> dict[str, bool]:
    """Take the node out of service: no clients, no leaders."""
    await caller.node.cluster.drain()
    return {"draining": True}


@operation("revive", "node", command=Command("cluster revive", "", "the node is in service again", tool=True))
async def revive(caller: Caller) -> dict[str, bool]:
    """Take the node back into service."""
    await caller.node.cluster.revive()
    return {"draining": False}


@operation(
    "check-if-node-is-quorum-critical",
    "node",
    changes=False,
    command=Command("check quorum-critical", "", "{message}", tool=True),
)
def check_quorum_critical(caller: Caller) -> Checked:
    """Fail if a quorum queue, or the metadata, would lose its majority without this node."""
    cluster = caller.node.cluster
    if len(caller.node_names()) == 1:
        return _passed("a cluster of one node: the check does not apply")
    if is_draining(caller, cluster):
        return _passed("the node is in maintenance: the check does not apply")
    me = caller.node_names()[cluster.number]
    return _found(
        list(critical_groups(caller, cluster)),
        f"would lose its majority without node '{me}'",
        f"without node '{me}' no quorum queue would lose its majority, nor the metadata store",
    )


@operation(
    "await-online-quorum-plus-one",
    "node",
    changes=False,
    takes_s=3700,
    command=Command("check quorum-plus-one", "--timeout 600", "{message}", tool=True),
)
async def await_online_quorum_plus_one(
    caller: Caller, timeout: Annotated[int, "seconds to wait", Check(bounds=(0, 3600))] = 120
) -> Checked:
    """Wait until the node can be stopped and nothing loses its majority."""
    cluster = caller.node.cluster

    left = float(timeout)
    while len(caller.node_names()) > 1 and (failed := list(critical_groups(caller, cluster))):
        if left <= 0:
            me = caller.node_names()[cluster.number]
            return _found(failed, f"still needs node '{me}' after {timeout} s", "")
        await cluster.pause(LOOK_AT_DRAIN_S)
        left -= LOOK_AT_DRAIN_S
    return _passed("every group with a member here has one more than its majority")


@operation(
    "check-for-quorum-queues-without-an-elected-leader",
    "node",
    changes=False,
    command=Command("check leaders", "'.*' --across-all-vhosts", "{message}", tool=True),
)
async def check_leaders(
    caller: Caller,
    pattern: Annotated[str, "regular expression, found anywhere in names of queues"],
    vhost: Vhost = None,
    across_all_vhosts: Annotated[bool, "queues of all virtual hosts"] = False,
) -> Checked:
    """Fail if a quorum queue has no leader.

    For queues without a member here, requests are sent to their members. Raises `InvalidArgument` if the
    pattern is not valid.
    """
    cluster = caller.node.cluster
    check_bounded((pattern,), "queues")
    name = caller.vhost.name if vhost is None else caller.catalog.lookup_vhost(vhost).name

    async def led(queue: DeclaredQueue) -> bool:
        if leader_number(caller, queue) is None:
            return False
        nodes = member_nodes(queue)
        if cluster.number in nodes:
            return True
        states = await cluster.member_states(queue, nodes)
        return any(each.state == "leader" for each in states.values())

    async def leaderless() -> list[DeclaredQueue]:
        queues = [each for each in quorum_queues(caller) if across_all_vhosts or each.vhost == name]
        finding = PatternSearch(pattern, "queues")
        asked = await finding.among(queues, lambda queue: queue.name, partial(cluster.pause, 0))
        return [queue for queue in asked if not await led(queue)]

    left = LEADER_S
    while (found := await leaderless()) and left > 0:
        await cluster.pause(LOOK_AT_DRAIN_S)
        left -= LOOK_AT_DRAIN_S
    failed = [_shown(queue) for queue in found]
    return _found(failed, "has no elected leader", "every quorum queue asked for has an elected leader")


@operation(
    "check-if-new-quorum-queue-replicas-have-finished-initial-sync",
    "node",
    changes=False,
    command=Command("check new-members", "", "{message}", tool=True),
)
def check_initial_sync(caller: Caller) -> Checked:
    """Fail if a member on this node is still to catch up."""
    cluster = caller.node.cluster
    failed = []
    for queue in quorum_queues(caller):
        group = cluster.group(queue)
        if group is not None and cluster.number in group.promotable:
            failed.append(_shown(queue))
    return _found(failed, "has a member here that is still to catch up", "every member here has caught up")


@operation("list-alarms", "node", changes=False, command=Command("alarm list", "--format json"))
def list_alarms(caller: Caller) -> list[dict[str, Any]]:
    """List alarms that are on, by node."""
    cluster = caller.node.cluster
    named = caller.node_names()
    return sorted(
        (
            {"node": named.get(number, f"node {number}"), "alarm": alarm}
            for number, alarms in cluster.alarms().items()
            for alarm in alarms
        ),
        key=lambda row: (row["node"], row["alarm"]),
    )


def is_draining(caller: Caller, cluster: ClusterNode) -> bool:
    """Return whether this node is in maintenance, as the cluster has recorded it."""
    node = caller.catalog.node_of(cluster.number)
    return node is not None and node.draining


def critical_groups(caller: Caller, cluster: ClusterNode) -> Iterator[dict[str, str]]:
    """Yield the groups here that would lose their majority without this node."""
    group = cluster.group(None)
    if group is not None and _needs(caller, cluster, group):
        yield METADATA
    for queue in quorum_queues(caller):
        group = cluster.group(queue)
        if group is not None and _needs(caller, cluster, group):
            yield _shown(queue)


def _needs(caller: Caller, cluster: ClusterNode, group: GroupSeen) -> bool:
    voters = set(group.voters)
    if cluster.number in group.promotable:
        voters.add(cluster.number)
    if cluster.number not in voters:
        return False
    return is_critical(sum(caller.runs(number) for number in voters), len(voters))


def _shown(queue: DeclaredQueue) -> dict[str, str]:
    return {
        "readable_name": f"queue '{queue.name}' in vhost '{queue.vhost}'",
        "name": queue.name,
        "virtual_host": queue.vhost,
        "type": queue.kind.name,
    }


def _passed(message: str) -> Checked:
    return {"result": "ok", "message": message}


def _found(failed: list[dict[str, str]], why: str, passed: str) -> Checked:
    if not failed:
        return _passed(passed)
    lines = [f"{each['readable_name']} {why}" for each in failed]
    return {"result": "error", "message": "\n".join(lines), "queues": failed}
