"""Commands on three real nodes: members, leaders, maintenance, alarms and listings of all of them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

from tests.support import crash_load
from tests.support.cluster_process import ClusterNode, ClusterProcess, http
from tests.support.pika_client import get_all

pytestmark = pytest.mark.xdist_group("cluster")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder: Path = tmp_path_factory.mktemp("operations")
    with ClusterProcess(folder) as process:
        yield process
        process.check_logs(lambda entry: entry.get("level") == "warning")


def declare(nodes: ClusterProcess, name: str, size: int, at: str = "a") -> None:
    run(
        nodes,
        at,
        "queue",
        "declare",
        name,
        "--type",
        "quorum",
        f"--argument=x-quorum-initial-group-size={size}",
    )


def run(nodes: ClusterProcess, at: str, *words: str, code: int = 0) -> str:
    done = nodes.run_command(nodes.node(at), *words)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def states(nodes: ClusterProcess, queue: str, at: str = "a") -> dict[str, tuple[str, str]]:
    rows: list[dict[str, Any]] = nodes.ask(nodes.node(at), "queue", "quorum-status", queue)
    return {row["Node Name"]: (row["Raft State"], row["Membership"]) for row in rows}


def leader(nodes: ClusterProcess, queue: str, at: str = "a") -> str | None:
    found = [name for name, (state, _) in states(nodes, queue, at).items() if state == "leader"]
    return found[0] if found else None


def publish(node: ClusterNode, queue: str, count: int, first: int = 0) -> None:
    crash_load.publish(node, queue, *map(str, range(first, first + count)))


def drained(node: ClusterNode, queue: str) -> list[int]:
    with crash_load.connected(node) as connection:
        return list(map(int, get_all(connection.channel(), queue)))


@pytest.mark.rabbitmq("quorum_queue_SUITE", "add_member_2")
def test_a_queue_grows_and_shrinks_and_keeps_what_it_has(nodes: ClusterProcess) -> None:
    """Any node can be used (section 9); publishers notice nothing (G2); the leader can be removed."""
    declare(nodes, "grows", 1)
    publish(nodes.node("c"), "grows", 3)
    run(nodes, "c", "member", "add", "grows", "b", "--membership", "voter")
    assert "had a member already" in run(nodes, "c", "member", "add", "grows", "b")
    rows = nodes.ask(nodes.node("b"), "member", "grow", "c", "all", "--queue-pattern", "^grows$")
    assert rows == [{"vhost": "/", "name": "grows", "size": 3, "result": "ok"}]
    nodes.wait_until(
        lambda: (
            states(nodes, "grows", "b")
            == {"a": ("leader", "voter"), "b": ("follower", "voter"), "c": ("follower", "voter")}
        ),
        "three voters",
    )
    publish(nodes.node("b"), "grows", 3, first=3)
    run(nodes, "b", "member", "delete", "grows", "a")
    assert leader(nodes, "grows") in ("b", "c")
    publish(nodes.node("a"), "grows", 3, first=6)
    rows = nodes.ask(nodes.node("a"), "member", "shrink", "b")
    assert {"vhost": "/", "name": "grows", "size": 1, "result": "ok"} in rows
    assert "last_node" in run(nodes, "a", "member", "delete", "grows", "c", code=70)
    assert drained(nodes.node("a"), "grows") == list(range(9))
    # A member that comes back is another one, and begins with nothing.
    run(nodes, "a", "member", "add", "grows", "a", "--membership", "voter")
    publish(nodes.node("b"), "grows", 1)
    assert drained(nodes.node("a"), "grows") == [0]


def test_a_leadership_moves_and_clients_notice_nothing(nodes: ClusterProcess) -> None:
    """E10, G2: each message comes once, in order, unmarked, while the leader and members change."""
    declare(nodes, "moves", 3)
    ends = [
        pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
        for node in (nodes.node("b"), nodes.node("c"))
    ]
    publisher, consumer = (connection.channel() for connection in ends)
    publisher.confirm_delivery()
    consumer.basic_qos(prefetch_count=50)
    got: list[tuple[int, bool]] = []

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        got.append((int(body), method.redelivered))
        channel.basic_ack(method.delivery_tag)

    consumer.basic_consume("moves", take)
    changes = (
        ("member", "transfer-leadership", "moves", "b"),
        ("member", "delete", "moves", "b"),
        ("member", "add", "moves", "b", "--membership", "voter"),
        ("member", "transfer-leadership", "moves", "b"),
    )
    number = 0
    for words in changes:
        for _ in range(20):
            publisher.basic_publish("", "moves", str(number).encode())
            number += 1
        run(nodes, "a", *words)
        consumer.connection.process_data_events(time_limit=0)
    nodes.wait_until(
        lambda: consumer.connection.process_data_events(time_limit=0.1) or len(got) == number,
        "all messages",
        20,
    )
    assert got == [(each, False) for each in range(number)]
    for connection in ends:
        connection.close()


def ready(node: ClusterNode, queue: str) -> int | None:
    """Return a queue's ready messages from a node's metrics, or None if the queue is not there."""
    families = f"family=queue_coarse_metrics&queue=%5E{queue}%24"
    address = f"http://{node.host}:{node.port + 10_020}/metrics/detailed?{families}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [line.split()[-1] for line in lines if line.startswith("rabbitmq_detailed_queue_messages_ready{")]
    return int(float(found[0])) if found else None


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "metrics_cleanup_on_leadership_takeover",
    "reject_after_leader_transfer",
    "replica_states",
)
def test_what_is_held_and_what_is_shown_goes_with_the_leader(nodes: ClusterProcess) -> None:
    """Each node reports its own members; only the leader reports a queue's figures."""
    follows = dict.fromkeys("abc", ("follower", "voter"))
    for name in "abc":
        declare(nodes, f"led-{name}", 3, at=name)
        for at in "abc":
            nodes.wait_until(
                lambda name=name, at=at: (
                    states(nodes, f"led-{name}", at) == follows | {name: ("leader", "voter")}
                ),
                f"one leads and two follow, as {at} says",
            )
    queue = "led-a"
    publish(nodes.node("b"), queue, 3)
    assert ready(nodes.node("a"), queue) == 3
    node = nodes.node("c")
    with pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port)) as connection:
        channel = connection.channel()
        for former, now in (("a", "b"), ("b", "c")):
            method, _, body = channel.basic_get(queue)
            assert body == b"0"
            run(nodes, "a", "member", "transfer-leadership", queue, now)
            channel.basic_reject(method.delivery_tag, requeue=True)
            nodes.wait_until(
                lambda now=now, former=former: (
                    (ready(nodes.node(now), queue), ready(nodes.node(former), queue)) == (3, None)
                ),
                f"{now} shows the queue, and {former} does not",
            )
    assert drained(nodes.node("a"), queue) == [0, 1, 2]


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "concurrent_vhost_delete_with_quorum_queue",
    "delete_ra_cluster_already_shutting_down",
)
def test_what_is_deleted_at_all_nodes_at_once_is_gone(nodes: ClusterProcess) -> None:
    """No client gets an error, and a new declaration has nothing of the old one."""
    every = [nodes.node(name) for name in "abc"]

    def made() -> None:
        run(nodes, "a", "vhost", "add", "twice")
        run(nodes, "a", "permission", "set", "guest", ".*", ".*", ".*", "--vhost", "twice")
        for name in ("one", "two"):
            run(nodes, "a", "queue", "declare", name, "--type", "quorum", "--vhost", "twice")

    def opened(node: ClusterNode, vhost: str) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port, vhost))

    def deletes_queue(node: ClusterNode) -> int:
        with opened(node, "/") as connection:
            return int(connection.channel().queue_delete("thrice").method.message_count)

    def deletes_vhost(node: ClusterNode) -> int:
        try:
            http(node, "DELETE", "/vhosts/twice")
        except urllib.error.HTTPError as refused:
            return refused.code
        return 204

    declare(nodes, "thrice", 3)
    publish(every[1], "thrice", 3)
    made()
    with opened(every[0], "twice") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "one", b"1")
    with ThreadPoolExecutor(3) as pool:
        counts = list(pool.map(deletes_queue, every))
        assert set(counts) <= {0, 3}, counts
        codes = list(pool.map(deletes_vhost, every))
        assert set(codes) <= {204, 404}, codes
        assert 204 in codes
    for node in every:
        nodes.wait_until(
            lambda node=node: "twice" not in nodes.run_command(node, "vhost", "list").stdout, "it is gone"
        )
        done = nodes.run_command(node, "queue", "quorum-status", "thrice")
        assert done.returncode == 67, done
    made()
    nodes.wait_until(
        lambda: "one" in nodes.run_command(every[2], "queue", "list", "--vhost", "twice").stdout,
        "it is known",
    )
    with opened(every[2], "twice") as connection:
        assert connection.channel().basic_get("one") == (None, None, None)
    run(nodes, "b", "vhost", "delete", "twice")


