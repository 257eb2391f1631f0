"""The journal against a model: what is durable stays, in order, whatever fails and whenever the power goes.

The model is `tests.support.journals.World`. Recovery compares after each crash.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.errors import DiskFull, StorageError
from tests.support.journals import LONG, World, new_disk, walk

SIZES = st.sampled_from((0, 1, 20, 100, 480, 512, 1100))
# States after a loss of power that are looked at before one of them is gone on with.
STATES = 8
CODES = st.sampled_from((errno.ENOSPC, errno.EIO))


class JournalMachine(RuleBasedStateMachine):
    """Appends, commits in all their parts, cleaning, full disks, crashes."""

    @initialize(
        file_bytes_max=st.sampled_from((100, 600, 5000)),
        reserve_bytes=st.sampled_from((0, 1000)),
        seed=st.integers(0, 1000),
    )
    def begin(self, file_bytes_max: int, reserve_bytes: int, seed: int) -> None:
        self.world = World(new_disk(seed), file_bytes_max, reserve_bytes)
        self.world.recover()
        self.syncing: tuple[int, list[int]] | None = None

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6), pieces=st.integers(1, 3))
    def append(self, sizes: list[int], pieces: int) -> None:
        for size in sizes:
            self.world.append(size, pieces)

    @precondition(lambda self: self.syncing is None)
    @rule(again=st.booleans())
    def write(self, again: bool) -> None:
        ticket = None
        with self._room_when_full():
            ticket = self.world.write()
            if again:
                ticket = self.world.write() or ticket
        if ticket is not None:
            self.syncing = (ticket, self.world.journal.fds_to_sync())

    @rule()
    def write_early(self) -> None:
        self.world.write_early()

    @precondition(lambda self: self.syncing is not None and self.syncing[1])
    @rule()
    def sync_one(self) -> None:
        assert self.syncing is not None
        self.world.disk.sync(self.syncing[1].pop(0))

    @precondition(lambda self: self.syncing is not None)
    @rule()
    def finish(self) -> None:
        assert self.syncing is not None
        ticket, fds = self.syncing
        for fd in fds:
            self.world.disk.sync(fd)
        self.world.synced(ticket)
        self.syncing = None

    @precondition(lambda self: self.syncing is None)
    @rule()
    def commit(self) -> None:
        with self._room_when_full():
            self.world.commit()

    @precondition(lambda self: self.syncing is None)
    @rule(code=CODES, after=st.integers(0, 2))
    def write_on_a_disk_that_fails(self, code: int, after: int) -> None:
        disk = self.world.disk
        disk.fail = {len(disk.calls) + after: code}
        try:
            ticket = self.world.write()
        except StorageError:
            ticket = None
        disk.fail = {}
        if ticket is not None:
            self.syncing = (ticket, self.world.journal.fds_to_sync())

    @precondition(lambda self: self.world.live)
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        live = sorted(self.world.live)
        # From the front, mostly: that is what queues do, and it makes files empty.
        count = data.draw(st.integers(1, len(live)))
        chosen = live[:count] if data.draw(st.booleans()) else live[::2]
        for message in chosen:
            self.world.consume(message)

    @precondition(lambda self: self.syncing is None)
    @rule(seed=st.integers(0, 10_000))
    def wander(self, seed: int) -> None:
        """Further on than single rules come in the time there is."""
        with self._room_when_full():
            walk(self.world, random.Random(seed), 8)

    @rule()
    def clean(self) -> None:
        with self._room_when_full():
            self.world.clean()

    @rule()
    def mark(self) -> None:
        self.world.journal.mark()

    @rule()
    def read(self) -> None:
        self.world.read_all()

    @rule(left=st.sampled_from((0, 200, 5000)))
    def fill_the_disk(self, left: int) -> None:
        """Others take all but so many bytes; what is recovered, and what is read, is the same."""
        self.world.disk.capacity = self.world.disk.used() + left

    @rule()
    def make_room(self) -> None:
        self.world.disk.capacity = None

    @rule()
    def kill(self) -> None:
        self.world.kill()
        self._restart()

    @rule(seed=st.integers(0, 10_000))
    def lose_power(self, seed: int) -> None:
        for other in range(STATES):
            self.world.check(self.world.disk.after_power_loss(other))
        self.world.disk = self.world.disk.after_power_loss(seed)
        self._restart()

    def _restart(self) -> None:
        with self._room_when_full() as full:
            self.world.recover()
        if full:
            self.world.recover()
        self.world.read_all()
        self.syncing = None

    @contextmanager
    def _room_when_full(self) -> Iterator[list[DiskFull]]:
        """Something may end because there is no room; then there is."""
        full: list[DiskFull] = []
        try:
            yield full
        except DiskFull as error:
            full.append(error)
            self.world.disk.capacity = None

    @invariant()
    def sizes_agree(self) -> None:
        if not hasattr(self, "world"):
            return
        journal = self.world.journal
        live = sum(self.world.copies[number].length for number in self.world.live.values())
        assert journal.live_bytes == live
        assert journal.size_bytes >= live
        assert journal.durable <= journal.ticket


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(
    max_examples=3000 if LONG else 100,
    stateful_step_count=60 if LONG else 40,
    deadline=None,
    # Without "explain", which takes minutes here.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
