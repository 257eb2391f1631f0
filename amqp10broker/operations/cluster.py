"""Operations on the cluster itself: status, name and members.

They are for administrators (users with that tag, and the machine's owner at the local socket), and raise
`PermissionDenied` for others. Columns, keys and refusals are RabbitMQ's where it has the same concept. A node
in no cluster is shown as a cluster of one. A missing node raises `NotFound`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqp10broker.errors import PreconditionFailed, Unavailable
from amqp10broker.metadata.node_requests import ForgetNode, SetClusterName
from amqp10broker.operations.caller import Caller, Job, ProposedChange
from amqp10broker.operations.cluster_node import ClusterNode
from amqp10broker.operations.members import names, node_named, others, raft_row, runs, shrink

if TYPE_CHECKING:
    from amqp10broker.cluster.bootstrap import ClusterIdentity

LOOK_AGAIN_S: Final = 0.25
CHIEF_S: Final = 5.0
"""Time limit of the wait for a leader of the metadata, without which a node cannot leave."""
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


def cluster_status(caller: Caller) -> Job:
    """Return the status of the cluster in the view of this node.

    Returns:
        ``cluster_name``, ``cluster_tags``, ``disk_nodes`` (all members), ``running_nodes``, ``versions`` (of
            the broker, and the oldest and newest of the replicated machines that it supports), ``alarms``,
            ``partitions`` (always empty: each group goes on where its majority is), ``listeners``,
            ``maintenance_status`` and ``feature_flags`` (always empty).
    """
    cluster = caller.administered("cluster-status").cluster

    async def found() -> Document:
        named = dict(sorted(names(caller).items(), key=lambda each: each[1]))
        told = {cluster.number: list_listeners(caller)}
        told |= await cluster.run_at_each(others(caller, cluster), "list-listeners", {}, None)
        running = [number for number in named if number in told]  # others have gone just now
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

    return Job(found)


def without_leader(cluster: ClusterNode) -> Document:
    """Return the quorum queues with a member here and without a leader, and their elections; {} if none."""
    found = cluster.leaderless()
    if found is None:
        return {}
    return {"queues": found.queues, "names": list(found.names), "reason": found.reason}


def list_listeners(caller: Caller) -> list[Document]:
    """List the addresses on which this node listens."""
    cluster = caller.administered("list-listeners").cluster
    name = names(caller)[cluster.number]
    return [
        {"node": name, "interface": host, "port": port, "protocol": protocol, "purpose": PURPOSES[protocol]}
        for protocol, host, port in cluster.listeners()
    ]


def await_online_nodes(caller: Caller, count: int, timeout: int) -> Job:
    """Wait until so many members run. Raises `PreconditionFailed` if the time-out."""
    cluster = caller.administered("await-online-nodes").cluster

    async def wait() -> Document:
        left = float(timeout)
        while (online := sum(runs(caller, number) for number in names(caller))) < count:
            if left <= 0:
                raise PreconditionFailed(
                    "cluster",
                    f"timed out while waiting. Not enough nodes joined the cluster: {online} of {count} run",
                )
            await cluster.pause(LOOK_AGAIN_S)
            left -= LOOK_AGAIN_S
        return {"running": online}

    return Job(wait)


def has_reached_target_cluster_size(caller: Caller) -> Document:
    """Return whether as many members run as make the cluster whole. Returns ``{"result": "ok" | "error",
    "message": str}``, and on failure ``online`` and ``target``.
    """
    cluster = caller.administered("has-reached-target-cluster-size").cluster
    target, online = cluster.target_size, sum(runs(caller, number) for number in names(caller))
    me = names(caller)[cluster.number]
    if online >= target:
        return {"result": "ok", "message": f"Target cluster size has been reached on node {me}"}
    return {
        "result": "error",
        "message": f"Target cluster size on node {me} has not been reached: "
        f"{online} of {target} nodes are online",
        "online": online,
        "target": target,
    }


def metadata_store_status(caller: Caller) -> Job:
    """Return the state of each member of the metadata's group."""
    cluster = caller.administered("metadata-store-status").cluster

    async def rows() -> list[Document]:
        named = names(caller)
        states = await cluster.member_states(None, named)
        found = [raft_row(named[number], state) for number, state in states.items()]
        return sorted(found, key=lambda row: str(row["Node Name"]))

    return Job(rows)


