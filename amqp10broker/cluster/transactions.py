"""Transactions: changes of the catalog that nodes agree on, the machine that applies them, and its store.

A transaction names the keys on which its plan depends (`reads_of`), each with its *revision*: the index in
the system group's log of its last change. It is applied if none of these has changed by its place in the log;
otherwise its node plans again on a newer copy. So rules are not replayed (ADR 0036), and all nodes apply the
same. Facts without an entry, such as the emptiness of a virtual host to be deleted, have *marks*: keys
without a value, whose revision changes with the fact.

On disk (`SystemStore`), log and applied state are entries of the catalog's log. The state is written in
order, with its index: so a start finds a state, which is the snapshot, and the entries behind it, whenever
the power failed. Only the entries are waited for until they are durable::

    ("state", *key)              [revision, value]
    ("raft", "applied")          index up to which the state has applied
    ("raft", "entry", index)     [term, kind, payload]; the index in 20 digits, the payload as Latin-1
    ("raft", "point")            what is in front of the first entry (`raft.messages.POINT`, hexadecimal)
    ("raft", "hard")             term, vote, commit (`raft.messages.HARD`, hexadecimal)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.catalog import Catalog, Value
from amqp10broker.metadata.entry_codec import Conceal, encoded
from amqp10broker.metadata.plan import CLUSTER, NODE_NUMBERS, NUMBERS, Key, Plan, Put
from amqp10broker.metadata.queue import QUEUE_NUMBER_MAX
from amqp10broker.raft import messages
from amqp10broker.raft.ids import node_of

MARKS: Final = frozenset({"in", "queues", "bindings", "in-user", "at"})
"""Kinds of keys that have a revision and no value: for the content of a virtual host; its queues; the
bindings from and to an exchange, or to a queue; the permissions of a user; the queues with a node as their
home.
"""
LAST: Final = "last"
"""The kind of the key of a `LastTransaction`, by the node's number."""
ABSENT: Final = 0
"""The revision of a key that does not exist."""

_json: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


class Origin(NamedTuple):
    """The id of a transaction. `serial`: from 1 at each start of a node."""

    node: int
    incarnation: int
    serial: int


