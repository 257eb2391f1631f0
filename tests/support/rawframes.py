"""Frames for tests that speak to a broker byte by byte: built and cut without the engine's own reader.

Only the performatives' generated codec is borrowed from the package; layouts, batching, state and flow
control are not, so that a fault in those cannot hide itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.types import Symbol

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"
WINDOW_OPEN = 0x7FFF_FFFF


@dataclass(frozen=True)
class Got:
    """One frame on the wire; `body` is None for a heartbeat. `raw`: body and payload as bytes."""

    channel: int
    body: Any
    payload: bytes
    size: int
    raw: bytes


class FrameCutter:
    """Protocol headers and frames from a byte stream, in order."""

    def __init__(self) -> None:
        self.rest = b""
        self.headers: list[bytes] = []

    def feed(self, data: bytes) -> list[Got]:
        """Take bytes, and return the frames that are now complete."""
        buf = self.rest + data
        pos = 0
        frames: list[Got] = []
        while len(buf) - pos >= 8:
            if buf[pos : pos + 4] == b"AMQP":
                self.headers.append(buf[pos : pos + 8])
                pos += 8
                continue
            size = int.from_bytes(buf[pos : pos + 4], "big")
            if len(buf) - pos < size:
                break
            body_at = pos + 4 * buf[pos + 4]
            channel = int.from_bytes(buf[pos + 6 : pos + 8], "big")
            body, end = None, pos + size
            if body_at < end:
                body, end = performatives.decode_composite(buf, body_at, end)
            frames.append(Got(channel, body, buf[end : pos + size], size, buf[body_at : pos + size]))
            pos += size
        self.rest = buf[pos:]
        return frames


def frame(channel: int, performative: Any, payload: bytes = b"", *, kind: int = 0) -> bytes:
    """Return one whole frame; a `performative` of bytes is included unchanged."""
    body = performative if isinstance(performative, bytes) else performative.encode()
    body += payload
    return (8 + len(body)).to_bytes(4, "big") + bytes((2, kind)) + channel.to_bytes(2, "big") + body


def login(mechanism: str = "ANONYMOUS", response: bytes = b"") -> bytes:
    """Return a client's first bytes: SASL header and init."""
    return SASL_HEADER + frame(
        0, performatives.SaslInit(mechanism=Symbol(mechanism), initial_response=response), kind=1
    )


def open_frame(**fields: Any) -> bytes:
    return AMQP_HEADER + frame(0, performatives.Open(**{"container_id": "test", **fields}))


def begin(channel: int = 0, **fields: Any) -> bytes:
    """Return a begin frame; the incoming-window is wide open by default."""
    given = {"next_outgoing_id": 0, "incoming_window": WINDOW_OPEN, "outgoing_window": WINDOW_OPEN}
    return frame(channel, performatives.Begin(**{**given, **fields}))


def attach_sender(handle: int, queue: str, *, channel: int = 0, **fields: Any) -> bytes:
    given: dict[str, Any] = {
        "name": f"out-{channel}-{handle}-{queue}",
        "handle": handle,
        "role": False,
        "source": performatives.Source(address="client"),
        "target": performatives.Target(address=queue),
        "initial_delivery_count": 0,
    }
    return frame(channel, performatives.Attach(**{**given, **fields}))


def attach_receiver(handle: int, queue: str, *, channel: int = 0, **fields: Any) -> bytes:
    given: dict[str, Any] = {
        "name": f"in-{channel}-{handle}-{queue}",
        "handle": handle,
        "role": True,
        "source": performatives.Source(address=queue),
        "target": performatives.Target(address="client"),
    }
    return frame(channel, performatives.Attach(**{**given, **fields}))


def flow(channel: int = 0, **fields: Any) -> bytes:
    """Return a flow frame; the session's windows are wide open by default."""
    given = {
        "next_incoming_id": 0,
        "incoming_window": WINDOW_OPEN,
        "next_outgoing_id": 0,
        "outgoing_window": WINDOW_OPEN,
    }
    return frame(channel, performatives.Flow(**{**given, **fields}))


def credit(
    handle: int, link_credit: int, *, channel: int = 0, delivery_count: int = 0, **fields: Any
) -> bytes:
    return flow(channel, handle=handle, delivery_count=delivery_count, link_credit=link_credit, **fields)


def message(body: bytes) -> bytes:
    if len(body) < 256:
        return b"\x00\x53\x75\xa0" + bytes((len(body),)) + body
    return b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body


def body_of(payload: bytes) -> bytes:
    """Return the body of a message made by `message`: the bytes after the last data descriptor."""
    at = payload.rindex(b"\x00\x53\x75")
    return payload[at + 5 :] if payload[at + 3] == 0xA0 else payload[at + 8 :]


def transfer(
    handle: int,
    delivery_id: int,
    body: bytes,
    *,
    channel: int = 0,
    settled: bool = False,
    raw: bool = False,
    **fields: Any,
) -> bytes:
    """Return a delivery in one frame; `raw` leaves the body unchanged."""
    given: dict[str, Any] = {
        "handle": handle,
        "delivery_id": delivery_id,
        "delivery_tag": delivery_id.to_bytes(4, "big"),
        "message_format": 0,
        "settled": settled,
    }
    return frame(channel, performatives.Transfer(**{**given, **fields}), body if raw else message(body))


def pieces(handle: int, delivery_id: int, body: bytes, size: int) -> list[bytes]:
    """Return a delivery cut into frames with `size` payload bytes each."""
    whole = message(body)
    cuts = range(0, len(whole), size)
    return [
        transfer(handle, delivery_id, whole[at : at + size], raw=True, more=at + size < len(whole))
        for at in cuts
    ]


def disposition(first: int, last: int | None = None, *, channel: int = 0, **fields: Any) -> bytes:
    return frame(
        channel,
        performatives.Disposition(**{"role": True, "first": first, "last": last, "settled": True, **fields}),
    )
