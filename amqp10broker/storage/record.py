"""The one format of all files: a header, then records, each with a checksum that fits nowhere else.

Header, 32 bytes, big-endian::

    magic 8 | version u16 | purpose u16 | number u64 | file id u64 | crc32 u32

Record, 29 bytes and its payload::

    length u32 | crc32 u32 | group u32 | kind u8 | term u64 | index u64 | payload

`length` counts the payload. The checksum covers group to payload; it begins with the file's random id and
is xored with the record's offset, so that a record of another file, or at another place of this one, is
never taken for a good one. Kind 0 is never written: a stretch of zeros is no record.

A *marker* is a record of kind `MARKER` that says how far this file was synced when it was appended. It is
what tells a torn tail from damage after a loss of power: see `reader`. Its payload is the file's id, so
that markers can be found behind a place that cannot be read.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

from amqp10broker.dataclass import dataclass

MAGIC: Final = b"\x8aA10LOG\n"
VERSION: Final = 1
MARKER: Final = 255
"""The kind of markers; kinds of the users of a file are 1 to 254."""

_HEADER: Final = struct.Struct(">8sHHQQI")
_HEADER_SUMMED: Final = struct.Struct(">8sHHQQ")
_LEAD: Final = struct.Struct(">II")
_REST: Final = struct.Struct(">IBQQ")
RECORD: Final = struct.Struct(">IIIBQQ")

HEADER_BYTES: Final = _HEADER.size
RECORD_BYTES: Final = RECORD.size
"""What a record takes in the file beside its payload."""
PAYLOAD_BYTES_MAX: Final = 2**32 - 1
OFFSET_MASK: Final = 0xFFFF_FFFF


class Purpose(enum.IntEnum):
    """What a file is for; a file of one purpose is never read as one of another."""

    JOURNAL = 1
    CATALOG = 2
    STREAM = 3
    SNAPSHOT = 4
    INVENTORY = 5


class Record(NamedTuple):
    """One record, and where it stands. A tuple, because a start reads millions of them."""

    group: int
    kind: int
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    payload: bytes
    file: int
    """The number of its file."""
    offset: int
    length: int
    """Bytes in the file: `RECORD_BYTES` and the payload's."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first bytes of a file."""

    purpose: int
    number: int
    """Its place in a sequence of files; 0 for a file that is no part of one."""
    file_id: int
    version: int = VERSION

    @property
    def seed(self) -> int:
        """What the checksums of this file's records begin with."""
        return crc32(self.id_bytes)

    @property
    def id_bytes(self) -> bytes:
        """The file's id, as it stands in markers."""
        return self.file_id.to_bytes(8, "big")

    def encode(self) -> bytes:
        """The 32 bytes."""
        summed = _HEADER_SUMMED.pack(MAGIC, self.version, self.purpose, self.number, self.file_id)
        return summed + crc32(summed).to_bytes(4, "big")


def decode_header(data: bytes) -> Header | None:
    """Read a header; None if these 32 bytes are none."""
    magic, version, purpose, number, file_id, crc = _HEADER.unpack(data)
    if magic != MAGIC or crc != crc32(data[: _HEADER_SUMMED.size]):
        return None
    return Header(purpose, number, file_id, version)


def encode_head(
    seed: int, offset: int, group: int, kind: int, index: int, payload: Iterable[bytes], term: int = 0
) -> bytes:
    """The bytes of a record before its payload, which is written behind them as it is.

    Args:
        seed: the header's.
        offset: where in the file the record will begin.
        group: 0 to 2**32 - 1, whose record it is.
        kind: 1 to 254, what it is to that group.
        index: 0 to 2**64 - 1, the group's own number.
        payload: pieces; `PAYLOAD_BYTES_MAX` in all.
        term: 0 to 2**64 - 1.

    Raises:
        struct.error: a number is out of range.
    """
    rest = _REST.pack(group, kind, term, index)
    crc = crc32(rest, seed)
    length = 0
    for piece in payload:
        crc = crc32(piece, crc)
        length += len(piece)
    return _LEAD.pack(length, crc ^ offset & OFFSET_MASK) + rest


def encode_marker(header: Header, offset: int, synced: int) -> bytes:
    """A whole marker.

    Args:
        header: the file's.
        offset: where it will stand.
        synced: all bytes of the file before this offset are known to be synced.
    """
    payload = header.id_bytes
    return encode_head(header.seed, offset, 0, MARKER, synced, (payload,)) + payload


def is_record(data: bytes, at: int, seed: int, offset: int, *, length: int | None = None) -> bool:
    """Whether a whole record with the right checksum stands at a place.

    Args:
        data: bytes of the file.
        at: the place in `data`.
        seed: the header's.
        offset: the same place in the file.
        length: of the payload, in place of what the record says.
    """
    if at + RECORD_BYTES > len(data) or not data[at + 12]:
        return False
    told: int
    crc: int
    told, crc = _LEAD.unpack_from(data, at)
    end = at + RECORD_BYTES + (told if length is None else length)
    if end > len(data):
        return False
    return crc32(memoryview(data)[at + _LEAD.size : end], seed) ^ offset & OFFSET_MASK == crc
