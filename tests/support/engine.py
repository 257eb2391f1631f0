"""Helpers for tests of the engine alone: frames to bytes, bytes to frames, connections at a given state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.connection import (
    FRAME_HEADER,
    HEADER_AMQP,
    HEADER_SASL,
    TYPE_SASL,
    Connection,
    ConnectionState,
    encode_frame,
)
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError
from amqp10broker.protocols.amqp10.link import FRAME_HEADER_BYTES, ConnectionEvent
from amqp10broker.protocols.amqp10.performatives import Begin, Close, Open, SaslInit, decode_composite
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong

SASL_INIT = encode_frame(0, SaslInit(mechanism=Symbol("ANONYMOUS")).encode(), TYPE_SASL)
OPEN = encode_frame(0, Open(container_id="client").encode())
BEGIN = encode_frame(0, Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10).encode())
CLOSE = encode_frame(0, Close().encode())
EMPTY = encode_frame(0, b"")


def frame(performative: Any, payload: bytes = b"", *, channel: int = 0) -> bytes:
    return encode_frame(channel, performative.encode() + payload)


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def raw_frame(body: bytes, *, size: int | None = None, doff: int = 2, kind: int = 0) -> bytes:
    return FRAME_HEADER.pack(FRAME_HEADER_BYTES + len(body) if size is None else size, doff, kind, 0) + body


def read_all(data: bytes) -> list[Any]:
    """Return what was written: headers as bytes, frames as performatives, empty frames as None."""
    found: list[Any] = []
    pos = 0
    while pos < len(data):
        if data[pos : pos + 4] == b"AMQP":
            found.append(data[pos : pos + 8])
            pos += 8
            continue
        size, doff, _, _ = FRAME_HEADER.unpack_from(data, pos)
        body = data[pos + doff * 4 : pos + size]
        found.append(decode_composite(body)[0] if body else None)
        pos += size
    return found


def kinds(data: bytes) -> list[str]:
    return ["header" if isinstance(item, bytes) else type(item).__name__ for item in read_all(data)]


def server(**options: Any) -> Connection:
    settings: dict[str, Any] = {
        "frame_size_max": 4096,
        "channel_max": 7,
        "mechanisms": ("PLAIN", "ANONYMOUS"),
        **options,
    }
    return Connection(server=True, **settings)


def client(**options: Any) -> Connection:
    return Connection(server=False, **{"frame_size_max": 4096, "channel_max": 7, **options})


def _log_in(connection: Connection) -> None:
    connection.receive(SASL_INIT)
    connection.sasl_outcome(0)


def server_at(state: ConnectionState, **options: Any) -> Connection:
    """Return a server that a correct client has brought to `state`; its output is taken."""
    connection = server(**options)
    steps: list[tuple[ConnectionState, Callable[[], object]]] = [
        (ConnectionState.START, lambda: None),
        (ConnectionState.SASL_NEGOTIATING, lambda: connection.receive(HEADER_SASL)),
        (ConnectionState.SASL_DONE, lambda: _log_in(connection)),
        (ConnectionState.HEADER_EXCHANGED, lambda: connection.receive(HEADER_AMQP)),
        (ConnectionState.OPEN_RECEIVED, lambda: connection.receive(OPEN)),
        (ConnectionState.OPENED, lambda: connection.open("server")),
    ]
    for reached, step in steps:
        step()
        assert connection.state is reached
        if reached is state:
            break
    else:
        match state:
            case ConnectionState.CLOSE_SENT:
                connection.close()
            case ConnectionState.CLOSE_RECEIVED:
                connection.receive(CLOSE)
            case ConnectionState.DISCARDING:
                connection.fail(AmqpConnectionError("amqp:internal-error", "for the test"))
            case ConnectionState.END:
                connection.receive(CLOSE)
                connection.close()
            case _:
                raise AssertionError(f"a server never is in {state}")
    assert connection.state is state
    connection.take_output()
    return connection


def exchange(one: Connection, other: Connection) -> tuple[list[ConnectionEvent], list[ConnectionEvent]]:
    """Carry bytes between two ends until both are idle; return the events of each."""
    of_one: list[ConnectionEvent] = []
    of_other: list[ConnectionEvent] = []
    while True:
        forth, back = one.take_output(), other.take_output()
        if not forth and not back:
            return of_one, of_other
        if forth:
            of_other += other.receive(forth)
        if back:
            of_one += one.receive(back)
