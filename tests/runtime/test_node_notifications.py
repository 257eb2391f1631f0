"""What nodes tell each other of themselves: alarms of one hold publishers back at all (B1, B2)."""

from __future__ import annotations

import pytest

from amqp10broker.metadata.plan import VhostLimits
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.cluster.cluster import NodeNotifications
from tests.runtime.conftest import LogRecorder
from tests.support.declaring import add_vhost
from tests.support.trioclient import running_broker

pytestmark = pytest.mark.real_clock


def _notifications(broker: Broker) -> NodeNotifications:
    return NodeNotifications(broker.catalog, broker.resource_monitor)


async def test_an_alarm_of_another_node_holds_publishers_back_until_it_ends_or_the_node_is_lost(
    log: LogRecorder,
) -> None:
    async with running_broker() as broker, running_broker() as other:
        here, there = _notifications(broker), _notifications(other)
        assert there.told()["alarms"] == []
        other.resource_monitor.set_alarm("memory", on=True)
        for lost in (False, True):
            here.heard(2, there.told())
            assert broker.alarms == {"memory"}
            assert here.alarms(1) == {1: frozenset(), 2: {"memory"}}
            # What it was told is not its own: it would never end.
            assert here.told()["alarms"] == []
            if lost:
                here.lost(2)
            else:
                here.heard(2, {"alarms": []})
            assert not broker.alarms


async def test_alarms_of_several_nodes_end_with_the_last(broker: Broker) -> None:
    notifications = _notifications(broker)
    broker.resource_monitor.set_alarm("disk", on=True)
    notifications.heard(2, {"alarms": ["memory"]})
    notifications.heard(3, {"alarms": ["memory"]})
    assert broker.alarms == {"disk", "memory"}
    notifications.lost(3)
    broker.resource_monitor.set_alarm("disk", on=False)
    assert broker.alarms == {"memory"}
    notifications.heard(2, {"alarms": []})
    assert not broker.alarms


async def test_what_counts_against_limits_is_told() -> None:
    async with running_broker() as broker, running_broker() as other:
        for each in (broker, other):
            add_vhost(each.catalog, "v", limits=VhostLimits(max_connections=1))
        vhost, user = other.catalog.vhosts["v"], other.catalog.users.lookup("guest")
        assert not _notifications(other).told()["usage"]["vhosts"]
        other.catalog.usage.open_connection(vhost, user)
        assert _notifications(other).told()["usage"]["vhosts"] == {"v": 1}
        other.catalog.usage.close_connection("v", "guest")
