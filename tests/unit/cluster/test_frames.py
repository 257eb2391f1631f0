"""Frames between nodes: what is written is read, in any portions; anything else ends the connection."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.cluster.wire import (
    BODY_BYTES_MAX,
    JOINED_BYTES_MAX,
    BadFrame,
    Decoder,
    FrameKind,
    PeerFrame,
    encode,
    encode_joined,
)

FRAMES = st.builds(
    PeerFrame,
    st.sampled_from([kind for kind in FrameKind if kind is not FrameKind.JOINED]),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=300),
)


def encoded(frames: list[PeerFrame]) -> bytes:
    return b"".join(piece for frame in frames for piece in encode(frame.kind, frame.group, [frame.body]))


def raw(kind: int, body: bytes, *, length: int | None = None) -> bytes:
    """A frame built without the codec."""
    checked = struct.pack("<BI", kind, 7) + body
    size = len(checked) + 4 if length is None else length
    return struct.pack("<I", size) + checked + struct.pack("<I", crc32(checked))


def test_layout_is_the_documented_one() -> None:
    """Length, kind, group, body, checksum: little-endian."""
    assert b"".join(encode(FrameKind.LETTER, 7, [b"ab", b"", b"c"])) == raw(16, b"abc")
    assert Decoder().feed(raw(16, b"abc")) == [PeerFrame(FrameKind.LETTER, 7, b"abc")]


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 80), min_size=1))
def test_frames_come_out_as_they_went_in(frames: list[PeerFrame], portions: list[int]) -> None:
    """However the bytes are cut into reads."""
    data, decoder = encoded(frames), Decoder()
    out: list[PeerFrame] = []
    at = turn = 0
    while at < len(data):
        size = portions[turn % len(portions)]
        out += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert out == frames
    assert len(decoder._kept) == 0


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
def test_truncated_bytes_give_only_the_frames_that_are_whole(
    frames: list[PeerFrame], data: st.DataObject
) -> None:
    """The rest waits, and is no more than came."""
    whole = encoded(frames)
    cut = data.draw(st.integers(0, len(whole) - 1))
    decoder = Decoder()
    out = decoder.feed(whole[:cut])
    assert out == frames[: len(out)]
    assert len(out) < len(frames)
    assert len(decoder._kept) == cut - len(encoded(out))


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
def test_a_flipped_bit_is_never_taken_for_something_else(
    frames: list[PeerFrame], data: st.DataObject
) -> None:
    """The connection ends, or more bytes are awaited; no frame comes out that did not go in."""
    whole = bytearray(encoded(frames))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        out = Decoder().feed(bytes(whole))
    except BadFrame:
        return
    assert out == frames[: len(out)]
    assert len(out) < len(frames)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_random_bytes_are_frames_or_refused(reads: list[bytes]) -> None:
    """Nothing else is raised, and no more is kept than came."""
    decoder, came = Decoder(), 0
    for read in reads:
        came += len(read)
        try:
            decoder.feed(read)
        except BadFrame:
            return
        assert len(decoder._kept) <= came


def test_unknown_kind_ends_the_connection() -> None:
    """A version adds kinds under a higher number only."""
    with pytest.raises(BadFrame, match="kind 99"):
        Decoder().feed(raw(99, b""))


@pytest.mark.parametrize("length", [0, 8, BODY_BYTES_MAX + 10, 2**32 - 1])
def test_length_that_no_frame_has_ends_the_connection_at_once(length: int) -> None:
    """Nothing is awaited, or kept, for it."""
    with pytest.raises(BadFrame, match="a frame of"):
        Decoder().feed(raw(16, b"", length=length))


def test_messages_of_many_groups_are_one_frame() -> None:
    """They come out one by one, as if each had come alone."""
    messages = [(group, b"%d" % group) for group in range(500)]
    data = b"".join(encode_joined(messages))
    assert len(data) == struct.unpack_from("<I", data)[0] + 4, "it is one frame"
    assert Decoder().feed(data) == [PeerFrame(FrameKind.RAFT, *message) for message in messages]


@pytest.mark.parametrize(
    ("sizes", "count"), [((1, JOINED_BYTES_MAX, 1), 3), ((JOINED_BYTES_MAX - 9, 1), 1), ((), 0)]
)
def test_a_joined_frame_does_not_grow_above_its_bound(sizes: tuple[int, ...], count: int) -> None:
    """A large message goes alone."""
    data = b"".join(encode_joined([(7, bytes(size)) for size in sizes]))
    assert [len(frame.body) for frame in Decoder().feed(data)] == list(sizes)
    at = frames = 0
    while at < len(data):
        at, frames = at + 4 + struct.unpack_from("<I", data, at)[0], frames + 1
    assert frames == count


@pytest.mark.parametrize(
    "body", [b"1234567", struct.pack("<II", 7, 3) + b"ab", struct.pack("<II", 7, 0) + b"a"]
)
def test_a_joined_frame_that_is_cut_ends_the_connection(body: bytes) -> None:
    """What it is about would be guessed."""
    with pytest.raises(BadFrame, match="cut"):
        Decoder().feed(raw(FrameKind.JOINED, body))


def test_body_above_the_bound_is_not_sent() -> None:
    """The other side would end the connection."""
    piece = bytes(BODY_BYTES_MAX // 4)
    with pytest.raises(ValueError, match="are the most"):
        encode(FrameKind.LETTER, 1, [piece, piece, piece, piece, b"x"])


def test_large_frame_in_many_reads_keeps_only_what_came() -> None:
    """A promise of 80 MiB is not believed."""
    decoder = Decoder()
    head = struct.pack("<IBI", BODY_BYTES_MAX + 9, 16, 1)
    assert decoder.feed(head) == []
    assert decoder.feed(b"xyz") == []
    assert len(decoder._kept) == len(head) + 3
