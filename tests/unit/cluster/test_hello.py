"""Nodes of a cluster: their frames, how they know each other, when one is suspected, how a cluster begins."""

from __future__ import annotations

import struct
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.cluster import bootstrap, wire
from amqp10broker.cluster.hello import (
    ECHO,
    FACTS_BYTES_MAX,
    HEARTBEAT,
    HUNG_MS,
    MAGIC,
    MESSAGE_BYTES_MAX,
    NO_NODE,
    OWN_ADDRESS,
    WRONG_SECRET,
    Hello,
    HelloRefused,
    Identity,
    KnownPeers,
    Liveness,
    News,
    NodeAlive,
    NodeHeartbeat,
    PeerGreeting,
    Suspected,
    read_hello,
)
from amqp10broker.layout import BadBytes
from amqp10broker.metadata.entry_codec import decoded
from amqp10broker.metadata.plan import CLUSTER, NODE_NUMBERS
from amqp10broker.metadata.queue import ClusterFacts, NodeFacts
from amqp10broker.raft.ids import member_id

SECRET = b"the secret of the cluster"
A = Identity(1, "a", 5, "cluster-1")
B = Identity(2, "b", 9, "cluster-1")


def hello(
    identity: Identity, token: bytes = b"", purpose: wire.ConnectionPurpose = wire.ConnectionPurpose.RAFT
) -> Hello:
    token = token or identity.name.encode()
    return Hello(identity, purpose, token.ljust(16, b"s"), token.ljust(32, b"n"))


def welcome(_: Hello) -> str | None:
    return None


def pair(
    dialer: Identity = A,
    listener: Identity = B,
    *,
    secrets: tuple[bytes, bytes] = (SECRET, SECRET),
    bindings: tuple[bytes, bytes] = (b"", b""),
) -> tuple[PeerGreeting, PeerGreeting]:
    return (
        PeerGreeting(hello(dialer), secrets[0], welcome, dials=True, binding=bindings[0]),
        PeerGreeting(hello(listener), secrets[1], welcome, dials=False, binding=bindings[1]),
    )


def exchange(dialer: PeerGreeting, listener: PeerGreeting) -> tuple[HelloRefused | None, HelloRefused | None]:
    """Carry all bytes between both sides; return the refusals of dialer and listener."""
    sides, refusals = (dialer, listener), [None, None]
    to, data = 1, dialer.begin()
    while data and refusals[to] is None:
        data, refusals[to] = sides[to].received(data)  # type: ignore[call-overload]
        to = 1 - to
    return refusals[0], refusals[1]


def test_both_sides_know_each_other_in_the_end() -> None:
    """Each has the other's proved hello, and the bytes after the greeting are left."""
    dialer, listener = pair()
    answer, _ = listener.received(dialer.begin())
    proof, _ = dialer.received(answer)
    delivery_outcome, _ = listener.received(proof)
    assert not dialer.done
    last, _ = dialer.received(delivery_outcome)
    assert dialer.done
    assert not listener.done
    assert listener.received(last + b"frames") == (b"", None)
    assert listener.done
    assert listener.rest == b"frames"
    assert (dialer.peer, listener.peer) == (hello(B), hello(A))


def test_wrong_secret_is_told_to_both() -> None:
    """The listener finds it and reports it; the dialer marks the reason as the other node's."""
    dialer, listener = pair(secrets=(SECRET, b"another"))
    at_dialer, at_listener = exchange(dialer, listener)
    assert str(at_listener) == WRONG_SECRET
    assert str(at_dialer) == f"refused by the other node: {WRONG_SECRET}"
    assert not dialer.done
    assert not listener.done


def test_listener_that_only_says_welcome_is_not_believed() -> None:
    """A welcome needs a proof as well."""
    dialer, listener = pair()
    answer, _ = listener.received(dialer.begin())
    dialer.received(answer)
    _, refused = dialer.received(struct.pack("<HB", 33, 3) + bytes(33))
    assert str(refused) == WRONG_SECRET
    assert not dialer.done


def test_connection_behind_another_certificate_is_refused() -> None:
    """A proof that is forwarded through another TLS connection is invalid."""
    dialer, listener = pair(bindings=(b"certificates that the dialer sees", b"those of the listener"))
    assert [str(each) for each in exchange(dialer, listener)] == [
        f"refused by the other node: {WRONG_SECRET}",
        WRONG_SECRET,
    ]


