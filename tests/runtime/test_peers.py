"""Nodes find each other, lose each other and find each other again; on a network in memory, time jumps."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from amqp10broker.cluster.hello import HAND_OVER_MS, HUNG_MS, WRONG_SECRET, HelloRefused, Identity
from amqp10broker.cluster.wire import ConnectionPurpose, FrameKind, encode
from amqp10broker.errors import NotFound, PeerUnreachable, RefusedError
from amqp10broker.runtime.cluster.peers import LINKS, RAFT_BYTES_MAX
from tests.runtime.conftest import LogRecorder
from tests.support.peer_network import CLUSTER, UNTIL_S, Network, Node, all_hear_all, running, two_nodes
from tests.support.sim_network import WINDOW_BYTES

RAFT, LETTERS, BULK = LINKS


@pytest.fixture
def network() -> Network:
    return Network()


async def connected(node: Node, other: Node) -> None:
    for purpose in LINKS:
        with trio.fail_after(UNTIL_S):
            while not node.peers.connected(other.number, purpose):
                await node.changed.wait()


async def frames_come(node: Node, purpose: ConnectionPurpose, count: int) -> None:
    with trio.fail_after(UNTIL_S):
        while len(node.frames_of.get((1, purpose), ())) < count:
            await node.changed.wait()


async def test_three_nodes_find_each_other(network: Network) -> None:
    """Each is suspected until its first heartbeat; each pair has a connection for each purpose."""
    nodes = [Node(network, number, name) for number, name in ((1, "a"), (2, "b"), (3, "c"))]
    async with running(*nodes):
        assert nodes[0].log[:2] == [("suspected", 2), ("suspected", 3)]
        for node in nodes:
            for other in nodes:
                if node is not other:
                    await connected(node, other)
        await all_hear_all(*nodes)
        assert trio.current_time() < 0.5


async def test_nodes_that_find_each_other_do_not_lose_each_other_at_once(network: Network) -> None:
    """Heartbeats of one wake come in the order of creation: the first one lists no live nodes yet."""
    for delay_s in (0.0, 0.001, 0.03):
        network.slow = {("a", "b"): delay_s, ("b", "a"): delay_s}
        a, b = Node(network, 1, "a"), Node(network, 2, "b")
        async with running(a, b):
            await trio.sleep(5)
            for node, other in ((a, 2), (b, 1)):
                notifications = [entry[0] for entry in node.log if entry[0] in ("suspected", "heard")]
                assert notifications == ["suspected", "heard"], (node.name, other, delay_s)


async def test_node_that_comes_later_is_found(network: Network) -> None:
    """The node with the lower number tries at least once a second."""
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    async with running(a, acquainted=False) as nursery:
        a.know(b)
        await trio.sleep(60)
        b.know(a)
        await nursery.start(b.run)
        began = trio.current_time()
        await a.until("heard", 2, 1)
        assert trio.current_time() - began <= 1.1


async def test_frames_come_in_order_and_only_their_own(network: Network) -> None:
    """Frames sent in one wake come in one read; heartbeats are not among them."""
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    async with running(a, b):
        await connected(b, a)
        await trio.sleep(1)
        b.log.clear()
        for number in range(3):
            assert a.peers.send(2, RAFT, FrameKind.RAFT, number, [b"x", b"%d" % number])
            assert a.peers.send(2, LETTERS, FrameKind.COMMANDS, number, [b"y%d" % number])
        await b.until("frames", 1, RAFT)
        await b.until("frames", 1, LETTERS)
        raft, letters = b.frames_of[1, RAFT], b.frames_of[1, LETTERS]
        assert [(frame.kind, frame.group, frame.body) for frame in raft] == [
            (FrameKind.RAFT, 0, b"x0"),
            (FrameKind.RAFT, 1, b"x1"),
            (FrameKind.RAFT, 2, b"x2"),
        ]
        assert [frame.body for frame in letters] == [b"y0", b"y1", b"y2"]
        assert ("frames", 1, RAFT) not in b.log


async def test_nothing_is_sent_to_a_node_that_is_not_connected(network: Network) -> None:
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    async with running(a, acquainted=False):
        assert not a.peers.send(2, LETTERS, FrameKind.COMMANDS, 1, [b"x"])
        a.know(b)
        assert not a.peers.send(2, LETTERS, FrameKind.COMMANDS, 1, [b"x"])
        with pytest.raises(PeerUnreachable, match="node 'b' is not connected"):
            await a.peers.call(2, {"what": "x"}, 5)


async def test_silence_is_suspicion_after_a_second(network: Network) -> None:
    """Both sides of a cut suspect a second after the last heartbeat, until the cut is mended."""
    async with two_nodes(network) as (a, b):
        network.cut("a", "b")
        began = trio.current_time()
        for node, other in ((a, b), (b, a)):
            await node.until("suspected", other.number)
        assert 0.8 <= trio.current_time() - began <= 1.2
        await trio.sleep(30)
        network.mend()
        began = trio.current_time()
        await all_hear_all(a, b)
        # An attempt is under way at any time, and each ends within 2 s.
        assert trio.current_time() - began <= 3.5


async def test_suspicion_time_is_a_setting(network: Network) -> None:
    a, b = (Node(network, number, name, suspect_ms=5_000) for number, name in ((1, "a"), (2, "b")))
    async with running(a, b):
        await all_hear_all(a, b)
        network.cut("a", "b")
        began = trio.current_time()
        await a.until("suspected", 2)
        assert 4.8 <= trio.current_time() - began <= 5.2


async def test_reset_is_suspicion_at_once(network: Network) -> None:
    async with two_nodes(network) as (a, b):
        await trio.sleep(5)
        began = trio.current_time()
        network.reset("a", "b")
        await a.until("suspected", 2)
        await b.until("suspected", 1)
        assert trio.current_time() - began < 0.01
        await all_hear_all(a, b)
        assert trio.current_time() - began <= 0.3


async def test_new_start_is_suspected_and_then_heard(network: Network) -> None:
    """Old connections are reported as gone before the new ones exist."""
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    async with running(a, b) as nursery:
        await all_hear_all(a, b)
        network.cut("a", "b")  # a does not see that b ends
        await b.stop()
        network.mend()
        network.cut("b", "a", both=False)
        network.mend()
        again = Node(network, 2, "b", incarnation=2)
        again.know(a)
        a.log.clear()
        await nursery.start(again.run)
        await a.until("heard", 2, 2)
        await connected(a, again)
        assert a.peers.send(2, LETTERS, FrameKind.COMMANDS, 1, [b"x"])
        await again.until("frames", 1, LETTERS)


async def test_wrong_secret_is_logged_on_both_sides(network: Network, complaints: LogRecorder) -> None:
    a, b = Node(network, 1, "a"), Node(network, 2, "b", secret=b"another secret")
    async with running(a, b):
        await trio.sleep(30)
        assert not a.peers.connected(2, RAFT)
        said = {(event, fields["reason"]) for event, fields in complaints.of("warning") if "reason" in fields}
        assert said == {
            ("connection of a node refused", WRONG_SECRET),
            ("cannot connect to a node", f"refused by the other node: {WRONG_SECRET}"),
        }


async def test_another_node_at_the_address_is_named(network: Network, complaints: LogRecorder) -> None:
    """The list of nodes has two addresses exchanged."""
    a, b, c = Node(network, 1, "a"), Node(network, 2, "b"), Node(network, 3, "c")
    async with running(a, b, c, acquainted=False):
        a.peers.know(2, "b", ("c", 1))
        c.know(a)
        await trio.sleep(5)
        reasons = [fields["reason"] for _, fields in complaints.of("warning") if "reason" in fields]
        assert any(
            "node 'c' answers at c:1, which should be the address of node 'b'" in each for each in reasons
        )
        assert not a.peers.connected(2, RAFT)


async def test_forgotten_node_loses_its_connections_for_good(network: Network) -> None:
    """J8: it is not let in again."""
    async with two_nodes(network) as (a, b):
        b.log.clear()
        b.peers.forget(1)
        assert [entry for entry in b.log if entry[0] == "disconnected"] == [
            ("disconnected", 1, purpose) for purpose in b_order(b)
        ]
        await a.until("suspected", 2)
        a.log.clear()
        await trio.sleep(60)
        assert not a.peers.connected(2, RAFT)
        assert not b.peers.connected(1, RAFT)
        assert ("heard", 2, 1) not in a.log


def b_order(node: Node) -> list[ConnectionPurpose]:
    return [entry[2] for entry in node.log if entry[0] == "disconnected"]


async def test_second_connection_takes_the_place_of_the_first_when_it_is_proved(network: Network) -> None:
    """An unproved connection from a stranger ends nothing."""
    async with two_nodes(network) as (a, b):
        await trio.sleep(5)
        b.log.clear()
        stranger = await network.connect("stranger", ("b", 1))
        await stranger.stream.send_all(b"hello")
        await trio.sleep(5)
        assert all(entry[0] == "told" for entry in b.log)
        twin = Node(network, 1, "a")
        twin.know(b)
        twin.peers._start = a.peers._start  # the same process as far as b can see
        met = await twin.peers._visit(2, "b", ("b", 1), LETTERS)
        assert met is not None
        await b.until("disconnected", 1, LETTERS)
        await b.until("connected", 1, LETTERS)
        assert ("disconnected", 1, RAFT) not in b.log
        await met[0].stream.aclose()


# -- bounds


async def test_messages_of_groups_are_dropped_when_too_many_wait(network: Network) -> None:
    """`raft` sends them again; heartbeats precede the waiting ones."""
    async with two_nodes(network) as (a, b):
        network.cut("a", "b", both=False)
        piece = bytes(1024 * 1024)
        sent = [a.peers.send(2, RAFT, FrameKind.RAFT, 1, [piece]) for _ in range(20)]
        assert sent == [True] * 8 + [False] * 12
        assert a.peers.dropped == 12
        assert a.peers.backlog_bytes(2, RAFT) <= RAFT_BYTES_MAX
        assert a.peers.send(2, LETTERS, FrameKind.COMMANDS, 1, [piece])
        network.mend()
        await frames_come(b, RAFT, 8)
        assert a.peers.send(2, RAFT, FrameKind.RAFT, 1, [piece])


async def test_message_larger_than_the_bound_goes_alone(network: Network) -> None:
    async with two_nodes(network) as (a, b):
        await trio.testing.wait_all_tasks_blocked()
        assert a.peers.send(2, RAFT, FrameKind.RAFT, 1, [bytes(RAFT_BYTES_MAX + 1)])
        assert not a.peers.send(2, RAFT, FrameKind.RAFT, 1, [b"x"])
        await b.until("frames", 1, RAFT)
        assert len(b.frames_of[1, RAFT][0].body) == RAFT_BYTES_MAX + 1


async def test_letters_are_never_dropped_and_their_backlog_can_be_seen(network: Network) -> None:
    async with two_nodes(network) as (a, b):
        assert a.peers.backlog_bytes(2) == 0
        network.cut("a", "b", both=False)
        piece = bytes(1024 * 1024)
        assert all(a.peers.send(2, LETTERS, FrameKind.COMMANDS, n, [piece]) for n in range(100))
        assert a.peers.backlog_bytes(2) >= 99 * len(piece)
        network.mend()
        await frames_come(b, LETTERS, 100)
        assert [frame.group for frame in b.frames_of[1, LETTERS]] == list(range(100))
        await trio.sleep(1)
        assert a.peers.backlog_bytes(2) == 0


async def test_heartbeats_are_not_behind_letters_and_states(network: Network) -> None:
    """They have another connection: letters for half a minute do not hold them up."""
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    network.slow["a", "b"] = 0.3
    async with running(a, b):
        await all_hear_all(a, b)
        for number in range(100):
            a.peers.send(2, LETTERS, FrameKind.COMMANDS, number, [bytes(WINDOW_BYTES)])
        b.log.clear()
        await trio.sleep(10)
        assert a.peers.backlog_bytes(2)
        assert ("suspected", 1) not in b.log


# -- the disk


async def test_slow_disk_hands_over_and_a_hung_one_is_silence(network: Network) -> None:
    """Each is reported once; the node comes back with its disk. Nothing is disconnected."""
    async with two_nodes(network) as (a, b):
        b.unsynced = HAND_OVER_MS
        await b.until("hand over")
        await trio.sleep(1)
        assert ("hand over",) not in b.log
        assert ("suspected", 2) not in a.log
        b.unsynced = HUNG_MS
        await a.until("suspected", 2)
        await b.until("suspected", 1)  # a does not hear it
        await trio.sleep(10)
        assert a.peers.connected(2, LETTERS)
        b.unsynced = 0
        await all_hear_all(a, b)
        b.unsynced = HAND_OVER_MS
        await b.until("hand over")


async def test_clocks_are_compared_with_the_facts_and_each_minute(network: Network) -> None:
    """Before a node counts as alive, both nodes have measured how far the other's clock is ahead."""
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    b.skew_ms = 7_200_000
    async with running(a, b):
        await all_hear_all(a, b)
        assert a.clocks.notes({2: "b"}) == {
            "clock of b": "the clock of node b is 7200.0 s ahead of this node's"
        }
        assert b.clocks.notes({1: "a"})["clock of a"].endswith("is 7200.0 s behind this node's")
        b.skew_ms = 5_000
        await trio.sleep(122)
        assert a.clocks.notes({2: "b"}) == {"clock of b": "the clock of node b is 5.0 s ahead of this node's"}
        assert a.facts_of == {2: {}}


