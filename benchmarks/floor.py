"""The floor: a peer that takes and gives messages and is no broker.

It answers the handshake, grants credit, counts what arrives, confirms by range, and sends back as many
messages of an address as it has counted in. It keeps no message, routes nothing and remembers no
delivery. What the load generator reaches against it, on the same machine in the same run, is the most it
could measure; a broker's rate near that figure is the generator's figure and not the broker's.

This file has the process and the AMQP 1.0 side; `floor091` has the other one.
"""

from __future__ import annotations

import argparse
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from amqp10broker.amqp10.frames import TYPE_SASL
from amqp10broker.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Composite,
    Flow,
    Open,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
)
from amqp10broker.amqp10.serial import MASK, limit_left
from amqp10broker.amqp10.types import Symbol
from amqp10broker.greeting import AMQP_091_HEADER
from benchmarks import spec, wire
from benchmarks.blocks import LargeTransfer, TransferBlock
from benchmarks.floor091 import FloorConnection091
from benchmarks.floor_counts import ENDLESS, Floor, FloorConnection
from benchmarks.peer import OUT_BYTES_MAX
from benchmarks.scan import Run, Scanner

MECHANISMS: Final = (Symbol("PLAIN"), Symbol("ANONYMOUS"))
INCOMING_WINDOW: Final = 20_000


@dataclass(slots=True)
class _Link:
    """A link on which the client sends, or receives (settled or not)."""

    handle: int
    address: str
    settled: bool = False
    delivery_count: int = 0
    credit: int = 0


@dataclass(slots=True)
class _FloorSession:
    channel: int
    remote_window: int
    next_incoming_id: int
    incoming_window: int = INCOMING_WINDOW
    next_outgoing_id: int = 0
    next_delivery_id: int = 0
    ins: dict[int, _Link] = field(default_factory=dict)
    outs: dict[int, _Link] = field(default_factory=dict)
    confirm: list[tuple[int, int]] = field(default_factory=list)
    low: set[int] = field(default_factory=set)
    blocks: dict[tuple[int, bool], TransferBlock | LargeTransfer] = field(default_factory=dict)
    partial_bytes: int = 0


