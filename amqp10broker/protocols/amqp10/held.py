"""Frames for links that their owners cannot accept yet, held in order.

Everything for the handle of a held link (`hold`) waits, also an attach that takes its handle or name again:
it has another meaning before the link is attached than after. Of a link that is already attached, deliveries
and flows pass, but its detach, and frames behind that, wait. A frame is held after it has been counted
against the session's window; the size is bounded together with the connection's incomplete deliveries
(`protocols/budget.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.link import LinkState, ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Attach, Detach, Flow
from amqp10broker.protocols.amqp10.transfer import TransferFrame, TransferRun
from amqp10broker.protocols.budget import FRAME_BYTES, Unfinished

LinkFrame = TransferRun | TransferFrame | Flow | Attach | Detach

FIELDS_BYTES: Final = 65_536
"""The size counted for a held frame with fields of any length."""

PLAIN_BYTES: Final = 448
"""The size counted for a flow or a detach without such fields: on a connection that attaches thousands of
links together, each may have one.
"""


class HeldFrames:
    __slots__ = ("_unfinished", "by_remote")

    def __init__(self, unfinished: Unfinished) -> None:
        self._unfinished = unfinished
        self.by_remote: dict[int, Held] = {}

    def __iter__(self) -> Iterator[SenderLink | ReceiverLink]:
        return iter(dict.fromkeys(held.link for held in self.by_remote.values()))

    def hold(self, link: SenderLink | ReceiverLink) -> None:
        assert link.remote_handle is not None
        self.by_remote.setdefault(link.remote_handle, Held(link))

    def take(self, frame: LinkFrame) -> bool:
        handle = frame.performative.handle if isinstance(frame, TransferFrame) else frame.handle
        assert handle is not None
        held = self.by_remote.get(handle)
        if held is None:
            if type(frame) is not Attach:
                return False
            named = (frame.name, SenderLink if frame.role else ReceiverLink)
            waiting = self.by_remote.values()
            held = next((each for each in waiting if (each.link.name, type(each.link)) == named), None)
            if held is None:
                return False
            self.by_remote[handle] = held
        elif held.lets_pass(frame):
            return False
        held.held_bytes += self._unfinished.keep(_size(frame))
        held.frames.append(frame)
        return True

    def release(self, link: SenderLink | ReceiverLink) -> Sequence[LinkFrame]:
        frames: Sequence[LinkFrame] = ()
        for handle, held in list(self.by_remote.items()):
            if held.link is link:
                del self.by_remote[handle]
                frames = held.frames
                self._unfinished.give_back(held.held_bytes)
                held.held_bytes = 0
        return frames

    def clear(self) -> None:
        for link in list(self):
            self.release(link)


@dataclass(eq=False, slots=True)
class Held:
    link: SenderLink | ReceiverLink
    frames: list[LinkFrame] = field(default_factory=list)
    held_bytes: int = 0

    def lets_pass(self, frame: LinkFrame) -> bool:
        if self.frames or self.link.state is LinkState.ATTACH_RECEIVED:
            return False
        return type(frame) is not Detach and type(frame) is not Attach


def _size(frame: LinkFrame) -> int:
    # In addition to the fixed size of each frame.
    if type(frame) is TransferRun:
        return sum(map(len, frame.payloads)) + FRAME_BYTES * (len(frame.payloads) - 1)
    if type(frame) is TransferFrame:
        return len(frame.payload)
    if type(frame) is Flow:
        return PLAIN_BYTES if frame.properties is None else FIELDS_BYTES
    return PLAIN_BYTES if type(frame) is Detach and frame.error is None else FIELDS_BYTES
