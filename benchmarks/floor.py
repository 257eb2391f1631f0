"""The floor: a peer that takes and gives messages and is no broker.

It answers the handshake, grants credit, counts what arrives, confirms by range, and sends back as many
messages of an address as it has counted in. It keeps no message, routes nothing and remembers no
delivery. What the load generator reaches against it, on the same machine in the same run, is the most it
could measure; a broker's rate near that figure is the generator's figure and not the broker's.

This file has the process and the AMQP 1.0 side, whose sessions are those of the generator; `floor091` has
the other one.
"""

from __future__ import annotations

import argparse
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.connection import TYPE_SASL
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.protocols.connection import AMQP_091_HEADER
from amqp10broker.protocols.serial import MASK, limit_left
from benchmarks import spec, wire
from benchmarks.blocks import LargeTransfer, TransferBlock
from benchmarks.floor091 import FloorConnection091
from benchmarks.floor_counts import ENDLESS, Floor, FloorConnection
from benchmarks.peer import OUT_BYTES_MAX
from benchmarks.scan import Run, Scanner
from benchmarks.session import PeerSession, Receiver

_MECHANISMS: Final = performatives.SaslMechanisms(
    sasl_server_mechanisms=(Symbol("PLAIN"), Symbol("ANONYMOUS"))
)
_ACCEPTED: Final = performatives.SaslOutcome(code=performatives.SaslCode.OK)


class _FloorSender:
    """A link on which the client receives."""

    def __init__(self, session: _FloorSession, handle: int, address: str, settled: bool) -> None:
        self.session = session
        self.handle = handle
        self.address = address
        self.settled = settled
        self.sent = 0
        self.credit = 0
        self._block: tuple[int, TransferBlock | LargeTransfer] | None = None

    def set_credit(self, index: int, flow: performatives.Flow) -> None:
        """Take the client's credit."""
        if flow.link_credit is not None:
            self.credit = limit_left(flow.delivery_count or 0, flow.link_credit, self.sent & MASK)

    def send_some(self) -> bool:
        """Send messages, ready-made or kept; return whether there were any."""
        session, floor, out = self.session, self.session.floor, self.session.peer.out
        wanted = min(self.credit, session.remote_window, floor.waiting(self.address))
        if wanted <= 0:
            return False
        first = session.next_delivery_id
        messages = frames = 1
        if (kept := floor.next_kept(self.address)) is not None:
            performative = wire.transfer_performative(self.handle, first, settled=self.settled)
            out += wire.frame(performative + kept, channel=session.channel)
        elif isinstance(block := self._ready_made(), LargeTransfer):
            frames = block.frame_count
            if frames > session.remote_window:
                return False
            for piece in block.frames(self.handle, first):
                out += piece
        else:
            messages = frames = min(wanted, block.capacity)
            out += block.fill(self.handle, first, messages)
        self.credit -= messages
        self.sent += messages
        session.next_delivery_id = (first + messages) & MASK
        session.sent_frames(frames)
        floor.sent(self.address, messages)
        return True

    def _ready_made(self) -> TransferBlock | LargeTransfer:
        """Return frames for messages like those that came in on the link's address."""
        size, channel, limit = (
            self.session.floor.size(self.address),
            self.session.channel,
            spec.MAX_FRAME_SIZE_BYTES,
        )
        if self._block is None or self._block[0] != size:
            endless = self.address.startswith(ENDLESS)
            payload = wire.data_message(bytes(size)) if endless else bytes(size)
            self._block = (
                size,
                (
                    TransferBlock(channel, payload, settled=self.settled)
                    if size + 64 <= limit
                    else LargeTransfer(channel, payload, settled=self.settled, max_frame_size_bytes=limit)
                ),
            )
        return self._block[1]