def test_stranger_gets_no_proof_of_the_listener() -> None:
    """The bytes before the dialer's proof hold nothing on which secrets could be tried."""
    dialer, listener = pair(secrets=(b"guess", SECRET))
    answer, _ = listener.received(dialer.begin())
    proof, _ = dialer.received(answer)
    delivery_outcome, refused = listener.received(proof)
    assert refused is not None
    assert delivery_outcome[3:4] == b"\1"
    assert delivery_outcome[4:36] == bytes(32)


def test_own_echo_is_refused() -> None:
    """A peer that sends back each byte gets no proof."""
    dialer, _ = pair()
    answer, refused = dialer.received(dialer.begin())
    assert str(refused) == ECHO
    assert answer[4:36] == bytes(32)


def test_proof_of_the_dialer_is_none_of_the_listener() -> None:
    """Reflected within one connection with another hello, it proves nothing."""
    dialer, listener = pair()
    answer, _ = listener.received(dialer.begin())
    proof, _ = dialer.received(answer)
    reflected = b"\0" + proof[3:]
    _, refused = dialer.received(struct.pack("<HB", len(reflected), 3) + reflected)
    assert str(refused) == WRONG_SECRET


def test_replayed_greeting_is_refused() -> None:
    """The listener's nonce differs each time."""
    dialer, listener = pair()
    answer, _ = listener.received(opening := dialer.begin())
    proof, _ = dialer.received(answer)
    again = PeerGreeting(hello(B, b"later"), SECRET, welcome, dials=False)
    again.received(opening)
    _, refused = again.received(proof)
    assert str(refused) == WRONG_SECRET


def test_welcome_before_the_proof_does_not_skip_the_judge() -> None:
    """This holds even for a peer that has the secret."""
    dialer, listener = pair()
    answer, _ = listener.received(dialer.begin())
    dialer.received(answer)
    dialer._proved = True  # a node that does what it must not
    _, refused = listener.received(dialer._verdict(""))
    assert str(refused) == NO_NODE
    assert not listener.done


@pytest.mark.parametrize("dials", [False, True])
def test_reason_of_the_judge_is_told_to_both(dials: bool) -> None:
    """Either side may refuse, and only when the other has proved the secret."""
    asked: list[str] = []

    def refuse(peer: Hello) -> str | None:
        asked.append(peer.name)
        return "the name is taken"

    judges = (refuse, welcome) if dials else (welcome, refuse)
    dialer = PeerGreeting(hello(A), SECRET, judges[0], dials=True)
    listener = PeerGreeting(hello(B), SECRET, judges[1], dials=False)
    refusals = exchange(dialer, listener)
    own, other = (0, 1) if dials else (1, 0)
    assert str(refusals[own]) == "the name is taken"
    assert str(refusals[other]) == "refused by the other node: the name is taken"
    assert asked == ["b" if dials else "a"]
    assert not listener.done


def test_judge_is_not_asked_about_a_stranger() -> None:
    """The judge's reason describes the cluster."""
    asked: list[Hello] = []

    def judge(peer: Hello) -> str | None:
        asked.append(peer)
        return None

    dialer = PeerGreeting(hello(A), b"guess", judge, dials=True)
    listener = PeerGreeting(hello(B), SECRET, judge, dials=False)
    exchange(dialer, listener)
    assert asked == []


def test_own_address_is_found() -> None:
    dialer = PeerGreeting(hello(A), SECRET, welcome, dials=True)
    listener = PeerGreeting(replace(hello(A), nonce=b"m" * 32), SECRET, welcome, dials=False)
    at_dialer, at_listener = exchange(dialer, listener)
    assert str(at_listener) == OWN_ADDRESS
    assert str(at_dialer) == f"refused by the other node: {OWN_ADDRESS}"


def test_versions_without_a_common_one_are_refused() -> None:
    """They are refused before the rest is read: a later version may have another hello."""
    with pytest.raises(HelloRefused, match="versions 7 to 9 .* this one 1 to 1: upgrade the older"):
        read_hello(MAGIC + bytes((7, 9)) + b"whatever")


