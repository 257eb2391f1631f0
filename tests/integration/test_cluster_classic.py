"""Classic and exclusive queues in a cluster of real nodes: served at all nodes, gone with their own."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError
from proton import Delivery, Described, Link, Message, Terminus, symbol
from rabbitmq_amqp_python_client import Environment

from amqp10broker.protocols.amqp10 import performatives as amqp10
from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.crash_load import connected, is_there
from tests.support.pika_client import Inbox, get_all, put, until
from tests.support.proton_client import ProtonClient
from tests.support.rawframes import attach_receiver, attach_sender, credit, disposition, transfer
from tests.support.rawsocket import RawSocket
from tests.support.transacting import control, request


def refusal(node: ClusterNode, call: Any) -> tuple[int, str]:
    with connected(node) as connection:
        with pytest.raises(ChannelClosedByBroker) as closed:
            call(connection.channel())
        return closed.value.reply_code, closed.value.reply_text


def test_a_classic_queue_is_selected_from_and_browsed_at_another_node(
    cluster: ClusterProcess, queue: str
) -> None:
    """The selector and other consumer settings reach the queue's node; a browser takes nothing there."""
    a, _, c = cluster.nodes
    with connected(a) as connection:
        connection.channel().queue_declare(queue, durable=True)
    cluster.wait_until(lambda: is_there(c, queue), "the queue at another node")
    client = ProtonClient(c.port)
    messages = [Message(body=number, properties={"half": number % 2}) for number in range(6)]
    client.sender(f"/queues/{queue}").send(*messages)
    selector = Described(symbol("apache.org:selector-filter:string"), "half = 1")

    def selects(link: Any) -> None:
        link.source.filter.put_dict({symbol("jms-selector"): selector})

    def browses(link: Any) -> None:
        link.source.distribution_mode = Terminus.DIST_MODE_COPY

    for apply, expected in (
        ([browses], [*range(6)]),
        ([selects, browses], [1, 3, 5]),
        ([selects], [1, 3, 5]),
    ):
        receiver = client.receiver(f"/queues/{queue}", apply=apply)
        receiver.drain(10)
        assert receiver.bodies == expected
        receiver.settle(receiver.received)
        receiver.close()
    with connected(a) as connection:
        assert len(get_all(connection.channel(), queue)) == 3
    client.close()


def test_a_transaction_takes_classic_queues_of_its_clients_node_and_says_so_of_others(
    cluster: ClusterProcess, queue: str
) -> None:
    """A post to another node's queue, or a settlement there, is refused, and the rest is committed."""
    a, b, c = cluster.nodes
    names = {"own": f"{queue}.own", "far": f"{queue}.far", "quorum": f"{queue}.quorum"}
    for node, name, kind in ((a, "own", "classic"), (b, "far", "classic"), (a, "quorum", "quorum")):
        with connected(node) as connection:
            channel = connection.channel()
            channel.queue_declare(names[name], durable=True, arguments={"x-queue-type": kind})
            channel.confirm_delivery()
            put(channel, names[name], name)
    for name in names.values():
        cluster.wait_until(lambda name=name: is_there(a, name), "the queues at the first node")
    with RawSocket(a.port).open(container_id=queue) as client:
        client.send(control())
        handles = {name: handle for handle, name in enumerate(names, 1)}
        for name, handle in handles.items():
            client.send(attach_sender(handle, f"/queues/{names[name]}"))
        for _ in range(4):
            client.until(amqp10.Flow)
        client.send(request(0, amqp10.Declare()))
        txn_id = client.until(amqp10.Disposition).body.state.txn_id
        for number, (name, handle) in enumerate(handles.items(), 1):
            client.send(transfer(handle, number, b"m", state=amqp10.TransactionalState(txn_id=txn_id)))
            outcome = client.until(amqp10.Disposition).body.state.outcome
            if name == "own":
                assert outcome == amqp10.Accepted()
                continue
            assert outcome.error.condition == "amqp:not-implemented"
            assert names[name] in outcome.error.description
            way = "use a classic queue" if name == "quorum" else "Connect to the queue's node"
            assert way in outcome.error.description
        for name in ("far", "quorum"):
            handle = 10 + handles[name]
            client.send(attach_receiver(handle, f"/queues/{names[name]}"), credit(handle, 1))
            number = client.until(amqp10.Transfer).body.delivery_id
            client.send(
                disposition(number, state=amqp10.TransactionalState(txn_id=txn_id, outcome=amqp10.Accepted()))
            )
            detach = client.until(amqp10.Detach).body
            assert detach.error.condition == "amqp:not-implemented"
        client.send(request(4, amqp10.Discharge(txn_id=txn_id)))
        assert client.until(amqp10.Disposition).body.state == amqp10.Accepted()
    with connected(c) as connection:
        for name, messages in {"own": 2, "far": 1, "quorum": 1}.items():
            cluster.wait_until(
                lambda name=name, messages=messages: _ready(connection, names[name]) == messages,
                "what was committed, and what went back",
            )