class FloorConnection10(FloorConnection):
    """One client of the floor peer that speaks AMQP 1.0."""

    def __init__(self, floor: Floor, stream: socket.socket) -> None:
        """Take over an accepted socket."""
        super().__init__(floor, stream)
        self._scanner = Scanner(self, alike_in_size=floor.kept is not None)
        self._sessions: dict[int, _FloorSession] = {}

    def scan(self, data: bytearray, position: int, end: int) -> int:
        """Answer protocol headers, and act on every whole frame."""
        while data[position : position + 4] == b"AMQP" and end - position >= 8:
            self._greet(bytes(data[position : position + 8]))
            position += 8
        return self._scanner.scan(data, position, end)

    def answer(self) -> None:
        """Confirm by range and grant credit, once for one read."""
        for session in self._sessions.values():
            self._answer(session)

    def _greet(self, header: bytes) -> None:
        self.out += header
        if header == wire.SASL_HEADER:
            self.out += wire.frame(SaslMechanisms(sasl_server_mechanisms=MECHANISMS), frame_type=TYPE_SASL)

    def _answer(self, session: _FloorSession) -> None:
        for first, last in session.confirm:
            self.out += wire.disposition_frame(session.channel, receiver=True, first=first, last=last)
        session.confirm.clear()
        for handle in session.low:
            link = session.ins[handle]
            link.credit = self.floor.credit
            self._flow(session, link)
        session.low.clear()
        if session.incoming_window <= INCOMING_WINDOW // 2:
            self._flow(session)

    def _flow(self, session: _FloorSession, link: _Link | None = None) -> None:
        """Open the window to its width, and tell a link's credit."""
        session.incoming_window = INCOMING_WINDOW
        flow = Flow(
            next_incoming_id=session.next_incoming_id,
            incoming_window=INCOMING_WINDOW,
            next_outgoing_id=session.next_outgoing_id,
            outgoing_window=MASK,
            handle=None if link is None else link.handle,
            delivery_count=None if link is None else link.delivery_count & MASK,
            link_credit=None if link is None else link.credit,
        )
        self.out += wire.frame(flow, channel=session.channel)

    def sending(self) -> Iterator[Callable[[], bool]]:
        """Yield a step for each link."""
        for session in self._sessions.values():
            for link in session.outs.values():
                yield partial(self._deliver_on, session, link)

    def _deliver_on(self, session: _FloorSession, link: _Link) -> bool:
        wanted = min(link.credit, session.remote_window, self.floor.waiting(link.address))
        if wanted <= 0:
            return False
        first = session.next_delivery_id
        messages = frames = 1
        kept = self.floor.next_kept(link.address)
        block = self._block(session, link) if kept is None else None
        if kept is not None:
            performative = wire.transfer_performative(link.handle, first, settled=link.settled)
            self.out += wire.frame(performative + kept, channel=session.channel)
        elif isinstance(block, LargeTransfer):
            frames = block.frame_count
            if frames > session.remote_window:
                return False
            for piece in block.frames(link.handle, first, 0):
                self.out += piece
        elif block is not None:
            messages = frames = min(wanted, block.capacity)
            self.out += block.fill(link.handle, first, messages)
        link.credit -= messages
        link.delivery_count += messages
        session.remote_window -= frames
        session.next_delivery_id = (first + messages) & MASK
        session.next_outgoing_id = (session.next_outgoing_id + frames) & MASK
        self.floor.sent(link.address, messages)
        return True

    def _block(self, session: _FloorSession, link: _Link) -> TransferBlock | LargeTransfer:
        """Return ready-made frames for messages like those that came in on the link's address."""
        size = self.floor.size(link.address)
        block = session.blocks.get((size, link.settled))
        if block is None:
            endless = link.address.startswith(ENDLESS)
            payload = wire.data_message(bytes(size)) if endless else bytes(size)
            limit = spec.MAX_FRAME_SIZE_BYTES
            block = session.blocks[size, link.settled] = (
                TransferBlock(session.channel, payload, settled=link.settled)
                if size + 64 <= limit
                else LargeTransfer(session.channel, payload, settled=link.settled, max_frame_size_bytes=limit)
            )
        return block

    # --- what the scanner reports ---

    def on_transfers(self, run: Run) -> None:
        """Count messages in and remember what to confirm."""
        session = self._sessions[run.channel]
        session.next_incoming_id = (session.next_incoming_id + run.frames) & MASK
        session.incoming_window -= run.frames
        if run.more:
            session.partial_bytes += run.payload_bytes
            return
        first = run.first_delivery_id
        assert first is not None, "the load generator repeats the delivery-id in every frame"
        size = session.partial_bytes + run.payload_bytes
        session.partial_bytes = 0
        if isinstance(run.handles, int):
            self._count_in(session, run.handles, run.frames, size)
        else:
            for handle in run.handles:
                self._count_in(session, handle, 1, size)
        if self.floor.kept is not None:
            self._keep(session, run)
        if not run.settled:
            last = (first + run.frames - 1) & MASK
            if session.confirm and (session.confirm[-1][1] + 1) & MASK == first:
                first, _ = session.confirm.pop()
            session.confirm.append((first, last))

    def _count_in(self, session: _FloorSession, handle: int, count: int, size_bytes: int) -> None:
        link = session.ins[handle]
        link.delivery_count += count
        link.credit -= count
        assert link.credit >= 0, "the load generator sent without credit"
        if link.credit <= self.floor.credit // 2:
            session.low.add(handle)
        self.floor.ready[link.address] += count
        self.floor.size_bytes[link.address] = size_bytes

    def _keep(self, session: _FloorSession, run: Run) -> None:
        """Keep the message bytes of every frame of a run."""
        assert self.floor.kept is not None
        for index in range(run.frames):
            handle = run.handles if isinstance(run.handles, int) else run.handles[index]
            end = run.position + (index + 1) * run.stride
            message = bytes(self.data[end - run.payload_bytes : end])
            self.floor.kept[session.ins[handle].address].append(message)

    def on_disposition(
        self, channel: int, receiver: bool, first: int, last: int, settled: bool, accepted: bool
    ) -> None:
        """Remember nothing: deliveries of the floor are forgotten once they are sent."""

    def on_performative(self, channel: int, performative: Composite) -> None:
        """Take window and credit; answer set-up and ending frames."""
        match performative:
            case SaslInit():
                self.out += wire.frame(SaslOutcome(code=SaslCode.OK), frame_type=TYPE_SASL)
            case Open():
                limit = spec.MAX_FRAME_SIZE_BYTES
                mine = Open(container_id="floor", max_frame_size=limit, channel_max=63)
                self.out += wire.frame(mine)
            case Begin():
                window = performative.incoming_window
                self._sessions[channel] = _FloorSession(channel, window, performative.next_outgoing_id)
                begin = Begin(
                    remote_channel=channel,
                    next_outgoing_id=0,
                    incoming_window=INCOMING_WINDOW,
                    outgoing_window=MASK,
                    handle_max=255,
                )
                self.out += wire.frame(begin, channel=channel)
            case Attach():
                self._attach(self._sessions[channel], performative)
            case Flow():
                self._take(self._sessions[channel], performative)
            case Close():
                self.out += wire.frame(Close())
                self.finished = True
            case _:
                return  # it settles and detaches nothing

    def _take(self, session: _FloorSession, flow: Flow) -> None:
        window = flow.incoming_window
        session.remote_window = limit_left(flow.next_incoming_id or 0, window, session.next_outgoing_id)
        if flow.handle in session.outs and flow.link_credit is not None:
            link = session.outs[flow.handle]
            link.credit = limit_left(flow.delivery_count or 0, flow.link_credit, link.delivery_count & MASK)

    def _attach(self, session: _FloorSession, theirs: Attach) -> None:
        handle, client_receives = theirs.handle, theirs.role
        terminus = theirs.source if client_receives else theirs.target
        assert isinstance(terminus, Source | Target), "the load generator names a queue"
        assert terminus.address is not None
        settled = theirs.snd_settle_mode == 1
        mine = wire.attach_frame(
            session.channel,
            handle,
            name=theirs.name,
            receiver=not client_receives,
            address=terminus.address,
            presettled=settled,
        )
        self.out += mine
        if client_receives:
            session.outs[handle] = _Link(handle, terminus.address, settled)
        else:
            session.ins[handle] = _Link(handle, terminus.address, credit=self.floor.credit)
            self._flow(session, session.ins[handle])


