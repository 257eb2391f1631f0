"""A message in the broker: a head made by the broker, and the publisher's bytes untouched.

A `Message` is a plain tuple of two bytes objects; the first byte of the head determines the protocol:

==============  =======================================================  ===============================
protocol        head                                                     second part
==============  =======================================================  ===============================
AMQP 1.0        0x00: encoded header and message-annotations as they     bare message and footer, byte
                will be delivered                                        for byte as published
AMQP 0-9-1      0x91, flags (bit 0: redelivered, 1: dead-lettered, 2:    the body
                hidden keys), delivery-count in 4 bytes, exchange and
                routing key as short strings, the properties of the
                content header as published; if there are, the keys of
                BCC; if dead-lettered, the times of its records
==============  =======================================================  ===============================

Thousands of messages share a head of AMQP 1.0. A tuple of two bytes objects takes 56 bytes beside the
content, and the garbage collector untracks it at the first pass (with a million objects waiting, that is the
difference between no pause and 150 ms).

A client may publish the records of dead-lettering (annotation x-opt-deaths, header x-death) too. The broker's
own are marked by the flag in a head of AMQP 0-9-1, and by x-opt-deaths being the first of the annotations in
one of AMQP 1.0. A message stays in its publisher's encoding; `convert` makes the other one for a consumer.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Final, TypeAlias

Message: TypeAlias = tuple[bytes, bytes]


# --- batches -------------------------------------------------------------------------------------
#
# The encoding of many messages, on disk and in memory::
#
#     count u32 | heads u32 | head lengths u32 * heads | content lengths u32 * count |
#     head numbers u16 * count, only if there is more than one head | heads | contents
#
# Integers are little-endian. With more than 65 536 different heads their numbers are u32.

_START: Final = struct.Struct("<II")
_HEAD: Final = itemgetter(0)


def encode_batch(messages: Sequence[Message]) -> list[bytes]:
    """Encode messages, at least one, as pieces to be written in this order."""
    count = len(messages)
    contents = [content for _, content in messages]
    array_of_lengths = array("I", map(len, contents))
    if sys.byteorder == "big":
        array_of_lengths.byteswap()
    lengths = array_of_lengths.tobytes()
    different = set(map(_HEAD, messages))
    if len(different) == 1:
        head = messages[0][0]
        start = _START.pack(count, 1) + len(head).to_bytes(4, "little")
        return [start, lengths, head, *(contents if count == 1 else (b"".join(contents),))]
    heads = list(map(_HEAD, messages))
    number_of = {head: number for number, head in enumerate(dict.fromkeys(heads))}
    start = _START.pack(count, len(number_of)) + struct.pack(f"<{len(number_of)}I", *map(len, number_of))
    indexes = struct.pack(f"<{count}{_width(len(number_of))}", *map(number_of.__getitem__, heads))
    return [start, lengths, indexes, *number_of, b"".join(contents)]


def _width(heads: int) -> str:
    return "H" if heads <= 1 << 16 else "I"


def decode_batch(data: bytes, at: int = 0, end: int | None = None) -> list[Message]:
    """Decode the messages of a batch; equal heads are one object. Raises `ValueError`."""
    try:
        count, head_count = _START.unpack_from(data, at)
        at += _START.size
        head_lengths = struct.unpack_from(f"<{head_count}I", data, at)
        at += 4 * head_count
        lengths = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
        indexes: Sequence[int] | None = None
        if head_count != 1:
            numbers = struct.Struct(f"<{count}{_width(head_count)}")
            indexes = numbers.unpack_from(data, at)
            at += numbers.size
    except struct.error as error:
        raise ValueError(f"a batch of messages is cut off: {error}") from error
    if at + sum(head_lengths) + sum(lengths) != (len(data) if end is None else end) or not count:
        raise ValueError("a batch of messages is not as long as its lengths say")
    heads = []
    for length in head_lengths:
        heads.append(data[at : at + length])
        at += length
    head_of = repeat(heads[0]) if indexes is None else map(heads.__getitem__, indexes)
    messages: list[Message] = []
    # In one pass: a follower does this with every message of a cluster.
    for head, length in zip(head_of, lengths, strict=False):
        stop = at + length
        messages.append((head, data[at:stop]))
        at = stop
    return messages


def decode_some(read: Callable[[int, int], bytes], places: Sequence[int]) -> list[Message]:
    """Decode some messages of a batch. `read`: takes a position in it and a number of bytes."""
    count, head_count = _START.unpack(read(0, _START.size))
    several = head_count != 1
    width = _width(head_count)
    table = read(_START.size, 4 * (head_count + count) + struct.calcsize(f"<{count}{width}") * several)
    head_lengths = struct.unpack_from(f"<{head_count}I", table)
    lengths = struct.unpack_from(f"<{count}I", table, 4 * head_count)
    head_numbers = struct.unpack_from(f"<{count * several}{width}", table, 4 * (head_count + count))
    heads_at = _START.size + len(table)
    contents_at = heads_at + sum(head_lengths)
    messages: list[Message] = []
    for place in places:
        number = head_numbers[place] if several else 0
        head = read(heads_at + sum(head_lengths[:number]), head_lengths[number])
        messages.append((head, read(contents_at + sum(lengths[:place]), lengths[place])))
    return messages


def batch_lengths(data: bytes, at: int = 0) -> Sequence[int]:
    """Return the content length of each message. Raises `ValueError`."""
    try:
        count, head_count = _START.unpack_from(data, at)
        return struct.unpack_from(f"<{count}I", data, at + _START.size + 4 * head_count)
    except struct.error as error:
        raise ValueError(f"a batch of messages is cut off: {error}") from error
