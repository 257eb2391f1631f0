"""State that every node of a cluster shares with the others: alarms, and counts against limits.

It goes with heartbeats when it has changed. The alarms and counts of an unreachable node are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.runtime.observe.resource_monitor import ResourceMonitor


class Telling(Protocol):
    """The source and the receiver of shared state in the broker."""

    catalog: Catalog
    resource_monitor: ResourceMonitor


class NodeNotifications:
    def __init__(self, broker: Telling) -> None:
        self._broker = broker

    def told(self) -> dict[str, Any]:
        """Return this node's shared state; small, and equal if nothing has changed."""
        broker = self._broker
        return {
            "alarms": sorted(broker.resource_monitor.alarms.names()),
            "usage": broker.catalog.usage.limited(broker.catalog.vhosts.values(), broker.catalog.users),
        }

    def heard(self, node: int, notifications: Mapping[str, Any]) -> None:
        """Replace the shared state of another node."""
        alarms = notifications.get("alarms")
        known = [each for each in alarms if isinstance(each, str)] if isinstance(alarms, list) else []
        self._broker.resource_monitor.hear(node, frozenset(known))
        usage = notifications.get("usage")
        self._broker.catalog.usage.hear(node, usage if isinstance(usage, dict) else {})

    def lost(self, node: int) -> None:
        """A node cannot be reached."""
        self.heard(node, {})

    def alarms(self, me: int) -> Mapping[int, Collection[str]]:
        monitor = self._broker.resource_monitor
        return {me: monitor.alarms.names(), **monitor.elsewhere}