class _FloorSession(PeerSession):
    """A session whose receivers count for the floor, and whose senders send what it has counted."""

    def __init__(self, peer: FloorConnection10, channel: int, theirs: performatives.Begin) -> None:
        super().__init__(peer, channel, spec.Session())
        self.floor = peer.floor
        self.next_incoming_id = theirs.next_outgoing_id
        self.remote_window = theirs.incoming_window
        self._partial_bytes = 0

    def attach(self, theirs: performatives.Attach) -> None:
        """Answer an attach; grant credit to a client that sends."""
        terminus = theirs.source if theirs.role else theirs.target
        assert isinstance(terminus, performatives.Source | performatives.Target), "it names a queue"
        address, handle = terminus.address or "", theirs.handle
        settled = theirs.snd_settle_mode == performatives.SenderSettleMode.SETTLED
        link = {"name": theirs.name, "receiver": not theirs.role, "address": address, "presettled": settled}
        self.peer.out += wire.attach_frame(self.channel, handle, **link)  # type: ignore[arg-type]
        if theirs.role:
            self.sending[handle] = (_FloorSender(self, handle, address, settled), 0)
        else:
            receiver = Receiver(self, spec.Consume((address,), credit=self.floor.credit), handle)
            receiver.start()
            receiver.top_up()
            self.receivers.append(receiver)
            self.receiving[handle] = (receiver, 0)

    def transfers(self, run: Run, now_ns: int) -> None:
        """Count messages, and how large they are."""
        if run.more:
            self._partial_bytes += run.payload_bytes
        super().transfers(run, now_ns)

    def _delivered(self, handle: int, count: int, run: Run, settled: bool, now_ns: int) -> None:
        super()._delivered(handle, count, run, settled, now_ns)
        address = self.receiving[handle][0].what.addresses[0]
        self.floor.came(address, count, self._partial_bytes + run.payload_bytes)
        self._partial_bytes = 0
        if self.floor.kept is not None:
            for index in range(run.frames):
                if run.handles == handle or (isinstance(run.handles, bytes) and run.handles[index] == handle):
                    end = run.position + (index + 1) * run.stride
                    self.floor.kept[address].append(bytes(self.peer.data[end - run.payload_bytes : end]))


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
            header = bytes(data[position : position + 8])
            self.out += header
            if header == wire.SASL_HEADER:
                self.out += wire.frame(_MECHANISMS, frame_type=TYPE_SASL)
            position += 8
        return self._scanner.scan(data, position, end)

    def answer(self) -> None:
        """Confirm by range and grant credit, once for one read."""
        for session in self._sessions.values():
            session.after_read()

    def sending(self) -> Iterator[Callable[[], bool]]:
        """Yield a step for each link."""
        for session in self._sessions.values():
            for sender, _ in session.sending.values():
                assert isinstance(sender, _FloorSender)
                yield sender.send_some

    # --- what the scanner reports ---

    def on_transfers(self, run: Run) -> None:
        """Count messages in and remember what to confirm."""
        self._sessions[run.channel].transfers(run, 0)

    def on_disposition(
        self, channel: int, receiver: bool, first: int, last: int, settled: bool, accepted: bool
    ) -> None:
        """Remember nothing: deliveries of the floor are forgotten once they are sent."""

    def on_performative(self, channel: int, performative: performatives.Composite) -> None:
        """Take window and credit; answer set-up and ending frames."""
        match performative:
            case performatives.SaslInit():
                self.out += wire.frame(_ACCEPTED, frame_type=TYPE_SASL)
            case performatives.Open():
                size = spec.MAX_FRAME_SIZE_BYTES
                mine = performatives.Open(container_id="floor", max_frame_size=size, channel_max=63)
                self.out += wire.frame(mine)
            case performatives.Begin():
                session = self._sessions[channel] = _FloorSession(self, channel, performative)
                begin = replace(session.begin(spec.LINKS_PER_SESSION_MAX - 1), remote_channel=channel)
                self.out += wire.frame(begin, channel=channel)
            case performatives.Attach():
                self._sessions[channel].attach(performative)
            case performatives.Flow():
                self._sessions[channel].flow(performative)
            case performatives.Close():
                self.out += wire.frame(performatives.Close())
                self.finished = True
            case _:
                return  # it settles and detaches nothing


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
    elif len(greeting) == len(AMQP_091_HEADER):
        kind = FloorConnection091 if greeting == AMQP_091_HEADER else FloorConnection10
        connections[fd] = kind(floor, unknown.pop(fd))


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
