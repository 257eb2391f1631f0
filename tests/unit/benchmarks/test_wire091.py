"""AMQP 0-9-1 frames of the generator, read by pamqp, which shares no code with it."""

from __future__ import annotations

from typing import Any

from pamqp import body, frame, header

from benchmarks import wire091


def unmarshal(data: bytes) -> list[tuple[int, Any]]:
    """Read every frame with pamqp: channel and frame."""
    found = []
    while data:
        consumed, channel, one = frame.unmarshal(data)
        found.append((channel, one))
        data = data[consumed:]
    return found


def test_a_content_is_cut_to_the_peers_frame_max() -> None:
    """frame-max counts the whole frame, its eight octets of head and end included."""
    payload = bytes(range(256)) * 4
    content = wire091.content(2, payload, wire091.PLAIN, frame_max=508)
    (_, head), *pieces = unmarshal(content)
    assert isinstance(head, header.ContentHeader)
    assert head.body_size == 1024
    assert all(isinstance(one, body.ContentBody) for _, one in pieces)
    assert [len(one.value) for _, one in pieces] == [500, 500, 24]
    assert b"".join(one.value for _, one in pieces) == payload
