"""Three real nodes, one of which has a full disk: publishers wait, and consumers make room."""

from __future__ import annotations

from pathlib import Path

import pika

from tests.support.cluster_network import CutCluster
from tests.support.crash_load import connected
from tests.support.pika_client import Inbox, get_all, put

COUNT = 40
HUGE = "x" * 6_000_000
"""Larger than all that is reserved."""


def test_while_the_leader_s_disk_is_full_publishes_wait_and_settlements_do_not(tmp_path: Path) -> None:
    """Both come from another node, in one link."""
    with CutCluster(tmp_path, 3, small_disks=True) as cluster:
        a, b, c = cluster.nodes

        def queue() -> tuple[str, int]:
            rows = cluster.ask(c, "queue", "list", "name", "leader", "messages")
            # The node may hear of the queue later than its client.
            found = ((row["leader"], row["messages"]) for row in rows if row["name"] == "q")
            return next(found, ("", 0))

        with connected(a) as at_a:
            at_a.channel().queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        with connected(b) as at_b, connected(b) as publishing:
            channel = at_b.channel()
            channel.confirm_delivery()
            cluster.wait_until(lambda: queue()[0] == a.name, "a leader")
            put(channel, "q", *map(str, range(COUNT)))
            cluster.fill(a)
            publishing.channel().basic_publish("", "q", HUGE.encode(), pika.BasicProperties(delivery_mode=2))
            cluster.wait_until(
                lambda: "disk" in str(cluster.ask(c, "cluster", "status")["alarms"]),
                "the disk counts as full",
            )
            inbox = Inbox(channel, "q")
            for message in inbox.take(COUNT // 2):
                channel.basic_ack(message.tag)
            channel.basic_cancel(inbox.tag)
            cluster.wait_until(lambda: queue() == (a.name, COUNT // 2), "what was settled is gone")
            cluster.make_room(a)
            cluster.wait_until(lambda: queue()[1] == COUNT // 2 + 1, "what had to wait")
        with connected(c) as at_c:
            left = get_all(at_c.channel(), "q")
        assert sorted(left, key=len)[-1] == HUGE
        assert set(left) - {HUGE} == set(map(str, range(COUNT // 2, COUNT)))