@dataclass(frozen=True, slots=True)
class CatalogTransaction:
    """A proposed change of the catalog. `settled`: the node has the outcomes of its transactions before this
    serial.
    """

    origin: Origin
    reads: Sequence[tuple[Key, int]]
    puts: Sequence[tuple[Key, Value]] = ()
    forgets: Sequence[Key] = ()
    farewell: bool = True
    settled: int = 1

    def encode(self) -> bytes:
        fields = [self.origin, self.settled, self.reads, self.puts, self.forgets, self.farewell]
        return _json(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> CatalogTransaction:
        """The inverse of `encode`. Raises `ValueError`."""
        try:
            origin, settled, reads, puts, forgets, farewell = json.loads(data)
            return cls(
                Origin(*map(int, origin)),
                [(_key(key), int(revision)) for key, revision in reads],
                [(_key(key), value) for key, value in puts],
                [_key(key) for key in forgets],
                bool(farewell),
                int(settled),
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"no transaction: {error}") from error


def _key(parts: Any) -> Key:
    if type(parts) is not list or not parts or not all(type(part) is str for part in parts):
        raise ValueError(f"{parts!r} is no key")
    return tuple(parts)


def transaction_of(
    origin: Origin,
    plan: Plan[Any],
    catalog: Catalog,
    revision: Callable[[Key], int],
    conceal: Conceal,
    settled: int = 1,
) -> CatalogTransaction:
    """Return the transaction for a plan. Raises `InvalidArgument` if an argument has no encoding."""
    return CatalogTransaction(
        origin,
        [(key, revision(key)) for key in reads_of(catalog, plan.puts, plan.forgets)],
        [(put.key, encoded(put.key, put.record, conceal)) for put in plan.puts],
        list(plan.forgets),
        plan.farewell,
        settled,
    )


# --- what depends on what ---------------------------------------------------------------------------


def reads_of(catalog: Catalog, puts: Iterable[Put], forgets: Iterable[Key]) -> list[Key]:
    """Return the keys on which a plan depends: all that it changes, and those that it has read."""
    found: dict[Key, None] = {}
    for put in puts:
        found[put.key] = None
        found.update(dict.fromkeys(_needed(catalog, put)))
    for key in forgets:
        found[key] = None
        found.update(dict.fromkeys(_exhausted(catalog, key)))
    return list(found)


def _needed(catalog: Catalog, put: Put) -> Iterator[Key]:
    key = put.key
    match key[0]:
        case "permission" | "topic_permission":
            yield ("user", key[1])
            yield ("vhost", key[2])
        case "parameter" | "policy" | "operator_policy" | "exchange":
            yield ("vhost", key[1])
        case "node":
            yield ("at", str(put.record.number))  # queues of its earlier starts are removed
            yield CLUSTER  # it applies the version in use
        case "cluster":
            yield NODE_NUMBERS  # so that no node has joined that does not apply it
            yield from (("node", name) for name in catalog.nodes)
        case "queue":
            yield ("vhost", key[1])
            vhost = catalog.vhosts.get(key[1])
            if vhost is not None and vhost.facts.limits.max_queues is not None:
                yield ("queues", key[1])
            at = {put.record.home, *map(node_of, put.record.members)}
            yield from (("node", name) for name, node in catalog.nodes.items() if node.number in at)
        case "binding":
            _, vhost_name, source, kind, destination, *_ = key
            yield ("vhost", vhost_name)
            yield ("exchange", vhost_name, source)
            yield (kind, vhost_name, destination)
        case _:
            return


def _exhausted(catalog: Catalog, key: Key) -> Iterator[Key]:
    match key[0]:
        case "vhost":
            yield ("in", key[1])
        case "user":
            yield ("in-user", key[1])
        case "topic_permission":
            yield ("in-user", key[1])  # it may concern all permissions of a user
        case "node":
            yield ("at", str(catalog.nodes[key[1]].number))
        case "queue" | "exchange":
            yield ("bindings", key[1], key[0], key[2])
        case "binding":
            # An exchange that deletes itself is removed with its last binding.
            vhost = catalog.vhosts.get(key[1])
            source = None if vhost is None else vhost.topology.find_exchange(key[2])
            if source is not None and source.auto_delete:
                yield ("bindings", key[1], "exchange", key[2])
        case _:
            return


def _marks(key: Key) -> Iterator[Key]:
    match key[0]:
        case "permission" | "topic_permission":
            yield ("in-user", key[1])
            yield ("in", key[2])
        case "parameter" | "policy" | "operator_policy" | "exchange":
            yield ("in", key[1])
        case "queue":
            yield ("in", key[1])
            yield ("queues", key[1])
        case "binding":
            _, vhost, source, kind, destination, *_ = key
            yield ("in", vhost)
            yield ("bindings", vhost, "exchange", source)
            yield ("bindings", vhost, kind, destination)
        case _:
            return


# --- the machine ------------------------------------------------------------------------------------


class TransactionOutcome(Enum):
    """CONFLICT: a key that it depends on has changed. STALE: it, or a later one of its node, was decided
    before; or that node is not a member.
    """

    APPLIED = "applied"
    CONFLICT = "conflict"
    STALE = "stale"


class TransactionDecision(NamedTuple):
    """An outcome. `puts`: with the numbers of new queues."""

    outcome: TransactionOutcome
    puts: Sequence[tuple[Key, Value]] = ()


class LastTransaction(NamedTuple):
    """The last transaction of a node. `stretches`: those of its transactions that are not settled and were
    applied: first and last serial of each stretch.
    """

    incarnation: int
    serial: int
    stretches: list[list[int]]


class SystemMachine:
    """All entries with their revisions: the replicated state of the system group. `touched`: keys changed
    since the store has taken them.
    """

    def __init__(self) -> None:
        self._state: dict[Key, tuple[int, str]] = {}
        self._highest = 0
        self.touched: set[Key] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._state

    def __iter__(self) -> Iterator[Key]:
        return iter(self._state)

    def revision(self, key: Key) -> int:
        """Return the index of the last change of a key, or `ABSENT`."""
        found = self._state.get(key)
        return ABSENT if found is None else found[0]

    def kept(self, key: Key) -> list[Any]:
        """Return revision and value of a key."""
        revision, text = self._state[key]
        return [revision, json.loads(text)]

    def entries(self) -> Iterator[tuple[Key, Value]]:
        """Return the catalog's entries, in the order of their last changes."""
        for key, (_, text) in sorted(self._state.items(), key=lambda item: item[1][0]):
            if key[0] not in MARKS and key[0] != LAST:
                yield key, json.loads(text)

    def last_of(self, node: int) -> LastTransaction | None:
        found = self._state.get((LAST, str(node)))
        return None if found is None else LastTransaction(*json.loads(found[1]))

    # --- beginning ------------------------------------------------------------------------------

    def found(self, entries: Iterable[tuple[Key, Value]], index: int) -> None:
        for key, value in entries:
            self._set(key, index, _json(value))
            if key[0] == "node":
                self._welcome(value["number"], index)

    def restore(self, kept: Iterable[tuple[Key, Sequence[Any]]]) -> None:
        """Replace the state by values of `kept`."""
        self.touched.update(self._state)
        self._state.clear()
        self._highest = 0
        for key, (revision, value) in kept:
            self._set(key, revision, _json(value))

    def snapshot(self) -> bytes:
        """Return the state: the same bytes at every member that has applied the same."""
        return b"\n".join(
            f"[{_json(key)},{revision},{text}]".encode()
            for key, (revision, text) in sorted(self._state.items())
        )

    def install(self, snapshot: bytes) -> None:
        """Replace the state by a snapshot. Raises `ValueError` if it is not valid."""
        lines = [json.loads(line) for line in snapshot.split(b"\n") if line]
        self.restore([(_key(key), (revision, value)) for key, revision, value in lines])

    # --- applying -------------------------------------------------------------------------------

    def apply(self, index: int, transaction: CatalogTransaction) -> TransactionDecision:
        origin = transaction.origin
        last_key = (LAST, str(origin.node))
        last = self._state.get(last_key)
        if last is None:
            return TransactionDecision(TransactionOutcome.STALE)
        incarnation, serial, applied = json.loads(last[1])
        if (incarnation, serial) >= (origin.incarnation, origin.serial):
            return TransactionDecision(TransactionOutcome.STALE)
        puts = self._numbered(transaction.puts) if self._holds(transaction) else None
        applied = applied if incarnation == origin.incarnation else []
        applied = [stretch for stretch in applied if stretch[1] >= transaction.settled]
        if puts is None:
            pass
        elif applied and applied[-1][1] == origin.serial - 1:
            applied[-1][1] = origin.serial
        else:
            applied.append([origin.serial, origin.serial])
        self._set(last_key, index, _json([origin.incarnation, origin.serial, applied]))
        if puts is None:
            return TransactionDecision(TransactionOutcome.CONFLICT)
        for key, value in puts:
            self._set(key, index, _json(value))
            self._mark(key, index)
            if key[0] == "node":
                self._welcome(value["number"], index)
            elif key[0] == "queue" and value.get("home"):
                self._set(("at", str(value["home"])), index, "null")
        for key in transaction.forgets:
            self._mark(key, index)
        for key in transaction.forgets:
            self._forget(key)
        return TransactionDecision(TransactionOutcome.APPLIED, puts)

    def _holds(self, transaction: CatalogTransaction) -> bool:
        return all(self.revision(key) == revision for key, revision in transaction.reads)

    def _numbered(self, puts: Sequence[tuple[Key, Value]]) -> list[tuple[Key, Value]] | None:
        numbered: list[tuple[Key, Value]] = []
        highest = self._highest
        for key, value in puts:
            if key == NUMBERS:
                continue
            if key[0] == "queue" and key not in self._state:
                highest += 1
                value = {**value, "number": highest}
            numbered.append((key, value))
        if highest > QUEUE_NUMBER_MAX:
            return None
        if highest > self._highest:
            numbered.append((NUMBERS, {"highest": highest}))
        return numbered

    def _mark(self, key: Key, index: int) -> None:
        for mark in _marks(key):
            self._set(mark, index, "null")

    def _forget(self, key: Key) -> None:
        match key[0]:
            case "node":
                number = json.loads(self._state[key][1])["number"]
                self._drop((LAST, str(number)))
                self._drop(("at", str(number)))
            case "user":
                self._drop(("in-user", key[1]))
            case "queue" | "exchange":
                self._drop(("bindings", key[1], key[0], key[2]))
            case "vhost":
                # The exchanges of every virtual host have marks and no entries.
                within = ("in", "queues", "bindings")
                for mark in [each for each in self._state if each[0] in within and each[1] == key[1]]:
                    self._drop(mark)
            case _:
                pass
        self._drop(key)

    def _welcome(self, number: int, index: int) -> None:
        key = (LAST, str(number))
        if key not in self._state:
            self._set(key, index, "[0,0,[]]")

    def _set(self, key: Key, revision: int, text: str) -> None:
        self._state[key] = revision, text
        self.touched.add(key)
        if key == NUMBERS:
            self._highest = json.loads(text)["highest"]

    def _drop(self, key: Key) -> None:
        if self._state.pop(key, None) is not None:
            self.touched.add(key)


STATE: Final = "state"
RAFT: Final = "raft"
APPLIED: Final[Key] = (RAFT, "applied")
POINT: Final[Key] = (RAFT, "point")
HARD: Final[Key] = (RAFT, "hard")
ENTRY: Final = "entry"

COMPACT_AFTER: Final = 1024
"""The number of applied entries that are retained for members that lag."""


class EntriesByKey(Protocol):
    def __contains__(self, key: object) -> bool: ...

    def get(self, key: Key) -> Value:
        """Return the entry of a key, or None."""

    def entries(self) -> Iterator[tuple[Key, Value]]: ...

    def change(self, puts: Sequence[tuple[Key, Value]], forgets: Sequence[Key]) -> None:
        """Put and delete entries as one change."""

    def when_durable(self, told: Callable[[], None]) -> None:
        """Have a function called when all changes survive a loss of power."""


def is_member(log: EntriesByKey) -> bool:
    return POINT in log


def used_version(log: EntriesByKey) -> int:
    """Return the last known machine version of a folder's cluster; 0: not known."""
    kept = log.get((STATE, *CLUSTER))
    return 0 if kept is None else int(kept[1]["version"])


def found(
    log: EntriesByKey,
    member: int,
    entries: Iterable[tuple[Key, Value]],
    beside: Iterable[tuple[Key, Value]] = (),
) -> None:
    """Begin a group with the catalog of one node as its only member, in place of a group whose other members
    are lost for good, if there is one. All of it is one change. `beside`: other new content of the folder.
    """
    entries = list(entries)
    stored = messages.new_group(messages.Configuration((member,)))
    machine = SystemMachine()
    machine.found(entries, stored.point.index)
    puts = [*_first(stored), *_state(machine, machine), *beside]
    moved, put = {key for key, _ in entries}, {key for key, _ in puts}
    there = [key for key, _ in log.entries() if key in moved or key[0] in (STATE, RAFT)]
    log.change(puts, [key for key in there if key not in put])


def joined(log: EntriesByKey, keep: Callable[[Key], bool]) -> None:
    """Begin as an empty member: the leader sends it the state."""
    log.change(_first(messages.new_member()), [key for key, _ in log.entries() if not keep(key)])


def left_alone(log: EntriesByKey) -> list[tuple[Key, Value]]:
    """Return the entries of the catalog that a member's folder has applied."""
    return [
        (key[1:], value[1])
        for key, value in log.entries()
        if key[0] == STATE and key[1] not in MARKS and key[1] != LAST
    ]


class SystemStore:
    """The log and state of a member on disk. `received`: index and bytes of a state from the leader, which
    replaces this one.
    """

    def __init__(self, log: EntriesByKey) -> None:
        self._log = log
        self._entries: dict[int, tuple[int, messages.Kind, bytes]] = {}
        state: list[tuple[Key, Sequence[Any]]] = []
        for key, value in log.entries():
            if key[0] == STATE:
                state.append((key[1:], value))
            elif key[:2] == (RAFT, ENTRY):
                term, kind, payload = value
                self._entries[int(key[2])] = term, messages.Kind(kind), payload.encode("latin-1")
        self.machine = SystemMachine()
        self.machine.restore(state)
        self.machine.touched.clear()
        self.applied: int = log.get(APPLIED)
        self.received: tuple[int, bytes] | None = None
        self.on_compact: Callable[[int], None] = lambda index: None
        self._point = messages.POINT.decode(bytes.fromhex(log.get(POINT)))
        self.stored: messages.Stored | None = self._stored()

    def _stored(self) -> messages.Stored:
        last = self._point.index + len(self._entries)
        terms: list[tuple[int, int]] = []
        configs: list[tuple[int, messages.Configuration]] = []
        for index in range(self._point.index + 1, last + 1):
            term, kind, payload = self._entries[index]
            if not terms or terms[-1][1] != term:
                terms.append((index, term))
            if kind is messages.Kind.CONFIG:
                configs.append((index, messages.CONFIG.decode(payload)))
        hard = messages.HARD.decode(bytes.fromhex(self._log.get(HARD)))
        return messages.Stored(self._point, hard, last, tuple(terms), tuple(configs))

    # --- the log ------------------------------------------------------------------------------------

    def write(self, ready: messages.Ready, on_durable: Callable[[], None]) -> None:
        puts: list[tuple[Key, Value]] = []
        forgets: list[Key] = []
        if ready.hard is not None:
            puts.append((HARD, messages.HARD.encode(ready.hard).hex()))
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
        puts.append((POINT, messages.POINT.encode(self._point).hex()))
        puts.append((APPLIED, self._point.index))
        forgets += [(STATE, *key) for key in self.machine if key not in machine]
        self.received = self._point.index, data

    @property
    def _last(self) -> int:
        return self._point.index + len(self._entries)

    def read(self, first: int, last: int, size: int) -> Sequence[messages.Run]:
        runs: list[messages.Run] = []
        payloads: list[bytes] = []
        begin, of = first, self._entries[first][:2]
        for index in range(first, last + 1):
            term, kind, payload = self._entries[index]
            size -= len(payload)
            if size < 0 and index > first:
                break
            if (term, kind) != of:
                runs.append(messages.run_of(begin, *of, tuple(payloads)))
                begin, of, payloads = index, (term, kind), []
            payloads.append(payload)
        return [*runs, messages.run_of(begin, *of, tuple(payloads))]

    # --- the state ----------------------------------------------------------------------------------

    def keep(self, applied: int) -> None:
        """Store what the machine has applied, up to this index."""
        touched, self.machine.touched = self.machine.touched, set()
        self.applied = applied
        puts = _state(self.machine, (key for key in touched if key in self.machine))
        puts.append((APPLIED, applied))
        self._log.change(puts, [(STATE, *key) for key in touched if key not in self.machine])

    def take(self) -> None:
        """Make the received state the machine's."""
        assert self.received is not None
        index, data = self.received
        self.machine.install(data)
        self.machine.touched.clear()
        self.applied, self.received = index, None

    @property
    def to_compact(self) -> int | None:
        """The index up to which entries may be forgotten; None: not worth it yet."""
        if self.received is not None or self.applied - self._point.index < 2 * COMPACT_AFTER:
            return None
        return self.applied - COMPACT_AFTER

    def compact(self, point: messages.Point) -> None:
        gone = range(self._point.index + 1, point.index + 1)
        for index in gone:
            del self._entries[index]
        self._point = point
        self._log.change([(POINT, messages.POINT.encode(point).hex())], list(map(_entry_key, gone)))
        self.on_compact(point.index)


def _first(stored: messages.Stored) -> list[tuple[Key, Value]]:
    return [
        (POINT, messages.POINT.encode(stored.point).hex()),
        (HARD, messages.HARD.encode(stored.hard).hex()),
        (APPLIED, stored.point.index),
    ]


def _state(machine: SystemMachine, keys: Iterable[Key]) -> list[tuple[Key, Value]]:
    return [((STATE, *key), machine.kept(key)) for key in keys]


def _entry_key(index: int) -> Key:
    return (RAFT, ENTRY, f"{index:020}")