def serve(port: int, floor: Floor) -> None:
    """Accept and serve clients on loopback until SIGTERM."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setblocking(False)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    connections: dict[int, FloorConnection] = {}
    unknown: dict[int, socket.socket] = {}
    print(f"floor peer listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                stream, _ = listener.accept()
                stream.setblocking(False)
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                unknown[stream.fileno()] = stream
                poll.register(stream, select.POLLIN)
            elif fd in unknown:
                _recognise(floor, fd, unknown, connections, poll)
            elif not connections[fd].read():
                poll.unregister(fd)
                connections.pop(fd).socket.close()
        for fd, connection in list(connections.items()):
            connection.deliver()
            # A consumer that acknowledges nothing sends nothing that would wake us for the rest.
            more = len(connection.out) >= OUT_BYTES_MAX
            left = connection.flush()
            if connection.finished and not left:
                poll.unregister(fd)
                connections.pop(fd).socket.close()
            else:
                poll.modify(fd, select.POLLIN | (select.POLLOUT if left or more else 0))


def _recognise(
    floor: Floor,
    fd: int,
    unknown: dict[int, socket.socket],
    connections: dict[int, FloorConnection],
    poll: select.poll,
) -> None:
    """Look at a client's first bytes, which stay in the socket, and make the connection they ask for."""
    try:
        greeting = unknown[fd].recv(len(AMQP_091_HEADER), socket.MSG_PEEK)
    except ConnectionResetError:
        greeting = b""
    if not greeting:
        poll.unregister(fd)
        unknown.pop(fd).close()
    elif greeting == AMQP_091_HEADER:
        connections[fd] = FloorConnection091(floor, unknown.pop(fd))
    elif len(greeting) == len(AMQP_091_HEADER):
        connections[fd] = FloorConnection10(floor, unknown.pop(fd))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the floor peer as a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one (default)")
    parser.add_argument("--credit", type=int, default=1000, help="granted to each sending link")
    parser.add_argument("--size", type=int, default=100, help="body bytes of endless messages")
    parser.add_argument("--keep", action="store_true", help="keep and return each message's own bytes")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: exit(0))
    serve(options.port, Floor(options.credit, options.size, options.keep))


if __name__ == "__main__":
    main()
