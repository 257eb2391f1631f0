"""Commands for quorum queues over nodes: members, leaders, maintenance, and checks before a node is stopped.

Names, columns and exit codes are those of RabbitMQ's `rabbitmq-queues`, `rabbitmq-upgrade` and
`rabbitmq-diagnostics`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from amqp10broker.cli.calls import CommandCall
from amqp10broker.cli.exits import EXIT_OK, EXIT_SOFTWARE, EXIT_UNAVAILABLE
from amqp10broker.cli.waiting_view import without_leader

RESULT_COLUMNS: Final = ("vhost", "name", "size", "result")
BALANCE_COLUMNS: Final = ("Node name", "Number of quorum queues", "Number of streams")
STREAM_COLUMNS: Final = (
    *("role", "node", "epoch", "offset", "committed_offset", "committed_chunk_id", "first_offset", "readers"),
    "segments",
)
RAFT_COLUMNS: Final = (
    *("Node Name", "Raft State", "Membership", "Last Log Index", "Last Written", "Last Applied"),
    *("Commit Index", "Snapshot Index", "Term", "Machine Version"),
)


def _all_ok(rows: Any) -> int:
    return EXIT_OK if all(row["result"] == "ok" for row in rows) else EXIT_SOFTWARE


def _checked(result: Any) -> int:
    return EXIT_OK if result["result"] == "ok" else EXIT_UNAVAILABLE


def _added(arguments: argparse.Namespace, result: Any) -> str:
    done = "has a member" if result["added"] else "had a member already"
    return f"queue '{arguments.name}' {done} on {arguments.node}; it has {result['size']}"


def _deleted(arguments: argparse.Namespace, result: Any) -> str:
    done = "has no member" if result["deleted"] else "had no member"
    return f"queue '{arguments.name}' {done} on {arguments.node}; it has {result['size']}"


_call = partial(CommandCall, of_cluster=True)


def _rows(operation: str, columns: tuple[str, ...], **rest: Any) -> CommandCall:
    return _call(operation, lambda arguments, rows: None, columns=columns, **rest)


def _check(operation: str, **rest: Any) -> CommandCall:
    return _call(operation, lambda arguments, result: str(result["message"]), code=_checked, **rest)


def _said(what: str, said: Any) -> str:
    return f"{what} {said}" if isinstance(said, str) else f"machine versions {said[0]} to {said[1]}"


def _status(status: Any) -> str:
    # Names and order are RabbitMQ's.
    versions = [
        f"{name}: {', '.join(_said(what, said) for what, said in each.items())}"
        for name, each in status["versions"].items()
    ]
    alarms = [f"{each['alarm']} alarm on node {each['node']}" for each in status["alarms"]]
    listeners = [
        f"Node: {each['node']}, interface: {each['interface']}, port: {each['port']}, "
        f"protocol: {each['protocol']}, purpose: {each['purpose']}"
        for found in status["listeners"].values()
        for each in found
    ]
    lacking = status.get("queues_without_leader")
    leaderless = [("Queues without a leader", [without_leader(lacking)])] if lacking else []
    states = [f"Node: {name}, status: {state}" for name, state in status["maintenance_status"].items()]
    parts: tuple[tuple[str, list[str]], ...] = (
        ("Basics", [f"Cluster name: {status['cluster_name']}"]),
        ("Cluster Tags", status["cluster_tags"]),
        ("Disk Nodes", status["disk_nodes"]),
        ("Running Nodes", status["running_nodes"]),
        ("Versions", versions),
        ("Alarms", alarms),
        ("Network Partitions", []),
        ("Listeners", listeners),
        *leaderless,
        ("Maintenance status", states),
        ("Feature flags", status["feature_flags"]),
    )
    return "\n\n".join("\n".join([title, "", *(lines or ["(none)"])]) for title, lines in parts)


def _forgotten(done: Any) -> str:
    queues = ", ".join(f"'{row['name']}' in vhost '{row['vhost']}'" for row in done["failed"])
    failed = f"; its members of these quorum queues are still to be removed: {queues}" if queues else ""
    return f"node '{done['node']}' is out of the cluster{failed}"


CALLS: Final[Mapping[str, CommandCall]] = {
    "cluster-status": _call("cluster-status", lambda arguments, status: _status(status)),
    "await-online-nodes": _call(
        "await-online-nodes", lambda arguments, done: f"{done['running']} nodes of the cluster run"
    ),
    "has-reached-target-cluster-size": _check("has-reached-target-cluster-size"),
    "metadata-store-status": _rows("metadata-store-status", RAFT_COLUMNS),
    "set-cluster-name": _call(
        "set-cluster-name", lambda arguments, done: f"the cluster is called '{done['name']}'"
    ),
    "forget-cluster-node": _call("forget-cluster-node", lambda arguments, done: _forgotten(done)),
    "join-cluster": _call(
        "join-cluster",
        lambda arguments, done: (
            f"the node joins the cluster of node '{done['node']}'; what it had is gone"
            if done["joined"]
            else "The node is already a member of this cluster"
        ),
    ),
    "reset": _call("reset", lambda arguments, done: f"{_forgotten(done)}, has no data any more, and ends"),
    "force-reset": _call(
        "force-reset",
        lambda arguments, done: (
            f"node '{done['node']}' has no data any more, and ends; have another node forget it: "
            f"forget-cluster-node {done['node']}"
        ),
    ),
    "quorum-status": _rows("quorum-status", RAFT_COLUMNS),
    "add-member": _call("add-member", _added),
    "delete-member": _call("delete-member", _deleted),
    "grow": _rows("grow", RESULT_COLUMNS, code=_all_ok),
    "grow-to-count": _rows("grow-to-count", RESULT_COLUMNS, code=_all_ok),
    "shrink": _rows("shrink", RESULT_COLUMNS, code=_all_ok),
    "transfer-leadership": _call(
        "transfer-leadership", lambda arguments, done: f"{done['leader']} leads queue '{arguments.name}'"
    ),
    "rebalance": _rows("rebalance", BALANCE_COLUMNS),
    "force-shrink-member-to-current-member": _call(
        "force-shrink-member-to-current-member",
        lambda arguments, done: f"queue '{arguments.name}' has this node's member only; add others with grow",
    ),
    "force-all-queues-shrink-member-to-current-member": _rows(
        "force-all-queues-shrink-member-to-current-member", RESULT_COLUMNS, code=_all_ok
    ),
    "stream-status": _rows("stream-status", STREAM_COLUMNS),
    "add-replica": _call(
        "add-replica", lambda arguments, done: f"stream '{arguments.name}' is on {arguments.node} already"
    ),
    "delete-replica": _call(
        "delete-replica",
        lambda arguments, done: f"stream '{arguments.name}' had no replica on {arguments.node}",
    ),
    "restart-stream": _call(
        "restart-stream",
        lambda arguments, done: f"stream '{arguments.name}' is led by {done['leader']}, as before",
    ),
    "drain": _call(
        "drain",
        lambda arguments, done: (
            "the node is in maintenance: it accepts no clients and leads nothing; "
            "'amqp10broker revive' ends that, and so does a restart"
        ),
    ),
    "revive": _call("revive", lambda arguments, done: "the node is in service again"),
    "check-if-node-is-quorum-critical": _check("check-if-node-is-quorum-critical"),
    "await-online-quorum-plus-one": _check("await-online-quorum-plus-one"),
    "check-for-quorum-queues-without-an-elected-leader": _check(
        "check-for-quorum-queues-without-an-elected-leader"
    ),
    "check-if-new-quorum-queue-replicas-have-finished-initial-sync": _check(
        "check-if-new-quorum-queue-replicas-have-finished-initial-sync"
    ),
}

COMMANDS: Final = tuple(call.command(name) for name, call in CALLS.items())
