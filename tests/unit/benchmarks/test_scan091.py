"""The AMQP 0-9-1 scanner finds in every chunking what pamqp wrote."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from amqp10broker.protocols.amqp091.methods import BasicDeliver, BasicPublish, Method
from benchmarks.errors import WireError
from benchmarks.scan091 import Contents, Scanner091


class Found:
    """Keeps what the scanner reports, runs taken apart."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.events: list[tuple[Any, ...]] = []
        self.runs: list[int] = []
        self.data = bytearray()

    def on_contents(self, run: Contents) -> None:
        """Keep each message: code, channel, tag or queue, body length and body."""
        self.runs.append(run.messages)
        if run.stride == 0 and run.messages > 1:
            self.events += [
                (type(run.method), run.channel, run.first_tag + index) for index in range(run.messages)
            ]
            return
        for index in range(run.messages):
            publish = run.method if isinstance(run.method, BasicPublish) else None
            name = publish.routing_key if publish else run.first_tag + index
            place = run.position + index * run.stride
            text = bytes(self.data[place : place + run.body_bytes]) if run.position >= 0 else None
            self.events.append((type(run.method), run.channel, name, run.body_bytes, text))

    def on_acks(self, channel: int, first: int, last: int, *, multiple: bool, accepted: bool) -> None:
        """Keep each acknowledgement."""
        self.events += [(channel, tag, multiple, accepted) for tag in range(first, last + 1)]

    def on_method(self, channel: int, method: Method) -> None:
        """Keep the method."""
        self.events.append((channel, method))


def delivery(tag: int, text: bytes, *, channel: int = 1, consumer: str = "c", queue: str = "q") -> bytes:
    """Return a delivery as pamqp writes it."""
    parts: list[Any] = [commands.Basic.Deliver(consumer, tag, False, "", queue)]
    parts.append(header.ContentHeader(0, len(text), commands.Basic.Properties(delivery_mode=2)))
    if text:
        parts.append(body.ContentBody(text))
    return b"".join(frame.marshal(one, channel) for one in parts)


def scan(data: bytes, *, chunk: int | None = None, alike_in_size: bool = True) -> Found:
    """Feed bytes in chunks, the rest of one in front of the next, as a peer does."""
    found = Found()
    scanner = Scanner091(found, alike_in_size=alike_in_size)
    rest = b""
    for start in range(0, len(data), chunk or len(data)):
        found.data = bytearray(rest + data[start : start + (chunk or len(data))])
        position = scanner.scan(found.data, 0, len(found.data))
        rest = bytes(found.data[position:])
    assert rest == b""
    return found


def expected(*messages: tuple[int, bytes]) -> list[tuple[Any, ...]]:
    """Return what must be found of deliveries on channel 1."""
    return [(BasicDeliver, 1, tag, len(text), text) for tag, text in messages]


def test_a_message_in_several_body_frames_is_one() -> None:
    """Its bytes are not kept."""
    parts: list[Any] = [
        commands.Basic.Deliver("c", 1, False, "", "q"),
        header.ContentHeader(0, 6, commands.Basic.Properties()),
        body.ContentBody(b"abc"),
        body.ContentBody(b"def"),
    ]
    found = scan(b"".join(frame.marshal(one, 1) for one in parts))
    assert found.events == [(BasicDeliver, 1, 1, 6, None)]


def test_acknowledgements_come_singly_multiply_and_negatively() -> None:
    """Consecutive single ones are one call, which the handler cannot tell from several."""
    methods: list[Any] = [commands.Basic.Ack(tag, False) for tag in (1, 2, 3, 7)]
    methods += [commands.Basic.Ack(20, True), commands.Basic.Nack(21, False, False)]
    found = scan(b"".join(frame.marshal(one, 1) for one in methods))
    single = [(1, tag, False, True) for tag in (1, 2, 3, 7)]
    assert found.events == [*single, (1, 20, True, True), (1, 21, False, False)]


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_frame_that_does_not_end_in_ce_is_refused(part: int) -> None:
    """Method, header and body alike (§4.2.3)."""
    whole = bytearray(delivery(1, b"abc"))
    ends, position = [], 0
    while position < len(whole):
        position += int.from_bytes(whole[position + 3 : position + 7], "big") + 8
        ends.append(position - 1)
    whole[ends[part]] = 0
    with pytest.raises(WireError, match="0xCE"):
        scan(bytes(whole))


@given(
    messages=st.lists(
        st.tuples(st.sampled_from([b"", b"a", b"aa", b"bb", b"c" * 30]), st.sampled_from(["c", "dd"])),
        min_size=1,
        max_size=60,
    ),
    chunk=st.integers(1, 400),
    alike_in_size=st.booleans(),
)
def test_every_chunking_finds_the_same(
    messages: list[tuple[bytes, str]], chunk: int, alike_in_size: bool
) -> None:
    """Runs may be cut otherwise, messages may not."""
    data = b""
    for tag, (text, consumer) in enumerate(messages, 1):
        data += delivery(tag, text, consumer=consumer)
        if tag % 7 == 0:
            data += frame.marshal(commands.Basic.Ack(tag, True), 1)
    found = scan(data, chunk=chunk, alike_in_size=alike_in_size)
    deliveries = [event for event in found.events if event[0] == BasicDeliver]
    wanted = expected(*[(tag, text) for tag, (text, _) in enumerate(messages, 1)])
    # A run of different sizes tells no more than code, channel and tag of each.
    assert deliveries == [want[: len(event)] for event, want in zip(deliveries, wanted, strict=True)]
    assert not alike_in_size or deliveries == wanted
    assert len(found.events) - len(deliveries) == len(messages) // 7
