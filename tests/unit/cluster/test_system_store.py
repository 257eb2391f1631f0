"""The system group's member on disk: what is durable of its log and state, whenever the power goes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amqp10broker.cluster import transactions
from amqp10broker.cluster.transactions import (
    CatalogTransaction,
    Origin,
    SystemMachine,
    SystemStore,
    TransactionOutcome,
    found,
    is_member,
    left_alone,
    transaction_of,
)
from amqp10broker.metadata.vhost_requests import SetParameter
from amqp10broker.raft import messages
from amqp10broker.raft.entries import Configuration, Hard, Kind, Point, Run, Snapshot, run_of
from amqp10broker.raft.ids import member_id
from amqp10broker.raft.messages import Ready
from amqp10broker.storage import entry_log
from amqp10broker.storage.catalog_log import CatalogLog, open_catalog_log
from amqp10broker.storage.folder import open_data_folder
from tests.support.disks import PowerLoss, SimDisk
from tests.support.metadata_group import conceal, filled, first_entries

ME = member_id(1)
FIRST = first_entries(1)


def opened(disk: SimDisk) -> CatalogLog:
    """The catalog's log of the folder on a disk."""
    folder = open_data_folder(disk, "/data", "test")
    return open_catalog_log(disk, folder, folder.inventory.part("catalog"))


def sync(disk: SimDisk, log: CatalogLog) -> None:
    fds = log.fds_to_sync()
    for fd in fds:
        disk.sync(fd)
    if fds:
        log.synced()


def ready(**given: Any) -> Ready:
    fields: dict[str, Any] = {
        "ticket": 1, "hard": None, "snapshot": None, "entries": (), "messages": [], "commit": None,
        "snapshots_to": (), "status": None,
    }  # fmt: skip
    return Ready(**{**fields, **given})


def commands(first: int, term: int, *payloads: bytes) -> Run:
    return run_of(first, term, Kind.COMMAND, payloads)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> CatalogLog:
    log = opened(disk)
    log.put([*FIRST, (("furnished",), {})])
    found(log, ME, FIRST)
    return log


def test_the_founder_keeps_what_it_had(log: CatalogLog, disk: SimDisk) -> None:
    assert is_member(log)
    store = SystemStore(log)
    assert store.stored.point == Point(1, 0, Configuration((ME,)))
    assert store.applied == 1
    assert dict(store.machine.entries()) == dict(FIRST)
    assert all(store.machine.revision(key) == 1 for key, _ in FIRST)
    assert dict(left_alone(log)).items() >= dict(FIRST).items()
    assert log.get(("furnished",)) == {}
    assert log.get(("vhost", "/")) is None, "it stands there once"
    again = SystemStore(opened(disk.after_kill()))
    assert again.machine.snapshot() == store.machine.snapshot()


def test_entries_are_read_in_runs_as_far_as_the_size_goes(log: CatalogLog, disk: SimDisk) -> None:
    """Of one term and kind each; also after a restart, with terms and configurations."""
    config = Configuration((ME,), (member_id(2),))
    runs = (
        run_of(2, 1, Kind.EMPTY, (b"",)),
        commands(3, 1, b"a", b"\xff"),
        run_of(5, 1, Kind.CONFIG, (messages.CONFIG.encode(config),)),
        commands(6, 2, b"cc", b"d"),
    )
    told: list[int] = []
    store = SystemStore(log)
    store.write(ready(entries=runs, hard=Hard(2, ME, 3)), lambda: told.append(1))
    assert told == []
    sync(disk, log)
    assert told == [1]
    again = SystemStore(opened(disk.after_power_loss(1)))
    for each in (store, again):
        assert tuple(each.read(2, 7, 1000)) == runs
        assert each.read(3, 7, 2) == [runs[1]]
        assert each.read(6, 7, 1) == [commands(6, 2, b"cc")]
        assert each.read(7, 7, 0) == [commands(7, 2, b"d")]
    stored = again.stored
    assert (stored.last, stored.hard) == (7, Hard(2, ME, 3))
    assert (stored.terms, stored.configs) == (((2, 1), (6, 2)), ((5, config),))


def test_entries_that_are_replaced_are_gone_with_all_behind_them(log: CatalogLog, disk: SimDisk) -> None:
    store = SystemStore(log)
    store.write(ready(entries=(commands(2, 1, b"a", b"b", b"c"),)), lambda: None)
    store.write(ready(entries=(commands(3, 2, b"x"),)), lambda: None)
    again = SystemStore(opened(disk.after_kill()))
    for each in (store, again):
        assert each.read(2, 3, 1000) == [commands(2, 1, b"a"), commands(3, 2, b"x")]
    assert again.stored.last == 3


def test_a_state_from_the_leader_takes_the_place_of_everything(log: CatalogLog, disk: SimDisk) -> None:
    leader = World(SimDisk())
    leader.begin()
    for _ in range(3):
        leader.apply()
    point = Point(20, 3, Configuration((ME, member_id(2))))
    snapshot = Snapshot(point, leader.store.machine.snapshot())
    store = SystemStore(log)
    before = store.machine.snapshot()
    store.write(ready(entries=(commands(2, 1, b"a"),)), lambda: None)
    store.write(ready(snapshot=snapshot, entries=(commands(21, 3, b"b"),)), lambda: None)
    assert store.machine.snapshot() == before, "it is the machine's when it is durable"
    again = SystemStore(opened(disk.after_kill()))
    store.take()
    for each in (store, again):
        assert (each.applied, each.received) == (20, None)
        assert each.machine.snapshot() == snapshot.data
        assert each.read(21, 21, 10) == [commands(21, 3, b"b")]
    assert (again.stored.point, again.stored.last) == (point, 21)


