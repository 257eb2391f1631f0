"""The greeting of two nodes: nobody without the secret gets further, and each refusal is one clear line."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.cluster.hello import (
    ECHO,
    MAGIC,
    MESSAGE_BYTES_MAX,
    NO_NODE,
    OWN_ADDRESS,
    WRONG_SECRET,
    Acquaintances,
    Hello,
    HelloRefused,
    Identity,
    PeerGreeting,
    read_hello,
)
from amqp10broker.cluster.wire import ConnectionPurpose

SECRET = b"the secret of the cluster"
A = Identity(1, "a", 5, "cluster-1")
B = Identity(2, "b", 9, "cluster-1")


def hello(
    identity: Identity, token: bytes = b"", purpose: ConnectionPurpose = ConnectionPurpose.RAFT
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
    """All that they say to each other; the refusals of dialer and listener."""
    sides, refusals = (dialer, listener), [None, None]
    to, data = 1, dialer.begin()
    while data and refusals[to] is None:
        data, refusals[to] = sides[to].received(data)  # type: ignore[call-overload]
        to = 1 - to
    return refusals[0], refusals[1]


def test_both_sides_know_each_other_in_the_end() -> None:
    """Each has the other's proved hello, and the bytes behind the greeting are left."""
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
    """The listener finds it, and says so; the dialer knows that it is hearsay."""
    dialer, listener = pair(secrets=(SECRET, b"another"))
    at_dialer, at_listener = exchange(dialer, listener)
    assert at_listener is not None
    assert str(at_listener) == WRONG_SECRET
    assert at_dialer is not None
    assert str(at_dialer) == f"refused by the other node: {WRONG_SECRET}"
    assert not dialer.done
    assert not listener.done


def test_listener_that_only_says_welcome_is_not_believed() -> None:
    """A welcome has to be proved as well."""
    dialer, listener = pair()
    answer, _ = listener.received(dialer.begin())
    dialer.received(answer)
    _, refused = dialer.received(struct.pack("<HB", 33, 3) + bytes(33))
    assert refused is not None
    assert str(refused) == WRONG_SECRET
    assert not dialer.done


def test_connection_behind_another_certificate_is_refused() -> None:
    """A proof passed on through somebody else's TLS connection is none."""
    dialer, listener = pair(bindings=(b"certificates that the dialer sees", b"those of the listener"))
    assert [str(each) for each in exchange(dialer, listener)] == [
        f"refused by the other node: {WRONG_SECRET}",
        WRONG_SECRET,
    ]


def test_stranger_gets_no_proof_of_the_listener() -> None:
    """What is sent before the dialer's proof holds nothing on which secrets could be tried."""
    dialer, listener = pair(secrets=(b"guess", SECRET))
    answer, _ = listener.received(dialer.begin())
    proof, _ = dialer.received(answer)
    delivery_outcome, refused = listener.received(proof)
    assert refused is not None
    assert delivery_outcome[3:4] == b"\1"
    assert delivery_outcome[4:36] == bytes(32)


def test_own_echo_is_refused() -> None:
    """What sends back each byte gets no proof."""
    dialer, _ = pair()
    answer, refused = dialer.received(dialer.begin())
    assert refused is not None
    assert str(refused) == ECHO
    assert answer[4:36] == bytes(32)


def test_proof_of_the_dialer_is_none_of_the_listener() -> None:
    """Reflected within one connection with a hello of its own, it proves nothing."""
    dialer, listener = pair()
    answer, _ = listener.received(dialer.begin())
    proof, _ = dialer.received(answer)
    reflected = b"\0" + proof[3:]
    _, refused = dialer.received(struct.pack("<HB", len(reflected), 3) + reflected)
    assert refused is not None
    assert str(refused) == WRONG_SECRET


def test_replayed_greeting_is_refused() -> None:
    """The listener's nonce is another one each time."""
    dialer, listener = pair()
    answer, _ = listener.received(opening := dialer.begin())
    proof, _ = dialer.received(answer)
    again = PeerGreeting(hello(B, b"later"), SECRET, welcome, dials=False)
    again.received(opening)
    _, refused = again.received(proof)
    assert refused is not None
    assert str(refused) == WRONG_SECRET


def test_welcome_before_the_proof_does_not_skip_the_judge() -> None:
    """Not even for one that has the secret."""
    dialer, listener = pair()
    answer, _ = listener.received(dialer.begin())
    dialer.received(answer)
    dialer._proved = True  # a node that does what it must not
    _, refused = listener.received(dialer._verdict(""))
    assert refused is not None
    assert str(refused) == NO_NODE
    assert not listener.done


