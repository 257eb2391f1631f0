"""Publisher confirms of one channel: the messages that still wait for their queues, and the confirms to send.

The messages that wait are in a window of one byte each, by sequence number: a batch is marked with one slice,
and the smallest that waits is found by a search for a byte. Confirms are collected until
`ConfirmTracker.take`, which merges them as RabbitMQ does.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

_WAITING: Final = 0
_DONE: Final = 1


class Confirm(NamedTuple):
    tag: int
    multiple: bool
    nack: bool


class ConfirmTracker:
    __slots__ = ("_base", "_counts", "_window", "acked", "acks", "nacked", "nacks")

    def __init__(self) -> None:
        self._base = 1  # the sequence number of the window's first byte
        self._window = bytearray()
        self._counts: dict[int, int] = {}  # queues still to confirm, where they were more than one
        self.acks: list[range] = []  # not taken yet, disjoint, in the order of confirmation
        self.nacks: list[int] = []
        self.acked = 0
        self.nacked = 0

    @property
    def next_seq(self) -> int:
        return self._base + len(self._window)

    @property
    def waiting(self) -> int:
        return self._window.count(_WAITING)

    def published(self, seq: int, queues: int, count: int = 1) -> None:
        """Add messages that were routed. `seq`: sequence number of the first; must be `next_seq`. `queues`:
        how many queues each went to; with 0 it is confirmed at once.
        """
        assert seq == self.next_seq, f"sequence number {seq} where {self.next_seq} is next"
        if queues == 0:
            self._window += b"\x01" * count
            self.acks.append(range(seq, seq + count))
            return
        self._window += bytes(count)
        if queues > 1:
            for one in range(seq, seq + count):
                self._counts[one] = queues

    def confirmed(self, seqs: Sequence[int]) -> None:
        """Note that a queue has taken messages, or was deleted; those that another rejected are ignored."""
        if not self._counts and (run := _as_range(seqs)) is not None:
            start = run.start - self._base
            stop = run.stop - self._base
            if start >= 0 and self._window.count(_WAITING, start, stop) == len(run):
                self._window[start:stop] = b"\x01" * len(run)
                self.acks.append(run)
                return
        for seq in seqs:
            index = seq - self._base
            if index < 0 or self._window[index] != _WAITING:
                continue
            left = self._counts.get(seq, 1) - 1
            if left:
                self._counts[seq] = left
                continue
            self._counts.pop(seq, None)
            self._window[index] = _DONE
            self.acks.append(range(seq, seq + 1))

    def rejected(self, seqs: Sequence[int]) -> None:
        """Note that a queue has not taken messages: they are nacked, whatever other queues answer."""
        for seq in seqs:
            index = seq - self._base
            if index < 0 or self._window[index] != _WAITING:
                continue
            self._counts.pop(seq, None)
            self._window[index] = _DONE
            self.nacks.append(seq)

    def take(self) -> list[Confirm]:
        """Return the confirms to send now: nacks singly, one ack for all up to the first message that waits
        or was nacked just now, the other acks singly.
        """
        if not self.acks and not self.nacks:
            return []
        acks, nacks = sorted(self.acks, key=attrgetter("start")), sorted(self.nacks)
        self.acks.clear()
        self.nacks.clear()
        self.acked += sum(map(len, acks))
        self.nacked += len(nacks)
        first_waiting = self._window.find(_WAITING)
        settled = len(self._window) if first_waiting < 0 else first_waiting
        del self._window[:settled]
        self._base += settled
        cutoff = min(self._base, nacks[0]) if nacks else self._base
        confirms = [Confirm(tag, False, True) for tag in nacks]
        merged = highest = 0  # how many acks are below the cutoff, and the last of them
        singles: list[Confirm] = []
        for run in acks:
            if run.start < cutoff:
                stop = min(run.stop, cutoff)
                merged += stop - run.start
                highest = stop - 1
                run = range(stop, run.stop)
            singles += [Confirm(tag, False, False) for tag in run]
        if merged:
            confirms.append(Confirm(highest, merged > 1, False))
        return confirms + singles


def _as_range(seqs: Sequence[int]) -> range | None:
    # None if the numbers are not adjacent and ascending.
    if isinstance(seqs, range):
        return seqs if seqs and seqs.step == 1 else None
    if not seqs or seqs[-1] - seqs[0] != len(seqs) - 1:
        return None
    run = range(seqs[0], seqs[-1] + 1)
    return run if list(seqs) == list(run) else None
