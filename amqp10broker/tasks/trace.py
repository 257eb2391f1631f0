"""Frames of one direction as readable lines: what ``--trace-frames`` and ``amqp10broker trace`` show.

It reads the bytes a second time, with a reader of its own; who traces what is `tracing`'s business. What
lets somebody in is left out, of both protocols: SASL responses and challenges, and new secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from amqp10broker.amqp10.errors import DecodeError
from amqp10broker.amqp10.frames import FRAME_HEADER, FRAME_HEADER_BYTES, TYPE_SASL
from amqp10broker.amqp10.performatives import (
    ReceiverSettleMode,
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslOutcome,
    SaslResponse,
    SenderSettleMode,
    decode_composite,
)
from amqp10broker.greeting import AMQP_10_HEADER, Protocol, answer
from amqp10broker.tasks import trace091

PAYLOAD_SHOWN_BYTES: Final = 32

_CHOICES: Final[dict[str, dict[Any, str]]] = {
    "role": {False: "sender", True: "receiver"},
    "snd_settle_mode": {mode.value: mode.name.lower() for mode in SenderSettleMode},
    "rcv_settle_mode": {mode.value: mode.name.lower() for mode in ReceiverSettleMode},
    "code": {code.value: code.name.lower() for code in SaslCode},
}
"""Fields whose numbers have names."""

_SECRETS: Final = {
    (SaslInit, "initial_response"),
    (SaslResponse, "response"),
    # Of SCRAM: with the response it is what a password can be guessed from at leisure.
    (SaslChallenge, "challenge"),
    (SaslOutcome, "additional_data"),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """One frame, or what stood in place of one.

    Attributes:
        text: readable, of one line.
        channel: of the frame; -1 if it is none.
        body: the performative or method; None if there is none in it, or none that can be read.
    """

    text: str
    channel: int = -1
    body: object = None


class FrameTracer:
    """Turns one direction's bytes into lines.

    Attributes:
        protocol: what is spoken; a protocol header among the bytes tells.
    """

    def __init__(
        self, protocol: Protocol = Protocol.AMQP_10, rest: bytes = b"", *, logged_in: bool = False
    ) -> None:
        """Begin between two frames.

        Args:
            protocol: what is spoken.
            rest: bytes that have come already and belong to the first frame.
            logged_in: no password comes any more.
        """
        self._rest = rest
        self._lost = False
        self._logged_in = logged_in
        self.protocol = protocol

    def feed(self, data: bytes) -> list[Shown]:
        """The frames that are now whole."""
        if self._lost:
            return []
        self._rest += data
        return self._frames()

    def _frames(self) -> list[Shown]:
        shown: list[Shown] = []
        buf = self._rest
        pos = 0
        while len(buf) - pos >= FRAME_HEADER_BYTES:
            if buf[pos : pos + 4] == b"AMQP":
                shown.append(Shown(header_text(buf[pos : pos + 8])))
                self._logged_in = self._logged_in or buf[pos : pos + 8] == AMQP_10_HEADER
                greeting = answer(buf[pos : pos + 8])
                if greeting is not None and greeting.protocol is not None:
                    self.protocol = greeting.protocol
                pos += 8
                continue
            if self.protocol is Protocol.AMQP_091:
                try:
                    found = trace091.next_frame(buf, pos)
                except ValueError as error:
                    shown.append(self._lose(f"not a frame ({error})", buf[pos:]))
                    break
                if found is None:
                    break
                text, channel, method, pos = found
                self._logged_in = self._logged_in or channel > 0
                shown.append(Shown(text, channel, method))
                continue
            size, doff, kind, channel = FRAME_HEADER.unpack_from(buf, pos)
            if size < FRAME_HEADER_BYTES or doff < 2 or doff * 4 > size:
                shown.append(self._lose("not a frame", buf[pos:]))
                break
            if len(buf) - pos < size:
                break
            shown.append(_show_frame(buf[pos + doff * 4 : pos + size], channel, kind))
            pos += size
        self._rest = buf[pos:]
        return shown

    def _lose(self, why: str, rest: bytes) -> Shown:
        """Where frames begin is not known any more; nor is, before login, which bytes are a password."""
        self._lost = True
        shown = rest[:FRAME_HEADER_BYTES].hex(" ") if self._logged_in else f"{len(rest)} bytes"
        return Shown(f"{why}: {shown}; what follows is not shown")


def header_text(header: bytes) -> str:
    """A protocol header: ``AMQP 0 1 0 0``."""
    return f"AMQP {' '.join(str(number) for number in header[4:8])}"


def _show_frame(body: bytes, channel: int, kind: int) -> Shown:
    if not body:
        return Shown(f"ch {channel} (empty frame)", channel)
    try:
        performative, end = decode_composite(body)
    except DecodeError as error:
        # The reason may repeat what stands there.
        why = f"a SASL frame of {len(body)} bytes" if kind == TYPE_SASL else error.description
        return Shown(f"ch {channel} undecodable: {why}", channel)
    text = f"ch {channel} {describe(performative)}"
    payload = body[end:]
    if payload:
        shown = payload[:PAYLOAD_SHOWN_BYTES].hex()
        text += f" payload({len(payload)} bytes)={shown}{'...' if len(payload) > PAYLOAD_SHOWN_BYTES else ''}"
    return Shown(text, channel, performative)


def describe(performative: Any) -> str:
    """A performative with the fields that are set, by the specification's names."""
    name = re.sub("(?<=[a-z])(?=[A-Z])", "-", type(performative).__name__).upper()
    return f"{name} {' '.join(_fields(performative))}".rstrip()


def _fields(composite: Any) -> list[str]:
    shown: list[str] = []
    for field in fields(composite):
        content = getattr(composite, field.name)
        if content is None or (content is False and field.default is False):
            continue
        name = field.name.replace("_", "-")
        if (type(composite), field.name) in _SECRETS:
            text = "(hidden)"
        elif field.name in _CHOICES:
            text = _CHOICES[field.name].get(content, str(content))
        else:
            text = show(content)
        shown.append(f"{name}={text}")
    return shown


def show(value: Any) -> str:
    """Any value inside a performative."""
    if is_dataclass(value) and hasattr(value, "DESCRIPTOR"):
        inside = " ".join(_fields(value))
        return f"{type(value).__name__.lower()}({inside})" if inside else type(value).__name__.lower()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex() or "(empty)"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(show(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(key)}: {show(item)}" for key, item in value.items()) + "}"
    return str(value)
