"""The operation `doctor`: the checklist of production, evaluated on a running node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from amqp10broker.operations.caller import Caller
from amqp10broker.operations.checklist import ClusterSeen, Facts, PeerSeen, findings
from amqp10broker.operations.cluster_node import ClusterNode
from amqp10broker.operations.maintenance import critical_groups
from amqp10broker.operations.members import names, others, runs
from amqp10broker.operations.operation import Command, operation
from amqp10broker.operations.snapshot import document


@operation("doctor", "node", changes=False, command=Command("doctor", "--formatter json"))
async def doctor(
    caller: Caller, by_itself: Annotated[bool, "do not ask the other nodes of the cluster"] = False
) -> dict[str, Any]:
    """Say what of this node is not as it should be in production.

    Args:
        by_itself: send no requests to other nodes; facts that need them are unknown then.

    Returns:
        ``{"node": name, "at_ms": int, "boot_id": str | None, "checks": [{"check", "state", "evidence",
            "to_do"}]}``, the worst first; ``at_ms`` is the node's time, and nodes of one machine have the
            same ``boot_id``.

    Raises:
        PermissionDenied: the caller is not an administrator.
    """
    node = caller.node
    cluster = node.cluster

    before_ms = node.now_ms()
    asked = [] if by_itself else others(caller, cluster)
    answers = await cluster.run_at_each(asked, "doctor", {"by_itself": True}, None)
    after_ms = node.now_ms()
    seen = await node.inspect()
    named = names(caller)
    peers = tuple(_peers(answers, named, before_ms, after_ms))
    alarms = cluster.alarms().items()
    facts = Facts(
        seen=seen,
        cluster=replace(_cluster(caller, cluster), peers=peers, asked=not by_itself),
        alarms={named.get(number, f"node {number}"): tuple(on) for number, on in alarms if on},
        durable_queues=sum(queue.durable and not queue.exclusive for queue in caller.catalog),
        streams=sum(queue.kind.own_files and queue.home == cluster.number for queue in caller.catalog),
        formed=bool(caller.catalog.nodes),
    )
    return {
        "node": named[cluster.number],
        "at_ms": seen.at_ms,
        "boot_id": seen.boot_id,
        "checks": [document(each) for each in findings(facts)],
    }


def _cluster(caller: Caller, cluster: ClusterNode) -> ClusterSeen:
    named = names(caller)
    return ClusterSeen(
        me=named[cluster.number],
        nodes=tuple(sorted(named.values())),
        down=tuple(sorted(name for number, name in named.items() if not runs(caller, number))),
        critical=tuple(each["readable_name"] for each in critical_groups(caller, cluster)),
        versions={node.name: node.version for node in caller.catalog.nodes.values()},
        leaderless=cluster.leaderless(),
    )


def _peers(
    answers: Mapping[int, Any], named: Mapping[int, str], before_ms: int, after_ms: int
) -> Iterator[PeerSeen]:
    for number, told in answers.items():
        at_ms = int(told["at_ms"])
        # The other node may have read its clock at any moment between the two.
        ahead_ms = max(0, at_ms - after_ms) + min(0, at_ms - before_ms)
        yield PeerSeen(named[number], told["boot_id"], ahead_ms)
