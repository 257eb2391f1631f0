"""A quorum queue over three real nodes: what clients at two of them see when the third, which leads, is lost.

Load and notes are those of `tests.support.cluster_load`; a steady client fails when its connection does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest
from proton import Delivery, Described, Message, Terminus, symbol

from tests.support.cluster_history import TotalQueue
from tests.support.cluster_load import (
    ClusterClient,
    MetadataClient,
    OwnConsumer,
    OwnPublisher,
    PikaConsumer,
    PikaPublisher,
    ProtonConsumer,
    ProtonPublisher,
    RabbitPublisher,
    started,
    stop_all,
    wait_for,
)
from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.crash_history import make_body, name_of
from tests.support.crash_load import connected, declare_quorum, is_there
from tests.support.linearizable import Operation, check
from tests.support.pika_client import Inbox, get, get_all, put, until
from tests.support.proton_client import ProtonClient


def declare(node: ClusterNode, queue: str, **arguments: Any) -> TotalQueue:
    declare_quorum(node, queue, **arguments)
    return TotalQueue(queue)


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "confirm_availability_on_leader_change",
    "recover_from_single_failure",
    "simple_confirm_availability_on_leader_change",
)
@pytest.mark.rabbitmq("amqp_client_SUITE", "leader_transfer_quorum_queue_send")
@pytest.mark.parametrize("lose", [ClusterNode.kill, ClusterNode.stop], ids=["killed", "stopped"])
def test_clients_elsewhere_see_a_pause_and_nothing_else(
    cluster: ClusterProcess, queue: str, lose: Callable[[ClusterNode], None]
) -> None:
    """E1, E2, E4, E5, E11, W1: the leader is lost under load, and no client library loses anything."""
    a, b, c = cluster.nodes
    notes = declare(a, queue)
    publishers = started(
        [
            PikaPublisher([b], "pika", notes, steady=True),
            ProtonPublisher([c], "proton", notes, steady=True),
            OwnPublisher([b], "own", notes, steady=True),
            RabbitPublisher([c], "rabbit", notes, steady=True),
        ]
    )
    consumers = started(
        [
            PikaConsumer([c], "pika.consumer", notes, give_back=0, steady=True),
            ProtonConsumer([b], "proton.consumer", notes, give_back=0, steady=True),
            OwnConsumer([c], "own.consumer", notes, give_back=0, steady=True),
        ]
    )
    clients = [*publishers, *consumers]
    wait_for(cluster, clients, lambda: len(notes.confirmed) > 500, "confirms before")
    lose(a)
    before = {client.name: _confirmed_of(notes, client) for client in publishers}
    for client in publishers:
        wait_for(
            cluster,
            clients,
            lambda client=client: _confirmed_of(notes, client) > before[client.name] + 20,
            f"confirms of {client.name} after",
        )
    stop_all(publishers)
    assert notes.confirmed == set(notes.published)
    wait_for(cluster, consumers, lambda: len(notes.removing) >= len(notes.confirmed), "everything consumed")
    stop_all(consumers)
    notes.look(cluster.look(b, notes))
    notes.check()
    assert notes.content == []
    assert notes.marked == set(), "the change of the leader alone marks nothing"
    a.start()
    cluster.wait_until_up()
    assert cluster.look(a, notes) == []


def _confirmed_of(notes: TotalQueue, client: ClusterClient) -> int:
    return sum(name.startswith(f"{client.name}.") for name in list(notes.confirmed))


# --- what clients have when the leader is killed ---------------------------------------------------

Scenario = Generator[None, None, None]
"""Goes on behind its `yield` when the node that leads was killed: one loss for all."""


def test_what_clients_have_survives_the_leader(cluster: ClusterProcess, queue: str) -> None:
    scenarios: list[Scenario] = [
        each(cluster, f"{queue}.{each.__name__}")
        for each in (
            what_consumers_hold_stays_theirs,
            the_limit_of_deliveries_is_reached_at_the_same_number,
            one_consumer_is_active_whatever_node_it_is_at,
            a_drain_is_answered_after_the_change,
            priorities_are_compared_over_nodes,
            who_selects_goes_on_where_it_was,
            who_browses_goes_on_where_it_was,
        )
    ]
    try:
        for scenario in scenarios:
            next(scenario)
        cluster.nodes[0].kill()
        for scenario in scenarios:
            with pytest.raises(StopIteration):
                next(scenario)
    finally:
        for scenario in scenarios:
            scenario.close()


def what_consumers_hold_stays_theirs(cluster: ClusterProcess, queue: str) -> Scenario:
    """E4, E7: deliveries from before are settled after, by the same tags, and the rest follows."""
    a, b, c = cluster.nodes
    notes = declare(a, queue)
    publisher = PikaPublisher([b], "pika", notes, steady=True)
    holders = [
        PikaConsumer([b], "pika.consumer", notes, give_back=0, steady=True),
        ProtonConsumer([c], "proton.consumer", notes, give_back=0, steady=True),
    ]
    for holder in holders:
        holder.hold.set()
    started([*holders, publisher])
    clients = [*holders, publisher]
    wait_for(cluster, clients, lambda: all(each.held >= 50 for each in holders), "50 held by each")
    yield
    before = len(notes.confirmed)
    wait_for(cluster, clients, lambda: len(notes.confirmed) > before + 20, "confirms after")
    publisher.stop()
    assert [each.held for each in holders] == [50, 50]
    for holder in holders:
        holder.hold.clear()
    wait_for(cluster, holders, lambda: len(notes.removing) >= len(notes.confirmed), "everything consumed")
    stop_all(holders)
    notes.look(cluster.look(c, notes))
    notes.check()
    assert (notes.content, notes.marked) == ([], set())


def the_limit_of_deliveries_is_reached_at_the_same_number(cluster: ClusterProcess, queue: str) -> Scenario:
    """D1: two attempts fail before the leader is lost and two after it; the fourth is one too many."""
    a, b, c = cluster.nodes
    declare(a, f"{queue}.dead")
    declare(
        a, queue, x_delivery_limit=3, x_dead_letter_exchange="", x_dead_letter_routing_key=f"{queue}.dead"
    )
    counts = []
    with connected(b) as one, connected(c) as other:
        channels = [one.channel(), other.channel()]
        channels[0].confirm_delivery()
        put(channels[0], queue, "text")
        for attempt in range(4):
            if attempt == 2:
                yield
            each = channels[attempt % 2]
            found: list[Any] = []
            until(each, partial(_taken, each, queue, found), f"attempt {attempt}")
            ((method, properties),) = found
            counts.append((properties.headers or {}).get("x-acquired-count", 0))
            assert method.redelivered == (attempt > 0)
            each.basic_nack(method.delivery_tag, requeue=True)
        dead: list[Any] = []
        until(channels[0], lambda: _taken(channels[0], f"{queue}.dead", dead), "the dead letter")
        ((_, properties),) = dead
        assert properties.headers["x-death"][0]["reason"] == "delivery_limit"
        assert get_all(channels[1], queue) == []
    assert counts == [0, 1, 2, 3]


def _taken(channel: Any, queue: str, found: list[Any]) -> bool:
    method, properties, _ = channel.basic_get(queue)
    if method is not None:
        found.append((method, properties))
    return method is not None


def one_consumer_is_active_whatever_node_it_is_at(cluster: ClusterProcess, queue: str) -> Scenario:
    """A1: the same consumer stays active; when it leaves, the other one becomes active."""
    a, b, c = cluster.nodes
    declare(a, queue, x_single_active_consumer=True)
    with connected(b) as one, connected(c) as other:
        first, second = one.channel(), other.channel()
        first.confirm_delivery()
        got: dict[str, list[str]] = {"first": [], "second": []}
        for channel, consumer_name in ((first, "first"), (second, "second")):

            def take(
                channel: Any, method: Any, properties: Any, body: bytes, consumer_name: str = consumer_name
            ) -> None:
                got[consumer_name].append(body.decode())
                channel.basic_ack(method.delivery_tag)

            channel.basic_consume(queue, take, consumer_tag=consumer_name)
        put(first, queue, "1")
        until(first, lambda: got["first"] == ["1"], "the first message")
        yield
        put(first, queue, "2", "3")
        until(first, lambda: got["first"] == ["1", "2", "3"], "messages after the change")
        other.process_data_events(0.1)
        assert got["second"] == []
        first.basic_cancel("first")
        put(first, queue, "4")
        until(second, lambda: got["second"] == ["4"], "the other's turn")


def a_drain_is_answered_after_the_change(cluster: ClusterProcess, queue: str) -> Scenario:
    """E7: credit granted before is used, and the new leader answers the drain."""
    a, b, c = cluster.nodes
    declare(a, queue)
    client = ProtonClient(b.port)
    try:
        end = client.receiver(f"/queues/{queue}", credit=10)
        yield
        with connected(c) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(1, 4):
                channel.basic_publish("", queue, make_body(f"p:{number}"))
        assert [name_of(bytes(each.message.body)) for each in end.take(3)] == ["p:1", "p:2", "p:3"]
        end.drain()
        assert end.link.credit == 0
    finally:
        client.close()


def priorities_are_compared_over_nodes(cluster: ClusterProcess, queue: str) -> Scenario:
    """A4: consumers of both protocols are compared, before and after the leader is lost."""
    a, b, c = cluster.nodes
    declare(a, queue)
    client = ProtonClient(c.port)
    try:
        with connected(b) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            low = Inbox(channel, queue, arguments={"x-priority": 1})
            high = client.receiver(f"/queues/{queue}", credit=3, properties={symbol("rabbitmq:priority"): 2})
            cluster.wait_until(lambda: _consumers(b, queue) == 2, "both consumers")
            put(channel, queue, *map(str, range(4)))
            assert [bytes(each.message.body) for each in high.take(3)] == [b"0", b"1", b"2"]
            assert [each.text for each in low.take()] == ["3"]
            yield
            high.grant(2)
            client.flush()
            cluster.wait_until(lambda: _consumers(b, queue) == 2, "another leader")
            put(channel, queue, *map(str, range(4, 7)))
            assert [bytes(each.message.body) for each in high.take(2)] == [b"4", b"5"]
            assert [each.text for each in low.take()] == ["6"]
    finally:
        client.close()


def who_selects_goes_on_where_it_was(cluster: ClusterProcess, queue: str) -> Scenario:
    """Order, credit, returns and drains of matches stay right, and other messages are left."""
    a, b, c = cluster.nodes
    declare(a, queue)
    client = ProtonClient(b.port)
    selector = Described(symbol("apache.org:selector-filter:string"), "half = 1")

    def selects(link: Any) -> None:
        link.source.filter.put_dict({symbol("jms-selector"): selector})

    try:
        sender = client.sender(f"/queues/{queue}")
        sender.send(*(Message(body=number, properties={"half": number % 2}) for number in range(10)))
        end = client.receiver(f"/queues/{queue}", credit=2, apply=[selects])
        first, second = end.take(2)
        assert [first.message.body, second.message.body] == [1, 3]
        yield
        end.settle(first, Delivery.RELEASED)
        end.drain(10)
        assert end.bodies == [1, 3, 1, 5, 7, 9]
        with connected(c) as connection:
            assert len(get_all(connection.channel(), queue)) == 5
    finally:
        client.close()


def who_browses_goes_on_where_it_was(cluster: ClusterProcess, queue: str) -> Scenario:
    """At a node without leaders, no message is shown twice, and none is removed."""
    a, b, c = cluster.nodes
    declare(a, queue)
    client = ProtonClient(c.port)

    def browses(link: Any) -> None:
        link.source.distribution_mode = Terminus.DIST_MODE_COPY

    try:
        client.sender(f"/queues/{queue}").send(*(Message(body=number) for number in range(6)))
        end = client.receiver(f"/queues/{queue}", credit=2, apply=[browses])
        assert [each.message.body for each in end.take(2)] == [0, 1]
        yield
        end.drain(10)
        assert end.bodies == [*range(6)]
        end.settle(end.received)
        with connected(b) as connection:
            assert len(get_all(connection.channel(), queue)) == 6
    finally:
        client.close()


def _consumers(node: ClusterNode, queue: str) -> int:
    with connected(node) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.consumer_count)


# --- more than one --------------------------------------------------------------------------------


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "reject_publish_down_target_quorum_queue")
def test_dead_letters_wait_for_their_target_and_move_with_the_leader(
    cluster: ClusterProcess, queue: str
) -> None:
    """X1, X2, X3: they are kept at least once by the leader's worker, also after the lead moved."""
    a, b, c = cluster.nodes
    target = f"{queue}.target"
    declare(c, target, x_quorum_initial_group_size=1)
    declare(
        a,
        queue,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=target,
        x_dead_letter_strategy="at-least-once",
        x_overflow="reject-publish",
    )
    with connected(b) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        put(channel, queue, *map(str, range(3)))
        c.kill()
        for _ in range(3):
            channel.basic_reject(get(channel, queue).tag, requeue=False)
        cluster.wait_until(lambda: _dead(cluster, b, queue) == 3, "dead letters that are kept")
        done = cluster.run_command(b, "member", "transfer-leadership", queue, b.name)
        assert done.returncode == 0, done.stderr
        assert _dead(cluster, a, queue) == 3
        c.start()
        cluster.wait_until_up()
        cluster.wait_until(lambda: _dead(cluster, a, queue) == 0, "all at their target")
        arrived = get_all(channel, target)
        assert set(arrived) == {"0", "1", "2"}
        assert all(arrived.count(each) <= 2 for each in arrived), "both leaders' workers may send it"