def test_nodes_whose_machines_do_not_fit_refuse_each_other_with_both_ranges() -> None:
    """Y3: one node may not have the cluster's version yet; either node may be the dialer."""
    used = replace(A, used=2)
    old = replace(hello(B), machines=(1, 1))
    new = replace(hello(used), machines=(1, 2))
    for dialer, listener in ((old, new), (new, old)):
        at_dialer, at_listener = exchange(
            PeerGreeting(dialer, SECRET, welcome, dials=True),
            PeerGreeting(listener, SECRET, welcome, dials=False),
        )
        reason = (
            "versions do not fit: node 'b' carries out machine versions 1 to 1, and the cluster uses version "
            "2: install a newer broker at node 'b' (node 'a' carries out 1 to 2)"
        )
        assert str(at_listener) == reason
        assert str(at_dialer) == f"refused by the other node: {reason}"


@given(st.binary(max_size=400))
def test_random_bytes_are_refused_or_awaited(data: bytes) -> None:
    """They are a greeting or follow a hello; no other error is raised, at most one message is kept."""
    for dials in (False, True):
        greeting = pair()[0 if dials else 1]
        greeting.begin()
        _, refused = greeting.received(data)
        assert not greeting.done
        assert refused is not None or len(greeting._kept) <= MESSAGE_BYTES_MAX + 3


@given(st.integers(0, 3), st.data())
def test_a_flipped_bit_in_the_greeting_is_never_welcomed(step: int, data: st.DataObject) -> None:
    dialer, listener = pair()
    sides, to, message = (dialer, listener), 1, dialer.begin()
    for turn in range(5):
        if turn == step:
            flipped = bytearray(message)
            flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            message = bytes(flipped)
        message, refused = sides[to].received(message)
        if refused is not None or not message:
            break
        to = 1 - to
    assert not listener.done


# -- whom a node knows


def judged(own: Identity, peer: Hello, known: dict[int, tuple[str, int]] | None = None) -> str | None:
    acquaintances = KnownPeers()
    for node, (name, incarnation) in (known or {1: ("a", 5), 2: ("b", 9)}).items():
        acquaintances.know(node, name, incarnation)
    return acquaintances.judge(own, peer)


def test_node_without_a_cluster_may_only_ask() -> None:
    new = Identity(0, "d", 1)
    assert judged(A, hello(new, purpose=wire.ConnectionPurpose.QUESTION)) is None
    for joining in (new, replace(new, cluster=A.cluster)):
        assert judged(A, hello(joining)) == "node 'd' and 'a' are not both members of the cluster yet"


def test_forgotten_node_is_refused() -> None:
    reason = judged(A, hello(Identity(3, "c", 1, A.cluster)))
    assert reason.startswith("node 'c', number 3, is not a member that node 'a' knows")


def test_other_name_with_old_data_is_refused() -> None:
    reason = judged(A, hello(replace(B, name="x")))
    assert reason == (
        "node 'x' has number 2, which is node 'b': the name stays with the data, start it with that name"
    )


def test_copy_of_the_own_folder_is_refused() -> None:
    reason = judged(A, hello(replace(A, name="a"), b"another process"))
    assert "it is a copy of its folder" in reason


def test_incarnation_below_the_last_seen_is_an_old_copy() -> None:
    reason = judged(A, hello(replace(B, incarnation=8)))
    assert "start number 8, and number 9 was seen before: it runs on an old copy of its folder" in reason


def test_same_incarnation_of_another_process_is_an_old_copy() -> None:
    """Two copies were started equally often; two connections of one process are welcome."""
    acquaintances = KnownPeers()
    acquaintances.know(2, "b", 9)
    first = hello(B)
    assert acquaintances.judge(A, first) is None
    assert acquaintances.proved(first)
    assert (
        acquaintances.judge(A, replace(first, purpose=wire.ConnectionPurpose.BULK, nonce=b"x" * 32)) is None
    )
    assert not acquaintances.proved(first)
    reason = acquaintances.judge(A, replace(first, start=b"another process!"))
    assert "old copy" in reason


FRAMES = st.builds(
    wire.PeerFrame,
    st.sampled_from([kind for kind in wire.FrameKind if kind is not wire.FrameKind.JOINED]),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=300),
)


