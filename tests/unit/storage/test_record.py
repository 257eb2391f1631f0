"""The format of files, byte by byte."""

from __future__ import annotations

import struct
import zlib

from amqp10broker.storage.record import (
    HEADER_BYTES,
    MARKER,
    RECORD_BYTES,
    FileHeader,
    Purpose,
    decode_header,
    encode_head,
    encode_marker,
    is_record,
)

HEADER = FileHeader(Purpose.JOURNAL, 7, 0x0123456789ABCDEF)


def test_a_header_is_32_bytes_and_reads_back() -> None:
    data = HEADER.encode()
    assert len(data) == HEADER_BYTES == 32
    assert data[:20] == b"\x8aA10LOG\n" + struct.pack(">HHQ", 1, 1, 7)
    assert decode_header(data) == HEADER


def test_a_header_with_any_bit_flipped_is_none() -> None:
    data = HEADER.encode()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_header(bytes(flipped)) is None, bit


def test_a_record_has_the_documented_bytes() -> None:
    head = encode_head(HEADER.seed, 100, 3, 4, 6, (b"ab", b"", b"c"), 5)
    rest = struct.pack(">IBQQ", 3, 4, 5, 6)
    crc = zlib.crc32(rest + b"abc", zlib.crc32(bytes.fromhex("0123456789ABCDEF"))) ^ 100
    assert head == struct.pack(">II", 3, crc) + rest
    assert len(head) == RECORD_BYTES == 29


def test_a_record_of_another_file_or_another_place_is_not_taken() -> None:
    data = encode_head(HEADER.seed, 64, 1, 1, 1, (b"x",)) + b"x"
    assert is_record(data, 0, HEADER.seed, 64)
    assert not is_record(data, 0, HEADER.seed, 65)
    assert not is_record(data, 0, FileHeader(Purpose.JOURNAL, 7, 1).seed, 64)


def test_zeros_are_no_record_whatever_the_seed() -> None:
    # At this offset the checksum of 29 zeros is 0, as it stands there.
    offset = zlib.crc32(bytes(21), HEADER.seed)
    assert not is_record(bytes(4096), 0, HEADER.seed, offset)


def test_a_marker_carries_the_id_and_what_was_synced() -> None:
    data = encode_marker(HEADER, 500, 300)
    assert is_record(data, 0, HEADER.seed, 500)
    assert data[12] == MARKER
    assert int.from_bytes(data[21:29], "big") == 300
    assert data[29:] == HEADER.id_bytes