def test_applied_entries_go_when_there_are_many(
    log: CatalogLog, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "COMPACT_AFTER", 2)
    told: list[int] = []
    store = SystemStore(log)
    store.on_compact = told.append
    store.write(ready(entries=(commands(2, 1, *[b"x"] * 6),)), lambda: None)
    store.keep(4)
    assert store.to_compact is None
    store.keep(5)
    assert store.to_compact == 3
    store.compact(Point(3, 1, Configuration((ME,))))
    assert told == [3]
    again = SystemStore(opened(disk.after_kill()))
    assert (again.stored.point.index, again.stored.last, again.applied) == (3, 7, 5)
    assert again.read(4, 7, 1000) == [commands(4, 1, *[b"x"] * 4)]


# --- losses of power --------------------------------------------------------------------------------


class World:
    """A store that is changed at random, and what may be found of it after the power went."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.possible: list[Any] = []
        """How it has been since the last sync."""
        self.serial = 0

    def begin(self) -> None:
        log = self.log = opened(self.disk)
        if not is_member(log):
            assert not self.possible, "the group is lost"
            found(log, ME, FIRST)
            sync(self.disk, log)
        self.store = SystemStore(log)
        self.last = self.store.stored.last
        self.config = self.store.stored.point.config
        now = self.now()
        assert not self.possible or now in self.possible, "what was found is none of the states since"
        self.possible = [now]
        self.watch(log)
        self.serial = int(self.last_of(1)[1]) + 1000 * (1 + self.serial // 1000)

    def watch(self, log: CatalogLog) -> None:
        """Each change may be the last that is found."""
        change = log.change

        def watched(*given: Any) -> None:
            try:
                change(*given)
            finally:
                self.possible.append(self.now())

        log.change = watched  # type: ignore[method-assign]

    def last_of(self, node: int) -> Any:
        kept = self.store.machine.kept(("last", str(node)))
        assert kept is not None
        return kept[1]

    def now(self) -> Any:
        """All that must be the same after a start."""
        store = SystemStore(self.log)
        indexes = range(store.stored.point.index + 1, store.stored.last + 1)
        entries = {index: store.read(index, index, 1) for index in indexes}
        return store.stored, entries, store.applied, store.machine.snapshot()

    def transaction(self) -> bytes:
        self.serial += 1
        machine = self.store.machine
        catalog = filled(FIRST)
        plan = SetParameter(("parameter", "/", "c", str(self.serial % 5)), self.serial).plan(catalog)
        return transaction_of(Origin(1, 1, self.serial), plan, catalog, machine.revision, conceal).encode()

    def apply(self) -> None:
        """One more entry, which nobody disputes, with its revisions as they are."""
        index = self.store.applied + 1
        if index > self.last:
            self.store.write(ready(entries=(commands(index, 1, self.transaction()),)), lambda: None)
            self.last = index
        ((run),) = self.store.read(index, index, 1)
        if run.kind is Kind.COMMAND:
            found = CatalogTransaction.decode(run.payloads[0])
            self.store.machine.apply(index, found)
        self.store.keep(index)

    def walk(self, rng: random.Random, steps: int) -> None:
        self.begin()
        for _ in range(steps):
            kind = rng.randrange(7)
            store = self.store
            if kind < 2:
                run = commands(self.last + 1, 1, *(self.transaction() for _ in range(rng.randrange(1, 4))))
                store.write(ready(entries=(run,), hard=Hard(1, ME, store.applied)), lambda: None)
                self.last = run.last
            elif kind == 2 and self.last > store.applied:
                first = rng.randrange(store.applied + 1, self.last + 1)
                store.write(ready(entries=(commands(first, 2, self.transaction()),)), lambda: None)
                self.last = first
            elif kind == 3:
                self.apply()
            elif kind == 4 and store.to_compact is not None:
                store.compact(Point(store.to_compact, 1, self.config))
            elif kind == 5 and rng.random() < 0.3:
                other = SystemMachine()
                other.install(store.machine.snapshot())
                value = {"name": "g", "value": self.serial}
                change = CatalogTransaction(
                    Origin(1, 1, self.serial), [], [(("global_parameter", "g"), value)]
                )
                assert other.apply(self.last + 5, change).outcome is not TransactionOutcome.CONFLICT
                point = Point(self.last + 5, 2, self.config)
                store.write(ready(snapshot=Snapshot(point, other.snapshot())), lambda: None)
                store.take()
                self.last = point.index
            elif kind == 6:
                sync(self.disk, self.log)
                self.possible = [self.now()]


def walked(seed: int, lose_power_at: int | None) -> World:
    """A walk of a group that was founded before; the power goes at the n-th call, counted from then."""
    world = World(SimDisk(seed))
    world.begin()
    world.log.close()
    world.disk = world.disk.after_kill()
    world.disk.calls.clear()
    world.disk.lose_power_at = lose_power_at
    try:
        world.walk(random.Random(seed), 25)
    except PowerLoss:
        pass
    return world


@pytest.mark.parametrize("seed", range(4))
def test_after_a_loss_of_power_it_is_as_it_was_at_one_moment_since_the_last_sync(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any call, in several of the states that the disk may be in then; and again a few changes later."""
    monkeypatch.setattr(entry_log, "SPARE_BYTES", 100)
    monkeypatch.setattr(transactions, "COMPACT_AFTER", 2)
    calls = len(walked(seed, None).disk.calls)
    assert calls > 20
    for at in range(calls):
        for state in range(2):
            world = walked(seed, at)
            world.disk = world.disk.after_power_loss(1000 * at + state)
            world.walk(random.Random(at), 5)
            world.disk = world.disk.after_power_loss(state)
            world.walk(random.Random(at), 0)