def test_a_drained_node_has_no_clients_and_no_leaders_and_follows(nodes: ClusterProcess) -> None:
    declare(nodes, "kept", 3)
    node = nodes.node("a")
    assert leader(nodes, "kept") == "a"
    parameters = pika.ConnectionParameters(node.host, node.port)
    connection = pika.BlockingConnection(parameters)
    run(nodes, "a", "cluster", "drain")
    with pytest.raises(pika.exceptions.ConnectionClosed, match="maintenance mode") as closed:
        connection.process_data_events(time_limit=5)
    assert closed.value.args[0] == 320
    assert not node.accepts
    assert leader(nodes, "kept", "b") != "a"
    metadata = nodes.ask(nodes.node("b"), "cluster", "metadata-store-status")
    assert [row["Raft State"] for row in metadata if row["Node Name"] == "a"] == ["follower"]
    assert (
        nodes.ask(nodes.node("c"), "cluster", "status")["maintenance_status"]["a"] != "not under maintenance"
    )
    publish(nodes.node("b"), "kept", 3)

    def index(name: str) -> int:
        rows = nodes.ask(nodes.node("b"), "queue", "quorum-status", "kept")
        return int(next(row["Last Applied"] for row in rows if row["Node Name"] == name))

    nodes.wait_until(lambda: index("a") == index("b"), "the drained node follows")
    assert "maintenance" in run(nodes, "a", "check", "quorum-critical")
    run(nodes, "a", "cluster", "revive")
    assert drained(node, "kept") == [0, 1, 2]


