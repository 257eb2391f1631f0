"""Blocks write the same bytes as encoding each frame by itself."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import wire
from benchmarks.blocks import (
    LargeTransfer,
    TransferBlock,
    write_serials,
    write_stamps,
)


def one_by_one(handles: list[int], first: int, payloads: list[bytes], *, settled: bool) -> bytes:
    """Encode transfers the slow way."""
    return b"".join(
        wire.frame(
            wire.transfer_performative(handle, (first + index) & 0xFFFFFFFF, settled=settled)
            + payloads[index % len(payloads)],
            channel=2,
        )
        for index, handle in enumerate(handles)
    )


@pytest.mark.parametrize("first", [0, 250, 65_530, 0x00FF_FFF8, 0xFFFF_FFFA])
@pytest.mark.parametrize("step", [1, 3])
def test_serials_are_written_across_every_carry(first: int, step: int) -> None:
    """Ten numbers, whatever bytes change between them."""
    buffer = bytearray(70)
    write_serials(buffer, 2, 7, first, 10, step)
    found = [int.from_bytes(buffer[2 + 7 * index : 6 + 7 * index], "big") for index in range(10)]
    assert found == [(first + step * index) & 0xFFFFFFFF for index in range(10)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 30])
def test_a_mixed_block_equals_frames_encoded_singly(count: int) -> None:
    """Messages of different sizes follow each other in turns."""
    payloads = [wire.data_message(bytes(size)) for size in (5, 300, 40)]
    block = TransferBlock(2, *payloads, settled=False)
    block.fill(3, 17, 29)
    block.fill(3, 17, 1)
    assert bytes(block.fill(5, 65_530, count)) == one_by_one([5] * count, 65_530, payloads, settled=False)


def test_a_large_message_is_cut_to_the_frame_size() -> None:
    """Every frame but the last has more=true and is as large as allowed; together they are the message."""
    payload = bytes(range(256)) * 8
    large = LargeTransfer(1, payload, settled=False, max_frame_size_bytes=512)
    frames = [bytes(one) for one in large.frames(4, 77, 0)]
    assert large.frame_count == len(frames) == 5
    assert [len(one) for one in frames[:-1]] == [512] * 4
    read: list[tuple[Any, int]] = [wire.decode_performative(one) for one in frames]
    assert [(one.handle, one.delivery_id) for one, _ in read] == [(4, 77)] * 5
    assert [one.more for one, _ in read] == [True] * 4 + [False]
    assert b"".join(data[end:] for data, (_, end) in zip(frames, read, strict=True)) == payload
    assert [bytes(one) for one in large.frames(4, 77, 3)] == frames[3:]


@pytest.mark.parametrize("times", [[7], [2**40, 2**40, 2**40], [1, 1, 2], [5, 2**63, 2**64 - 1]])
def test_stamps_are_written_where_they_belong_and_nowhere_else(times: list[int]) -> None:
    """Times of one burst are written column by column, and come to the same bytes as one by one."""
    stride, offset = 11, 2
    buffer = bytearray(b"." * (offset + stride * len(times)))
    write_stamps(buffer, offset, stride, times)
    expected = b".." + b"".join(time.to_bytes(8, "big") + b"..." for time in times)
    assert buffer == expected
