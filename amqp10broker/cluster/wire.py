"""Frames between nodes.

::

    length u32 | kind u8 | group u32 | body | crc32 u32

Integers are little-endian. `length` counts all following bytes; the checksum is over kind, group and body,
because TCP's own is weak. Two nodes have a connection for each `ConnectionPurpose` but the last, so that a
long snapshot delays neither a heartbeat nor a message.

A frame may be large, because only a node that has proved the secret (`hello`) sends one. Requests and answers
are JSON. A refusal keeps its class, so that the client's front end answers as if it had decided itself.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from amqp10broker import errors
from amqp10broker.errors import BrokerError, FeatureDenied, RefusedError
from amqp10broker.layout import BadBytes


class ConnectionPurpose(enum.IntEnum):
    """The purpose of a connection. RAFT: messages of groups and heartbeats; those that a full buffer drops
    are sent again. COMMANDS: commands, effects and requests; never dropped. QUESTION: requests of, or to, a
    node without a number.
    """

    RAFT = 1
    COMMANDS = 2
    BULK = 3
    QUESTION = 4


class FrameKind(enum.IntEnum):
    HEARTBEAT = 1
    RAFT = 2
    JOINED = 3
    """Several frames of `RAFT`; for each: group u32 | length u32 | body."""
    # Kinds of frames of links: `remote_queue.messages`.
    COMMANDS = 16
    EFFECTS = 17
    RESUME = 18
    RESUMED = 19
    LEADER_IS = 20
    BROWSE = 21
    # Kinds for queues of direct reply-to: `reply_queues`.
    REPLY_QUEUES = 24
    REPLIES = 25
    # A request to the node, and its answer, as JSON.
    REQUEST = 32
    RESPONSE = 33
    PROPOSE = 40
    """A transaction for the system group's leader."""
    SNAPSHOT = 48
    """A part of a group's state, from its leader to a member."""
    SNAPSHOT_ANSWER = 49


class PeerFrame(NamedTuple):
    """A frame. `group`: u32; in `REQUEST` and `RESPONSE` the number of the request."""

    kind: FrameKind
    group: int
    body: bytes


BODY_BYTES_MAX: Final = 80 * 1024 * 1024

JOINED_BYTES_MAX: Final = 65_536
"""A frame of this size takes no further message: a node counts as silent while a frame of it is
incomplete.
"""

_HEAD: Final = struct.Struct("<IBI")
_CHECKED: Final = struct.Struct("<BI")
_PART: Final = struct.Struct("<II")
_CUT: Final = "a frame of several messages that is cut"
_U32: Final = struct.Struct("<I")
_AROUND: Final = _CHECKED.size + _U32.size
FRAME_BYTES_MIN: Final = _U32.size + _AROUND
_KINDS: Final = {int(kind): kind for kind in FrameKind}


class BadFrame(BrokerError):
    """This broker cannot read the received frame; the connection must end."""


def encode(kind: FrameKind, group: int, body: Sequence[bytes]) -> list[bytes]:
    """Return a frame in pieces: large ones are copied once, when they are sent. Raises `ValueError` if the
    body is above `BODY_BYTES_MAX`: the caller must divide it.
    """
    size = sum(map(len, body))
    if size > BODY_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes; {BODY_BYTES_MAX} are the most")
    head = _HEAD.pack(size + _AROUND, kind, group)
    checksum = crc32(head[_U32.size :])
    for piece in body:
        checksum = crc32(piece, checksum)
    return [head, *body, _U32.pack(checksum)]


def encode_joined(messages: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Return messages of groups in as few frames as `JOINED_BYTES_MAX` allows."""
    frames: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for group, message in messages:
        if parts and size + len(message) > JOINED_BYTES_MAX:
            frames += encode(FrameKind.JOINED, 0, [b"".join(parts)])
            parts, size = [], 0
        parts += (_PART.pack(group, len(message)), message)
        size += _PART.size + len(message)
    return frames + encode(FrameKind.JOINED, 0, [b"".join(parts)]) if parts else frames


def _joined(body: bytes) -> Iterator[PeerFrame]:
    at, end = 0, len(body)
    while at < end:
        start = at + _PART.size
        if start > end:
            raise BadFrame(_CUT)
        group, length = _PART.unpack_from(body, at)
        at = start + length
        if at > end:
            raise BadFrame(_CUT)
        yield PeerFrame(FrameKind.RAFT, group, body[start:at])


class Decoder:
    __slots__ = ("_kept", "_length_max", "_wanted")

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._length_max = body_bytes_max + _AROUND
        self._kept = bytearray()
        self._wanted = FRAME_BYTES_MIN

    def feed(self, data: bytes) -> list[PeerFrame]:
        """Take bytes, and return the complete frames. Raises `BadFrame`: frames before it are lost with the
        connection.
        """
        if self._kept:
            self._kept += data
            if len(self._kept) < self._wanted:
                return []
            data = bytes(self._kept)
            self._kept = bytearray()
        frames: list[PeerFrame] = []
        at, end = 0, len(data)
        self._wanted = FRAME_BYTES_MIN
        while end - at >= FRAME_BYTES_MIN:
            length, kind, group = _HEAD.unpack_from(data, at)
            if not _AROUND <= length <= self._length_max:
                raise BadFrame(f"a frame of {length} bytes; {_AROUND} to {self._length_max} are allowed")
            last = at + _U32.size + length - _U32.size
            if last + _U32.size > end:
                self._wanted = _U32.size + length
                break
            body = data[at + _HEAD.size : last]
            if crc32(body, crc32(data[at + _U32.size : at + _HEAD.size])) != _U32.unpack_from(data, last)[0]:
                raise BadFrame("a frame whose checksum is wrong")
            known = _KINDS.get(kind)
            if known is None:
                raise BadFrame(f"a frame of kind {kind}, which is not known")
            if known is FrameKind.JOINED:
                frames += _joined(body)
            else:
                frames.append(PeerFrame(known, group, body))
            at = last + _U32.size
        if at < end:
            self._kept += data[at:]
        return frames


Document = dict[str, Any]

_REFUSALS: Final[dict[str, type[RefusedError]]] = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, RefusedError) and each is not FeatureDenied
}


def encode_document(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read_document(body: bytes) -> Document:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadBytes("a question or an answer that is not JSON") from error
    if not isinstance(document, dict):
        raise BadBytes("a question or an answer that is no object")
    return document


def encode_answer(answer: Document) -> bytes:
    return encode_document({"answer": answer})


def encode_refusal(error: BrokerError) -> bytes:
    if not isinstance(error, RefusedError):
        error = RefusedError("node", str(error))
    facts = {"kind": type(error).__name__, "resource": error.resource, "description": error.description}
    return encode_document({"refused": facts})


def read_answer(body: bytes) -> Document:
    """Read the response of another node. Raises `RefusedError`, of the class that was raised there, and
    `BadBytes`.
    """
    document = read_document(body)
    answer, refused = document.get("answer"), document.get("refused")
    if isinstance(answer, dict):
        return answer
    if isinstance(refused, dict):
        kind = _REFUSALS.get(str(refused.get("kind")), RefusedError)
        raise kind(str(refused.get("resource")), str(refused.get("description")))
    raise BadBytes("an answer that says nothing")