def encoded(frames: list[wire.PeerFrame]) -> bytes:
    return b"".join(piece for frame in frames for piece in wire.encode(frame.kind, frame.group, [frame.body]))


def raw(kind: int, body: bytes, *, length: int | None = None) -> bytes:
    checked = struct.pack("<BI", kind, 7) + body
    size = len(checked) + 4 if length is None else length
    return struct.pack("<I", size) + checked + struct.pack("<I", crc32(checked))


def test_layout_is_the_documented_one() -> None:
    assert b"".join(wire.encode(wire.FrameKind.COMMANDS, 7, [b"ab", b"", b"c"])) == raw(16, b"abc")
    assert wire.Decoder().feed(raw(16, b"abc")) == [wire.PeerFrame(wire.FrameKind.COMMANDS, 7, b"abc")]


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 80), min_size=1))
def test_frames_come_out_as_they_went_in(frames: list[wire.PeerFrame], portions: list[int]) -> None:
    data, decoder = encoded(frames), wire.Decoder()
    out: list[wire.PeerFrame] = []
    at = turn = 0
    while at < len(data):
        size = portions[turn % len(portions)]
        out += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert out == frames
    assert len(decoder._kept) == 0


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
def test_truncated_bytes_give_only_the_frames_that_are_whole(
    frames: list[wire.PeerFrame], data: st.DataObject
) -> None:
    whole = encoded(frames)
    cut = data.draw(st.integers(0, len(whole) - 1))
    decoder = wire.Decoder()
    out = decoder.feed(whole[:cut])
    assert out == frames[: len(out)]
    assert len(out) < len(frames)
    assert len(decoder._kept) == cut - len(encoded(out))


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
def test_a_flipped_bit_is_never_taken_for_something_else(
    frames: list[wire.PeerFrame], data: st.DataObject
) -> None:
    """The connection ends, or waits for more bytes; no frame comes out that did not go in."""
    whole = bytearray(encoded(frames))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        out = wire.Decoder().feed(bytes(whole))
    except wire.BadFrame:
        return
    assert out == frames[: len(out)]
    assert len(out) < len(frames)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_random_bytes_are_frames_or_refused(reads: list[bytes]) -> None:
    """No other error is raised, and no more is kept than came."""
    decoder, came = wire.Decoder(), 0
    for read in reads:
        came += len(read)
        try:
            decoder.feed(read)
        except wire.BadFrame:
            return
        assert len(decoder._kept) <= came


def test_unknown_kind_ends_the_connection() -> None:
    """A version adds kinds under a higher number only."""
    with pytest.raises(wire.BadFrame, match="kind 99"):
        wire.Decoder().feed(raw(99, b""))


@pytest.mark.parametrize("length", [0, 8, wire.BODY_BYTES_MAX + 10, 2**32 - 1])
def test_length_that_no_frame_has_ends_the_connection_at_once(length: int) -> None:
    """No bytes are awaited or kept for it."""
    with pytest.raises(wire.BadFrame, match="a frame of"):
        wire.Decoder().feed(raw(16, b"", length=length))


def test_messages_of_many_groups_are_one_frame() -> None:
    """They come out separately, as if each had come alone."""
    messages = [(group, b"%d" % group) for group in range(500)]
    data = b"".join(wire.encode_joined(messages))
    assert len(data) == struct.unpack_from("<I", data)[0] + 4, "it is one frame"
    assert wire.Decoder().feed(data) == [
        wire.PeerFrame(wire.FrameKind.RAFT, *message) for message in messages
    ]


@pytest.mark.parametrize(
    ("sizes", "count"), [((1, wire.JOINED_BYTES_MAX, 1), 3), ((wire.JOINED_BYTES_MAX - 9, 1), 1), ((), 0)]
)
def test_a_joined_frame_does_not_grow_above_its_bound(sizes: tuple[int, ...], count: int) -> None:
    data = b"".join(wire.encode_joined([(7, bytes(size)) for size in sizes]))
    assert [len(frame.body) for frame in wire.Decoder().feed(data)] == list(sizes)
    at = frames = 0
    while at < len(data):
        at, frames = at + 4 + struct.unpack_from("<I", data, at)[0], frames + 1
    assert frames == count


