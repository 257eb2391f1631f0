"""Operations before a node is stopped, and after it was started: checks, drain and revive.

They are for administrators: users with that tag, and the machine's owner at the local socket. A check that
fails is a result with a line for each reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from amqp10broker.catalog.patterns import Finding, check_bounded
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.management.caller import Caller, Job
from amqp10broker.management.cluster_node import ClusterNode, GroupSeen
from amqp10broker.management.members import leader_number, member_nodes, names, quorum_queues, runs
from amqp10broker.replication.balance import is_critical

LOOK_AGAIN_S: Final = 0.5
LEADER_S: Final = 5.0
"""How long a queue may be without a leader until a check fails for it."""

METADATA: Final = {
    "readable_name": "the metadata store",
    "name": "metadata_store",
    "virtual_host": "(not applicable)",
    "type": "process",
}
"""The group of the metadata where a check shows it among queues."""

Check = dict[str, Any]
"""``{"result": "ok" | "error", "message": str, "queues": [{...}]}``, whose keys are RabbitMQ's: the message
has a line for each of the queues of which the check fails; they are left out if it does not."""


def check_quorum_critical(caller: Caller) -> Check:
    """Whether every group with a member here would keep its majority without this node.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("check-if-node-is-quorum-critical").cluster
    if len(names(caller)) == 1:
        return _passed("a cluster of one node: the check does not apply")
    if is_draining(caller, cluster):
        return _passed("the node is in maintenance: the check does not apply")
    me = names(caller)[cluster.number]
    return _found(
        list(critical_groups(caller, cluster)),
        f"would lose its majority without node '{me}'",
        f"without node '{me}' no quorum queue would lose its majority, nor the metadata store",
    )


def await_online_quorum_plus_one(caller: Caller, timeout: int) -> Job:
    """Wait until the node could be spared; the check fails if it could not in all that time.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("await-online-quorum-plus-one").cluster

    async def wait() -> Check:
        left = float(timeout)
        while len(names(caller)) > 1 and (failed := list(critical_groups(caller, cluster))):
            if left <= 0:
                return _found(
                    failed, f"still needs node '{names(caller)[cluster.number]}' after {timeout} s", ""
                )
            await cluster.pause(LOOK_AGAIN_S)
            left -= LOOK_AGAIN_S
        return _passed("every group with a member here has one more than its majority")

    return Job(wait)


def check_leaders(caller: Caller, pattern: str, vhost: str | None, across_all_vhosts: bool) -> Job:
    """Whether the quorum queues whose name matches have leaders.

    Of queues without a member here this node knows only what it heard last: their members are asked.

    Raises:
        InvalidArgument: the pattern is none.
        NotFound: there is no such virtual host.
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("check-for-quorum-queues-without-an-elected-leader").cluster
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
        finding = Finding(pattern, "queues")
        asked = await finding.among(queues, lambda queue: queue.name, partial(cluster.pause, 0))
        return [queue for queue in asked if not await led(queue)]

    async def wait() -> Check:
        left = LEADER_S
        while (found := await leaderless()) and left > 0:
            await cluster.pause(LOOK_AGAIN_S)
            left -= LOOK_AGAIN_S
        failed = [_shown(queue) for queue in found]
        return _found(failed, "has no elected leader", "every quorum queue asked for has an elected leader")

    return Job(wait)


def check_initial_sync(caller: Caller) -> Check:
    """Whether every member here that is to vote does.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("check-if-new-quorum-queue-replicas-have-finished-initial-sync").cluster
    failed = []
    for queue in quorum_queues(caller):
        group = cluster.group(queue)
        if group is not None and cluster.number in group.promotable:
            failed.append(_shown(queue))
    return _found(failed, "has a member here that is still to catch up", "every member here has caught up")


def drain(caller: Caller) -> Job:
    """Take the node out of service: it accepts no clients, closes those it has, and leads nothing.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("drain").cluster
    return Job(cluster.drain, lambda done: {"draining": True})


def revive(caller: Caller) -> Job:
    """Take the node back into service; leaders do not come back by themselves.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("revive").cluster
    return Job(cluster.revive, lambda done: {"draining": False})


def list_alarms(caller: Caller) -> list[dict[str, Any]]:
    """The alarms that are on, by node.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    cluster = caller.administered("list-alarms").cluster
    named = names(caller)
    return sorted(
        (
            {"node": named.get(number, f"node {number}"), "alarm": alarm}
            for number, alarms in cluster.alarms().items()
            for alarm in alarms
        ),
        key=lambda row: (row["node"], row["alarm"]),
    )


def is_draining(caller: Caller, cluster: ClusterNode) -> bool:
    """Whether this node is in maintenance, as the cluster knows it."""
    node = caller.catalog.node_of(cluster.number)
    return node is not None and node.draining


# --- helpers ----------------------------------------------------------------------------------------


def critical_groups(caller: Caller, cluster: ClusterNode) -> Iterator[dict[str, str]]:
    """The groups with a member here that would lose their majority without this node, as checks show them."""
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
    return is_critical(sum(runs(caller, number) for number in voters), len(voters))


def _shown(queue: DeclaredQueue) -> dict[str, str]:
    return {
        "readable_name": f"queue '{queue.name}' in vhost '{queue.vhost}'",
        "name": queue.name,
        "virtual_host": queue.vhost,
        "type": queue.kind.name,
    }


def _passed(message: str) -> Check:
    return {"result": "ok", "message": message}


def _found(failed: list[dict[str, str]], why: str, passed: str) -> Check:
    if not failed:
        return _passed(passed)
    lines = [f"{each['readable_name']} {why}" for each in failed]
    return {"result": "error", "message": "\n".join(lines), "queues": failed}