def set_cluster_name(caller: Caller, name: str) -> ProposedChange:
    """Change the name of the cluster."""
    caller.may_administer("set-cluster-name")
    return ProposedChange(SetClusterName(name), lambda answer: {"name": name})


def forget_cluster_node(caller: Caller, node: str) -> Job:
    """Remove a node that will not come back from the cluster, with its members of quorum queues. Returns
    ``{"node": name, "failed": [row]}``: queues of which its member could not be removed, as in `shrink`; they
    do not prevent the removal. Raises `PreconditionFailed` if it runs.
    """
    cluster = caller.administered("forget-cluster-node").cluster
    number = node_named(caller, node)
    name = names(caller)[number]
    if number == cluster.number or runs(caller, number):
        raise PreconditionFailed(
            f"node '{name}'", f"node '{name}' runs: stop it first, and give the command at another node"
        )
    shrinking = shrink(caller, name, True)

    def forget(rows: Any) -> Any:
        failed = [row for row in rows if row["result"] != "ok"]
        request = ProposedChange(ForgetNode(name), lambda done: {"node": name, "failed": failed})
        return request.carried_out(caller)

    return Job(shrinking.run, forget)


def join_cluster(caller: Caller, node: str) -> Job | Document:
    """Let this node, which must be alone, join the cluster of another, and lose all its data.

    Returns:
        ``{"node": name, "joined": bool}``; not joined: it is in that cluster already.

    Raises:
        BadRequest: the node's address is not known.
        PreconditionFailed: it is this node, or cannot be reached; or this one is in a cluster with others.
        Unavailable: the cluster cannot decide it now; nothing was changed.
    """
    cluster = caller.administered("join-cluster").cluster
    named = names(caller)
    me, name = named[cluster.number], node.partition("=")[0].partition("@")[0]
    if name == me:
        raise PreconditionFailed("cluster", f"cannot cluster node with itself: {name}")
    if name in named.values():
        return {"node": name, "joined": False}
    if len(named) > 1:
        raise PreconditionFailed(
            "cluster",
            f"node '{me}' is in a cluster with {', '.join(each for each in named.values() if each != me)}: "
            "take it out of that first, with 'amqp10broker reset' at it",
        )

    def join(membership: ClusterIdentity) -> Document:
        cluster.begin_anew(membership)
        return {"node": name, "joined": True}

    return Job(lambda: cluster.let_in_by(node), join)


def reset(caller: Caller) -> Job:
    """Let this node leave its cluster, lose all its data, and end.

    Its leaderships are handed over, and its members of quorum queues removed, before. Raises `Unavailable` if
    there is no majority of the cluster; the node is still a member.
    """
    cluster = caller.administered("reset").cluster
    me = names(caller)[cluster.number]

    async def leave() -> list[Document]:
        if not others(caller, cluster) and len(names(caller)) == 1:
            return []
        left = CHIEF_S
        while cluster.chief() is None and left > 0:
            await cluster.pause(LOOK_AGAIN_S)
            left -= LOOK_AGAIN_S
        running = others(caller, cluster)
        if cluster.chief() is None or not running:
            raise Unavailable(
                "cluster",
                "the operation timed out: no majority of the cluster's nodes can be reached; node "
                f"'{me}' is a member still",
            )
        await cluster.leave()
        rows: list[Document] = await shrink(caller, me, True).run()
        chief = cluster.chief()
        await cluster.leave_by(chief if chief in running else running[0])
        return rows

    return Job(leave, lambda rows: _blank(cluster, me, rows))


def force_reset(caller: Caller) -> Document:
    """Let this node lose all its data, and end; the other nodes are not notified, and must forget it."""
    cluster = caller.administered("force-reset").cluster
    return _blank(cluster, names(caller)[cluster.number], [])


def _blank(cluster: ClusterNode, me: str, rows: list[Document]) -> Document:
    cluster.begin_anew(None)
    return {"node": me, "failed": [row for row in rows if row["result"] != "ok"]}
