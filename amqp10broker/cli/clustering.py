"""Commands of a cluster: its members, those of quorum queues, maintenance, checks before a node is stopped.

Names, columns and exit codes are those of RabbitMQ's `rabbitmq-queues`, `rabbitmq-upgrade` and
`rabbitmq-diagnostics`.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from amqp10broker.cli.calls import CommandCall, registered
from amqp10broker.cli.waiting_view import without_leader


def _said(what: str, said: Any) -> str:
    return f"{what} {said}" if isinstance(said, str) else f"machine versions {said[0]} to {said[1]}"


def _status(arguments: argparse.Namespace, status: Any) -> str:
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


COMMANDS: Final = registered((CommandCall("cluster-status", _status),), tool=True)
