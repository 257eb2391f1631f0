"""Three real nodes, two of them lost: what a client at the third is refused, in both protocols, and when.

The cluster waits for a majority for a second, not for half a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pika.exceptions import ConnectionClosedByBroker
from proton import Delivery, Message
from rabbitmq_amqp_python_client import Environment, ValidationCodeException

from tests.support.cluster_process import ClusterNode, ClusterProcess, http
from tests.support.crash_load import connected, declare_quorum, is_there
from tests.support.pika_client import get_all, put
from tests.support.proton_client import ProtonClient


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("minority"), 3, ["--cluster-decide-ms", "1000"]) as process:
        yield process
        process.check_logs()


def counts(node: ClusterNode, queue: str) -> tuple[int, int]:
    with connected(node) as connection:
        method = connection.channel().queue_declare(queue, passive=True).method
        return method.message_count, method.consumer_count


def refusal(node: ClusterNode, call: Callable[[Any], Any]) -> str:
    """Return the text with which the broker closes a connection: 541."""
    with connected(node) as connection:
        with pytest.raises(ConnectionClosedByBroker) as closed:
            call(connection.channel())
        assert closed.value.reply_code == 541
        return closed.value.reply_text


@pytest.mark.rabbitmq("quorum_queue_SUITE", "consume_in_minority", "get_in_minority")
@pytest.mark.rabbitmq("amqp_client_SUITE", "attach_to_down_quorum_queue")
def test_without_a_majority_what_must_have_one_is_refused(nodes: ClusterProcess) -> None:
    """C5, C7, M5, Q8: a refused operation has no effect when there is a majority again."""
    a, b, c = nodes.nodes
    declare_quorum(a, "q", "attached")
    nodes.wait_until(lambda: _state(nodes, c, "q") == ("running", "a", {"a", "b", "c"}), "all members, at c")
    client = ProtonClient(a.port)
    sender = client.sender("/queues/attached")
    management = Environment(uri=f"amqp://guest:guest@{a.host}:{a.port}/")
    try:
        for node in (b, c):
            node.kill()
        # A publish that the leader has taken before it notices is kept: it may be in the log of another.
        nodes.wait_until(lambda: not _leads(nodes, a, "q", "attached"), "no leader")
        assert _state(nodes, a, "q") == ("minority", None, {"a"})
        # C5.
        consume = refusal(a, lambda channel: channel.basic_consume("q", lambda *told: None))
        assert "timed out consuming from quorum queue 'q' in vhost '/'" in consume
        assert "no leader" in refusal(a, lambda channel: channel.basic_get("q"))
        end = client.receiver("/queues/q", credit=1, wait=False)
        assert end.wait_refused() == "amqp:internal-error"
        assert end.description == "timed out consuming from quorum queue 'q' in vhost '/'"
        # C7.
        assert "no leader" in refusal(a, lambda channel: channel.queue_purge("q"))
        assert counts(a, "q") == (0, 0)
        connection = management.connection()
        connection.dial()
        # Q8: its reading of the answer wants a leader, which is the last one.
        shown = connection.management().queue_info("q")
        assert (shown.leader, sorted(shown.members), shown.message_count) == ("a", ["a", "b", "c"], 0)
        with pytest.raises(ValidationCodeException, match="500"):
            connection.management().purge_queue("q")
        # M5.
        refusal(a, lambda channel: channel.exchange_declare("x", durable=True))
        with pytest.raises(ValidationCodeException, match="500"):
            connection.management().request({"durable": True, "arguments": {}}, "/queues/new", "PUT", [201])
        b.start()
        nodes.wait_until_up(a, b)
        nodes.wait_until(lambda: counts(a, "q") == (0, 0), "no consumer of those that were refused")
        with connected(b) as other:
            channel = other.channel()
            channel.confirm_delivery()
            put(channel, "q", "taken")
            assert get_all(channel, "q") == ["taken"]
        (outcome,) = sender.send(Message(body=b"taken", inferred=True))
        assert outcome.state == Delivery.ACCEPTED
        with connected(b) as other:
            assert get_all(other.channel(), "attached") == ["taken"]
        for node in (a, b):
            state, leader, online = _state(nodes, node, "q")
            assert (state, online) == ("running", {"a", "b"})
            assert leader in online
    finally:
        client.close()
        management.close()
        nodes.heal()


def test_a_first_publish_without_a_majority_waits_and_counts(nodes: ClusterProcess) -> None:
    """C2, C3, C4: it waits longer than anything else, in both protocols."""
    a, b, c = nodes.nodes
    declare_quorum(a, "first")
    client = ProtonClient(a.port)
    sender = client.sender("/queues/first")
    try:
        for node in (b, c):
            node.kill()
        nodes.wait_until(lambda: not _leads(nodes, a, "first"), "no leader")
        tag = sender.transfer(Message(body=b"first", inferred=True))
        with connected(a) as connection:
            channel = connection.channel()
            channel.basic_publish("", "first", b"second", mandatory=True)
            # One who asks after it is refused: the time is over for which anything else waits.
            assert "no leader" in refusal(a, lambda other: other.basic_get("first"))
            b.start()
            nodes.wait_until_up(a, b)
            assert sender.outcome(tag).state == Delivery.ACCEPTED
            nodes.wait_until(lambda: counts(b, "first")[0] == 2, "both messages")
            assert channel.is_open
    finally:
        client.close()
        nodes.heal()


def test_a_queue_without_majority_is_deleted_all_the_same(nodes: ClusterProcess) -> None:
    """Q7: the cluster has a majority; the member that is down is deleted when its node comes."""
    a, b, c = nodes.nodes
    declare_quorum(c, "lone", x_quorum_initial_group_size=1)
    with connected(a) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        nodes.wait_until(lambda: is_there(a, "lone"), "the queue at another node")
        put(channel, "lone", "1", "2")
    c.kill()
    try:
        with connected(b) as connection:
            assert connection.channel().queue_delete("lone").method.message_count in (0, 2)
        assert not is_there(a, "lone")
        declare_quorum(a, "lone")
    finally:
        nodes.heal()
    with connected(c) as connection:
        assert get_all(connection.channel(), "lone") == []
    nodes.wait_until(lambda: _members(nodes, c, "lone") == {"a", "b", "c"}, "the new one's members")


def _leads(nodes: ClusterProcess, node: ClusterNode, *queues: str) -> bool:
    return any(
        row["Raft State"] == "leader"
        for queue in queues
        for row in nodes.ask(node, "queue", "quorum-status", queue)
        if row["Node Name"] == node.name
    )


def _state(nodes: ClusterProcess, node: ClusterNode, queue: str) -> tuple[str, str | None, set[str]]:
    """Return a queue's state, leader and nodes of running members, which all interfaces give alike."""
    columns = ("leader", "members", "online", "state")
    (listed,) = [each for each in nodes.ask(node, "queue", "list", "name", *columns) if each["name"] == queue]
    status = nodes.ask(node, "queue", "quorum-status", queue)
    over_http = [
        http(node, "GET", f"/queues/%2F/{queue}"),
        *(each for each in http(node, "GET", "/queues") if each["name"] == queue),
    ]
    assert [{each: shown[each] for each in columns} for shown in over_http] == [
        {each: listed[each] for each in columns}
    ] * 2
    words = ("Node Name", "Raft State", "Membership")
    assert [
        [row[word] for word in words] for row in http(node, "GET", f"/queues/quorum/%2F/{queue}/status")
    ] == [[row[word] for word in words] for row in status]
    assert [each["Node Name"] for each in status] == sorted(listed["members"])
    online = {each["Node Name"] for each in status if each["Membership"] == "voter"}
    assert online == set(listed["online"])
    leader = next((each["Node Name"] for each in status if each["Raft State"] == "leader"), None)
    assert leader == (listed["leader"] if listed["state"] == "running" else None)
    return listed["state"], leader, online


def _members(nodes: ClusterProcess, node: ClusterNode, queue: str) -> set[str]:
    rows = nodes.ask(node, "queue", "list", "name", "members")
    return next(set(row["members"]) for row in rows if row["name"] == queue)
