"""Operations before a node is stopped, and after it was started: checks, drain and revive.

A failed check is a result with a line for each reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Final

from amqp10broker.cluster.placement import is_critical
from amqp10broker.metadata.patterns import PatternSearch, check_bounded
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.caller import Caller
from amqp10broker.operations.members import leader_number, member_nodes, names, quorum_queues, runs
from amqp10broker.operations.node import ClusterNode, GroupSeen
from amqp10broker.operations.operation import Check, Command, Vhost, operation

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

Checked = dict[str, Any]
"""``{"result": "ok" | "error", "message": str, "queues": [{...}]}`` with RabbitMQ's keys: the message has a
line for each of the queues for which the check fails; `queues` is absent on success.
"""


@operation(
    "drain",
    "node",
    takes_s=120,
    command=Command(
        "cluster drain",
        "",
        "the node is in maintenance: it accepts no clients and leads nothing; 'amqp10broker cluster revive' "
        "ends that, and so does a restart",
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
    while len(names(caller)) > 1 and (failed := list(critical_groups(caller, cluster))):
        if left <= 0:
            return _found(failed, f"still needs node '{names(caller)[cluster.number]}' after {timeout} s", "")
        await cluster.pause(LOOK_AGAIN_S)
        left -= LOOK_AGAIN_S
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
    pattern is not valid, and `NotFound` if the virtual host does not exist.
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
        await cluster.pause(LOOK_AGAIN_S)
        left -= LOOK_AGAIN_S
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
    """Return whether this node is in maintenance, as the cluster has recorded it."""
    node = caller.catalog.node_of(cluster.number)
    return node is not None and node.draining


def critical_groups(caller: Caller, cluster: ClusterNode) -> Iterator[dict[str, str]]:
    """Iterate over the groups with a member here that would lose their majority without this node."""
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


def _passed(message: str) -> Checked:
    return {"result": "ok", "message": message}


def _found(failed: list[dict[str, str]], why: str, passed: str) -> Checked:
    if not failed:
        return _passed(passed)
    lines = [f"{each['readable_name']} {why}" for each in failed]
    return {"result": "error", "message": "\n".join(lines), "queues": failed}