async def test_a_heartbeat_that_is_late_is_not_taken_for_a_wrong_clock(network: Network) -> None:
    """A busy node handles heartbeats late: the round trip bounds the error of its clock's offset."""
    a, b = (Node(network, number, name, suspect_ms=300_000) for number, name in ((1, "a"), (2, "b")))
    async with running(a, b):
        network.slow["a", "b"] = network.slow["b", "a"] = 0.3
        await all_hear_all(a, b)
        network.slow["b", "a"] = 40.0
        await trio.sleep(400)
        assert not a.clocks.notes({2: "b"})
        assert not b.clocks.notes({1: "a"})
        assert a.clocks.correction_ms == b.clocks.correction_ms == 0
        b.skew_ms = 7_200_000
        await trio.sleep(400)
        (note,) = a.clocks.notes({2: "b"}).values()
        assert 7_100 < float(note.split()[-6]) <= 7_200


async def test_facts_are_told_when_they_change_and_on_each_connection(network: Network) -> None:
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    b.facts = {"alarms": []}
    async with running(a, b):
        await all_hear_all(a, b)
        await trio.sleep(5)
        assert a.facts_of == {2: {"alarms": []}}
        a.log.clear()
        b.facts = {"alarms": ["disk"]}
        await a.until("told", 2)
        assert a.facts_of == {2: {"alarms": ["disk"]}}
        await trio.sleep(5)
        assert ("told", 2) not in a.log
        network.reset("a", "b")
        await a.until("told", 2)


