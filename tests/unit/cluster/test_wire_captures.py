"""What nodes of earlier versions say is understood, and said again in the same bytes.

``tests/folders/wire-1.json`` is what three nodes said to each other when there were protocol version 1 and
machine version 1: while they formed a cluster, with clients at all of them, when the leader stopped and came
back, and when a queue got another member, and of what they tell each other of queues of direct reply-to.
Hellos, and frames of each kind. It is not to be made anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amqp10broker.cluster.asking import encode_answer, encode_document, read_answer, read_document
from amqp10broker.cluster.effects_codec import (
    decode_leader,
    decode_resumed,
    decode_told,
    encode_leader,
    encode_resumed,
    encode_told,
)
from amqp10broker.cluster.frames import Decoder, encode
from amqp10broker.cluster.hello import read_hello
from amqp10broker.cluster.ids import SYSTEM_GROUP
from amqp10broker.cluster.letters_codec import decode_letters, decode_resume, encode_letters, encode_resume
from amqp10broker.cluster.liveness import read_heartbeat
from amqp10broker.cluster.reply_queues import _TO as TO
from amqp10broker.cluster.snapshots import _HEAD as PART
from amqp10broker.cluster.snapshots import What
from amqp10broker.cluster.transactions import Transaction
from amqp10broker.cluster.wire import Frame, FrameKind, Purpose
from amqp10broker.raft.codec import decode_message, encode_message
from amqp10broker.runtime.cluster.raft_node import MEMBER, NO_MEMBER

CAPTURE = json.loads((Path(__file__).parents[2] / "folders" / "wire-1.json").read_text())
FRAMES = [
    Frame(FrameKind[kind], group, bytes.fromhex(body), flags)
    for kind, group, flags, body in CAPTURE["frames"]
]

LATER = (FrameKind.BROWSE,)
"""Not said before machine version 2."""


def said_again(frame: Frame) -> bytes:
    """The body, read and written."""
    body = frame.body
    match frame.kind:
        case FrameKind.RAFT:
            return body if body in (MEMBER, NO_MEMBER) else encode_message(decode_message(body))
        case FrameKind.LETTER:
            return b"".join(encode_letters(decode_letters(body)))
        case FrameKind.EFFECTS:
            return b"".join(encode_told(decode_told(body)))
        case FrameKind.RESUME:
            return b"".join(encode_resume(decode_resume(body, 1)))
        case FrameKind.RESUMED:
            return b"".join(encode_resumed(decode_resumed(body)))
        case FrameKind.LEADER_IS:
            return b"".join(encode_leader(decode_leader(body)))
        case FrameKind.HEARTBEAT:
            return read_heartbeat(body).encode()
        case FrameKind.REQUEST:
            return encode_document(read_document(body))
        case FrameKind.RESPONSE:
            return encode_answer(read_answer(body))
        case FrameKind.REPLY_QUEUES:
            return json.dumps(json.loads(body)).encode()
        case FrameKind.REPLIES:
            to, letters = body[: _end_of_name(body)], body[_end_of_name(body) :]
            return to + b"".join(encode_letters(decode_letters(letters)))
        case FrameKind.PROPOSE:
            return Transaction.decode(body).encode()
        case FrameKind.SNAPSHOT if frame.group == SYSTEM_GROUP:
            return encode_message(decode_message(body))
        case FrameKind.SNAPSHOT | FrameKind.SNAPSHOT_ANSWER if body:
            transfer, number, what = PART.unpack_from(body)
            rest = body[PART.size :]
            if frame.kind is FrameKind.SNAPSHOT and What(what) is What.END:
                rest = encode_message(decode_message(rest))
            return PART.pack(transfer, number, what) + rest
        case _:
            return body


def _end_of_name(body: bytes) -> int:
    return TO.size + sum(TO.unpack_from(body))


@pytest.mark.parametrize(
    "kind", [kind for kind in FrameKind if kind not in LATER], ids=lambda kind: kind.name
)
def test_what_nodes_said_is_read_and_said_again(kind: FrameKind) -> None:
    frames = [frame for frame in FRAMES if frame.kind is kind]
    assert len(frames) >= 2
    for frame in frames:
        assert said_again(frame) == frame.body
    wire = b"".join(b"".join(encode(frame.kind, frame.group, [frame.body], frame.flags)) for frame in frames)
    assert Decoder().feed(wire) == frames


def test_their_hellos_are_read_and_said_again() -> None:
    hellos = {}
    for content in CAPTURE["hellos"]:
        found = read_hello(bytes.fromhex(content))
        assert found.encode().hex() == content
        assert (found.versions, found.machines) == ((1, 1), (1, 1))
        hellos[found.purpose, bool(found.node)] = found.identity.used
    assert hellos[Purpose.RAFT, True] == 1, "the version that the cluster uses"
    assert hellos[Purpose.QUESTION, False] == 0, "one that has no cluster yet"
