"""A flipped bit anywhere in the journal is detected, or harmless; it is never served."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from amqp10broker.errors import StorageError
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.record import HEADER_BYTES, Record
from tests.support.disks import SimDisk
from tests.support.inventories import inventory_on
from tests.support.journals import FOLDER, LONG, file_name, new_disk

FLIPS = 40_000 if LONG else 3_000


def _small(index: int) -> bytes:
    return b"message %d, not long" % index


def _with_zeros(index: int) -> bytes:
    return b"begin" + bytes(1500) + b"end %d" % index


def _written(payload: Callable[[int], bytes], *, mark: bool, file_bytes_max: int) -> SimDisk:
    """A journal of a few files and commits, as a broker leaves it that stops (mark) or is killed."""
    disk = new_disk()
    part = inventory_on(disk).part("journal")
    journal = Journal(disk, FOLDER, part, file_bytes_max=file_bytes_max)
    assert list(journal.recover()) == []
    for index in range(24):
        journal.append(index % 3, 1 + index % 2, index, [payload(index)], term=index)
        if index % 5 == 4:
            _commit(disk, journal)
    _commit(disk, journal)
    if mark:
        journal.mark()
        _commit(disk, journal)
    return disk.after_kill()


def _commit(disk: SimDisk, journal: Journal) -> None:
    while (ticket := journal.write()) is not None:
        for fd in journal.fds_to_sync():
            disk.sync(fd)
        journal.synced(ticket)


def _read(disk: SimDisk) -> list[Record]:
    journal = Journal(disk, FOLDER, inventory_on(disk).part("journal"))
    return [record for batch in journal.recover() for record in batch]


@pytest.mark.parametrize(
    ("payload", "mark"),
    [(_small, False), (_small, True), (_with_zeros, True)],
    ids=["small, killed", "small, stopped", "with zeros, stopped"],
)
@pytest.mark.parametrize("file_bytes_max", [400, 1 << 20], ids=["many files", "one file"])
def test_a_flipped_bit_is_detected_or_harmless(
    payload: Callable[[int], bytes], mark: bool, file_bytes_max: int
) -> None:
    disk = _written(payload, mark=mark, file_bytes_max=file_bytes_max)
    right = _read(disk.after_kill())
    assert len(right) == 24
    bits = [
        (name, bit)
        for name in disk.names(FOLDER)
        for bit in range(8 * len(disk.contents(f"{FOLDER}/{name}")))
    ]
    if len(bits) > FLIPS:
        bits = random.Random(1).sample(bits, FLIPS)
    last = disk.names(FOLDER)[-1]
    detected: list[tuple[str, str]] = []
    for name, bit in bits:
        flipped = disk.after_kill()
        flipped.flip(f"{FOLDER}/{name}", bit)
        try:
            found = _read(flipped)
        except StorageError as error:
            detected.append((error.path, f"{FOLDER}/{name}"))
        else:
            # Harmless is the header of a file that nothing was written to, and the marker that is last:
            # what it speaks of is read as it is.
            assert found == right
            assert name == last
    assert all(told == changed for told, changed in detected)
    harmless = len(bits) - len(detected)
    assert harmless <= 8 * (HEADER_BYTES + 37)


def test_the_limit_of_what_can_be_told_is_as_documented() -> None:
    # Killed within a second after a commit: a flip in the last record is taken for a torn end if the record
    # has a sector of zeros of its own. It is not served, and all before it is.
    disk = _written(_with_zeros, mark=False, file_bytes_max=1 << 20)
    right = _read(disk.after_kill())
    end = len(disk.contents(f"{FOLDER}/{file_name(1)}"))
    outcomes = set()
    for bit in range(8 * (end - 5), 8 * end):
        flipped = disk.after_kill()
        flipped.flip(f"{FOLDER}/{file_name(1)}", bit)
        found = _read(flipped)
        outcomes.add(len(found))
        assert found == right[: len(found)]
    assert outcomes == {23}
