"""The system group's member on disk: its log and the state that it has applied, in the catalog's log.

Each entry of the group's log is an entry under a key of its own, and so is each key of the machine's state; a
change of them is one record of the file. What is applied is written in the order in which it is, with the
index up to which it is: so a start finds a state, and the entries behind it, whatever moment the power took.
The state takes the part of a snapshot. Nothing waits until it is durable: the entries are.

::

    ("state", *key)              [revision, value]
    ("raft", "applied")          index up to which the state has applied
    ("raft", "entry", index)     [term, kind, payload]; the index in 20 digits, the payload as Latin-1
    ("raft", "point")            what is in front of the first entry (`raft.codec.POINT`, hexadecimal)
    ("raft", "hard")             term, vote, commit (`raft.codec.HARD`, hexadecimal)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from amqp10broker.cluster.transactions import LAST, MARKS, SystemMachine, Value
from amqp10broker.metadata.plan import CLUSTER, Key
from amqp10broker.raft import codec
from amqp10broker.raft.config import Configuration
from amqp10broker.raft.entries import Kind, Point, Run, Stored, new_group, new_member, run_of
from amqp10broker.raft.ready import Ready

STATE: Final = "state"
RAFT: Final = "raft"
APPLIED: Final[Key] = (RAFT, "applied")
POINT: Final[Key] = (RAFT, "point")
HARD: Final[Key] = (RAFT, "hard")
ENTRY: Final = "entry"

COMPACT_AFTER: Final = 1024
"""So many entries are kept that are applied, for members that lag; then as many go."""


class EntriesByKey(Protocol):
    def __contains__(self, key: object) -> bool: ...

    def get(self, key: Key) -> Value:
        """The entry of a key; None if there is none."""

    def entries(self) -> Iterator[tuple[Key, Value]]: ...

    def change(self, puts: Sequence[tuple[Key, Value]], forgets: Sequence[Key]) -> None:
        """Keep entries, and others no more, all at once."""

    def when_durable(self, told: Callable[[], None]) -> None:
        """Have a function called when all of that survives a loss of power."""


def is_member(log: EntriesByKey) -> bool:
    """Whether the folder's catalog is that of a cluster."""
    return POINT in log


def used_version(log: EntriesByKey) -> int:
    """Return the machine version that a folder's cluster used at last; 0 if not known."""
    kept = log.get((STATE, *CLUSTER))
    return 0 if kept is None else int(kept[1]["version"])


def found(
    log: EntriesByKey,
    member: int,
    entries: Iterable[tuple[Key, Value]],
    beside: Iterable[tuple[Key, Value]] = (),
) -> None:
    """Begin a group with the catalog of one node, which is its only member so far, in place of a group whose
    other members are lost for good, if there is one. All of it is one change.

    Args:
        log: of that node; what it has of `entries` becomes part of the state.
        beside: other new content of the folder.
    """
    entries = list(entries)
    stored = new_group(Configuration((member,)))
    machine = SystemMachine()
    machine.found(entries, stored.point.index)
    puts = [*_first(stored), *_state(machine, machine), *beside]
    moved, put = {key for key, _ in entries}, {key for key, _ in puts}
    there = [key for key, _ in log.entries() if key in moved or key[0] in (STATE, RAFT)]
    log.change(puts, [key for key in there if key not in put])


def joined(log: EntriesByKey, keep: Callable[[Key], bool]) -> None:
    """Begin as a member that has nothing yet: the leader sends it the state."""
    log.change(_first(new_member()), [key for key, _ in log.entries() if not keep(key)])


def left_alone(log: EntriesByKey) -> list[tuple[Key, Value]]:
    """Entries of the catalog that a member's folder holds, as far as it has applied them."""
    return [
        (key[1:], value[1])
        for key, value in log.entries()
        if key[0] == STATE and key[1] not in MARKS and key[1] != LAST
    ]


