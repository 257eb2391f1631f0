"""What nodes tell each other of themselves: alarms of one hold publishers back at all (B1, B2)."""

from __future__ import annotations

import pytest

from amqp10broker.metadata.plan import VhostLimits
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.cluster.cluster import Cluster
from tests.runtime.conftest import LogRecorder
from tests.support.declaring import add_vhost
from tests.support.trioclient import running_broker

pytestmark = pytest.mark.real_clock


def _in_cluster(broker: Broker) -> Cluster:
    cluster = Cluster.__new__(Cluster)
    cluster._node_context, cluster._catalog = broker, broker.catalog
    cluster.monitor = broker.resource_monitor
    return cluster


async def test_an_alarm_of_another_node_holds_publishers_back_until_it_ends_or_the_node_is_lost(
    log: LogRecorder,
) -> None:
    async with running_broker() as broker, running_broker() as other:
        here, there = _in_cluster(broker), _in_cluster(other)
        assert there.heartbeat()["alarms"] == []
        other.resource_monitor.set_alarm("memory", on=True)
        for lost in (False, True):
            here._hear(2, there.heartbeat())
            assert broker.alarms == {"memory"}
            assert broker.resource_monitor.elsewhere == {2: {"memory"}}
            # What it was told is not its own: it would never end.
            assert here.heartbeat()["alarms"] == []
            if lost:
                here._hear(2, {})
            else:
                here._hear(2, {"alarms": []})
            assert not broker.alarms


async def test_alarms_of_several_nodes_end_with_the_last(broker: Broker) -> None:
    cluster = _in_cluster(broker)
    broker.resource_monitor.set_alarm("disk", on=True)
    cluster._hear(2, {"alarms": ["memory"]})
    cluster._hear(3, {"alarms": ["memory"]})
    assert broker.alarms == {"disk", "memory"}
    cluster._hear(3, {})
    broker.resource_monitor.set_alarm("disk", on=False)
    assert broker.alarms == {"memory"}
    cluster._hear(2, {"alarms": []})
    assert not broker.alarms


async def test_what_counts_against_limits_is_told() -> None:
    async with running_broker() as broker, running_broker() as other:
        for each in (broker, other):
            add_vhost(each.catalog, "v", limits=VhostLimits(max_connections=1))
        vhost, user = other.catalog.vhosts["v"], other.catalog.users.lookup("guest")
        assert not _in_cluster(other).heartbeat()["usage"]["vhosts"]
        other.catalog.usage.open_connection(vhost, user)
        assert _in_cluster(other).heartbeat()["usage"]["vhosts"] == {"v": 1}
        other.catalog.usage.close_connection("v", "guest")
