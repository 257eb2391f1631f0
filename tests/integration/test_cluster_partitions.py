"""Three real nodes that all live, and whose network is cut: between some or all of them, one way or both.

What is sent over a cut waits, as it does in a real network, and comes when that is mended: after many seconds
a leader hears old words. One cluster, and one load, go through many cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ConnectionClosedByBroker

from amqp10broker.client import blocking
from amqp10broker.client.blocking import Management
from tests.support import cluster_load
from tests.support.broker_process import run_program
from tests.support.cluster_history import TotalQueue
from tests.support.cluster_network import CutCluster
from tests.support.cluster_process import ClusterNode, healed
from tests.support.crash_load import connected, declare_quorum
from tests.support.pika_client import until

SUSPECT_MS: Final = 500
DECIDE_MS: Final = 3000
OPTIONS: Final = ("--cluster-suspect-ms", str(SUSPECT_MS), "--cluster-decide-ms", str(DECIDE_MS))


@pytest.fixture(scope="module")
def shared_partitions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CutCluster]:
    with CutCluster(tmp_path_factory.mktemp("partitions"), options=OPTIONS) as process:
        yield process


@pytest.fixture
def cluster(shared_partitions: CutCluster) -> Iterator[CutCluster]:
    with healed(shared_partitions):
        yield shared_partitions


class Load:
    """A publisher and a consumer at each node, of all client libraries; none may lose its connection."""

    def __init__(self, cluster: CutCluster, queue: str) -> None:
        self.cluster = cluster
        self.notes = TotalQueue(queue)
        makers = (
            (cluster_load.PikaPublisher, cluster_load.ProtonConsumer),
            (cluster_load.ProtonPublisher, cluster_load.OwnConsumer),
            (cluster_load.OwnPublisher, cluster_load.PikaConsumer),
        )
        self.publishers: dict[str, cluster_load.ClusterClient] = {}
        self.consumers: dict[str, cluster_load.ClusterClient] = {}
        for node, (publisher, consumer) in zip(cluster.nodes, makers, strict=True):
            name, notes = node.name, self.notes
            self.publishers[name] = publisher([node], f"p-{name}", notes, steady=True, pace_s=0.05)
            self.consumers[name] = consumer([node], f"c-{name}", notes, steady=True, give_back=0)
        self.clients = [*self.publishers.values(), *self.consumers.values()]

    def confirmed(self, node: ClusterNode) -> int:
        return sum(name.startswith(f"p-{node.name}.") for name in list(self.notes.confirmed))

    def delivered(self, node: ClusterNode) -> int:
        return sum(each.life.startswith(f"c-{node.name}.") for each in list(self.notes.deliveries))

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        cluster_load.wait_for(self.cluster, self.clients, condition, what)

    def flows(self, *nodes: ClusterNode) -> None:
        for counted, what in ((self.confirmed, "confirms"), (self.delivered, "deliveries")):
            before = {node.name: counted(node) for node in nodes}
            for node in nodes:
                self.wait_until(
                    lambda node=node, counted=counted, before=before: counted(node) > before[node.name] + 5,
                    f"{what} at {node.name}",
                )

    def stands_still(self, node: ClusterNode, others: Sequence[ClusterNode]) -> None:
        """Wait until clients of a node get nothing more while those of the others make progress."""

        def still() -> bool:
            before = self.confirmed(node), self.delivered(node)
            self.flows(*others)
            return before == (self.confirmed(node), self.delivered(node))

        self.wait_until(still, f"{node.name} stands still")

    def leader(self, seer: ClusterNode) -> tuple[ClusterNode, int]:
        """Return the leader and its term, according to a node with a majority."""

        def found() -> Any:
            rows = self.cluster.ask(seer, "queue", "quorum-status", self.notes.queue)
            return [row for row in rows if row["Raft State"] == "leader"]

        (row,) = self.cluster.wait_until(found, f"a leader, as {seer.name} sees it")
        return self.cluster.node(row["Node Name"]), row["Term"]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "partitioned_publisher")
def test_whatever_is_cut_a_majority_goes_on_and_the_rest_waits(cluster: CutCluster, queue: str) -> None:
    """E9, W2, P1 to P4, C2, C6: no connection, message or order is lost; nothing is marked, or told twice."""
    network = cluster.network
    declare_quorum(cluster.nodes[0], queue)
    load = Load(cluster, queue)
    cluster_load.started(load.clients)
    load.flows(*cluster.nodes)

    # Between the leader and one other: both see the third, and the leader stays.
    leader, term = load.leader(cluster.nodes[0])
    for ways in ("both", "out", "in"):
        beyond, third = cluster.others(leader)
        if ways in ("both", "out"):
            network.cut_way(leader.name, beyond.name)
        if ways in ("both", "in"):
            network.cut_way(beyond.name, leader.name)
        cluster.wait_until(
            lambda leader=leader, beyond=beyond: beyond.name not in cluster.status(leader)["running_nodes"],
            f"{leader.name} misses {beyond.name} ({ways})",
        )
        load.flows(leader, third)
        assert load.leader(third) == (leader, term), f"cut {ways}: the leader does not stay"
        network.mend()
        load.flows(beyond)
        assert load.leader(third) == (leader, term), f"mended {ways}: the leader does not stay"

    # Connections that are reset are made anew.
    network.reset(leader.name, beyond.name)
    load.flows(*cluster.nodes)

    # The leader reaches no other, or hears none: the others have another one, and nothing is confirmed by it.
    for ways in ("both", "out", "in"):
        leader, term = load.leader(cluster.nodes[0])
        others = cluster.others(leader)
        for other in others:
            if ways in ("both", "out"):
                network.cut_way(leader.name, other.name)
            if ways in ("both", "in"):
                network.cut_way(other.name, leader.name)
        load.flows(*others)
        now, newer = load.leader(others[0])
        assert now in others, f"cut {ways}"
        assert newer > term, f"cut {ways}"
        load.stands_still(leader, others)
        network.mend()
        load.flows(*cluster.nodes)

    publishers = list(load.publishers.values())
    cluster_load.stop_all(publishers)
    notes = load.notes
    assert notes.confirmed == set(notes.published)
    load.wait_until(lambda: len(notes.removing) >= len(notes.confirmed), "everything consumed")
    cluster_load.stop_all(load.consumers.values())
    notes.look(cluster.look(cluster.nodes[1], notes))
    notes.check()
    assert (notes.content, notes.marked) == ([], set())


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "reconnect_consumer_and_publish",
    "reconnect_consumer_and_wait",
    "reconnect_consumer_and_wait_channel_down",
)
def test_what_a_consumer_beyond_a_cut_held_is_there_for_others_and_the_consumer_goes_on(
    cluster: CutCluster, queue: str
) -> None:
    """P3, E6: it is requeued after `x-consumer-disconnected-timeout`; a later ack has no effect."""
    a, b, _ = cluster.nodes
    names = [f"{queue}.{what}" for what in ("published", "waits", "closed")]
    arguments = {"x-queue-type": "quorum", "x-consumer-disconnected-timeout": 500}
    with connected(a) as here, connected(b) as there:
        at_a = here.channel()
        at_a.confirm_delivery()
        for name in names:
            at_a.queue_declare(name, durable=True, arguments=arguments)

        def ready(name: str) -> int:
            return int(at_a.queue_declare(name, passive=True).method.message_count)

        channels = {name: there.channel() for name in names}
        got: dict[str, list[tuple[int, bytes, bool]]] = {name: [] for name in names}

        def take(name: str, method: Any, body: bytes) -> None:
            got[name].append((method.delivery_tag, body, method.redelivered))

        for name, channel in channels.items():
            channel.basic_consume(name, lambda _, method, __, body, name=name: take(name, method, body))
            at_a.basic_publish("", name, b"held")
            until(channel, lambda name=name: got[name] == [(1, b"held", False)], f"{name} is delivered")
        cluster.network.cut(b.name)
        cluster.wait_until(lambda: [ready(name) for name in names] == [1, 1, 1], "others may have it")
        published, waits, closed = names
        channels[closed].close()
        cluster.network.mend()
        at_a.basic_publish("", published, b"new")
        wanted = {published: {(b"held", True), (b"new", False)}, waits: {(b"held", True)}}
        for name, what in wanted.items():
            channel = channels[name]
            until(
                channel,
                lambda name=name, what=what: {each[1:] for each in got[name][1:]} == what,
                f"{name} goes on",
            )
            channel.basic_ack(1)  # it was given up
            for tag, _, _ in got[name][1:]:
                channel.basic_ack(tag)
            channel.close()
        assert [len(got[name]) for name in names] == [3, 2, 1]
        assert [ready(published), ready(waits)] == [0, 0]
        cluster.wait_until(lambda: ready(closed) == 1, "nobody has it")
        method, _, body = at_a.basic_get(closed, auto_ack=True)
        assert (body, method.redelivered, method.message_count) == (b"held", True, 0)


def put_queue(node: ClusterNode, queue: str) -> tuple[int, Any]:
    with blocking.connect(node.host, node.port, user="guest", password="guest") as client:
        return Management(client).ask("PUT", f"/queues/{queue}", {"durable": True})


def test_a_node_that_is_cut_off_refuses_changes_and_does_the_rest(cluster: CutCluster, queue: str) -> None:
    """M4, M5, P2, P3: it answers 541 (0-9-1), 500 (1.0) or 75 (commands); later all of it succeeds."""
    a, b, _ = cluster.nodes
    with connected(a) as connection:
        channel = connection.channel()
        channel.queue_declare(f"{queue}.q", durable=True)
        channel.exchange_declare(f"{queue}.x", "fanout", durable=True)
        channel.queue_bind(f"{queue}.q", f"{queue}.x", "bound")
    cluster.network.cut(a.name)
    timeout = "because the operation timed out"
    quorum = {"x-queue-type": "quorum"}
    changes: dict[str, Callable[[BlockingChannel], object]] = {
        f"failed to declare queue '{queue}.1' in vhost '/', {timeout}": (
            lambda at: at.queue_declare(f"{queue}.1", durable=True)
        ),
        f"Could not declare queue '{queue}.2' in vhost '/' because the metadata store operation timed out": (
            lambda at: at.queue_declare(f"{queue}.2", durable=True, arguments=quorum)
        ),
        f"failed to declare queue '{queue}.3' in vhost '/', {timeout}": (
            lambda at: at.queue_declare(f"{queue}.3", exclusive=True)
        ),
        f"failed to declare exchange '{queue}.1' in vhost '/', {timeout}": (
            lambda at: at.exchange_declare(f"{queue}.1")
        ),
        f"failed to delete queue '{queue}.q' in vhost '/' due to a timeout": (
            lambda at: at.queue_delete(f"{queue}.q")
        ),
        f"failed to delete exchange '{queue}.x' in vhost '/' due to a timeout": (
            lambda at: at.exchange_delete(f"{queue}.x")
        ),
        "Could not add binding due to timeout": lambda at: at.queue_bind(f"{queue}.q", f"{queue}.x", "new"),
        "Could not remove binding due to timeout": (
            lambda at: at.queue_unbind(f"{queue}.q", f"{queue}.x", "bound")
        ),
    }

    def refused(change: Callable[[BlockingChannel], object]) -> tuple[int, str]:
        with connected(a) as connection, pytest.raises(ConnectionClosedByBroker) as closed:
            change(connection.channel())
        return closed.value.reply_code, closed.value.reply_text

    with ThreadPoolExecutor(len(changes) + 2) as pool:
        heard = {text: pool.submit(refused, change) for text, change in changes.items()}
        command = pool.submit(run_program, "queue", "declare", f"{queue}.4", "--port", str(a.port))
        answer = pool.submit(put_queue, a, f"{queue}.5")
        with connected(a) as connection:
            channel = connection.channel()
            channel.queue_declare(f"{queue}.q", durable=True)
            channel.queue_declare(f"{queue}.q", passive=True)
            channel.confirm_delivery()
            channel.basic_publish(f"{queue}.x", "", b"kept", pika.BasicProperties(delivery_mode=2))
            assert channel.basic_get(f"{queue}.q", auto_ack=True)[2] == b"kept"
        assert cluster.run_command(a, "queue", "list").returncode == 0
        for text, future in heard.items():
            code, said = future.result()
            assert (code, text in said) == (541, True), said
        assert command.result().returncode == 75, command.result()
        status, said = answer.result()
        assert (status, timeout in str(said)) == (500, True), said
    # Beyond the cut all goes on.
    with connected(b) as connection:
        connection.channel().exchange_declare(f"{queue}.there", "fanout", durable=True)
    cluster.network.mend()

    def knows() -> bool:
        return f"{queue}.there" in cluster.run_command(a, "exchange", "list").stdout

    cluster.wait_until(knows, "what was declared meanwhile is known")
    with connected(a) as connection:
        connection.channel().queue_declare(f"{queue}.1", durable=True)


def test_an_alarm_beyond_a_cut_holds_nobody_back(cluster: CutCluster, queue: str) -> None:
    """B1, B2, P4: publishers are blocked only at nodes that are connected to the one with the alarm."""
    a, b, c = cluster.nodes
    heard: list[str] = []
    with connected(a) as connection:
        connection.add_on_connection_blocked_callback(lambda *told: heard.append(told[1].method.reason))
        connection.add_on_connection_unblocked_callback(lambda *told: heard.append("unblocked"))
        channel = connection.channel()

        def told(last: str) -> bool:
            channel.basic_publish("", "nowhere", b"1")
            return heard[-1:] == [last]

        assert cluster.run_command(c, "alarm", "set", "memory", "on").returncode == 0
        try:
            until(channel, lambda: told("low on memory"), "blocked")
            cluster.network.cut(c.name, a.name)
            until(channel, lambda: told("unblocked"), "unblocked by the cut")
            assert cluster.ask(a, "alarm", "list") == []
            assert cluster.ask(b, "alarm", "list") == [{"node": "c", "alarm": "memory"}]
            cluster.network.mend()
            until(channel, lambda: told("low on memory"), "blocked again")
        finally:
            cluster.network.mend()
            assert cluster.run_command(c, "alarm", "set", "memory", "off").returncode == 0
        until(channel, lambda: told("unblocked"), "the alarm ends")
    # A machine at its limit may miss a node for a moment more often than it is cut off.
    assert heard == ["low on memory", "unblocked"] * (len(heard) // 2)
    assert len(heard) >= 4


def test_a_node_that_was_forgotten_beyond_a_cut_is_refused(cluster: CutCluster, queue: str) -> None:
    """J8: its data is not taken over when it comes back; with an empty folder it joins anew."""
    a, b, c = cluster.nodes
    declare_quorum(a, queue)
    cluster.network.cut(c.name)
    cluster.wait_until(lambda: "c" not in cluster.status(a)["running_nodes"], "c is missed")
    done = cluster.run_command(a, "cluster", "forget-node", "c")
    assert done.returncode == 0, done
    with connected(a) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"one")
    cluster.network.mend()
    assert {"name": queue, "members": ["a", "b"]} in cluster.ask(a, "queue", "list", "name", "members")
    # It does not know, and goes on as one in minority.
    with connected(c) as connection:
        inner = connection.channel()._impl
        confirmed: list[Any] = []
        inner.confirm_delivery(confirmed.append)
        inner.basic_publish("", queue, b"alone")
        with connected(b) as other:
            method, _, body = other.channel().basic_get(queue, auto_ack=True)
            assert (body, method.message_count) == (b"one", 0)
        connection.process_data_events(0)
        assert confirmed == []
    c.kill()
    c.start()
    cluster.wait_until(lambda: c.said("it was forgotten; give it an empty folder"), "it is refused")
    cluster.wait_until(lambda: c.pid is None, "it ends")
    assert cluster.status(a)["disk_nodes"] == ["a", "b"]
    c.empty()
    c.start()
    cluster.wait_until_up(c, at=a)
    assert cluster.status(c)["disk_nodes"] == ["a", "b", "c"]
