"""Three real nodes get the next version of the broker, one after the other, under load (Y1 to Y4).

The next version is a double (`tests.support.next_version`). Load and notes are those of
`tests.support.cluster_load`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.queues.machine_version import NEWEST
from tests.integration.test_cluster_failover import declare
from tests.support import cluster_load
from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.crash_load import connected

pytestmark = pytest.mark.long

NOW, NEXT = "amqp10broker", "tests.support.next_version"


def install(node: ClusterNode, broker: str) -> None:
    words = shlex.split((node.folder / "command").read_text())
    words[words.index("-m") + 1] = broker
    (node.folder / "command").write_text(shlex.join(words) + "\n")


def run(cluster: ClusterProcess, node: ClusterNode, *words: str) -> None:
    done = cluster.run_command(node, *words)
    assert done.returncode == 0, (words, done.stdout, done.stderr)


def machine_versions(cluster: ClusterProcess, node: ClusterNode, queue: str) -> set[Any]:
    rows = cluster.ask(node, "queue", "quorum-status", queue) + cluster.ask(
        node, "cluster", "metadata-store-status"
    )
    return {row["Machine Version"] for row in rows}


def purged(node: ClusterNode, queue: str) -> tuple[int, int]:
    with connected(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", queue, b"text")
        told = channel.queue_purge(queue).method.message_count
        return told, channel.queue_declare(queue, passive=True).method.message_count


def refusals(node: ClusterNode) -> list[str]:
    """Return the log entries of a node about versions that do not fit."""
    return [str(each) for each in node.log() if f"carries out machine versions 1 to {NEWEST}" in str(each)]


def test_an_upgrade_node_by_node_under_load(tmp_path: Path) -> None:
    """Nothing is lost or out of order; the new version counts when all nodes have it, and for good then."""
    with ClusterProcess(tmp_path) as cluster:
        a, b, c = cluster.nodes
        notes = declare(a, "q", x_delivery_limit=1_000_000)
        declare(b, "probe")
        clients = cluster_load.started(
            [
                cluster_load.PikaPublisher([b, a, c], "pika", notes, pace_s=0.1),
                cluster_load.ProtonPublisher([c, a, b], "proton", notes, pace_s=0.1),
                cluster_load.PikaConsumer([a, c, b], "pika.consumer", notes),
                cluster_load.ProtonConsumer([b, c, a], "proton.consumer", notes),
            ]
        )

        def load(what: str) -> None:
            count = len(notes.confirmed) + 60
            cluster_load.wait_for(cluster, clients, lambda: len(notes.confirmed) > count, f"confirms {what}")

        load("before")
        for node in (c, b, a):
            other = cluster.others(node)[0]
            if node is a:
                assert machine_versions(cluster, other, "q") == {NEWEST}
                assert purged(other, "probe") == (3, 0)
            run(cluster, node, "check", "quorum-plus-one")
            run(cluster, node, "cluster", "drain")
            node.stop()
            install(node, NEXT)
            node.start()
            cluster.wait_until_up(at=other)
            load(f"with {node.name} upgraded")
        for queue in ("probe", "q"):
            cluster.wait_until(
                lambda queue=queue: machine_versions(cluster, b, queue) == {NEWEST + 1}, "the next"
            )
        assert [each["machine_versions"] for each in cluster.status(a)["versions"].values()] == [
            [1, NEWEST + 1]
        ] * 3
        assert [purged(node, "probe") for node in (a, b)] == [(0, 3), (0, 6)]
        load("in the next version")
        c.stop()
        install(c, NOW)
        c.start()
        cluster.wait_until(lambda: c.ended, "the older broker ends")
        assert f"the cluster uses version {NEWEST + 1}: install a newer broker at node 'c'" in refusals(c)[-1]
        refuses_a_new_node(cluster, tmp_path)
        install(c, NEXT)
        c.start()
        cluster.wait_until_up(at=a)
        load("with the newer one again")
        cluster_load.stop_all(clients)
        notes.look(cluster.look(c, notes))
        notes.check()
        notes.require_load(1.0, 1)
        cluster.check_logs(lambda entry: f"carries out machine versions 1 to {NEWEST}" in str(entry))


def refuses_a_new_node(cluster: ClusterProcess, tmp_path: Path) -> None:
    """Y3: an older node with an empty folder is refused, with one line of both ranges on both sides."""
    node = cluster.another(tmp_path, "d")
    install(node, NOW)
    node.start()
    cluster.wait_until(lambda: node.ended, "the new node ends")
    reason = (
        f"versions do not fit: node 'd' carries out machine versions 1 to {NEWEST}, and the cluster uses "
        f"version {NEWEST + 1}: "
        "install a newer broker at node 'd' (node '"
    )
    said = str(node.log()[-1]["reason"])
    assert reason in said
    assert said.endswith(f"' carries out 1 to {NEWEST + 1})")
    heard = [entry for member in cluster.nodes for entry in member.log() if entry.get("says_it_is") == "d"]
    assert any(reason in str(entry["reason"]) for entry in heard)