def _ready(connection: Any, queue: str) -> int:
    found: int = connection.channel().queue_declare(queue, passive=True).method.message_count
    return found


def test_the_node_of_a_classic_queue_is_lost_and_comes_back(cluster: ClusterProcess, queue: str) -> None:
    a, b, c = cluster.nodes
    persistent = pika.BasicProperties(delivery_mode=2)
    with connected(a) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        put(channel, queue, "kept", properties=persistent)
    cluster.wait_until(lambda: is_there(b, queue) and is_there(c, queue), "the queue at the others")
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
    """K7, K8, M8: RESOURCE_LOCKED at every node; the name is free when the others have seen it deleted."""
    a, b, c = cluster.nodes
    with connected(a) as connection:
        connection.channel().queue_declare(queue, exclusive=True)
        connection.channel().queue_declare(f"{queue}.durable", durable=True)
        cluster.wait_until(lambda: _code(b, queue) == 405, "the name at another node")
        assert refusal(c, lambda channel: channel.queue_declare(queue))[0] == 405
        a.kill()
        cluster.wait_until(lambda: _code(b, queue) is None, "the name free again")
    with connected(b) as connection:
        connection.channel().queue_declare(queue, durable=True)
    a.start()
    cluster.wait_until_up()
    with connected(a) as connection:
        for name in (queue, f"{queue}.durable"):
            connection.channel().queue_declare(name, passive=True)


def test_what_ends_with_a_node_ends_while_its_process_stands_still(
    cluster: ClusterProcess, queue: str
) -> None:
    """K7, M8: the node's process is suspended, and its connections stay open."""
    a, b, _ = cluster.nodes
    transient = f"{queue}.transient"
    with connected(a) as connection, connected(b) as other:
        connection.channel().queue_declare(queue, exclusive=True)
        connection.channel().queue_declare(transient)
        cluster.wait_until(
            lambda: is_there(b, transient) and _code(b, queue) == 405, "the queues at another node"
        )
        a.pause()
        try:
            cluster.wait_until(lambda: not is_there(b, transient) and _code(b, queue) is None, "their end")
        finally:
            a.resume()
        assert other.is_open
        cluster.wait_until_up()
        cluster.wait_until(lambda: not is_there(a, transient), "their end at their own node")


def _code(node: ClusterNode, queue: str) -> int | None:
    """Return the reply code of an exclusive declaration, or None."""
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
        channel.queue_delete(queue)  # when the connection has ended its name is taken for a moment yet
        return None


def test_an_exclusive_queue_ends_with_its_connection_at_every_node(
    cluster: ClusterProcess, queue: str
) -> None:
    """K8: the name is usable at another node as soon as the queue is gone there."""
    a, b, _ = cluster.nodes
    with connected(a) as connection:
        connection.channel().queue_declare(queue, exclusive=True)
        cluster.wait_until(lambda: _code(b, queue) == 405, "the name at another node")
    cluster.wait_until(lambda: _code(b, queue) is None, "the name free again")


def test_a_reply_comes_from_any_node(cluster: ClusterProcess, queue: str) -> None:
    """K9, AMQP 0-9-1: after the requester is gone, no node has a route to it."""
    a, b, c = cluster.nodes
    with connected(c) as connection:
        connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    cluster.wait_until(lambda: is_there(a, queue) and is_there(b, queue), "the queue at the others")
    with connected(a) as one, connected(b) as other:
        requester, server = one.channel(), other.channel()
        server.confirm_delivery()
        replies = Inbox(requester, "amq.rabbitmq.reply-to", auto_ack=True)
        properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
        put(requester, queue, "request", properties=properties)
        requests = Inbox(server, queue)
        address = str(requests.take()[0].properties.reply_to)
        declared = server.queue_declare(address, passive=True).method
        assert (declared.message_count, declared.consumer_count) == (0, 1)
        put(server, address, "reply", mandatory=True)
        assert [each.text for each in replies.take()] == ["reply"]
        requester.basic_cancel(replies.tag)
        # The other node hears of it a moment later; until then what is sent is dropped at the first.
        cluster.wait_until(lambda: _is_unroutable(server, address), "no route to it at the other node")
        with pytest.raises(ChannelClosedByBroker, match="404"):
            server.queue_declare(address, passive=True)


def _is_unroutable(channel: BlockingChannel, address: str) -> bool:
    try:
        put(channel, address, "late", mandatory=True)
    except UnroutableError:
        return True
    return False


