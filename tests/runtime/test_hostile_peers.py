"""A node that has the secret and sends what it must not: it loses connections, the others lose nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.cluster.hello import HEARTBEAT, NodeHeartbeat
from amqp10broker.cluster.wire import ConnectionPurpose, FrameKind, encode, encode_document
from amqp10broker.errors import BrokerError, PeerUnreachable
from amqp10broker.runtime.cluster.peers import LINKS, QUESTIONS_MAX, UNREAD_BYTES_MAX
from tests.runtime.conftest import LogRecorder
from tests.support.peer_network import UNTIL_S, Network, Node, running

RAFT, LETTERS, BULK = LINKS


def raw(kind: FrameKind, group: int, body: bytes) -> bytes:
    return b"".join(encode(kind, group, [body]))


HEARTBEATS = st.builds(
    NodeHeartbeat,
    st.integers(0, 2**64 - 1),
    st.integers(0, 10_000),
    st.frozensets(st.integers(0, 4), max_size=4),
    st.sampled_from([b"", b"{}", b"[]", b"{", b'{"a": 1}']),
).map(lambda beat: raw(FrameKind.HEARTBEAT, 0, HEARTBEAT.encode(beat)))
DOCUMENTS = st.sampled_from(
    [
        b"{}",
        b'{"what": 1}',
        b'{"what": "status"}',
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b'{"answer": 3}',
        b"9" * 9_000,
    ]
)
QUESTIONS = st.builds(
    raw, st.sampled_from([FrameKind.REQUEST, FrameKind.RESPONSE]), st.integers(0, 3), DOCUMENTS
)
ANY = st.builds(raw, st.sampled_from(FrameKind), st.integers(0, 2**32 - 1), st.binary(max_size=40))
SENT = st.tuples(st.sampled_from(LINKS), st.one_of(HEARTBEATS, QUESTIONS, ANY, st.binary(max_size=60)))


async def between(check: Callable[[Node, Node, Node], object], *, wait_s: float = 0.0) -> None:
    """Run three nodes. `check` makes the first send hostile frames; then the other two must be well."""
    network = Network()
    nodes = hostile, b, c = [Node(network, number, name) for number, name in ((1, "a"), (2, "b"), (3, "c"))]
    for node in nodes:
        node.answers["status"] = {"well": node.name}
    async with running(*nodes):
        await trio.sleep(2)
        b.log.clear()
        check(hostile, b, c)
        await trio.sleep(10 + wait_s)
        assert ("suspected", 3) not in b.log
        assert ("disconnected", 3, LETTERS) not in b.log
        assert await b.peers.call(3, {"what": "status"}, 5) == {"well": "c"}
        assert await c.peers.call(2, {"what": "status"}, 5) == {"well": "b"}
        with trio.fail_after(UNTIL_S):
            while not (b.peers.connected(1, RAFT) and 1 in b.peers.liveness.alive):
                await b.changed.wait()


@settings(max_examples=30)
@given(st.lists(SENT, min_size=1, max_size=6))
def test_whatever_a_node_sends_others_are_well_and_it_comes_back(
    sent: list[tuple[ConnectionPurpose, bytes]],
) -> None:
    """It sends frames of all kinds on all connections, with invalid bodies."""

    def check(hostile: Node, b: Node, c: Node) -> None:
        for purpose, data in sent:
            link = hostile.peers._link(2, purpose)
            link.put([data])

    trio.run(between, check, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_answers_that_are_not_read_do_not_pile_up(complaints: LogRecorder) -> None:
    """Beyond a bound, more requests end the connection."""
    network = Network()
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    b.answers["much"] = {"x": "y" * 1_000_000}
    async with running(a, b):
        await trio.sleep(2)
        network.cut("b", "a", both=False)
        link = a.peers._link(2, LETTERS)
        assert link is not None
        most = 0
        question = encode_document({"what": "much"})
        for number in range(100):
            link.put(encode(FrameKind.REQUEST, number, [question]))
            await trio.testing.wait_all_tasks_blocked()
            most = max(most, b.peers.backlog_bytes(1))
        assert UNREAD_BYTES_MAX < most < UNREAD_BYTES_MAX + 4_000_000
        await b.until("disconnected", 1, LETTERS)
    assert any("wait to be read" in fields["reason"] for _, fields in complaints.of("error"))


async def test_questions_without_an_answer_are_refused_beyond_a_bound() -> None:
    network = Network()
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    b.answers["status"] = {}
    refused: list[BrokerError] = []

    async def ask() -> None:
        try:
            await a.peers.call(2, {"what": "for ever"}, 50)
        except BrokerError as error:
            refused.append(error)

    async with running(a, b) as nursery:
        await trio.sleep(2)
        for _ in range(QUESTIONS_MAX + 5):
            nursery.start_soon(ask)
        await trio.sleep(1)
        assert [str(error) for error in refused] == [
            f"{QUESTIONS_MAX} questions wait for this node's answer: ask later"
        ] * 5


@pytest.mark.parametrize("body", [b"{", b'{"answer": 3}', b"[" * 100_000])
async def test_answer_that_is_none_ends_the_connection_and_the_wait(
    complaints: LogRecorder, body: bytes
) -> None:
    """The caller gets the error that the node cannot be reached, and no other."""
    network = Network()
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    async with running(a, b) as nursery:
        await trio.sleep(2)

        async def answer_badly() -> None:
            await b.until("asked", 1, "for ever")
            link = b.peers._link(1, LETTERS)
            link.put(encode(FrameKind.RESPONSE, 1, [body]))

        nursery.start_soon(answer_badly)
        with pytest.raises(PeerUnreachable, match="node 'b' cannot be reached"):
            await a.peers.call(2, {"what": "for ever"}, 50)


async def test_error_of_what_reads_a_frame_is_no_fault_of_ours(complaints: LogRecorder) -> None:
    """The readers behind raise a `BrokerError` for bytes that are not theirs."""

    def check(hostile: Node, b: Node, c: Node) -> None:
        def refuse(*_: object) -> None:
            raise BrokerError("a message of a group that is cut")

        b.frames = refuse  # type: ignore[assignment]
        hostile.peers.send(2, RAFT, FrameKind.RAFT, 1, [b"x"])

    await between(check)
    assert complaints.of("error") == [
        (
            "node sent what this version does not understand",
            {"peer": "a", "reason": "a message of a group that is cut"},
        )
    ]