def test_a_start_ends_maintenance(nodes: ClusterProcess) -> None:
    """V3: the node may lead again."""
    declare(nodes, "led-again", 3)
    node = nodes.node("a")
    run(nodes, "a", "cluster", "drain")
    node.stop()
    node.start()
    nodes.wait_until_up()
    run(nodes, leader(nodes, "led-again", "a"), "member", "transfer-leadership", "led-again", "a")
    assert leader(nodes, "led-again") == "a"


def test_a_node_whose_disk_hangs_leads_no_more(nodes: ClusterProcess) -> None:
    """The syncing helper is suspended; the others lead and confirm within seconds."""
    declare(nodes, "hangs", 3)
    node = nodes.node("a")
    node.hang_disk()
    try:
        publish(nodes.node("b"), "hangs", 3)
        nodes.wait_until(lambda: leader(nodes, "hangs", "b") not in (None, "a"), "another one leads", 20)
        publish(nodes.node("b"), "hangs", 3, first=3)
    finally:
        node.free_disk()
    nodes.wait_until(lambda: "a" in states(nodes, "hangs", "b"), "it is heard again", 20)
    assert drained(nodes.node("c"), "hangs") == list(range(6))


def test_a_stream_stays_on_its_node(nodes: ClusterProcess) -> None:
    """R1, R5: this holds for any node and any size in the request."""
    run(nodes, "b", "queue", "declare", "stays", "--type", "stream", "--argument=x-initial-cluster-size=3")
    publish(nodes.node("c"), "stays", 3)
    for at in ("a", "b"):
        (row,) = nodes.ask(nodes.node(at), "queue", "stream-status", "stays")
        seen = [row[each] for each in ("role", "node", "first_offset", "offset", "segments")]
        assert seen == ["leader", "b", 0, 2, 1]


