"""Operations on the cluster as a whole: who is in it, what it is called, and having a node out of it."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.catalog.node_requests import ForgetNode, SetClusterName
from amqp10broker.errors import PreconditionFailed
from amqp10broker.management.caller import Caller, Job, Proposal
from amqp10broker.management.members import names, node_named, runs, shrink

LOOK_AGAIN_S: Final = 0.5
PRODUCT: Final = "amqp10broker"


def cluster_status(caller: Caller) -> dict[str, Any]:
    """The members of the cluster, and those that this node hears; with RabbitMQ's keys.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    node = caller.administered("cluster-status")
    catalog, named, here = caller.catalog, names(caller), node.cluster.number
    running = [name for number, name in named.items() if number == here or runs(caller, number)]
    facts = catalog.nodes
    return {
        "cluster_name": named[here] if catalog.cluster is None else catalog.cluster.name,
        "cluster_tags": [],
        "disk_nodes": list(named.values()),
        "running_nodes": running,
        "versions": {name: {PRODUCT: facts[name].version} for name in running if name in facts},
        "alarms": [
            {"node": named.get(number, f"node {number}"), "alarm": alarm}
            for number, alarms in node.cluster.alarms().items()
            for alarm in sorted(alarms)
        ],
        "partitions": {},
        "listeners": {
            name: [{"node": name, "protocol": "clustering", "interface": each.host, "port": each.port}]
            for name, each in facts.items()
            if name in running
        },
        "maintenance_status": {
            name: "under maintenance" if name in facts and facts[name].draining else "not under maintenance"
            for name in named.values()
        },
        "feature_flags": [],
    }


def await_online_nodes(caller: Caller, count: int, timeout: int) -> Job:
    """Wait until so many members of the cluster run.

    Raises:
        PreconditionFailed: they did not in all that time.
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("await-online-nodes").cluster

    def online() -> int:
        return sum(number == cluster.number or runs(caller, number) for number in names(caller))

    async def wait() -> dict[str, Any]:
        left = float(timeout)
        while online() < count:
            if left <= 0:
                raise PreconditionFailed(
                    "cluster",
                    f"timed out while waiting. Not enough nodes joined: {online()} of {count} run",
                )
            await cluster.pause(LOOK_AGAIN_S)
            left -= LOOK_AGAIN_S
        return {"running": online()}

    return Job(wait)


def set_cluster_name(caller: Caller, name: str) -> Proposal:
    """Give the cluster another name, for people.

    Raises:
        InvalidArgument: the name is empty.
        PreconditionFailed: this node is in no cluster.
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("set-cluster-name")
    return Proposal(SetClusterName(name), lambda done: {"name": name})


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