@pytest.mark.parametrize(
    "body", [b"1234567", struct.pack("<II", 7, 3) + b"ab", struct.pack("<II", 7, 0) + b"a"]
)
def test_a_joined_frame_that_is_cut_ends_the_connection(body: bytes) -> None:
    """The group of the rest would be a guess."""
    with pytest.raises(wire.BadFrame, match="cut"):
        wire.Decoder().feed(raw(wire.FrameKind.JOINED, body))


def test_body_above_the_bound_is_not_sent() -> None:
    """The other side would end the connection."""
    piece = bytes(wire.BODY_BYTES_MAX // 4)
    with pytest.raises(ValueError, match="are the most"):
        wire.encode(wire.FrameKind.COMMANDS, 1, [piece, piece, piece, piece, b"x"])


def test_large_frame_in_many_reads_keeps_only_what_came() -> None:
    """A length of 80 MiB reserves no memory."""
    decoder = wire.Decoder()
    head = struct.pack("<IBI", wire.BODY_BYTES_MAX + 9, 16, 1)
    assert decoder.feed(head) == []
    assert decoder.feed(b"xyz") == []
    assert len(decoder._kept) == len(head) + 3


def beat(*hears: int, incarnation: int = 5, unsynced_ms: int = 0, facts: bytes = b"") -> NodeHeartbeat:
    return NodeHeartbeat(incarnation, unsynced_ms, frozenset(hears), facts)


def knowing(*nodes: int) -> Liveness:
    liveness = Liveness(1, 1_000)
    for node in nodes:
        assert list(liveness.know(node)) == [Suspected(node)]
    assert list(liveness.tick(0)) == []
    return liveness


def ticks(liveness: Liveness, start_ms: int, end_ms: int) -> list[tuple[int, News]]:
    return [
        (now, notifications)
        for now in range(start_ms, end_ms + 1, liveness.beat_ms)
        for notifications in liveness.tick(now)
    ]


def test_node_is_suspected_until_it_is_heard_and_hears_us() -> None:
    """Its heartbeats alone are not enough."""
    liveness = knowing(2)
    assert list(liveness.received(2, beat(3), 10)) == []
    assert liveness.hears == {2}
    assert list(liveness.alive) == []
    assert list(liveness.received(2, beat(1, 3), 20)) == [NodeAlive(2, 5)]
    assert list(liveness.alive) == [2]
    assert list(liveness.received(2, beat(1), 120)) == []


def test_silence_of_a_second_is_suspicion() -> None:
    liveness = knowing(2)
    list(liveness.received(2, beat(1), 0))
    assert ticks(liveness, 200, 3_000) == [(1_000, Suspected(2))]
    assert liveness.hears == frozenset()


@pytest.mark.parametrize(("suspect_ms", "beat_ms"), [(200, 40), (900, 180), (1_000, 200), (60_000, 200)])
def test_five_heartbeats_go_within_the_time_of_suspicion(suspect_ms: int, beat_ms: int) -> None:
    """Facts that nodes exchange in heartbeats are thus never older than 200 ms."""
    assert Liveness(1, suspect_ms).beat_ms == beat_ms


def test_what_else_comes_of_a_node_is_no_silence() -> None:
    """Heartbeats queue behind other work; only a heartbeat ends a suspicion."""
    liveness = knowing(2)
    list(liveness.received(2, beat(1), 0))
    liveness.seen(2, 900)
    assert ticks(liveness, 200, 1_800) == []
    assert ticks(liveness, 2_000, 3_000) == [(2_000, Suspected(2))]
    liveness.seen(2, 3_000)
    assert liveness.hears == frozenset()


def test_node_that_does_not_hear_us_is_suspected() -> None:
    """The network is cut in one direction: its heartbeats still come."""
    liveness = knowing(2, 3)
    list(liveness.received(2, beat(1, 3), 0))
    assert list(liveness.received(2, beat(3), 100)) == [Suspected(2)]
    assert liveness.hears == {2}
    assert list(liveness.received(2, beat(1, 3), 200)) == [NodeAlive(2, 5)]


def test_new_incarnation_is_suspected_and_then_heard() -> None:
    liveness = knowing(2)
    list(liveness.received(2, beat(1), 0))
    assert list(liveness.received(2, beat(1, incarnation=6), 50)) == [Suspected(2), NodeAlive(2, 6)]


def test_node_whose_disk_hangs_counts_as_silent() -> None:
    """It is suspected at once and counts as silent until its disk works again."""
    liveness = knowing(2)
    list(liveness.received(2, beat(1, unsynced_ms=HUNG_MS - 1), 0))
    assert list(liveness.alive) == [2]
    assert list(liveness.received(2, beat(1, unsynced_ms=HUNG_MS), 100)) == [Suspected(2)]
    assert liveness.hears == frozenset()
    assert list(liveness.received(2, beat(1), 200)) == [NodeAlive(2, 5)]


def test_heartbeat_read_after_a_stall_is_not_moved_into_the_future() -> None:
    liveness = knowing(2)
    list(liveness.tick(100))
    list(liveness.received(2, beat(1), 5_100))
    assert ticks(liveness, 5_100, 8_000) == [(6_100, Suspected(2))]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["beat", "lost", "tick"]), st.booleans(), st.integers(1, 2), st.integers(0, 900)
        ),
        max_size=60,
    )
)
def test_news_alternate(steps: list[tuple[str, bool, int, int]]) -> None:
    """Suspected and NodeAlive alternate; a node is alive exactly after NodeAlive."""
    liveness = knowing(2)
    now, alive = 0, False
    for what, hears_us, incarnation, wait_ms in steps:
        now += wait_ms
        if what == "beat":
            notifications = list(liveness.received(2, beat(*[1] * hears_us, incarnation=incarnation), now))
        else:
            notifications = list(liveness.lost(2) if what == "lost" else liveness.tick(now))
        for each in notifications:
            assert isinstance(each, Suspected if alive else NodeAlive)
            alive = not alive
        assert alive == (2 in liveness.alive)


