"""Real nodes form a cluster, are looked at, lost, started again and forgotten; others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.cluster_process import ClusterNode, ClusterProcess, free_ports
from tests.support.crash_load import connected, publish

END_S: Final = 60.0


def bodies(node: ClusterNode, queue: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with connected(node) as connection:
        channel = connection.channel()
        for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=END_S):
            assert body is not None, f"only {found} came"
            found.append(body)
            if len(found) == count:
                break
        channel.cancel()
    return found


# --- using it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_of_one_node_is_used_at_the_others(cluster: ClusterProcess, kind: str) -> None:
    a, b, c = cluster.nodes
    name = f"formed-{kind}"
    assert cluster.run_command(a, "queue", "declare", name, "--type", kind).returncode == 0
    cluster.wait_until(lambda: name in cluster.run_command(b, "queue", "list").stdout, "it is known")
    publish(b, name, "one", "two")
    assert bodies(c, name, 2) == [b"one", b"two"]
    assert cluster.run_command(c, "queue", "delete", name).returncode == 0


def test_the_cluster_has_one_name_which_clients_hear(cluster: ClusterProcess) -> None:
    """N7: the name is the founder's unless another is given."""
    a, b, _ = cluster.nodes
    assert cluster.status(b)["cluster_name"] == "a"
    assert cluster.run_command(b, "cluster", "set-name", "shop").returncode == 0
    cluster.wait_until(lambda: cluster.status(a)["cluster_name"] == "shop", "the name at another node")
    with connected(a) as connection:
        assert connection._impl.server_properties["cluster_name"] == "shop"
    assert cluster.run_command(a, "cluster", "set-name", "a").returncode == 0


# --- looking at it --------------------------------------------------------------------------------


def test_each_node_shows_the_members_and_where_they_listen(cluster: ClusterProcess) -> None:
    for node in cluster.nodes:
        status = cluster.status(node)
        assert set(status["disk_nodes"]) == set(status["running_nodes"]) == {"a", "b", "c"}
        ports = {each["port"] for listeners in status["listeners"].values() for each in listeners}
        assert {each.port for each in cluster.nodes} <= ports
        assert set(status["maintenance_status"].values()) == {"not under maintenance"}
    rows = cluster.ask(cluster.nodes[1], "cluster", "metadata-store-status")
    assert sorted(row["Raft State"] for row in rows) == ["follower", "follower", "leader"]
    assert {row["Membership"] for row in rows} == {"voter"}
    assert cluster.run_command(cluster.nodes[2], "cluster", "await-online-nodes", "3").returncode == 0
    late = cluster.run_command(cluster.nodes[2], "cluster", "await-online-nodes", "4", "--timeout", "0")
    assert late.returncode == 70
    assert "Not enough nodes joined" in late.stderr


# --- losing nodes ---------------------------------------------------------------------------------


def test_a_killed_node_comes_back_by_its_own_command_line(cluster: ClusterProcess) -> None:
    """L2, M7, S5: the others go on without the metadata's leader; it catches up before it serves."""
    rows = cluster.ask(cluster.nodes[0], "cluster", "metadata-store-status")
    (lost,) = (cluster.node(row["Node Name"]) for row in rows if row["Raft State"] == "leader")
    one, other = cluster.others(lost)
    lost.kill()
    cluster.wait_until(lambda: lost.name not in cluster.status(one)["running_nodes"], "its end is seen")
    assert lost.name in cluster.status(one)["disk_nodes"]
    assert cluster.run_command(other, "queue", "declare", "missed", "--type", "quorum").returncode == 0
    with connected(one) as connection:
        channel = connection.channel()
        for number in range(20):
            channel.queue_declare(f"missed-{number}", durable=True)
    publish(one, "missed", "one")
    lost.start()
    cluster.wait_until_up(lost)
    assert bodies(lost, "missed", 1) == [b"one"]
    assert cluster.run_command(one, "queue", "delete", "missed").returncode == 0
    with connected(lost) as connection:
        channel = connection.channel()
        for number in range(20):
            channel.queue_declare(f"missed-{number}", passive=True)
            channel.queue_delete(f"missed-{number}")


# --- who is refused -------------------------------------------------------------------------------


def test_bad_input_is_refused_in_one_line_that_says_what_to_do(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    secret = tmp_path / "other"
    secret.write_text("another secret than that of the cluster\n")
    secret.chmod(0o600)
    assert "wrong secret" in cluster.another(tmp_path, "d", cluster_secret_file=str(secret)).refusal()
    secret.chmod(0o644)
    assert "chmod 600" in cluster.another(tmp_path, "d", cluster_secret_file=str(secret)).refusal()
    assert "cluster forget-node b" in cluster.another(tmp_path, "b").refusal()
    port = free_ports(1)
    own = f"a=127.0.0.1:{port + 20_000}"
    assert "own address" in cluster.another(tmp_path, "d", port, cluster_nodes=own).refusal()
    swapped = f"b=127.0.0.1:{cluster.nodes[0].cluster_port}"
    assert "where node 'a' is" in cluster.another(tmp_path, "d", cluster_nodes=swapped).refusal()
    # What was refused has left nothing behind.
    assert cluster.status(cluster.nodes[0])["disk_nodes"] == ["a", "b", "c"]


def test_a_node_joins_and_is_forgotten_and_comes_back_empty_only(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    a = cluster.nodes[0]
    assert cluster.run_command(a, "queue", "declare", "older", "--type", "quorum").returncode == 0
    publish(a, "older", "one")
    d = cluster.another(tmp_path, "d")
    d.start()
    try:
        cluster.wait_until_up(d, at=a)
        assert bodies(d, "older", 1) == [b"one"]
        (row,) = [
            each for each in cluster.ask(a, "queue", "list", "name", "members") if each["name"] == "older"
        ]
        assert "d" not in row["members"]
        assert cluster.run_command(a, "queue", "delete", "older").returncode == 0
        runs = cluster.run_command(a, "cluster", "forget-node", "d")
        assert runs.returncode == 70
        assert "runs: stop it first" in runs.stderr
        d.stop()
        cluster.wait_until(lambda: "d" not in cluster.status(a)["running_nodes"], "it has gone")
        done = cluster.run_command(a, "cluster", "forget-node", "d")
        assert done.returncode == 0, done
        assert cluster.status(a)["disk_nodes"] == ["a", "b", "c"]
        assert "it was forgotten; give it an empty folder" in d.refusal()
    finally:
        d.finish()


def test_a_single_node_with_transactions_on_quorum_queues_is_joined(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    """F5, J4: the queue and its transactions stay at its node, on the same channel."""
    alone = cluster.another(tmp_path, "alone", cluster_nodes=None)
    later = cluster.another(tmp_path, "later", cluster_nodes=f"alone=127.0.0.1:{alone.cluster_port}")
    alone.start()
    try:
        cluster.wait_until(lambda: alone.accepts, "the single node")
        with connected(alone) as connection:
            channel = connection.channel()
            channel.queue_declare("joined", durable=True, arguments={"x-queue-type": "quorum"})
            channel.tx_select()
            transact(channel, "before")
            later.start()
            cluster.wait_until_up(alone, later, at=alone)
            transact(channel, "behind")
        assert bodies(later, "joined", 2) == [b"before", b"behind"]
    finally:
        for node in (alone, later):
            node.finish()


def transact(channel: BlockingChannel, text: str) -> None:
    channel.basic_publish("", "joined", b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", "joined", text.encode())
    channel.tx_commit()