def _dead(cluster: ClusterProcess, node: ClusterNode, queue: str) -> int | None:
    rows = cluster.ask(node, "queue", "list", "name", "messages_dlx")
    return next(row["messages_dlx"] for row in rows if row["name"] == queue)


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "publishing_to_unavailable_queue", "recover_from_multiple_failures"
)
def test_without_a_majority_all_waits_and_nothing_is_lost(cluster: ClusterProcess, queue: str) -> None:
    """C2, C6, M4: publishes and settlements are kept; messages that are there are used."""
    a, b, c = cluster.nodes
    notes = declare(a, queue)
    with connected(a) as connection:
        channel = connection.channel()
        channel.exchange_declare(f"{queue}.there", durable=True)
        channel.queue_declare(f"{queue}.classic", durable=True)
    consumer = ProtonConsumer([a], "consumer", notes, give_back=0, steady=True)
    publisher = OwnPublisher([a], "own", notes, steady=True)
    started([consumer, publisher])
    wait_for(cluster, [consumer, publisher], lambda: len(notes.removed) > 100, "load")
    consumer.hold.set()
    wait_for(cluster, [consumer, publisher], lambda: consumer.held >= 50, "messages that are held")
    for node in (b, c):
        node.kill()
    with connected(a) as connection:
        channel = connection.channel()
        channel.exchange_declare(f"{queue}.there", durable=True)
        channel.queue_declare(queue, passive=True)
        channel.confirm_delivery()
        put(channel, f"{queue}.classic", "in minority")
        assert get(channel, f"{queue}.classic").body == b"in minority"
    settled = len(notes.removed)
    consumer.hold.clear()
    wait_for(cluster, [consumer, publisher], lambda: consumer.held == 0, "acknowledgements in minority")
    confirmed = len(notes.confirmed)
    assert len(notes.published) > confirmed, "a publish without a majority was confirmed"
    b.start()
    wait_for(cluster, [consumer, publisher], lambda: len(notes.confirmed) > confirmed + 100, "confirms again")
    wait_for(
        cluster, [consumer, publisher], lambda: len(notes.removed) >= settled + 50, "settlements that count"
    )
    publisher.stop()
    wait_for(cluster, [consumer], lambda: len(notes.removed) == len(notes.confirmed), "everything consumed")
    consumer.stop()
    notes.look(cluster.look(a, notes))
    notes.check()
    assert (notes.content, notes.marked) == ([], set())


