"""The transfer of a group's state from the leader to a member that the leader's log does not reach any more.

A state is sent in parts of at most `PART_BYTES`, numbered from 0, over a connection of its own. At most
`WINDOW` parts have no answer. The parts of one transfer come in order. A member that gets the beginning of
another transfer drops the parts of the first one. First come the messages, as records of the journal; then
the state; last an `InstallSnapshot` with the sender, the term and the place in the log.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.layout import REST, U8, U32, U64, BadBytes, row
from amqp10broker.queues.machine_version import NewerMachine
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.raft.groups import Groups
from amqp10broker.raft.ids import node_of
from amqp10broker.raft.messages import MESSAGE, InstallSnapshot, Snapshot

PART_BYTES: Final = 1 << 20
WINDOW: Final = 4
PATIENCE_MS: Final = 60_000
"""A transfer has failed after so long without an answer. Its space on the disk is then free again."""

PART: Final = row(U64, U32, U8, REST)
"""Transfer, number, kind of the part, and its bytes; in an answer the outcome, and no bytes."""

Send = Callable[[int, int, bytes, bool], bool]
"""Sends a frame: node, group, body, and whether it is an answer. Returns False without a connection."""


class What(enum.IntEnum):
    MESSAGES = 1
    """A part of a record of messages; more parts follow."""
    MESSAGES_END = 2
    STATE = 3
    END = 4
    """An `InstallSnapshot` without data: everything has been sent."""


class SnapshotOutcome(enum.IntEnum):
    GOES_ON = 0
    TAKEN = 1
    """The member has stored it durably, or soon will."""
    REFUSED = 2


def _cut(messages: Iterator[bytes], state: bytes, last: bytes) -> Iterator[tuple[What, bytes]]:
    for record in messages:
        ends = len(record) - PART_BYTES
        for at in range(0, len(record), PART_BYTES):
            what = What.MESSAGES_END if at >= ends else What.MESSAGES
            yield what, record[at : at + PART_BYTES]
    for at in range(0, len(state), PART_BYTES):
        yield What.STATE, state[at : at + PART_BYTES]
    yield What.END, last


@dataclass(slots=True, eq=False)
class _Outgoing:
    to: int
    transfer: int
    index: int
    parts: Iterator[tuple[What, bytes]]
    done: Callable[[], None]
    due: int = 0
    sent: int = 0
    answered: int = 0

    def next(self) -> bytes | None:
        part = next(self.parts, None) if self.sent - self.answered < WINDOW else None
        if part is None:
            return None
        self.sent += 1
        return PART.encode((self.transfer, self.sent - 1, *part))


@dataclass(slots=True, eq=False)
class _Incoming:
    transfer: int
    count: int = 0
    record: list[bytes] = field(default_factory=list)
    state: list[bytes] = field(default_factory=list)


class Snapshots:
    def __init__(self, groups: Groups, send: Send, random_source: Callable[[], float]) -> None:
        self._groups = groups
        self._send = send
        self._random_source = random_source
        self._stores: dict[int, QuorumStore] = {}
        self._outgoing: dict[tuple[int, int], _Outgoing] = {}
        self._incoming: dict[int, _Incoming] = {}
        groups.on_removed = self.remove

    @property
    def deadline(self) -> int | None:
        return min((each.due for each in self._outgoing.values()), default=None)

    def add(self, group: int, store: QuorumStore) -> None:
        self._stores[group] = store

    def remove(self, group: int) -> None:
        self._stores.pop(group, None)
        self._incoming.pop(group, None)
        self.stop(group)

    def stop(self, group: int) -> None:
        for key in [key for key in self._outgoing if key[0] == group]:
            self._outgoing.pop(key).done()

    def begin(self, group: int, to: int) -> None:
        member = self._groups.get(group)
        if member is None or (group, to) in self._outgoing:
            return
        point, state, messages, done = self._stores[group].snapshot()
        transfer = 1 + int(self._random_source() * (1 << 53))
        message = InstallSnapshot(member.me, to, member.raft.status.term, Snapshot(point, b""))
        parts = _cut(messages, state, MESSAGE.encode(message))
        outgoing = _Outgoing(to, transfer, point.index, parts, done)
        self._outgoing[group, to] = outgoing
        self._send_more(group, outgoing)

    def _send_more(self, group: int, outgoing: _Outgoing) -> None:
        outgoing.due = self._groups.now_ms() + PATIENCE_MS
        while (part := outgoing.next()) is not None:
            if not self._send(node_of(outgoing.to), group, part, False):
                self._over(group, outgoing, None)
                return

    def _over(self, group: int, outgoing: _Outgoing, index: int | None) -> None:
        del self._outgoing[group, outgoing.to]
        outgoing.done()
        member = self._groups.get(group)
        if member is not None:
            member.raft.snapshot_done(outgoing.to, index)
            member.advance()

    def disconnected(self, node: int) -> None:
        for (group, to), outgoing in list(self._outgoing.items()):
            if node_of(to) == node:
                self._over(group, outgoing, None)

    def tick(self) -> None:
        now_ms = self._groups.now_ms()
        for (group, _), outgoing in list(self._outgoing.items()):
            if outgoing.due <= now_ms:
                self._over(group, outgoing, None)

    def received(self, node: int, group: int, body: bytes, answer: bool) -> None:
        """Handle a part or an answer. Raises `BadBytes` if it is neither."""
        transfer, number, what, part = PART.decode(body)
        if answer:
            self._on_answer(node, group, transfer, number, what)
        elif group in self._stores and self._groups.get(group) is not None:
            count, outcome = self._on_part(group, transfer, number, what, part)
            self._answer(node, group, transfer, count, outcome)
        else:
            self._answer(node, group, transfer, 0, SnapshotOutcome.REFUSED)

    def _answer(self, node: int, group: int, transfer: int, count: int, outcome: SnapshotOutcome) -> None:
        self._send(node, group, PART.encode((transfer, count, outcome, b"")), True)

    def _on_answer(self, node: int, group: int, transfer: int, number: int, outcome: int) -> None:
        for (of, to), outgoing in list(self._outgoing.items()):
            if of == group and node_of(to) == node and outgoing.transfer == transfer:
                if outcome == SnapshotOutcome.GOES_ON:
                    outgoing.answered = max(outgoing.answered, number)
                    self._send_more(group, outgoing)
                else:
                    self._over(group, outgoing, outgoing.index if outcome == SnapshotOutcome.TAKEN else None)

    def _on_part(
        self, group: int, transfer: int, number: int, what: int, part: bytes
    ) -> tuple[int, SnapshotOutcome]:
        if number == 0:
            self._incoming[group] = _Incoming(transfer)
        incoming = self._incoming.get(group)
        if incoming is None or incoming.transfer != transfer or incoming.count != number:
            return 0, SnapshotOutcome.REFUSED
        incoming.count += 1
        store = self._stores[group]
        if what in (What.MESSAGES, What.MESSAGES_END):
            incoming.record.append(part)
            if what == What.MESSAGES_END:
                store.stage(transfer, b"".join(incoming.record))
                incoming.record = []
        elif what == What.STATE:
            incoming.state.append(part)
        elif what == What.END:
            del self._incoming[group]
            return incoming.count, self._install(group, incoming, part)
        else:
            raise BadBytes(f"{what} is no part of a state")
        return incoming.count, SnapshotOutcome.GOES_ON

    def _install(self, group: int, incoming: _Incoming, last: bytes) -> SnapshotOutcome:
        message = MESSAGE.decode(last)
        member = self._groups.get(group)
        if not isinstance(message, InstallSnapshot) or member is None:
            raise BadBytes("a state does not end with its place in the log")
        if message.to != member.me:
            return SnapshotOutcome.REFUSED
        store = self._stores[group]
        try:
            data = store.staged(incoming.transfer, b"".join(incoming.state))
        except NewerMachine:
            # With an answer, the leader would send it again at once; without one it does so after
            # `PATIENCE_MS`.
            store.unstage()
            return SnapshotOutcome.GOES_ON
        snapshot = Snapshot(message.snapshot.point, data)
        install = InstallSnapshot(message.sender, message.to, message.term, snapshot)
        member.raft.step(install, self._groups.now_ms())
        member.advance()
        store.unstage()
        return SnapshotOutcome.TAKEN