def test_heartbeat_with_huge_facts_is_refused() -> None:
    """Facts are small; a large one shows a fault."""
    with pytest.raises(BadBytes, match="bytes of facts"):
        HEARTBEAT.decode(HEARTBEAT.encode(beat(1, facts=bytes(FACTS_BYTES_MAX + 1))))


LIST = ("a", "b", "c")


def heard(*nodes: bootstrap.NodeAnswer) -> dict[str, bootstrap.NodeAnswer]:
    return {each.name: each for each in nodes}


def alone(*names: str) -> dict[str, bootstrap.NodeAnswer]:
    return heard(*(bootstrap.NodeAnswer(name, None) for name in names))


# --- founding -------------------------------------------------------------------------------------


def test_the_first_of_the_list_founds_when_a_majority_of_it_has_no_cluster() -> None:
    waits = bootstrap.next_step("a", LIST, {}, has_data=False)
    assert isinstance(waits, bootstrap.WaitForNodes)
    assert waits.names == ("b", "c")
    assert waits.why == "2 of 3 nodes of the list must be up to found a cluster"
    assert bootstrap.next_step("a", LIST, alone("c"), has_data=False) == bootstrap.FoundCluster()


@pytest.mark.parametrize("listed", [(), ("a",)])
def test_a_node_alone_is_a_cluster_at_once(listed: tuple[str, ...]) -> None:
    assert bootstrap.next_step("a", listed, {}, has_data=True) == bootstrap.FoundCluster()


def test_no_other_node_ever_founds() -> None:
    waits = bootstrap.next_step("b", LIST, alone("c"), has_data=False)
    assert waits == bootstrap.WaitForNodes(("a",), "node 'a', the first of the list, founds the cluster")
    waits = bootstrap.next_step("b", LIST, alone("a", "c"), has_data=False)
    assert waits == bootstrap.WaitForNodes(("a",), "node 'a', the first of the list, has no cluster yet")


def test_a_founder_whose_disk_is_new_joins_the_cluster_that_there_is() -> None:
    cluster = heard(bootstrap.NodeAnswer("b", "id"), bootstrap.NodeAnswer("c", None))
    assert bootstrap.next_step("a", LIST, cluster, has_data=False) == bootstrap.Join("b")


# --- joining --------------------------------------------------------------------------------------


def test_a_node_that_is_not_in_its_list_joins_by_it() -> None:
    assert bootstrap.next_step(
        "d", LIST, heard(bootstrap.NodeAnswer("b", "id")), has_data=False
    ) == bootstrap.Join("b")
    assert isinstance(
        bootstrap.next_step("d", LIST, alone("a", "b", "c"), has_data=False), bootstrap.WaitForNodes
    )


