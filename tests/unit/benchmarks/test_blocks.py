"""Blocks write the same bytes as encoding each frame by itself."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.protocols.amqp10.performatives import Accepted, Disposition
from benchmarks import wire
from benchmarks.blocks import (
    DispositionBlock,
    LargeTransfer,
    TransferBlock,
    write_serials,
    write_stamps,
)

PAYLOAD = wire.data_message(b"0123456789")


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


@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize("first", [0, 65_500, 0xFFFF_FFF0])
def test_a_block_equals_frames_encoded_singly(count: int, first: int) -> None:
    """One link, consecutive delivery-ids."""
    block = TransferBlock(2, PAYLOAD, settled=False)
    assert bytes(block.fill(5, first, count)) == one_by_one([5] * count, first, [PAYLOAD], settled=False)


def test_a_block_can_be_filled_again_for_other_links() -> None:
    """What an earlier fill wrote does not show in a later one."""
    block = TransferBlock(2, PAYLOAD, settled=True)
    for handles, first in (([1] * 50, 0), ([9, 8, 7], 50), ([1], 53), ([1] * 60, 54), (list(range(40)), 114)):
        wanted = one_by_one(handles, first, [PAYLOAD], settled=True)
        same = len(set(handles)) == 1
        assert bytes(block.fill(handles[0] if same else bytes(handles), first, len(handles))) == wanted


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 30])
def test_a_mixed_block_equals_frames_encoded_singly(count: int) -> None:
    """Messages of different sizes follow each other in turns."""
    payloads = [wire.data_message(bytes(size)) for size in (5, 300, 40)]
    block = TransferBlock(2, *payloads, settled=False)
    block.fill(3, 17, 29)
    block.fill(3, 17, 1)
    assert bytes(block.fill(5, 65_530, count)) == one_by_one([5] * count, 65_530, payloads, settled=False)


def test_a_stamp_lies_at_the_start_of_the_body() -> None:
    """The receiver finds it by counting back from the end of the frame."""
    block = TransferBlock(0, PAYLOAD, settled=False, stamp_offset=len(PAYLOAD) - 10)
    frames = bytes(block.fill(0, 0, 2))
    block.stamp([0x1122334455667788, 0x0102030405060708])
    frames = bytes(block.fill(0, 0, 2))
    size = len(frames) // 2
    assert frames[size - 10 : size - 2] == bytes.fromhex("1122334455667788")
    assert frames[2 * size - 10 : 2 * size - 2] == bytes.fromhex("0102030405060708")


def test_messages_of_different_sizes_carry_no_stamps() -> None:
    """Their places differ from frame to frame."""
    with pytest.raises(ValueError, match="measure latency with one size"):
        TransferBlock(0, PAYLOAD, PAYLOAD + b"x", settled=False, stamp_offset=0)


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


def test_single_dispositions_name_consecutive_deliveries() -> None:
    """Each settles one delivery, `last` left out."""
    data = b"".join(bytes(some) for some in DispositionBlock(2).fill(0xFFFF_FFFF, 1500))
    size = int.from_bytes(data[:4], "big")
    assert len(data) == 1500 * size
    cut = [data[start : start + size] for start in range(0, len(data), size)]
    read = [wire.decode_performative(one)[0] for one in cut]
    numbers = [0xFFFF_FFFF, *range(1499)]
    assert read == [Disposition(role=True, first=n, settled=True, state=Accepted()) for n in numbers]


@pytest.mark.parametrize("times", [[7], [2**40, 2**40, 2**40], [1, 1, 2], [5, 2**63, 2**64 - 1]])
def test_stamps_are_written_where_they_belong_and_nowhere_else(times: list[int]) -> None:
    """Times of one burst are written column by column, and come to the same bytes as one by one."""
    stride, offset = 11, 2
    buffer = bytearray(b"." * (offset + stride * len(times)))
    write_stamps(buffer, offset, stride, times)
    expected = b".." + b"".join(time.to_bytes(8, "big") + b"..." for time in times)
    assert buffer == expected
