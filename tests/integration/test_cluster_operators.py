"""What an operator does to three real nodes, one after the other: stops, restarts, coming and going.

The tests share a cluster and leave it whole; what has no majority is refused after 3 s here.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.test_cluster_operations import declare, drained, leader, publish, ready, run, states
from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.xdist_group("cluster")

END_S = 60.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder: Path = tmp_path_factory.mktemp("operators")
    founding = {"queues": [{"name": "founding", "vhost": "/", "type": "quorum"}]}
    (folder / "definitions").write_text(json.dumps(founding))
    options = ["--cluster-decide-ms", "3000", "--definitions", str(folder / "definitions")]
    with ClusterProcess(folder, 3, options) as process:
        yield process
        process.check_logs()


def count(nodes: ClusterProcess, queue: str, at: str) -> int:
    rows = nodes.ask(nodes.node(at), "queue", "list", "name", "messages")
    return int(next(row["messages"] or 0 for row in rows if row["name"] == queue))


def two_members(nodes: ClusterProcess, name: str) -> None:
    """Declare a queue at b and c, so that it has no majority without c."""
    declare(nodes, name, 1, at="b")
    run(nodes, "b", "member", "add", name, "c", "--membership", "voter", "--timeout", "20")


def test_queues_of_the_founders_configuration_have_all_their_members(nodes: ClusterProcess) -> None:
    """F7: they are declared when all nodes of the list run, and not by the first alone."""
    nodes.wait_until(lambda: "founding" in run(nodes, "c", "queue", "list", "name"), "it is declared")
    assert set(states(nodes, "founding")) == {"a", "b", "c"}
    # The queue is there as soon as two have agreed on it: b may hear the third later.
    target = ("cluster", "has-reached-target-size")
    nodes.wait_until(lambda: nodes.run_command(nodes.node("b"), *target).returncode == 0, "b hears all")
    assert "has been reached on node b" in run(nodes, "b", *target)


def test_definitions_are_those_of_all_nodes(nodes: ClusterProcess, tmp_path: Path) -> None:
    """U3: an export is the same anywhere, an import is for all nodes; a second one changes nothing."""
    declare(nodes, "defined", 3)
    exported = json.loads(run(nodes, "a", "definitions", "export", "-"))
    exported["exchanges"].append(
        {
            "name": "imported.x",
            "vhost": "/",
            "type": "direct",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        }
    )
    exported["bindings"].append(
        {
            "source": "imported.x",
            "vhost": "/",
            "destination": "defined",
            "destination_type": "queue",
            "routing_key": "k",
            "arguments": {},
        }
    )
    (tmp_path / "definitions").write_text(json.dumps(exported))
    for at in ("c", "b"):
        run(nodes, at, "definitions", "import", str(tmp_path / "definitions"))

    def in_order(at: str) -> Any:
        found = json.loads(run(nodes, at, "definitions", "export", "-"))
        return {key: sorted(each, key=str) if isinstance(each, list) else each for key, each in found.items()}

    nodes.wait_until(lambda: in_order("a") == in_order("b") == in_order("c"), "all have the same")
    assert [each["destination"] for each in in_order("a")["bindings"]] == ["defined"]
    node = nodes.node("a")
    with pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("imported.x", "k", b"1", mandatory=True)
    assert drained(nodes.node("b"), "defined") == [1]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "declare_during_node_down", "policy_repair")
def test_a_node_that_is_stopped_says_so_and_hands_over_and_comes_back(nodes: ClusterProcess) -> None:
    """F7, S4, S6, Q7, U2: its clients get the reason, and its queues can change while it is down."""
    a, c = nodes.node("a"), nodes.node("c")
    for name in ("stops", "gone", "again"):
        declare(nodes, name, 3, at="c")
    publish(a, "gone", 3)
    publish(a, "again", 3)
    for name in ("waits", "forced"):
        two_members(nodes, name)
    run(nodes, "a", "policy", "set", "short", "^stops$", '{"max-length": 2}')
    publish(nodes.node("b"), "stops", 5)
    nodes.wait_until(lambda: count(nodes, "stops", "b") == 2, "a policy of another node acts at the leader")
    older = pika.BlockingConnection(pika.ConnectionParameters(c.host, c.port))
    newer = ProtonClient(c.port)
    os.kill(c.pid or 0, signal.SIGTERM)
    assert newer.wait_closed()[0] == "amqp:connection:forced"
    with pytest.raises(pika.exceptions.ConnectionClosed) as closed:
        older.process_data_events(time_limit=END_S)
    newer.wait_disconnected()
    assert closed.value.args[0] == 320
    assert "the broker is shutting down" in closed.value.args[1]
    nodes.wait_until(lambda: c.pid is None, "it has ended")
    assert leader(nodes, "stops") in ("a", "b")
    assert "2 of 3 nodes are online" in run(nodes, "a", "cluster", "has-reached-target-size", code=69)
    (handed,) = [each for each in c.log() if each["event"] == "leaderships were handed over"]
    assert handed["kept"] == 0
    led = ("check", "leaders", "^waits$")
    nodes.wait_until(
        lambda: "'waits' in vhost '/' has no" in nodes.run_command(nodes.node("b"), *led).stdout, "no leader"
    )
    run(nodes, "a", "queue", "delete", "gone")
    run(nodes, "a", "queue", "delete", "again")
    run(nodes, "a", "queue", "delete", "forced")
    declare(nodes, "again", 3)
    publish(a, "again", 1, first=9)
    run(nodes, "a", "policy", "set", "late", "^waits$", '{"max-length": 1}')
    c.start()
    nodes.wait_until_up()
    assert "no queue 'gone'" in run(nodes, "c", "queue", "quorum-status", "gone", code=67)
    assert "no queue 'forced'" in run(nodes, "c", "queue", "quorum-status", "forced", code=67)
    nodes.wait_until(lambda: states(nodes, "again", "c").get("c") == ("follower", "voter"), "its member runs")
    run(nodes, "b", "member", "transfer-leadership", "again", "c")
    assert drained(c, "again") == [9]
    publish(a, "waits", 3)
    nodes.wait_until(lambda: count(nodes, "waits", "a") == 1, "a policy acts that was set without a leader")


def needed(nodes: ClusterProcess, node: ClusterNode) -> int:
    found = json.loads(run(nodes, node.name, "status", "--format", "json"))
    return int(found["broker"]["journal"]["live_bytes"])


@pytest.mark.long
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "cleanup_data_dir", "leadership_takeover", "metrics_cleanup_on_leader_crash"
)
def test_the_leadership_goes_round_while_one_node_after_the_other_is_away(nodes: ClusterProcess) -> None:
    """S2, S5, S6: nothing is lost; a killed leader that is back shows and keeps nothing deleted."""
    a, b, c = nodes.nodes
    for name in ("round", "left"):
        declare(nodes, name, 3, at="b")
    publish(a, "round", 1)
    with pika.BlockingConnection(pika.ConnectionParameters(a.host, a.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(10):
            channel.basic_publish("", "left", bytes(100_000))
    assert ready(b, "round") == 1
    assert needed(nodes, b) > 1_000_000
    b.kill()
    # What has no leader is refused after 3 s here.
    nodes.wait_until(lambda: leader(nodes, "round") in ("a", "c"), "another one leads")
    publish(a, "round", 2, first=1)
    nodes.wait_until(
        lambda: nodes.run_command(a, "queue", "delete", "left").returncode in (0, 67), "the queue is deleted"
    )
    for back, goes, stays in ((b, c, a), (c, a, b)):
        goes.stop()
        back.start()
        nodes.wait_until_up(stays, back)
        nodes.wait_until(
            lambda stays=stays, back=back: {ready(stays, "round"), ready(back, "round")} == {3, None},
            "who leads shows all of it, and who follows nothing",
        )
        nodes.wait_until(lambda back=back: needed(nodes, back) < 1_000_000, "what was deleted is not kept")
    a.start()
    nodes.wait_until_up()
    assert drained(b, "round") == [0, 1, 2]


def test_a_running_node_joins_and_leaves(nodes: ClusterProcess, tmp_path: Path) -> None:
    """J1 to J3, J5, S3: in minority it stays alone; a node that waits for others answers its owner only."""
    a, b, c = nodes.nodes
    address = f"a=127.0.0.1:{a.cluster_port}"
    declare(nodes, "older", 3)
    publish(a, "older", 1)
    d = nodes.another(tmp_path, "d", cluster_nodes=None)
    d.start()
    try:
        nodes.wait_until(lambda: d.accepts, "it serves")

        def at_d(*words: str, code: int = 0) -> str:
            done = nodes.run_command(d, *words)
            assert done.returncode == code, (words, done)
            return done.stdout + done.stderr

        at_d("queue", "declare", "mine")
        assert "cannot cluster node with itself: d" in at_d("cluster", "join", "d", code=70)
        assert "give it as NAME=HOST:PORT" in at_d("cluster", "join", "a", code=64)
        b.kill()
        c.kill()
        assert "no majority" in at_d("cluster", "join", address, code=75)
        assert "mine" in at_d("queue", "list", "name")
        assert "is a member still" in run(nodes, "a", "cluster", "reset", code=75)
        a.kill()
        a.start()
        # It has an owner's socket before it has a majority, and no port for clients.
        nodes.wait_until(
            lambda: nodes.run_command(a, "cluster", "status").returncode == 0, "the process of it answers"
        )
        assert nodes.ask(a, "cluster", "status")["running_nodes"] == ["a"]
        assert not a.accepts
        assert nodes.run_command(a, "ping").returncode == 1
        b.start()
        c.start()
        nodes.wait_until_up()
        client = pika.BlockingConnection(pika.ConnectionParameters(d.host, d.port))
        at_d("cluster", "join", address)
        with pytest.raises(pika.exceptions.ConnectionClosed, match="shutting down"):
            client.process_data_events(time_limit=END_S)
        nodes.wait_until_up(d, at=a)
        assert nodes.status(d)["disk_nodes"] == ["a", "b", "c", "d"]
        assert "already a member of this cluster" in at_d("cluster", "join", "a")
        assert "mine" not in at_d("queue", "list", "name")
        assert drained(d, "older") == [0]
        nodes.wait_until_up(d, at=b)
        run(nodes, "b", "member", "add", "older", "d", "--membership", "voter", "--timeout", "20")
        run(nodes, "b", "member", "transfer-leadership", "older", "d")
        assert "has no data any more" in at_d("cluster", "reset")
        nodes.wait_until(lambda: d.ended, "it has ended")
        assert d.exit_code == 0
        assert nodes.status(a)["disk_nodes"] == ["a", "b", "c"]
        assert set(states(nodes, "older", "b")) <= {"a", "b", "c"}
        publish(b, "older", 1, first=1)
        assert drained(c, "older") == [1]
    finally:
        d.finish()
