"""States of groups on their way from a leader to a member that its log does not reach any more.

A state is sent in parts of at most `PART_BYTES`, `WINDOW` of them under way, over a connection of its own,
numbered from 0. The parts of one transfer come in order; a member that gets the beginning of another transfer
drops what it had. First come the messages, as records of the journal; then the state; last an
`InstallSnapshot` with the sender, the term and the place in the log. The answer says how many parts have
come, and what became of the transfer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Final

from amqp10broker.layout import REST, U8, U32, U64, BadBytes, row
from amqp10broker.queues.machine_version import NewerMachine
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.raft.groups import Groups
from amqp10broker.raft.ids import node_of
from amqp10broker.raft.messages import MESSAGE, InstallSnapshot, Snapshot

PART_BYTES: Final = 1 << 20
WINDOW: Final = 4
PATIENCE_MS: Final = 60_000
"""After so long without an answer a transfer has failed; what it holds of the disk is free again."""

PART: Final = row(U64, U32, U8, REST)
"""Transfer, number, kind of the part, and bytes of it; in an answer the outcome, and none."""

Send = Callable[[int, int, bytes, bool], bool]
"""Sends a frame: node, group, body, and whether it is an answer. Returns False without a connection."""


class What(enum.IntEnum):
    MESSAGES = 1
    """A part of a record of messages, more of which follows."""
    MESSAGES_END = 2
    STATE = 3
    END = 4
    """An `InstallSnapshot` without data: all has come."""


class SnapshotOutcome(enum.IntEnum):
    GOES_ON = 0
    TAKEN = 1
    """The member has it, durably or soon."""
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


class _Outgoing:
    def __init__(
        self,
        to: int,
        transfer: int,
        index: int,
        parts: Iterator[tuple[What, bytes]],
        done: Callable[[], None],
    ) -> None:
        self.to = to
        self.transfer = transfer
        self.done = done
        self.index = index
        self.due = 0
        self._parts = parts
        self._number = self._answered = 0

    def answered(self, number: int) -> None:
        self._answered = max(self._answered, number)

    def next(self) -> bytes | None:
        if self._number - self._answered >= WINDOW:
            return None
        part = next(self._parts, None)
        if part is None:
            return None
        self._number += 1
        return PART.encode((self.transfer, self._number - 1, *part))


class _Incoming:
    def __init__(self, transfer: int) -> None:
        self.transfer = transfer
        self.count = 0
        self.record: list[bytes] = []
        self.state: list[bytes] = []


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

    # --- sending ------------------------------------------------------------------------------------

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

    # --- what comes ---------------------------------------------------------------------------------

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
                    outgoing.answered(number)
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
            # Its leader would send it again at once if it heard of this: so it does when its patience ends.
            store.unstage()
            return SnapshotOutcome.GOES_ON
        snapshot = Snapshot(message.snapshot.point, data)
        member.step(InstallSnapshot(message.sender, message.to, message.term, snapshot))
        member.advance()
        store.unstage()
        return SnapshotOutcome.TAKEN
