"""Classic and exclusive queues in a cluster of real nodes: served at all nodes, gone with their own."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.crash_load import connected
from tests.support.pika_client import get_all, put, until
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.integration


def refusal(node: ClusterNode, call: Any) -> tuple[int, str]:
    """What the broker says when it closes a channel."""
    with connected(node) as connection:
        with pytest.raises(ChannelClosedByBroker) as closed:
            call(connection.channel())
        return closed.value.reply_code, closed.value.reply_text


def test_a_classic_queue_is_served_at_every_node(cluster: ClusterProcess, queue: str) -> None:
    """K1, K10, M1: declared at one, published at another, consumed at the third, in order."""
    a, b, c = cluster.nodes
    with connected(a) as connection:
        connection.channel().queue_declare(queue, durable=True)
    with connected(b) as one, connected(c) as other:
        channel = one.channel()
        channel.confirm_delivery()
        texts = [str(number) for number in range(200)]
        cluster.wait_until(lambda: _is_there(c, queue), "the queue at the third node")
        put(channel, queue, *texts)
        assert get_all(other.channel(), queue) == texts


def _is_there(node: ClusterNode, queue: str) -> bool:
    with connected(node) as connection:
        try:
            connection.channel().queue_declare(queue, passive=True)
        except ChannelClosedByBroker:
            return False
    return True


def test_the_node_of_a_classic_queue_is_lost_and_comes_back(cluster: ClusterProcess, queue: str) -> None:
    """K2, K3, K4, K6."""
    a, b, c = cluster.nodes
    persistent = pika.BasicProperties(delivery_mode=2)
    with connected(a) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        put(channel, queue, "kept", properties=persistent)
    cluster.wait_until(lambda: _is_there(b, queue) and _is_there(c, queue), "the queue at the others")
    client = ProtonClient(c.port)
    with connected(b) as connection:
        channel, confirming = connection.channel(), connection.channel()
        confirming.confirm_delivery()
        cancelled: list[Any] = []
        channel.add_on_cancel_callback(cancelled.append)
        got: list[bytes] = []
        channel.basic_consume(queue, lambda _, method, properties, body: got.append(body))
        until(channel, lambda: got == [b"kept"], "the message")
        end = client.receiver(f"/queues/{queue}", credit=10)
        a.kill()
        until(channel, lambda: cancelled, "basic.cancel")
        assert end.wait_refused() == "amqp:illegal-state"
        with pytest.raises(NackError):
            put(confirming, queue, "lost", properties=persistent, mandatory=True)
    client.close()
    for call in (
        lambda channel: channel.queue_declare(queue, durable=True),
        lambda channel: channel.queue_declare(queue, passive=True),
        lambda channel: channel.basic_get(queue),
        lambda channel: channel.queue_purge(queue),
    ):
        code, text = refusal(b, call)
        assert code == 404
        assert f"home node '{a.name}" in text
        assert "is down or inaccessible" in text
    refused = ProtonClient(c.port)
    assert refused.receiver(f"/queues/{queue}", wait=False).wait_refused() == "amqp:not-found"
    refused.close()
    a.start()
    cluster.wait_until_up()
    with connected(b) as connection:
        assert get_all(connection.channel(), queue) == ["kept"]


def test_an_exclusive_queue_is_locked_everywhere_and_goes_with_its_node(
    cluster: ClusterProcess, queue: str
) -> None:
    """K7, K8, M8: RESOURCE_LOCKED at whatever node; the name is free when the others have seen it go."""
    a, b, c = cluster.nodes
    with connected(a) as connection:
        connection.channel().queue_declare(queue, exclusive=True)
        cluster.wait_until(lambda: _code(b, queue) == 405, "the name at another node")
        assert refusal(c, lambda channel: channel.queue_declare(queue))[0] == 405
        a.kill()
        cluster.wait_until(lambda: _code(b, queue) is None, "the name free again")


def _code(node: ClusterNode, queue: str) -> int | None:
    """How a declaration of one's own is refused; None if it is not."""
    with connected(node) as connection:
        channel = connection.channel()
        try:
            channel.queue_declare(queue, passive=True)
        except ChannelClosedByBroker as error:
            if error.reply_code != 404:
                return int(error.reply_code)
        channel = connection.channel()
        try:
            channel.queue_declare(queue, exclusive=True)
        except ChannelClosedByBroker as error:
            return int(error.reply_code)
        return None


def test_an_exclusive_queue_ends_with_its_connection_at_every_node(
    cluster: ClusterProcess, queue: str
) -> None:
    """K8: and its name is usable at another node as soon as it is gone there."""
    a, b, _ = cluster.nodes
    with connected(a) as connection:
        connection.channel().queue_declare(queue, exclusive=True)
        cluster.wait_until(lambda: _code(b, queue) == 405, "the name at another node")
    cluster.wait_until(lambda: _code(b, queue) is None, "the name free again")
