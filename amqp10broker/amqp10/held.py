"""Frames for links whose owners cannot answer yet: kept in order, until they can.

An owner that must wait before it accepts a link holds the link (`hold`). Everything for its handle is kept
then, also an attach that takes the handle or the name of the link again: it means something else before the
link is attached than behind. A link that is attached may be held as well, by an owner that still waits with
deliveries of it: these go on, and so do flows, but its detach, and what is behind that, is kept.

A frame is held when it has been counted against the session's window. What is held is bounded with what the
connection has of deliveries that are not whole (`unfinished.py`): a peer needs to send nothing on a link
before that is attached, and has no credit to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from amqp10broker.amqp10.link import LinkState, ReceiverLink, SenderLink
from amqp10broker.amqp10.performatives import Attach, Detach, Flow
from amqp10broker.amqp10.transfer import TransferFrame, TransferRun
from amqp10broker.amqp10.unfinished import FRAME_BYTES, Unfinished

LinkFrame = TransferRun | TransferFrame | Flow | Attach | Detach

FIELDS_BYTES: Final = 65_536
"""What a held frame counts as that has fields of any length."""

PLAIN_BYTES: Final = 448
"""What a flow or a detach without such fields counts as: of a connection that attaches thousands of links
together, each may have one."""


class HeldFrames:
    """Of all links of a session.

    Attributes:
        by_remote: the peer's handle -> what is held for it. An attach that waits for another link of its name
            shares that link's.
    """

    __slots__ = ("_unfinished", "by_remote")

    def __init__(self, unfinished: Unfinished) -> None:
        """Hold nothing.

        Args:
            unfinished: bounds what is held, with all else of the connection.
        """
        self._unfinished = unfinished
        self.by_remote: dict[int, Held] = {}

    def __iter__(self) -> Iterator[SenderLink | ReceiverLink]:
        """The links that are held, in the order in which they came."""
        return iter(dict.fromkeys(held.link for held in self.by_remote.values()))

    def hold(self, link: SenderLink | ReceiverLink) -> None:
        """Keep frames for a link from now on; or go on, if it has to wait for something else now."""
        assert link.remote_handle is not None
        self.by_remote.setdefault(link.remote_handle, Held(link))

    def take(self, frame: LinkFrame) -> bool:
        """Keep a frame, if its link is held.

        Raises:
            AmqpSessionError: too much is held; the session must be ended.
        """
        handle = frame.performative.handle if isinstance(frame, TransferFrame) else frame.handle
        assert handle is not None
        held = self.by_remote.get(handle)
        if held is None:
            if type(frame) is not Attach:
                return False
            held = next((each for each in self.by_remote.values() if each.is_named_in(frame)), None)
            if held is None:
                return False
            self.by_remote[handle] = held
        elif held.lets_pass(frame):
            return False
        held.held_bytes += self._unfinished.keep(_size(frame))
        held.frames.append(frame)
        return True

    def release(self, link: SenderLink | ReceiverLink) -> Sequence[LinkFrame]:
        """The frames that were kept for a link, which is not held any more."""
        frames: Sequence[LinkFrame] = ()
        for handle, held in list(self.by_remote.items()):
            if held.link is link:
                del self.by_remote[handle]
                frames = held.frames
                self._unfinished.give_back(held.held_bytes)
                held.held_bytes = 0
        return frames

    def clear(self) -> None:
        """The session has ended."""
        for link in list(self):
            self.release(link)


class Held:
    """Of one link.

    Attributes:
        link: the one that is held.
        frames: in order.
        held_bytes: what they count as.
    """

    __slots__ = ("frames", "held_bytes", "link")

    def __init__(self, link: SenderLink | ReceiverLink) -> None:
        self.link = link
        self.frames: list[LinkFrame] = []
        self.held_bytes = 0

    def is_named_in(self, attach: Attach) -> bool:
        """Whether an attach is of a link of the same name and direction."""
        return attach.name == self.link.name and attach.role == (type(self.link) is SenderLink)

    def lets_pass(self, frame: LinkFrame) -> bool:
        """Whether a frame is to be handled now."""
        if self.frames or self.link.state is LinkState.ATTACH_RECEIVED:
            return False
        return type(frame) is not Detach and type(frame) is not Attach


def _size(frame: LinkFrame) -> int:
    """Bytes that count for a frame, beside those that each counts."""
    if type(frame) is TransferRun:
        return sum(map(len, frame.payloads)) + FRAME_BYTES * (len(frame.payloads) - 1)
    if type(frame) is TransferFrame:
        return len(frame.payload)
    if type(frame) is Flow:
        return PLAIN_BYTES if frame.properties is None else FIELDS_BYTES
    return PLAIN_BYTES if type(frame) is Detach and frame.error is None else FIELDS_BYTES
