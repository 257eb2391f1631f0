"""The common format of all files: a header, then records, each with a checksum that is unique to its place.

Header, 32 bytes, big-endian::

    magic 8 | version u16 | purpose u16 | number u64 | file id u64 | crc32 u32

Record, 29 bytes and its payload::

    length u32 | crc32 u32 | group u32 | kind u8 | term u64 | index u64 | payload

`length` counts the payload. The checksum covers group to payload; it begins with the file's random id and is
xored with the record's offset, so that a record of another file, or at another place of this one, is never
taken for a good one. Kind 0 is never written: zeros are not a record.

A *marker* is a record of kind `MARKER` with the synced length of the file when it was appended, by which
`reader` distinguishes a torn tail from damage. Its payload is the file's id, so that markers can be found
behind a place that cannot be read.
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
PAYLOAD_BYTES_MAX: Final = 2**32 - 1
OFFSET_MASK: Final = 0xFFFF_FFFF


class Purpose(enum.IntEnum):
    """The purpose of a file; a file of one purpose is never read as one of another."""

    JOURNAL = 1
    CATALOG = 2
    STREAM = 3
    SNAPSHOT = 4
    INVENTORY = 5


class Record(NamedTuple):
    """A record and its position. A tuple, because a start reads millions of them."""

    group: int
    kind: int
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    payload: bytes
    file: int
    offset: int
    length: int
    """Bytes in the file: `RECORD_BYTES` and the payload's."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    purpose: int
    number: int
    """Its number in a sequence of files; 0 for a file outside of one."""
    file_id: int
    version: int = VERSION

    @property
    def seed(self) -> int:
        """The initial value of the checksums of this file's records."""
        return crc32(self.id_bytes)

    @property
    def id_bytes(self) -> bytes:
        """The file's id in the form of markers."""
        return self.file_id.to_bytes(8, "big")

    def encode(self) -> bytes:
        summed = _HEADER_SUMMED.pack(MAGIC, self.version, self.purpose, self.number, self.file_id)
        return summed + crc32(summed).to_bytes(4, "big")


def decode_header(data: bytes) -> FileHeader | None:
    magic, version, purpose, number, file_id, crc = _HEADER.unpack(data)
    if magic != MAGIC or crc != crc32(data[: _HEADER_SUMMED.size]):
        return None
    return FileHeader(purpose, number, file_id, version)


def encode_head(
    seed: int, offset: int, group: int, kind: int, index: int, payload: Iterable[bytes], term: int = 0
) -> bytes:
    rest = _REST.pack(group, kind, term, index)
    crc = crc32(rest, seed)
    length = 0
    for piece in payload:
        crc = crc32(piece, crc)
        length += len(piece)
    return _LEAD.pack(length, crc ^ offset & OFFSET_MASK) + rest


def encode_marker(header: FileHeader, offset: int, synced: int) -> bytes:
    """Encode a whole marker at an offset: all bytes of the file before `synced` are synced."""
    payload = header.id_bytes
    return encode_head(header.seed, offset, 0, MARKER, synced, (payload,)) + payload


def is_record(data: bytes, at: int, seed: int, offset: int, *, length: int | None = None) -> bool:
    """Return whether there is a whole record with the right checksum at a place."""
    if at + RECORD_BYTES > len(data) or not data[at + 12]:
        return False
    told: int
    crc: int
    told, crc = _LEAD.unpack_from(data, at)
    end = at + RECORD_BYTES + (told if length is None else length)
    if end > len(data):
        return False
    return crc32(memoryview(data)[at + _LEAD.size : end], seed) ^ offset & OFFSET_MASK == crc