@pytest.mark.parametrize("dials", [False, True])
def test_reason_of_the_judge_is_told_to_both(dials: bool) -> None:
    """Whichever side refuses, and only when the other has proved the secret."""
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
    """What it would say is about the cluster."""
    asked: list[Hello] = []

    def judge(peer: Hello) -> str | None:
        asked.append(peer)
        return None

    dialer = PeerGreeting(hello(A), b"guess", judge, dials=True)
    listener = PeerGreeting(hello(B), SECRET, judge, dials=False)
    exchange(dialer, listener)
    assert asked == []


def test_own_address_is_found() -> None:
    """A node that dials itself is told so."""
    dialer = PeerGreeting(hello(A), SECRET, welcome, dials=True)
    listener = PeerGreeting(replace(hello(A), nonce=b"m" * 32), SECRET, welcome, dials=False)
    at_dialer, at_listener = exchange(dialer, listener)
    assert str(at_listener) == OWN_ADDRESS
    assert str(at_dialer) == f"refused by the other node: {OWN_ADDRESS}"


def test_versions_without_a_common_one_are_refused() -> None:
    """Before anything behind them is read: a later version may say hello otherwise."""
    with pytest.raises(HelloRefused, match="versions 7 to 9 .* this one 1 to 1: upgrade the older"):
        read_hello(MAGIC + bytes((7, 9)) + b"whatever")


def test_nodes_whose_machines_do_not_fit_refuse_each_other_with_both_ranges() -> None:
    """Y3: one of them may not have heard yet what the cluster uses; either may be the one that dials."""
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
    """As a greeting, and behind a hello; no other error, nothing kept beyond one message."""
    for dials in (False, True):
        greeting = pair()[0 if dials else 1]
        greeting.begin()
        _, refused = greeting.received(data)
        assert not greeting.done
        assert refused is not None or len(greeting._kept) <= MESSAGE_BYTES_MAX + 3


@given(st.integers(0, 3), st.data())
def test_a_flipped_bit_in_the_greeting_is_never_welcomed(step: int, data: st.DataObject) -> None:
    """Any bit of any of the first four messages, seen by either side."""
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
    acquaintances = Acquaintances()
    for node, (name, incarnation) in (known or {1: ("a", 5), 2: ("b", 9)}).items():
        acquaintances.know(node, name, incarnation)
    return acquaintances.judge(own, peer)


def test_node_without_a_cluster_may_only_ask() -> None:
    new = Identity(0, "d", 1)
    assert judged(A, hello(new, purpose=ConnectionPurpose.QUESTION)) is None
    for joining in (new, replace(new, cluster=A.cluster)):
        assert judged(A, hello(joining)) == "node 'd' and 'a' are not both members of the cluster yet"


def test_forgotten_node_is_refused() -> None:
    reason = judged(A, hello(Identity(3, "c", 1, A.cluster)))
    assert reason is not None
    assert reason.startswith("node 'c', number 3, is not a member that node 'a' knows")


def test_other_name_with_old_data_is_refused() -> None:
    reason = judged(A, hello(replace(B, name="x")))
    assert reason == (
        "node 'x' has number 2, which is node 'b': the name stays with the data, start it with that name"
    )


def test_copy_of_the_own_folder_is_refused() -> None:
    reason = judged(A, hello(replace(A, name="a"), b"another process"))
    assert reason is not None
    assert "it is a copy of its folder" in reason


def test_incarnation_below_the_last_seen_is_an_old_copy() -> None:
    reason = judged(A, hello(replace(B, incarnation=8)))
    assert reason is not None
    assert "start number 8, and number 9 was seen before: it runs on an old copy of its folder" in reason


def test_same_incarnation_of_another_process_is_an_old_copy() -> None:
    """Two copies that were started equally often; the connections of one process are welcome."""
    acquaintances = Acquaintances()
    acquaintances.know(2, "b", 9)
    first = hello(B)
    assert acquaintances.judge(A, first) is None
    assert acquaintances.proved(first)
    assert acquaintances.judge(A, replace(first, purpose=ConnectionPurpose.BULK, nonce=b"x" * 32)) is None
    assert not acquaintances.proved(first)
    reason = acquaintances.judge(A, replace(first, start=b"another process!"))
    assert reason is not None
    assert "old copy" in reason
