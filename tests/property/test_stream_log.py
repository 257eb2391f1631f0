"""A stream's files after the power went, after any system call failed, and with any bit flipped.

What was committed is there, in order, and nothing that was never appended; or, for a flipped bit, the
broker does not start.
"""

from __future__ import annotations

import errno
import random
from itertools import pairwise

import pytest

from amqp10broker.errors import DamagedFile, DiskFull, StorageError
from amqp10broker.queues.stream.log import StreamLog
from amqp10broker.storage.stream_files import folder_of
from tests.support.disks import PowerLoss, SimDisk
from tests.support.inventories import ShelfAlone
from tests.support.streams import make_room

STREAMS = "/streams"
SEEDS = 1500


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.make_folder(STREAMS)
    disk.sync(disk.open_folder("/"))
    return disk


class Scenario:
    """A stream that is written to, retained and opened again, and what is known of it.

    Attributes:
        appended: the content of each offset that was ever appended, the last one counts.
        committed: offsets below it were told to be durable.
        first: no offset below it need be there.
    """

    def __init__(self, disk: SimDisk, rng: random.Random) -> None:
        self.disk = disk
        self.rng = rng
        self.log = self.opened()
        self.appended: dict[int, bytes] = {}
        self.committed = 0
        self.first = 0
        self.now_ms = 1000

    def opened(self) -> StreamLog:
        log = StreamLog(ShelfAlone(self.disk, STREAMS, 1))
        for _ in log.recover():
            pass
        log.segment_bytes = 400
        return log

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += 10
            choice = self.rng.random()
            if choice < 0.75:
                self.write()
            elif choice < 0.9:
                self.retain()
            else:
                self.log.shelf.close()
                self.log = self.opened()

    def write(self) -> None:
        log = self.log
        make_room(log, self.disk.sync)
        for _ in range(self.rng.randrange(1, 4)):
            count = self.rng.randrange(1, 5)
            content = bytes(self.rng.randrange(256) for _ in range(self.rng.choice((5, 60, 700))))
            for offset in range(log.next_offset, log.next_offset + count):
                self.appended[offset] = content
            log.append(count, self.now_ms, b"", [content])
        written = log.write()
        for fd in log.shelf.fds_to_sync():
            self.disk.sync(fd)
        log.commit(written)
        self.committed = written

    def retain(self) -> None:
        size = self.rng.randrange(0, 3000)
        segments = self.log.segments
        left = sum(segment.size for segment in segments)
        for segment, newer in pairwise(segments):
            if left > size:
                left -= segment.size
                # It may be there or not, if the power goes while it is removed.
                self.first = newer.first
        self.log.retain(self.now_ms, size, None)
        assert self.log.first_offset == self.first


def check(log: StreamLog, one: Scenario) -> None:
    """Each chunk is as it was appended, and no committed message is missing."""
    offset = log.first_offset
    assert offset <= one.first
    place = log.find(0)
    while True:
        chunks, place = log.read(place)
        if not chunks:
            break
        for chunk in chunks:
            assert chunk.first == offset
            assert all(one.appended[each] == chunk._content for each in range(chunk.first, chunk.end))
            offset = chunk.end
    assert offset == log.next_offset >= one.committed


def opened_after(disk: SimDisk) -> StreamLog:
    log = StreamLog(ShelfAlone(disk, STREAMS, 1))
    for _ in log.recover():
        pass
    log.segment_bytes = 400
    return log


def test_after_a_loss_of_power_at_any_moment_everything_committed_is_there() -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        disk = new_disk(seed)
        one = Scenario(disk, rng)
        disk.lose_power_at = len(disk.calls) + rng.randrange(1, 120)
        try:
            one.run(12)
        except PowerLoss:
            pass
        after = disk.after_power_loss(seed)
        log = opened_after(after)
        check(log, one)
        # And it goes on: what is appended now is there after the next loss.
        make_room(log, after.sync)
        one.appended[log.next_offset] = b"afterwards"
        one.appended = {key: value for key, value in one.appended.items() if key <= log.next_offset}
        log.append(1, 10**6, b"", [b"afterwards"])
        written = log.write()
        for fd in log.shelf.fds_to_sync():
            after.sync(fd)
        log.commit(written)
        one.committed = written
        check(opened_after(after.after_power_loss(seed + 1)), one)


def test_a_stream_that_is_being_deleted_when_the_power_goes_is_there_or_is_not() -> None:
    for seed in range(SEEDS // 5):
        rng = random.Random(seed)
        disk = new_disk(seed)
        one = Scenario(disk, rng)
        for _ in range(8):
            one.write()
        disk.lose_power_at = len(disk.calls) + rng.randrange(1, 30)
        try:
            one.log.delete()
        except PowerLoss:
            pass
        after = disk.after_power_loss(seed)
        log = opened_after(after)
        if log.next_offset:
            check(log, one)
        else:
            assert log.first_offset == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_whichever_system_call_fails_nothing_that_was_committed_is_lost(code: int) -> None:
    number = 0
    reached = True
    while reached:
        rng = random.Random(7)
        disk = new_disk()
        one = Scenario(disk, rng)
        start = len(disk.calls)
        disk.fail = {start + number: code}
        failed = False
        for _ in range(12):
            try:
                one.run(1)
            except (StorageError, OSError) as error:
                failed = True
                if isinstance(error, DiskFull) and one.log.next_offset != one.log.committed:
                    # Nothing was lost: it is still to be written.
                    written = one.log.write()
                    for fd in one.log.shelf.fds_to_sync():
                        disk.sync(fd)
                    one.log.commit(written)
                    one.committed = written
                elif not isinstance(error, DiskFull):
                    break
        reached = len(disk.calls) > start + number
        assert failed or not reached or number > 0
        disk.fail = {}
        check(opened_after(disk.after_kill()), one)
        number += 1
    assert number > 50


def test_no_flipped_bit_is_ever_served() -> None:
    rng = random.Random(3)
    disk = new_disk()
    one = Scenario(disk, rng)
    for _ in range(8):
        one.write()
    one.log.shelf.close()
    folder = folder_of(STREAMS, 1)
    found = harmless = 0
    for name in disk.names(folder):
        path = f"{folder}/{name}"
        content = disk.contents(path)
        for bit in range(0, len(content) * 8, 7):
            flipped = disk.after_kill()
            flipped.flip(path, bit)
            try:
                log = opened_after(flipped)
            except DamagedFile:
                found += 1
                continue
            # Bytes of a marker say nothing about messages.
            check(log, one)
            harmless += 1
    assert found > 500
    assert harmless < found // 5
