"""A bare TCP socket against the real process: what no client library does, or does not tell.

Echo and `available` (proton neither asks nor tells), a client that stops reading its socket, and
everything that is not AMQP.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery

from amqp10broker.protocols.amqp10.performatives import Begin, Open, SaslOutcome
from tests.support import rawframes as raw
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.integration

TIMEOUT_S = 20.0


class RawClient:
    def __init__(self, broker: BrokerProcess, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((broker.host, broker.port))
        self._cutter = raw.FrameCutter()
        self._frames: list[raw.Got] = []

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def next(self) -> raw.Got | None:
        """The next frame, None at the end of the connection."""
        while not self._frames:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames += self._cutter.feed(data)
        return self._frames.pop(0)

    def until(self, kind: type) -> Any:
        while True:
            got = self.next()
            assert got is not None, f"the connection ended before {kind.__name__}"
            if isinstance(got.body, kind):
                return got.body

    def take(self, kind: type, count: int) -> list[raw.Got]:
        taken: list[raw.Got] = []
        while len(taken) < count:
            got = self.next()
            assert got is not None, f"the connection ended, {len(taken)} of {count} {kind.__name__} came"
            if isinstance(got.body, kind):
                taken.append(got)
        return taken

    def rest(self) -> list[Any]:
        bodies = []
        while (got := self.next()) is not None:
            bodies.append(got.body)
        return bodies

    def open(self, *, sessions: int = 1, **fields: Any) -> RawClient:
        self.send(raw.login())
        assert self.until(SaslOutcome).code == 0
        self.send(raw.open_frame(**fields), *(raw.begin(channel) for channel in range(sessions)))
        self.until(Open)
        self.take(Begin, sessions)
        return self


@pytest.fixture
def connect() -> Iterator[Any]:
    """Make raw clients; their sockets are closed after the test."""
    made: list[RawClient] = []

    def make(broker: BrokerProcess, **options: Any) -> RawClient:
        made.append(RawClient(broker, **options))
        return made[-1]

    yield make
    for each in made:
        each.socket.close()


# --- what is not AMQP -----------------------------------------------------------------------------


def test_broker_survives_connections_that_vanish_at_every_point(
    broker: BrokerProcess, clients: Any, connect: Any, queue: str
) -> None:
    """Reset or closed after any prefix of a good conversation: nothing is left behind."""
    conversation = b"".join(
        [
            raw.login(),
            raw.open_frame(container_id=queue),
            raw.begin(),
            raw.attach_sender(0, queue),
            raw.transfer(0, 0, b"x" * 100, settled=True, more=True),
            raw.attach_receiver(1, queue),
            raw.credit(1, 10),
        ]
    )
    others = {each["id"] for each in broker.status()["connections"]}  # whatever tests before have left open
    for at, cut in enumerate(range(0, len(conversation), 23)):
        peer = connect(broker)
        if at % 2:  # reset instead of closed
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.send(conversation[:cut])
        peer.socket.close()
    broker.wait_until(
        lambda: {each["id"] for each in broker.status()["connections"]} <= others,
        "the end of all those connections",
    )
    client = clients(broker)
    assert client.sender(queue).send("alive")[0].state == Delivery.ACCEPTED
    broker.wait_for_counts(queue, ready=1)
