"""The beginning of connections between nodes: which side dials, admission, and requests before
authentication.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

import trio

from amqp10broker.cluster.hello import (
    NONCE_BYTES,
    START_BYTES,
    Acquaintances,
    Hello,
    HelloRefused,
    Identity,
    Judge,
    PeerGreeting,
)
from amqp10broker.cluster.wire import BadFrame, ConnectionPurpose, Document, FrameKind, PeerFrame
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, PeerUnreachable
from amqp10broker.runtime.cluster.peer_calls import Calls
from amqp10broker.runtime.cluster.peer_link import PeerEvents, PeerLink
from amqp10broker.runtime.cluster.peer_streams import Complaints, Dial, Transport, greet, why
from amqp10broker.runtime.connections.sockets import Address, peer_text

QUESTION_BYTES_MAX: Final = 1024 * 1024
"""The largest question of a node that is not a member yet, and the largest answer."""
QUESTION_S: Final = 300.0
"""How long a connection for questions may last."""
LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(eq=False)
class PeerGreeter:
    _identity: Callable[[], Identity]
    _secret: bytes
    _acquaintances: Acquaintances
    _events: PeerEvents
    _calls: Calls
    _complaints: Complaints
    _dial: Dial
    _start: bytes = field(default_factory=lambda: secrets.token_bytes(START_BYTES), init=False)

    async def meet(self, transport: Transport, proved: Callable[[], None]) -> PeerGreeting | None:
        """Greet one that has come. Returns none: it was refused, or lost."""
        greeting = self._greeting(ConnectionPurpose.QUESTION, self.judge, transport, dials=False)
        try:
            await greet(transport, greeting)
        except (HelloRefused, *LOST) as error:
            name = greeting.peer.name if greeting.peer is not None else None
            self._complaints.warn("connection of a node refused", transport.host, why(error), says_it_is=name)
            return None
        proved()
        return greeting

    async def visit(
        self, node: int, name: str, address: Address, purpose: ConnectionPurpose
    ) -> tuple[Transport, PeerGreeting] | None:
        """Dial a node that is known, and greet it. Returns none: it was refused, or cannot be reached."""

        def judge(hello: Hello) -> str | None:
            if not hello.node and hello.name == name:
                return f"node '{name}' is not ready to be a member yet"
            if hello.node != node:
                return (
                    f"node '{hello.name}' answers at {peer_text(address)}, which should be the address of "
                    f"node '{name}': correct the addresses of the nodes"
                )
            return self.judge(hello)

        peer_name = f"{peer_text(address)} ('{name}')"
        try:
            transport = await self._dial(address)
            greeting = self._greeting(purpose, judge, transport, dials=True)
            await greet(transport, greeting)
        except (HelloRefused, *LOST) as error:
            self._complaints.warn("cannot connect to a node", peer_name, why(error))
            return None
        self._complaints.forget(peer_name)
        return transport, greeting

    async def ask(
        self, address: Address, question: Document, timeout_s: float, identity: Identity
    ) -> Document:
        def judge(hello: Hello) -> str | None:
            return self._acquaintances.judge(identity, hello)

        place = peer_text(address)
        try:
            with trio.move_on_after(timeout_s):
                transport = await self._dial(address)
                greeting = self._greeting(
                    ConnectionPurpose.QUESTION, judge, transport, dials=True, identity=identity
                )
                await greet(transport, greeting)
                return await self._ask(transport, greeting, question, timeout_s)
            raise PeerUnreachable(f"{place} has not answered within {timeout_s:g} s")
        except LOST as error:
            raise PeerUnreachable(f"{place} cannot be reached: {why(error)}") from error

    async def answer(self, transport: Transport, greeting: PeerGreeting) -> None:
        """Serve a connection for questions until it is over."""
        assert greeting.peer is not None
        async with trio.open_nursery() as nursery:

            def frames(link: PeerLink, frames: Sequence[PeerFrame]) -> None:
                for frame in frames:
                    if frame.kind is not FrameKind.REQUEST:
                        raise BadFrame(f"a frame of kind {frame.kind} on a connection for questions")
                    self._calls.asked(link, frame, nursery)

            link = self._question_link(transport, greeting, frames)
            with trio.move_on_after(QUESTION_S):
                await link.run()
            nursery.cancel_scope.cancel()

    def judge(self, hello: Hello) -> str | None:
        return self._acquaintances.judge(self._identity(), hello)

    async def _ask(
        self, transport: Transport, greeting: PeerGreeting, question: Document, timeout_s: float
    ) -> Document:
        def frames(link: PeerLink, frames: Sequence[PeerFrame]) -> None:
            for frame in frames:
                if frame.kind is not FrameKind.RESPONSE:
                    raise BadFrame(f"a frame of kind {frame.kind} where an answer is awaited")
                self._calls.answered(link, frame)

        link = self._question_link(transport, greeting, frames)

        async def run() -> None:
            await link.run()
            self._calls.lost(link)

        answer: Document = {}
        failed: BrokerError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            try:
                answer = await self._calls.call(link, question, timeout_s)
            except BrokerError as error:  # as itself, not in a group
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return answer

    def _question_link(
        self,
        transport: Transport,
        greeting: PeerGreeting,
        frames: Callable[[PeerLink, Sequence[PeerFrame]], None],
    ) -> PeerLink:
        assert greeting.peer is not None
        return PeerLink(
            transport.stream, greeting.peer, greeting.rest, frames, body_bytes_max=QUESTION_BYTES_MAX
        )

    def _greeting(
        self,
        purpose: ConnectionPurpose,
        judge: Judge,
        transport: Transport,
        *,
        dials: bool,
        identity: Identity | None = None,
    ) -> PeerGreeting:
        own = Hello(identity or self._identity(), purpose, self._start, secrets.token_bytes(NONCE_BYTES))
        return PeerGreeting(own, self._secret, judge, dials=dials, binding=transport.binding)
