"""The scanner finds the same frames, however they are cut and however alike they are."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from amqp10broker.protocols.amqp10.frames import HEARTBEAT
from amqp10broker.protocols.amqp10.performatives import Composite, End, Flow
from benchmarks import wire
from benchmarks.scan import Run, Scanner

PAYLOAD = wire.data_message(b"0123456789")


@dataclass
class Recorder:
    """Writes down what the scanner reports, one entry a frame."""

    transfers: list[tuple[int, int, int, bool, bool]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    others: list[object] = field(default_factory=list)

    def on_transfers(self, run: Run) -> None:
        """Take a run apart."""
        self.runs.append(run)
        for index in range(run.frames):
            handle = run.handles if isinstance(run.handles, int) else run.handles[index]
            assert run.first_delivery_id is not None
            delivery_id = (run.first_delivery_id + index) & 0xFFFFFFFF
            self.transfers.append((run.channel, handle, delivery_id, run.settled, run.more))

    def on_disposition(
        self, channel: int, receiver: bool, first: int, last: int, settled: bool, accepted: bool
    ) -> None:
        """Write it down."""
        self.others.append((channel, receiver, first, last, settled, accepted))

    def on_performative(self, channel: int, performative: Composite) -> None:
        """Write it down."""
        self.others.append((channel, performative))


def scan(data: bytes) -> Recorder:
    """Scan everything at once; nothing may be left."""
    recorder = Recorder()
    assert Scanner(recorder).scan(bytearray(data), 0, len(data)) == len(data)
    return recorder


def transfer(channel: int, handle: int, delivery_id: int, payload: bytes, *, more: bool = False) -> bytes:
    """Encode one unsettled transfer."""
    performative = wire.transfer_performative(handle, delivery_id, settled=False, more=more)
    return wire.frame(performative + payload, channel=channel)


def test_other_frames_are_reported_in_the_order_of_the_wire() -> None:
    """Flow, disposition, empty frame and end between transfers."""
    flow = Flow(next_incoming_id=1, incoming_window=2, next_outgoing_id=3, outgoing_window=4)
    data = (
        transfer(0, 1, 0, PAYLOAD)
        + wire.frame(flow)
        + HEARTBEAT
        + wire.disposition_frame(0, receiver=True, first=5, last=8)
        + transfer(0, 1, 1, PAYLOAD)
        + wire.frame(End())
    )
    recorder = scan(data)
    assert len(recorder.transfers) == 2
    assert recorder.others == [(0, flow), (0, True, 5, 8, True, True), (0, End())]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ("41 43 40 41 00 53 24 45", (True, 0, 0, True, True)),
        ("42 52 07 52 09 41 00 53 24 45", (False, 7, 9, True, True)),
        ("41 43 40 41 00 53 24 c0 01 00", (True, 0, 0, True, True)),
        ("41 43 52 01 41 00 53 26 45", (True, 0, 1, True, False)),
        ("41 43 40 42 00 53 24 45", (True, 0, 0, False, True)),
        ("56 01 52 05 40 40 40", (True, 5, 5, False, False)),
    ],
)
def test_dispositions_are_read_in_every_encoding(fields: str, wanted: tuple[object, ...]) -> None:
    """The fast way and the general way give the same fields."""
    data = bytes.fromhex(fields)
    body = b"\x00\x53\x15\xc0" + bytes((len(data) + 1, 5)) + data
    assert scan(wire.frame(body, channel=4)).others == [(4, *wanted)]


def test_any_cutting_gives_the_same_frames() -> None:
    """Bytes that arrive in pieces are read as if they came at once."""
    choice = random.Random(7)
    frames = []
    for delivery_id in range(400):
        channel, handle = choice.choice([(0, 1), (0, 1), (0, 1), (0, 2), (1, 1)])
        frames.append(
            transfer(channel, handle, delivery_id, wire.data_message(bytes(choice.choice([9, 9, 80]))))
        )
        if choice.random() < 0.1:
            frames.append(wire.disposition_frame(0, receiver=True, first=delivery_id, last=delivery_id))
    data = b"".join(frames)
    whole = scan(data)
    recorder = Recorder()
    scanner = Scanner(recorder)
    waiting = bytearray()
    position = 0
    while position < len(data):
        size = choice.randrange(1, 700)
        waiting += data[position : position + size]
        position += size
        del waiting[: scanner.scan(waiting, 0, len(waiting))]
    assert not waiting
    assert recorder.transfers == whole.transfers
    assert recorder.others == whole.others