def test_all_killed_at_once_have_everything_confirmed(cluster: ClusterProcess, queue: str) -> None:
    """S1, S2, C1: declarations survive too; the nodes are started again in another order."""
    a, b, c = cluster.nodes
    notes = declare(b, queue, x_delivery_limit=1_000_000)
    declared = [f"{queue}.{number}" for number in range(30)]
    with connected(b) as connection:
        for name in declared:
            connection.channel().queue_declare(name, durable=True)
    publishers = [PikaPublisher([a], "pika", notes), ProtonPublisher([c], "proton", notes)]
    consumer = OwnConsumer([b], "own.consumer", notes)
    started([*publishers, consumer])
    wait_for(cluster, [*publishers, consumer], lambda: len(notes.removing) > 300, "load")
    for node in cluster.nodes:
        node.kill()
    stop_all([*publishers, consumer])
    for node in (c, a, b):
        node.start()
    cluster.wait_until_up()
    notes.look(cluster.look(a, notes))
    notes.check()
    for node in cluster.nodes:
        assert all(is_there(node, name) for name in declared)


def test_metadata_has_one_order_while_nodes_are_killed(cluster: ClusterProcess, queue: str) -> None:
    """M1, M3, M6, M7: one order of the changes at all nodes explains every answer."""
    histories: dict[str, list[Operation]] = {}
    clients = started(
        MetadataClient([*cluster.nodes[at:], *cluster.nodes[:at]], f"{queue}.{at}", histories, at)
        for at in range(3)
    )

    def wait_for_answers() -> None:
        count = sum(map(len, histories.values())) + 40
        wait_for(cluster, clients, lambda: sum(map(len, histories.values())) > count, "operations")

    for _ in range(2):
        wait_for_answers()
        rows = cluster.ask(cluster.nodes[0], "cluster", "metadata-store-status")
        (leader,) = (cluster.node(row["Node Name"]) for row in rows if row["Raft State"] == "leader")
        leader.kill()
        wait_for_answers()
        leader.start()
        cluster.wait_until_up()
    stop_all(clients)
    check(histories)
