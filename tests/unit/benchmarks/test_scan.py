"""The scanner finds the same frames, however they are cut and however alike they are."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from amqp10broker.protocols.amqp10.frames import HEARTBEAT
from amqp10broker.protocols.amqp10.performatives import Composite, End, Flow
from benchmarks import wire
from benchmarks.blocks import TransferBlock
from benchmarks.errors import WireError
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


def test_a_block_is_one_run() -> None:
    """Alike frames of one link are reported together, across a carry of the delivery-id."""
    recorder = scan(bytes(TransferBlock(3, PAYLOAD, settled=True).fill(7, 65_500, 200)))
    assert recorder.transfers == [(3, 7, 65_500 + index, True, False) for index in range(200)]
    assert len(recorder.runs) == 1
    assert recorder.runs[0].payload_bytes == len(PAYLOAD)


def test_handles_of_a_run_may_differ() -> None:
    """Frames that go round the links of a session are one run with a handle for each."""
    handles = bytes(index % 10 for index in range(100))
    recorder = scan(bytes(TransferBlock(0, PAYLOAD, settled=True).fill(handles, 0, 100)))
    assert [handle for _, handle, *_ in recorder.transfers] == list(handles)
    assert len(recorder.runs) == 1


def test_sizes_of_a_run_may_differ() -> None:
    """Messages of different sizes on one link are one run, unless the handler looks into the frames."""
    payloads = [wire.data_message(bytes(size)) for size in (5, 300, 40, 41)]
    data = bytearray(TransferBlock(0, *payloads, settled=False).fill(2, 10, 90))
    recorder = scan(bytes(data))
    assert recorder.transfers == [(0, 2, 10 + index, False, False) for index in range(90)]
    assert len(recorder.runs) == 1
    assert recorder.runs[0].stride == 0
    apart = Recorder()
    Scanner(apart, alike_in_size=True).scan(data, 0, len(data))
    assert apart.transfers == recorder.transfers
    assert all(run.stride for run in apart.runs)


def test_a_gap_in_the_delivery_ids_divides_a_run() -> None:
    """What is reported as consecutive is consecutive."""
    data = b"".join(transfer(0, 1, delivery_id, PAYLOAD) for delivery_id in (4, 5, 6, 9, 10, 30))
    assert [delivery_id for _, _, delivery_id, *_ in scan(data).transfers] == [4, 5, 6, 9, 10, 30]


def test_more_is_seen_although_everything_else_is_alike() -> None:
    """Frames of a cut message are told apart from whole ones."""
    flags = [False, False, True, False, True, True, False]
    data = b"".join(transfer(0, 1, index, PAYLOAD, more=more) for index, more in enumerate(flags))
    assert [more for *_, more in scan(data).transfers] == flags


def test_payload_that_looks_like_frames_is_not_read() -> None:
    """Only frame sizes say where a frame begins."""
    inner = transfer(9, 9, 9, b"")
    data = transfer(0, 1, 0, inner * 3) + transfer(0, 1, 1, inner * 3)
    assert [(channel, handle) for channel, handle, *_ in scan(data).transfers] == [(0, 1), (0, 1)]


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


def test_a_frame_shorter_than_its_header_is_refused() -> None:
    """Whoever sends it does not speak AMQP."""
    with pytest.raises(WireError, match="frame of 7 bytes"):
        scan(b"\x00\x00\x00\x07\x02\x00\x00\x00")
