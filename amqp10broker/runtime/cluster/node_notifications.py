"""State that every node of a cluster shares with the others: alarms, and counts against limits.

It goes with heartbeats when it has changed. The alarms and counts of an unreachable node are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.runtime.observe.resource_monitor import ResourceMonitor


class NodeNotifications:
    def __init__(self, catalog: Catalog, resource_monitor: ResourceMonitor) -> None:
        self._catalog = catalog
        self._resource_monitor = resource_monitor

    def told(self) -> dict[str, Any]:
        """Return this node's shared state; small, and equal if nothing has changed."""
        return {
            "alarms": sorted(self._resource_monitor.alarms.names()),
            "usage": self._catalog.usage.limited(self._catalog.vhosts.values(), self._catalog.users),
        }

    def heard(self, node: int, notifications: Mapping[str, Any]) -> None:
        """Replace the shared state of another node."""
        alarms = notifications.get("alarms")
        known = [each for each in alarms if isinstance(each, str)] if isinstance(alarms, list) else []
        self._resource_monitor.hear(node, frozenset(known))
        usage = notifications.get("usage")
        self._catalog.usage.hear(node, usage if isinstance(usage, dict) else {})

    def lost(self, node: int) -> None:
        """A node cannot be reached."""
        self.heard(node, {})

    def alarms(self, me: int) -> Mapping[int, Collection[str]]:
        monitor = self._resource_monitor
        return {me: monitor.alarms.names(), **monitor.elsewhere}