def test_connections_and_alarms_of_all_nodes_are_listed_at_each(nodes: ClusterProcess) -> None:
    node = nodes.node("b")
    blocked: list[Any] = []
    connection = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
    connection.add_on_connection_blocked_callback(lambda *told: blocked.append(told[1].method.reason))
    channel = connection.channel()
    channel.basic_consume(channel.queue_declare("", exclusive=True).method.queue, lambda *told: None)
    for at in ("a", "b"):
        (row,) = nodes.ask(nodes.node(at), "connection", "list", "node", "id")
        assert row["node"] == "b"
        (consumer,) = nodes.ask(nodes.node(at), "consumer", "list", "node", "connection")
        assert consumer == {"node": "b", "connection": row["id"]}
        (web,) = http(nodes.node(at), "GET", "/connections")
        assert (web["node"], http(nodes.node(at), "GET", "/overview")["object_totals"]["consumers"]) == (
            "b",
            1,
        )
        (of_channel,) = http(nodes.node(at), "GET", f"/connections/{quote(web['name'])}/channels")
        assert of_channel["consumer_count"] == 1
        (queue,) = http(nodes.node(at), "GET", "/users/guest/queues")
        owner = http(nodes.node(at), "GET", f"/queues/%2F/{queue['name']}")["owner_pid_details"]
        assert owner["name"] == web["name"]
    run(nodes, "c", "alarm", "set", "memory", "on")

    def told() -> list[Any]:
        channel.basic_publish("", "nowhere", b"1")
        connection.process_data_events(time_limit=0.1)
        return blocked

    nodes.wait_until(told, "an alarm of another node blocks publishers", 10)
    assert blocked == ["low on memory"]
    assert nodes.ask(nodes.node("a"), "alarm", "list") == [{"node": "c", "alarm": "memory"}]
    run(nodes, "c", "alarm", "set", "memory", "off")
    nodes.wait_until(lambda: nodes.ask(nodes.node("a"), "alarm", "list") == [], "no alarm")
    for at in ("a", "b"):
        found = http(nodes.node(at), "GET", f"/waiting?idle=true&queue={queue['name']}")
        assert [(each["node"], each["waits"]) for each in found["waiting"]] == [
            ("b", "queue-empty-nothing-routed")
        ]
        assert (found["summary"]["consumers"], found["unreached"]) == (1, [])
    begun = http(nodes.node("a"), "POST", "/timelines", connection=web["name"], channel=1)
    assert begun["node"] == "b"
    assert [each["node"] for each in http(nodes.node("c"), "GET", "/timelines")] == ["b"]
    channel.basic_qos(prefetch_count=7)
    timeline = f"/timelines/{begun['watch']}?node=b"

    def prefetched() -> bool:
        steps = http(nodes.node("c"), "GET", timeline)["steps"]
        return any(step["frame"].startswith("basic.qos") for step in steps)

    nodes.wait_until(prefetched, "a step of the timeline, at a third node")
    http(nodes.node("a"), "DELETE", timeline)
    assert http(nodes.node("b"), "GET", "/timelines") == []
    with pytest.raises(urllib.error.HTTPError) as refused:
        http(nodes.node("a"), "GET", timeline)
    assert "no watch" in json.loads(refused.value.read())["reason"]
    other = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
    (second,) = [each for each in http(nodes.node("a"), "GET", "/connections") if each["name"] != web["name"]]
    http(nodes.node("a"), "DELETE", f"/connections/{quote(second['name'])}")
    run(nodes, "a", "connection", "close", str(row["id"]), "enough", "--node", "b")
    for ended, why in ((connection, "enough"), (other, "Closed via management plugin")):
        with pytest.raises(pika.exceptions.ConnectionClosed, match=why):
            ended.process_data_events(time_limit=5)


