"""The first stage of filtering a stream: whether a chunk may contain messages with a wanted filter value.

A publisher gives a message a filter value (annotation or header ``x-stream-filter-value``). The writer of
a chunk stores the different values of its messages as a Bloom filter in the chunk's head, and a consumer
that names values reads only chunks that may contain one of them. It receives whole chunks, and checks the
values of the messages itself.

The filter is stored on disk, so its form is fixed:

* nothing at all: no message of the chunk has a filter value;
* otherwise `size_bytes` (16 to 255, argument ``x-stream-filter-size-bytes``) bytes. The highest bit of the
  first means that there are messages without a filter value beside those that have one; its other bits are
  the number of hashes k, 1 to 16. The rest is m bits, bit i being bit i % 8, counted from the lowest, of
  byte 1 + i // 8. A value sets the bits (a + j * b) % m for j from 0 to k - 1, where a and b are the two
  halves, little-endian, of the 16-byte BLAKE2b hash (RFC 7693, no key) of its UTF-8; b is made odd.

k depends on the number of values, so that a chunk with few values is seldom read in vain.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.amqp10 import decode_head, remembering
from amqp10broker.message.convert import to_amqp10
from amqp10broker.message.message import Message

SIZE_BYTES_MIN: Final = 16
SIZE_BYTES_MAX: Final = 255
SIZE_BYTES_DEFAULT: Final = 16
"""RabbitMQ's default size of a chunk's filter."""

X_STREAM_FILTER_VALUE: Final = "x-stream-filter-value"

_HASHES_MAX: Final = 16
_UNFILTERED: Final = 0x80
_CACHE_ENTRIES: Final = 4096
_NAME: Final = X_STREAM_FILTER_VALUE.encode()


def filter_value(message: Message) -> str | None:
    """None for none, one that is not a string, or an empty one, which counts as none in RabbitMQ."""
    head = message[0]
    # Most messages have no such annotation, and searching the bytes for its name is the fastest check.
    if _NAME not in head:
        return None
    if head[0]:
        head = to_amqp10((head, b""))[0]
    return _filter_value(head)


@remembering
def _filter_value(head: bytes) -> str | None:
    value = decode_head(head)[1].get(X_STREAM_FILTER_VALUE)
    return value if type(value) is str and value else None


def chunk_filter(values: Iterable[str | None], size_bytes: int = SIZE_BYTES_DEFAULT) -> bytes:
    """Make the filter of a chunk: empty, or `size_bytes` bytes. `values`: the filter values of its messages,
    None for a message without one; repetitions do not matter. `size_bytes`: 16 to 255.
    """
    assert SIZE_BYTES_MIN <= size_bytes <= SIZE_BYTES_MAX
    distinct = set(values)
    unfiltered = None in distinct
    named = [value for value in distinct if value is not None]
    if not named:
        return b""
    bits = (size_bytes - 1) * 8
    # The fewest false positives are at m / n * ln 2 hashes.
    hashes = min(max(round(bits / len(named) * math.log(2)), 1), _HASHES_MAX)
    filled = 0
    for value in named:
        start, step = _hash(value)
        for index in range(hashes):
            filled |= 1 << (start + index * step) % bits
    first = hashes | (_UNFILTERED if unfiltered else 0)
    return bytes((first,)) + filled.to_bytes(size_bytes - 1, "little")


@lru_cache(maxsize=_CACHE_ENTRIES)
def _hash(value: str) -> tuple[int, int]:
    # A filter value may come from AMQP 0-9-1; its codec stores bytes that are not UTF-8 as surrogates.
    content = value.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(content, digest_size=16, usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1


@dataclass(frozen=True, slots=True)
class BloomFilter:
    values: tuple[str, ...]
    """Chunks that may contain a message with one of these are read."""
    match_unfiltered: bool = False
    """So are those that contain a message without a filter value."""

    def may_match(self, chunk: bytes) -> bool:
        """Return whether to read a chunk. Never False for one that contains a wanted message."""
        if not chunk:
            return self.match_unfiltered
        first = chunk[0]
        if first & _UNFILTERED and self.match_unfiltered:
            return True
        bits = (len(chunk) - 1) * 8
        filled = int.from_bytes(chunk[1:], "little")
        hashes = first & ~_UNFILTERED
        for value in self.values:
            start, step = _hash(value)
            if all(filled >> (start + index * step) % bits & 1 for index in range(hashes)):
                return True
        return False