# -- questions


async def test_question_is_answered_or_refused_as_there(network: Network) -> None:
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    b.answers["status"] = {"queues": 3}
    b.answers["queue"] = NotFound("queue 'q'", "there is no queue 'q'")
    b.answers["fault"] = ZeroDivisionError()
    async with running(a, b):
        await connected(a, b)
        assert await a.peers.call(2, {"what": "status"}, 5) == {"queues": 3}
        await b.until("asked", 1, "status")
        with pytest.raises(NotFound, match="there is no queue 'q'") as refused:
            await a.peers.call(2, {"what": "queue"}, 5)
        assert refused.value.resource == "queue 'q'"
        with pytest.raises(RefusedError, match="failed by a fault in the broker"):
            await a.peers.call(2, {"what": "fault"}, 5)
        assert a.peers.connected(2, LETTERS)


async def test_question_without_an_answer_ends_in_time(network: Network) -> None:
    """An answer that comes later is dropped."""
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    async with running(a, b):
        await connected(a, b)
        began = trio.current_time()
        with pytest.raises(PeerUnreachable, match="node 'b' has not answered within 5 s"):
            await a.peers.call(2, {"what": "slow"}, 5)
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)


async def test_question_ends_with_its_connection(network: Network) -> None:
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    async with running(a, b) as nursery:
        await connected(a, b)
        caught: list[Exception] = []

        async def ask() -> None:
            try:
                await a.peers.call(2, {"what": "slow"}, 500)
            except PeerUnreachable as error:
                caught.append(error)

        nursery.start_soon(ask)
        await b.until("asked", 1, "slow")
        network.reset("a", "b")
        await trio.testing.wait_all_tasks_blocked()
        assert "node 'b' cannot be reached: lost" in str(caught[0])


