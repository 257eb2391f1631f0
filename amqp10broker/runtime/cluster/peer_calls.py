"""Questions to other nodes and their answers, over connections for letters or for one question."""

from __future__ import annotations

from collections import Counter
from typing import Final

import trio

from amqp10broker.cluster.wire import (
    BadFrame,
    Document,
    FrameKind,
    PeerFrame,
    encode,
    encode_answer,
    encode_document,
    encode_refusal,
    read_answer,
    read_document,
)
from amqp10broker.errors import BrokerError, LimitExceeded, PeerUnreachable, RefusedError
from amqp10broker.runtime.cluster.peer_link import PeerEvents, PeerLink
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.peers")

QUESTIONS_MAX: Final = 1_024
"""Of one connection, that are not answered yet; further ones are refused."""
UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""So much waits to be sent, and a connection over which still more is asked ends: it is not read."""
_NUMBERS: Final = 2**32


class _Waiting:
    """One that waits for an answer."""

    def __init__(self, link: PeerLink) -> None:
        self.link = link
        self.over = trio.Event()
        self.answer: Document | None = None
        self.refused: RefusedError | None = None


class Calls:
    """All questions of one node, and all to it."""

    def __init__(self, events: PeerEvents) -> None:
        self._events = events
        self._last = 0
        self._waiting: dict[int, _Waiting] = {}
        self._answering: Counter[PeerLink] = Counter()

    async def call(self, link: PeerLink, question: Document, timeout_s: float) -> Document:
        """Ask, and wait for the answer. Raises `PeerUnreachable` if the connection is lost before, or it
        takes too long, and `RefusedError` as the other node raised it.
        """
        self._last = number = (self._last + 1) % _NUMBERS
        waiting = self._waiting[number] = _Waiting(link)
        name = link.peer.name
        try:
            link.put(encode(FrameKind.REQUEST, number, [encode_document(question)]))
            with trio.move_on_after(timeout_s):
                await waiting.over.wait()
                if waiting.refused is not None:
                    raise waiting.refused
                if waiting.answer is None:
                    raise PeerUnreachable(f"node '{name}' cannot be reached: {link.end}")
                return waiting.answer
        finally:
            del self._waiting[number]
        raise PeerUnreachable(f"node '{name}' has not answered within {timeout_s:g} s")

    def answered(self, link: PeerLink, frame: PeerFrame) -> None:
        """Handle an answer; drop it if its caller has gone. Raises `BadBytes` if it is malformed."""
        waiting = self._waiting.get(frame.group)
        if waiting is not None and waiting.link is link:
            try:
                waiting.answer = read_answer(frame.body)
            except RefusedError as error:
                waiting.refused = error
            waiting.over.set()

    def lost(self, link: PeerLink) -> None:
        """No answer will come over this connection."""
        for waiting in self._waiting.values():
            if waiting.link is link:
                waiting.over.set()

    def asked(self, link: PeerLink, frame: PeerFrame, nursery: trio.Nursery) -> None:
        """Answer a request in a task of the nursery. Raises `BadBytes` if the request is not valid, and
        `BadFrame` if the answers to others are not read.
        """
        question = read_document(frame.body)
        if link.backlog_bytes > UNREAD_BYTES_MAX:
            raise BadFrame(f"questions, while {UNREAD_BYTES_MAX} bytes wait to be read")
        if self._answering[link] >= QUESTIONS_MAX:
            busy = LimitExceeded("node", f"{QUESTIONS_MAX} questions wait for this node's answer: ask later")
            link.put(encode(FrameKind.RESPONSE, frame.group, [encode_refusal(busy)]))
            return
        self._answering[link] += 1
        nursery.start_soon(self._answer, link, frame.group, question)

    async def _answer(self, link: PeerLink, number: int, question: Document) -> None:
        try:
            try:
                answer = encode_answer(await self._events.asked(link.peer.node, question))
            except BrokerError as error:
                answer = encode_refusal(error)
            except Exception as error:
                _log.error("question of a node failed by a fault in the broker", exc_info=error)
                fault = RefusedError(
                    "node", "the question failed by a fault in the broker; its log says more"
                )
                answer = encode_refusal(fault)
            link.put(encode(FrameKind.RESPONSE, number, [answer]))
        finally:
            self._answering[link] -= 1
            if not self._answering[link]:
                del self._answering[link]