def test_a_joiner_with_data_is_refused_and_hears_what_to_do() -> None:
    with pytest.raises(bootstrap.ClusterRefused, match="start it once with --discard-my-data"):
        bootstrap.next_step("c", LIST, heard(bootstrap.NodeAnswer("a", "id")), has_data=True)


@pytest.mark.parametrize("name", ["a", "b"])
def test_an_emptied_node_under_its_old_name_is_refused(name: str) -> None:
    with pytest.raises(bootstrap.ClusterRefused, match=f"cluster forget-node {name}' at node 'c'"):
        bootstrap.next_step(name, LIST, heard(bootstrap.NodeAnswer("c", "id", taken=True)), has_data=False)


# --- what is written by people, and into the folder -----------------------------------------------


def test_a_list_keeps_its_order() -> None:
    nodes = bootstrap.read_nodes("b=10.0.0.1:25672, a=[::1]:25673,")
    assert list(nodes.items()) == [
        ("b", bootstrap.Address("10.0.0.1", 25672)),
        ("a", bootstrap.Address("::1", 25673)),
    ]
    assert [str(each) for each in nodes.values()] == ["10.0.0.1:25672", "[::1]:25673"]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("a", "write each as NAME=HOST:PORT"),
        ("a=host", "write each as NAME=HOST:PORT"),
        ("a=host:0", "write each as NAME=HOST:PORT"),
        ("a=:5", "write each as NAME=HOST:PORT"),
        ("a=h:1,a=h:2", "node 'a' twice"),
        ("a=h:1,b=h:1", "address h:1 twice"),
        ("/=h:1", "cannot be the name of a node"),
    ],
)
def test_a_list_that_cannot_be_understood_is_refused(written: str, text: str) -> None:
    with pytest.raises(bootstrap.ClusterRefused, match=text):
        bootstrap.read_nodes(written)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ü", "x" * 65])
def test_a_name_is_one_of_a_folder(name: str) -> None:
    with pytest.raises(bootstrap.ClusterRefused, match="1 to 64 letters"):
        bootstrap.check_name(name)


def test_a_membership_comes_back_from_the_folder() -> None:
    members = (
        bootstrap.MemberAt(1, "a", bootstrap.Address("h", 1)),
        bootstrap.MemberAt(2, "b", bootstrap.Address("h", 2)),
    )
    membership = bootstrap.ClusterIdentity("id", 2, "b", members)
    assert bootstrap.ClusterIdentity.of(membership.document()) == membership


def test_a_founder_keeps_its_queues_which_are_at_its_node_then() -> None:
    def queue(kind: str) -> dict[str, object]:
        return {"type": kind, "durable": True, "auto_delete": False, "arguments": {}, "number": 7}

    node, cluster = NodeFacts("a", 1, "h", 5), ClusterFacts("id", "a")
    entries = bootstrap.founded(
        [
            (("vhost", "/"), {}),
            (("queue", "/", "c"), queue("classic")),
            (("queue", "/", "q"), queue("quorum")),
        ],
        node,
        cluster,
    )
    records = {key: decoded(key, value) for key, value in entries if key[0] != "vhost"}
    assert (records["queue", "/", "c"].home, records["queue", "/", "c"].members) == (1, ())
    assert (records["queue", "/", "q"].home, records["queue", "/", "q"].members) == (0, (member_id(1),))
    assert (records["node", "a"], records[CLUSTER], records[NODE_NUMBERS]) == (node, cluster, 1)
    assert entries[0] == (("vhost", "/"), {})


def test_a_forgotten_node_finds_out_and_a_node_that_others_do_not_know_yet_waits() -> None:
    me = bootstrap.ClusterIdentity("id", 3, "c", ())
    told = {"cluster": "id", "name": "a", "numbers": [1, 2], "highest": 3}
    with pytest.raises(bootstrap.ClusterRefused, match="it was forgotten; give it an empty folder"):
        bootstrap.check_still_member(me, told)
    bootstrap.check_still_member(me, {**told, "numbers": [1, 2, 3]})
    bootstrap.check_still_member(me, {**told, "highest": 2})
    bootstrap.check_still_member(me, {**told, "cluster": None})
