"""What is declared in a cluster of three processes, as pika sees it at each of them.

The test cases are those of RabbitMQ's cluster_minority_SUITE and clustering_recovery_SUITE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.crash_load import connected
from tests.support.proton_client import Disconnected, ProtonClient

pytestmark = pytest.mark.integration

Channels = Callable[[ClusterNode], BlockingChannel]


@pytest.fixture
def channels() -> Iterator[Channels]:
    """A channel of a connection of its own at a node; all are closed in the end."""
    with ExitStack() as opened:
        yield lambda node: opened.enter_context(connected(node)).channel()


@pytest.fixture
def password(tmp_path: Path) -> str:
    """A file with the password ``secret``."""
    file = tmp_path / "password"
    file.write_text("secret\n")
    file.chmod(0o600)
    return str(file)


def is_there(channels: Channels, node: ClusterNode, queue: str) -> bool:
    """Whether a node knows a queue; also one that another connection has for itself."""
    try:
        channels(node).queue_declare(queue, passive=True)
    except ChannelClosedByBroker as error:
        if error.reply_code == 404:
            return False
        if error.reply_code != 405:
            raise
    return True


def test_what_is_declared_at_one_node_is_there_at_the_others(
    cluster: ClusterProcess, channels: Channels
) -> None:
    """M1: an exchange, a queue of each kind, a binding; each node declares them again."""
    a, b, c = cluster.nodes
    channel = channels(b)
    channel.exchange_declare("m1-x", "topic", durable=True)
    for kind in ("classic", "quorum", "stream"):
        channel.queue_declare(f"m1-{kind}", durable=True, arguments={"x-queue-type": kind})
        channel.queue_bind(f"m1-{kind}", "m1-x", "k")
    for node in (a, c):
        cluster.wait_until(lambda node=node: is_there(channels, node, "m1-stream"), f"it is at {node.name}")
        other = channels(node)
        other.exchange_declare("m1-x", "topic", durable=True)
        other.queue_declare("m1-classic", durable=True)
        with pytest.raises(ChannelClosedByBroker, match="inequivalent arg 'durable'"):
            channels(node).queue_declare("m1-classic", durable=False)


def test_a_user_added_at_one_node_logs_in_at_another(cluster: ClusterProcess, password: str) -> None:
    """U1; and no more when it was deleted at the third."""
    a, b, c = cluster.nodes
    assert cluster.run_command(a, "add-user", "ann", "--password-file", password).returncode == 0
    assert cluster.run_command(b, "set-permissions", "ann", ".*", ".*", ".*").returncode == 0

    def lets_in() -> bool:
        try:
            ProtonClient(c.port, user="ann", password="secret").close()
        except Disconnected:
            return False
        return True

    cluster.wait_until(lets_in, "ann logs in")
    assert cluster.run_command(b, "delete-user", "ann").returncode == 0
    cluster.wait_until(lambda: not lets_in(), "ann is gone")


def test_an_exclusive_queue_is_locked_at_every_node_and_goes_with_its_connection(
    cluster: ClusterProcess, channels: Channels
) -> None:
    """K8."""
    a, b, _ = cluster.nodes
    with connected(a) as owner:
        owner.channel().queue_declare("k8", exclusive=True)
        cluster.wait_until(lambda: is_there(channels, b, "k8"), "it is known elsewhere")
        with pytest.raises(ChannelClosedByBroker) as locked:
            channels(b).queue_declare("k8", durable=True)
        assert locked.value.reply_code == 405
    cluster.wait_until(lambda: not is_there(channels, b, "k8"), "it is gone")


def test_what_ends_with_a_killed_node_is_gone_and_its_name_is_free(
    cluster: ClusterProcess, channels: Channels
) -> None:
    """K7, M8."""
    a, b, _ = cluster.nodes
    owner = channels(a)
    owner.queue_declare("k7-exclusive", exclusive=True)
    owner.queue_declare("k7-durable", durable=True)
    cluster.wait_until(lambda: is_there(channels, b, "k7-exclusive"), "it is known elsewhere")
    a.kill()
    cluster.wait_until(lambda: not is_there(channels, b, "k7-exclusive"), "it is gone")
    channels(b).queue_declare("k7-exclusive", durable=True)
    a.start()
    cluster.wait_until(lambda: a.accepts, "it is up again")
    assert is_there(channels, a, "k7-durable")
    assert is_there(channels, a, "k7-exclusive")


def test_the_loss_of_one_node_stops_no_declaration(cluster: ClusterProcess, channels: Channels) -> None:
    """M7: each in turn, so the leader too; what was missed is there after the start (S5)."""
    for number, node in enumerate(cluster.nodes):
        others = cluster.others(node)
        channel = channels(others[0])
        node.kill()
        for each in range(20):
            channel.queue_declare(f"m7-{number}-{each}", durable=True)
        node.start()
        cluster.wait_until(lambda node=node: node.accepts, f"{node.name} is up")
        for each in range(20):
            assert is_there(channels, node, f"m7-{number}-{each}")


def test_all_nodes_killed_at_once_come_back_with_everything(
    cluster: ClusterProcess, channels: Channels
) -> None:
    """S2."""
    channel = channels(cluster.nodes[0])
    for number in range(30):
        channel.queue_declare(f"s2-{number}", durable=True)
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    for node in cluster.nodes:
        cluster.wait_until(lambda node=node: node.accepts, f"{node.name} is up")
        assert all(is_there(channels, node, f"s2-{number}") for number in (0, 29))