async def test_node_without_a_cluster_may_ask(network: Network) -> None:
    """It gets the answer that it has no number; the other node may be a member or not yet."""
    a, new = Node(network, 1, "a"), Node(network, 0, "new")
    a.answers["join"] = {"number": 2}
    new.answers["probe"] = {"cluster": ""}
    async with running(a, new, acquainted=False):
        assert await new.peers.ask_address(("a", 1), {"what": "join"}, 5) == {"number": 2}
        await a.until("asked", 0, "join")
        assert await a.peers.ask_address(("new", 1), {"what": "probe"}, 5) == {"cluster": ""}
        await new.until("asked", 1, "probe")


async def test_node_that_has_joined_is_connected_under_its_number(network: Network) -> None:
    a, new = Node(network, 1, "a"), Node(network, 0, "new")
    async with running(a, new, acquainted=False):
        a.peers.know(2, "new", ("new", 1))
        new.peers.become(Identity(2, "new", 1, CLUSTER))
        new.number = 2
        new.know(a)
        await all_hear_all(a, new)


async def test_question_to_an_address_says_why_it_fails(network: Network) -> None:
    a, b = Node(network, 1, "a"), Node(network, 0, "b")
    wrong = Node(network, 3, "c", secret=b"another")
    a.answers["no"] = NotFound("x", "there is none")
    async with running(a, b, wrong, acquainted=False):
        with pytest.raises(PeerUnreachable, match=r"x:1 cannot be reached: nobody listens"):
            await b.peers.ask_address(("x", 1), {"what": "join"}, 5)
        with pytest.raises(HelloRefused, match="refused by the other node: wrong secret"):
            await b.peers.ask_address(("c", 1), {"what": "join"}, 5)
        with pytest.raises(HelloRefused, match="own address"):
            await b.peers.ask_address(("b", 1), {"what": "join"}, 5)
        with pytest.raises(PeerUnreachable, match="a:1 has not answered within 5 s"):
            await b.peers.ask_address(("a", 1), {"what": "slow"}, 5)
        with pytest.raises(NotFound, match="there is none"):
            await b.peers.ask_address(("a", 1), {"what": "no"}, 5)


