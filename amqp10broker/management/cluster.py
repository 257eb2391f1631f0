"""Operations on the cluster itself: how it stands, its name, who is in it.

They are for administrators: users with that tag, and the machine's owner at the local socket. Columns, keys
and refusals are RabbitMQ's where it has the thing. A node in no cluster is shown as a cluster of one.
"""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.catalog.node_requests import ForgetNode, SetClusterName
from amqp10broker.errors import PreconditionFailed
from amqp10broker.management.caller import Caller, Job, Proposal
from amqp10broker.management.members import names, node_named, raft_row, runs, shrink

LOOK_AGAIN_S: Final = 0.25
NOT_DRAINED: Final = "not under maintenance"
PRODUCT: Final = "amqp10broker"

PURPOSES: Final = {
    "amqp": "AMQP 0-9-1 and AMQP 1.0",
    "amqp/ssl": "AMQP 0-9-1 and AMQP 1.0 over TLS",
    "clustering": "inter-node communication",
}

Document = dict[str, Any]


def cluster_status(caller: Caller) -> Job:
    """How the cluster stands, as this node sees it.

    Returns:
        ``cluster_name``, ``cluster_tags``, ``disk_nodes`` (all members), ``running_nodes``, ``versions``
        (of the broker, and the oldest and newest of the replicated machines that it carries out),
        ``alarms``, ``partitions`` (there are none: each group goes on where its majority is), ``listeners``,
        ``maintenance_status`` and ``feature_flags`` (there are none).

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("cluster-status").cluster

    async def found() -> Document:
        named = dict(sorted(names(caller).items(), key=lambda each: each[1]))
        others = [number for number in named if number != cluster.number and runs(caller, number)]
        told = {cluster.number: list_listeners(caller)}
        told |= await cluster.run_at_each(others, "list-listeners", {}, None)
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
        }

    return Job(found)


def list_listeners(caller: Caller) -> list[Document]:
    """Where this node listens.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("list-listeners").cluster
    name = names(caller)[cluster.number]
    return [
        {"node": name, "interface": host, "port": port, "protocol": protocol, "purpose": PURPOSES[protocol]}
        for protocol, host, port in cluster.listeners()
    ]


def await_online_nodes(caller: Caller, count: int, timeout: int) -> Job:
    """Wait until so many members run.

    Raises:
        PreconditionFailed: they did not in all that time.
        PermissionDenied: the caller is no administrator.
    """
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


def metadata_store_status(caller: Caller) -> Job:
    """How each member of the group of the metadata stands.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("metadata-store-status").cluster

    async def rows() -> list[Document]:
        named = names(caller)
        states = await cluster.member_states(None, named)
        found = [raft_row(named[number], state) for number, state in states.items()]
        return sorted(found, key=lambda row: str(row["Node Name"]))

    return Job(rows)


def set_cluster_name(caller: Caller, name: str) -> Proposal:
    """Give the cluster another name.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("set-cluster-name")
    return Proposal(SetClusterName(name), lambda answer: {"name": name})


def forget_cluster_node(caller: Caller, node: str) -> Job:
    """Have a node that will not come back out of the cluster, with its members of quorum queues.

    Returns:
        ``{"node": name, "failed": [row]}``: queues of which its member could not be removed, as `shrink` has
        them; they are no hindrance.

    Raises:
        NotFound: there is no such node.
        PreconditionFailed: it runs.
        PermissionDenied: the caller is no administrator.
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
        request = Proposal(ForgetNode(name), lambda done: {"node": name, "failed": failed})
        return request.carried_out(caller)

    return Job(shrinking.run, forget)