def test_a_stream_is_read_and_written_at_every_node(cluster: ClusterProcess, queue: str) -> None:
    """It stays at one node; offsets, filters and link credit work the same from another."""
    a, b, c = cluster.nodes
    with connected(a) as connection:
        connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
    cluster.wait_until(lambda: is_there(b, queue) and is_there(c, queue), "the stream at the others")
    with connected(b) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(40):
            value = {"x-stream-filter-value": "odd" if number % 2 else "even"}
            put(channel, queue, str(number), properties=pika.BasicProperties(headers=value))
    with connected(c) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        inbox = Inbox(channel, queue, arguments={"x-stream-offset": 15})
        for first in (15, 25):
            got = inbox.take(10)
            assert [each.text for each in got] == [str(number) for number in range(first, first + 10)]
            assert got[0].properties.headers["x-stream-offset"] == first
            channel.basic_ack(got[-1].tag, multiple=True)
    readers = [ProtonClient(node.port) for node in (b, c)]
    try:
        for reader in readers:
            end = reader.receiver(f"/queues/{queue}", credit=5, apply=[_odd_from_the_first])
            assert [int(each.message.body) for each in end.take(5)] == [1, 3, 5, 7, 9]
            end.settle(end.received)
            end.grant(100)
            assert [int(each.message.body) for each in end.take(15)] == list(range(11, 41, 2))
            end.drain()
        environment = Environment(uri=f"amqp://guest:guest@{c.host}:{c.port}/")
        opened = environment.connection()
        opened.dial()
        shown = opened.management().request(None, f"/queues/{queue}", "GET", [200]).body
        environment.close()
        assert (shown["first_offset"], shown["next_offset"], shown["message_count"]) == (0, 40, 40)
        a.kill()
        assert end.wait_refused() == "amqp:illegal-state"
        code, text = refusal(b, lambda channel: channel.queue_declare(queue, passive=True))
        assert code == 404
        assert f"home node '{a.name}" in text
        with connected(b) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(NackError):
                put(channel, queue, "lost", mandatory=True)
    finally:
        for reader in readers:
            reader.close()


def _odd_from_the_first(link: Link) -> None:
    link.source.filter.put_dict(
        {
            symbol("rabbitmq:stream-offset-spec"): Described(symbol("rabbitmq:stream-offset-spec"), "first"),
            symbol("rabbitmq:stream-filter"): Described(symbol("rabbitmq:stream-filter"), ["odd"]),
        }
    )


def test_subscriptions_to_topics_are_those_of_all_nodes(cluster: ClusterProcess, queue: str) -> None:
    """Durable, shared and temporary ones are made at one node, and used and ended at another."""
    a, b, c = cluster.nodes
    name = f"subscription:{queue}:sub"
    ends = [ProtonClient(node.port, container_id=queue) for node in (a, b, c)]
    one, publisher, other = ends
    try:
        first = one.receiver(f"/topics/{queue}", name="sub", apply=[_durable])
        cluster.wait_until(lambda: is_there(b, name) and is_there(c, name), "the subscription elsewhere")
        sender = publisher.sender(f"/topics/{queue}")
        refused = other.receiver(f"/topics/{queue}", name="sub", apply=[_durable], wait=False)
        assert refused.wait_refused() == "amqp:resource-locked"
        first.detach()
        (outcome,) = sender.send("kept")
        assert outcome.state == Delivery.ACCEPTED
        again = other.receiver(f"/topics/{queue}", name="sub", apply=[_durable], credit=1)
        (kept,) = again.take(1)
        assert kept.message.body == "kept"
        again.settle(kept)
        again.close()
        cluster.wait_until(lambda: not any(is_there(node, name) for node in (a, b, c)), "its end")

        shared = f"subscription-shared:{queue}:s"
        links = [one.receiver(f"/topics/{queue}", name="s|1", apply=[_shared])]
        cluster.wait_until(lambda: is_there(c, shared), "the shared subscription elsewhere")
        links.append(other.receiver(f"/topics/{queue}", name="s|2", apply=[_shared]))
        sender.send("1", "2")
        for link in links:
            link.grant(1)
        assert sorted(each.message.body for link in links for each in link.take(1)) == ["1", "2"]
        for link in links:
            link.close()
        cluster.wait_until(lambda: not is_there(b, shared), "the end of the shared subscription")

        creator = one.sender(None, apply=[_temporary_topic])
        address = creator.link.remote_target.address
        receiver = one.receiver(address, credit=1)
        marker = address.removeprefix("/topics/")
        cluster.wait_until(lambda: _code(b, marker) == 405, "the temporary topic elsewhere")
        publisher.sender(address)
        assert other.receiver(address, wait=False).wait_refused() == "amqp:resource-locked"
        creator.close()
        cluster.wait_until(lambda: _code(b, marker) != 405, "its end")
        assert publisher.sender(address, wait=False).wait_refused() == "amqp:not-found"
        assert not receiver.closed
    finally:
        for client in ends:
            client.close()


def _durable(link: Link) -> None:
    link.source.durability = Terminus.DELIVERIES
    link.source.expiry_policy = Terminus.EXPIRE_NEVER


def _shared(link: Link) -> None:
    link.source.capabilities.put_object(symbol("shared"))


def _temporary_topic(link: Link) -> None:
    link.target.dynamic = True
    link.target.capabilities.put_object(symbol("temporary-topic"))