# -- what others send


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 40,
        b"".join(encode(FrameKind.HEARTBEAT, 0, [b"short"])),
        b"".join(encode(FrameKind.HEARTBEAT, 0, [bytes(14) + b"no json"])),
        b"".join(encode(FrameKind.REQUEST, 0, [b"{}"])),
    ],
    ids=["no frame", "short heartbeat", "facts that are no JSON", "a question among messages"],
)
async def test_bytes_that_cannot_be_understood_end_one_connection(
    network: Network, complaints: LogRecorder, sent: bytes
) -> None:
    """The others stay, and a new one replaces it."""
    async with two_nodes(network) as (a, b):
        await trio.sleep(2)
        b.log.clear()
        link = a.peers._link(2, RAFT)
        link.put([sent])
        await b.until("disconnected", 1, RAFT)
        assert b.peers.connected(1, LETTERS)
        await b.until("heard", 1, 1)
        assert [event for event, _ in complaints.of("error")] == [
            "node sent what this version does not understand"
        ]


async def test_fault_of_our_own_ends_one_connection(network: Network, complaints: LogRecorder) -> None:
    """It is logged with its cause, and the other connections go on."""
    a, b = Node(network, 1, "a"), Node(network, 2, "b")

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    b.frames = fail  # type: ignore[method-assign]
    async with running(a, b):
        await all_hear_all(a, b)
        a.peers.send(2, LETTERS, FrameKind.COMMANDS, 1, [b"x"])
        await b.until("disconnected", 1, LETTERS)
        assert b.peers.connected(1, RAFT)
        (event, fields), *_ = complaints.of("error")
        assert event == "frames of a node failed by a fault in the broker"
        assert isinstance(fields["exc_info"], ZeroDivisionError)


async def test_stopping_ends_all_at_once(network: Network) -> None:
    nodes = [Node(network, number, name) for number, name in ((1, "a"), (2, "b"), (3, "c"))]
    async with running(*nodes) as nursery:
        await all_hear_all(*nodes)
        network.isolate("a")
        nursery.start_soon(nodes[1].peers.call, 3, {"what": "slow"}, 500)
        nodes[1].peers.send(1, LETTERS, FrameKind.COMMANDS, 1, [bytes(10 * WINDOW_BYTES)])
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
    assert trio.current_time() == began