def test_a_user_of_one_node_is_one_of_all(nodes: ClusterProcess, tmp_path: Path) -> None:
    """U1, N3: it logs in at another node, and is disconnected there when the user is deleted."""
    (tmp_path / "password").write_text("secret\n")
    run(nodes, "a", "user", "add", "bob", "--password-file", str(tmp_path / "password"))
    run(nodes, "b", "permission", "set", "bob", ".*", ".*", ".*")
    node = nodes.node("c")
    login = pika.PlainCredentials("bob", "secret")
    connection = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port, credentials=login))
    run(nodes, "a", "user", "delete", "bob")
    with pytest.raises(pika.exceptions.ConnectionClosed):
        connection.process_data_events(time_limit=5)


@pytest.mark.rabbitmq("per_vhost_connection_limit_SUITE", "cluster_single_vhost_limit")
@pytest.mark.rabbitmq("vhost_SUITE", "cluster_vhost_deletion_forces_connection_closure")
def test_rights_and_limits_count_at_every_node(nodes: ClusterProcess) -> None:
    """U4, W3: clients at other nodes lose removed rights, and count for the limits."""
    for words in (
        ("vhost", "add", "shop"),
        ("user", "add", "ann", "--no-password"),
        ("permission", "set", "guest", ".*", ".*", ".*", "--vhost", "shop"),
        ("vhost", "set-limits", "--vhost", "shop", "--max-connections", "1"),
    ):
        run(nodes, "a", *words)
    here, there = nodes.node("a"), nodes.node("b")

    def connect(node: ClusterNode) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port, "shop"))

    def refusal() -> str:
        try:
            connect(here).close()
        except pika.exceptions.ProbableAccessDeniedError as error:
            return str(error)
        return ""

    connection = connect(there)
    assert "connection limit" in nodes.wait_until(refusal, "a connection at another node counts", 10)
    run(nodes, "a", "vhost", "delete", "shop")
    with pytest.raises(pika.exceptions.ConnectionClosed, match="shop"):
        connection.process_data_events(time_limit=5)
    assert "ann" in run(nodes, "c", "user", "list")


def test_queues_grow_by_themselves(tmp_path: Path) -> None:
    """G5 to G7: they grow to the target, one member a round, after a declaration or a policy."""
    options = ["--quorum-reconciliation", "--quorum-reconciliation-trigger-interval-ms", "100"]
    with ClusterProcess(tmp_path, 4, options) as nodes:
        declare(nodes, "wanted", 1)
        run(nodes, "b", "policy", "set", "p", "^wanted$", '{"target-group-size": 4}')
        nodes.wait_until(
            lambda: [kind for _, kind in states(nodes, "wanted").values()] == ["voter"] * 4, "four voters", 20
        )
        declare(nodes, "free", 1, at="b")
        assert len(states(nodes, "free")) == 1
        nodes.check_logs()


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delete_member_during_node_down")
def test_a_member_that_is_down_is_removed_and_the_lost_are_left_behind(nodes: ClusterProcess) -> None:
    """G3, Z2, L5: the last test of the module, since it loses a node."""
    declare(nodes, "two", 3)
    declare(nodes, "lost", 2, at="c")
    other = next(name for name in states(nodes, "lost", "b") if name != "c")
    publish(nodes.node("b"), "lost", 3)
    nodes.node("c").kill()
    for node in (nodes.node("a"), nodes.node("b")):
        nodes.wait_until(
            lambda node=node: nodes.run_command(node, "check", "quorum-critical").returncode == 69,
            f"the loss is noticed by {node.name}",
            20,
        )
    assert "would lose" in run(nodes, "a", "check", "quorum-critical", code=69)
    run(nodes, "b", "member", "delete", "two", "c", "--timeout", "20")
    assert set(states(nodes, "two", "b")) == {"a", "b"}
    run(nodes, other, "member", "force-shrink", "lost")
    nodes.wait_until(lambda: states(nodes, "lost", other) == {other: ("leader", "voter")}, "one member")
    assert drained(nodes.node("a"), "lost") == [0, 1, 2]
    nodes.node("c").start()
    nodes.wait_until(lambda: nodes.node("c").accepts, "the node is back")
    assert set(states(nodes, "lost", "c")) == {other}
    run(nodes, "c", "member", "add", "lost", "c", "--membership", "voter")
    publish(nodes.node("c"), "lost", 1)
