"""Frames between nodes.

::

    length u32 | kind u8 | group u32 | body | crc32 u32

Integers are little-endian. `length` counts all behind itself; the checksum is over kind, group and body:
bodies pass through buffers of several programs, and TCP's own checksum is weak. Two nodes have a connection
for each `ConnectionPurpose` but the last, so that a long snapshot holds up neither a heartbeat nor a message.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class ConnectionPurpose(enum.IntEnum):
    """The purpose of a connection."""

    RAFT = 1
    """Messages of groups and heartbeats: what a full buffer drops is sent again."""
    LETTERS = 2
    """What sessions ask, what queues answer, questions: in order, never dropped while it lasts."""
    BULK = 3
    QUESTION = 4
    """Questions of, or to, a node that is not known yet: the only one for which a node needs no number."""


class FrameKind(enum.IntEnum):
    """The kind of a frame's body."""

    HEARTBEAT = 1
    RAFT = 2
    JOINED = 3
    """Several of `RAFT`; of each: group u32 | length u32 | body."""
    LETTER = 16
    """From a node's sessions to a queue (`links`)."""
    EFFECTS = 17
    """From a queue to a node's sessions."""
    RESUME = 18
    """A node has found the queue's leader: what it has heard so far."""
    RESUMED = 19
    LEADER_IS = 20
    """This node leads the group from now on, and takes letters."""
    BROWSE = 21
    """What browsers of a node ask the queue's leader; effects answer it."""
    REPLY_QUEUES = 24
    """Which queues of direct reply-to a node has (`reply_queues`)."""
    REPLIES = 25
    REQUEST = 32
    """A question to the node, as JSON, answered by `RESPONSE`."""
    RESPONSE = 33
    PROPOSE = 40
    """A transaction for the system group's leader (`metadata`)."""
    SNAPSHOT = 48
    """A part of a group's state, from its leader to a member."""
    SNAPSHOT_ANSWER = 49


class PeerFrame(NamedTuple):
    kind: FrameKind
    group: int
    """Of which group it is about, u32; of which question, in `REQUEST` and `RESPONSE`."""
    body: bytes
