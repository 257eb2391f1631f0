"""The distinction of the torn end of a file from damage.

When the power goes, any part of what was written since the last sync may be missing: the file may be shorter,
and any sector of it may hold zeros. That is a *torn tail*: nothing of it was confirmed, and it is cut off.
Anything else is *damage*, and must never be cut off silently. Three signs show damage:

1. A marker behind the place records a sync beyond it.
2. The record there would be right with another length: its length is wrong and all else is whole.
3. The record was written as a whole (it ends where the next good one begins, or where the file ends, and no
sector of it is all zeros), and yet its checksum is wrong.

Not detected: damage in a record of the very last commit that also has a sector of zeros in it (of its own, or
because that is the damage), or that hides where the record ends, when the broker died before it appended
anything after that commit. The third sign would be wrong on a file system that shows old contents of other
files in sectors it has not written; those that Linux offers by default do not.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.storage.record import MARKER, RECORD, RECORD_BYTES, FileHeader, is_record

SECTOR_BYTES: Final = 512
"""The unit that a disk writes as a whole or not at all."""

# How far behind a bad record another one is searched byte by byte, when its length leads nowhere.
_SEARCH_BYTES_MAX: Final = 256 * 1024
# Longer ones are not found so: checking each place that could begin one would take minutes.
_SEARCHED_RECORD_BYTES_MAX: Final = 256 * 1024


def why_damaged(data: bytes, offset: int, header: FileHeader) -> str | None:
    """Return the sign of damage at a bad record as a clause; None if it is a torn tail."""
    synced = _synced(data, offset, header)
    if synced > offset:
        return f"the file was synced up to offset {synced}"
    end = _end_of_record(data, offset, header.seed)
    for whole in (end, len(data)):
        if whole is not None and is_record(data, 0, header.seed, offset, length=whole - RECORD_BYTES):
            return "the length of the record is wrong"
    if end is not None and not _has_empty_sector(data, offset, end):
        return "the record was written whole, and its checksum is wrong"
    return None


def _synced(data: bytes, offset: int, header: FileHeader) -> int:
    # The highest synced length in a marker; 0 if there is none.
    wanted = header.id_bytes
    synced = 0
    found = data.find(wanted)
    while found >= 0:
        at = found - RECORD_BYTES
        if at >= 0 and is_record(data, at, header.seed, offset + at):
            _, _, _, kind, _, index = RECORD.unpack_from(data, at)
            # A marker can only be about bytes before it.
            if kind == MARKER and index <= offset + at:
                synced = max(synced, index)
        found = data.find(wanted, found + 1)
    return synced


def _end_of_record(data: bytes, offset: int, seed: int) -> int | None:
    if len(data) < RECORD_BYTES:
        return None
    end = RECORD_BYTES + int.from_bytes(data[:4], "big")
    if end == len(data) or is_record(data, end, seed, offset + end):
        return end
    # The length to be found begins with a zero.
    at = data.find(0, 1)
    while 0 < at < _SEARCH_BYTES_MAX:
        length = int.from_bytes(data[at : at + 4], "big")
        if length <= _SEARCHED_RECORD_BYTES_MAX and is_record(data, at, seed, offset + at):
            return at
        at = data.find(0, at + 1)
    return None


def _has_empty_sector(data: bytes, offset: int, end: int) -> bool:
    # As if it had never been written.
    at = 0
    while at < end:
        stop = min(end, at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES)
        if not any(data[at:stop]):
            return True
        at = stop
    return False