class SystemStore:
    """See the module. `received`: a state that has come from the leader and takes the place of this one, with
    its index.
    """

    def __init__(self, log: EntriesByKey) -> None:
        self._log = log
        self._entries: dict[int, tuple[int, Kind, bytes]] = {}
        state: list[tuple[Key, Sequence[Any]]] = []
        for key, value in log.entries():
            if key[0] == STATE:
                state.append((key[1:], value))
            elif key[:2] == (RAFT, ENTRY):
                term, kind, payload = value
                self._entries[int(key[2])] = term, Kind(kind), payload.encode("latin-1")
        self.machine = SystemMachine()
        self.machine.restore(state)
        self.machine.touched.clear()
        self.applied: int = log.get(APPLIED)
        self.received: tuple[int, bytes] | None = None
        self.on_compact: Callable[[int], None] = _nothing
        self._point = codec.POINT.decode(bytes.fromhex(log.get(POINT)))
        self.stored: Stored | None = self._stored()

    def _stored(self) -> Stored:
        last = self._point.index + len(self._entries)
        terms: list[tuple[int, int]] = []
        configs: list[tuple[int, Configuration]] = []
        for index in range(self._point.index + 1, last + 1):
            term, kind, payload = self._entries[index]
            if not terms or terms[-1][1] != term:
                terms.append((index, term))
            if kind is Kind.CONFIG:
                configs.append((index, codec.CONFIG.decode(payload)))
        hard = codec.HARD.decode(bytes.fromhex(self._log.get(HARD)))
        return Stored(self._point, hard, last, tuple(terms), tuple(configs))

    # --- the log ------------------------------------------------------------------------------------

    def write(self, ready: Ready, on_durable: Callable[[], None]) -> None:
        puts: list[tuple[Key, Value]] = []
        forgets: list[Key] = []
        if ready.hard is not None:
            puts.append((HARD, codec.HARD.encode(ready.hard).hex()))
        if ready.snapshot is not None:
            forgets += map(_entry_key, self._entries)
            self._entries.clear()
            self._point = ready.snapshot.point
            self._receive(ready.snapshot.data, puts, forgets)
        for run in ready.entries:
            for index in range(run.first, self._last + 1):
                del self._entries[index]
                forgets.append(_entry_key(index))
            for index, payload in enumerate(run.payloads, run.first):
                self._entries[index] = run.term, run.kind, payload
                puts.append((_entry_key(index), [run.term, int(run.kind), payload.decode("latin-1")]))
        put = {key for key, _ in puts}
        self._log.change(puts, [key for key in forgets if key not in put])
        self._log.when_durable(on_durable)

    def _receive(self, data: bytes, puts: list[tuple[Key, Value]], forgets: list[Key]) -> None:
        machine = SystemMachine()
        machine.install(data)
        puts += _state(machine, machine)
        puts.append((POINT, codec.POINT.encode(self._point).hex()))
        puts.append((APPLIED, self._point.index))
        forgets += [(STATE, *key) for key in self.machine if key not in machine]
        self.received = self._point.index, data

    @property
    def _last(self) -> int:
        return self._point.index + len(self._entries)

    def read(self, first: int, last: int, size: int) -> Sequence[Run]:
        runs: list[Run] = []
        payloads: list[bytes] = []
        begin, of = first, self._entries[first][:2]
        for index in range(first, last + 1):
            term, kind, payload = self._entries[index]
            size -= len(payload)
            if size < 0 and index > first:
                break
            if (term, kind) != of:
                runs.append(run_of(begin, *of, tuple(payloads)))
                begin, of, payloads = index, (term, kind), []
            payloads.append(payload)
        return [*runs, run_of(begin, *of, tuple(payloads))]

    # --- the state ----------------------------------------------------------------------------------

    def keep(self, applied: int) -> None:
        """The machine has applied entries up to this index."""
        touched, self.machine.touched = self.machine.touched, set()
        self.applied = applied
        puts = _state(self.machine, (key for key in touched if key in self.machine))
        puts.append((APPLIED, applied))
        self._log.change(puts, [(STATE, *key) for key in touched if key not in self.machine])

    def take(self) -> None:
        """The state that was received is the machine's from now on."""
        assert self.received is not None
        index, data = self.received
        self.machine.install(data)
        self.machine.touched.clear()
        self.applied, self.received = index, None

    @property
    def to_compact(self) -> int | None:
        """Up to which index entries may go; None: it is not worth it yet."""
        if self.received is not None or self.applied - self._point.index < 2 * COMPACT_AFTER:
            return None
        return self.applied - COMPACT_AFTER

    def compact(self, point: Point) -> None:
        """Forget entries up to this point."""
        gone = range(self._point.index + 1, point.index + 1)
        for index in gone:
            del self._entries[index]
        self._point = point
        self._log.change([(POINT, codec.POINT.encode(point).hex())], list(map(_entry_key, gone)))
        self.on_compact(point.index)


def _nothing(index: int) -> None: ...


def _first(stored: Stored) -> list[tuple[Key, Value]]:
    return [
        (POINT, codec.POINT.encode(stored.point).hex()),
        (HARD, codec.HARD.encode(stored.hard).hex()),
        (APPLIED, stored.point.index),
    ]


def _state(machine: SystemMachine, keys: Iterable[Key]) -> list[tuple[Key, Value]]:
    return [((STATE, *key), machine.kept(key)) for key in keys]


def _entry_key(index: int) -> Key:
    return (RAFT, ENTRY, f"{index:020}")
