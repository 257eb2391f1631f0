"""Delivery tags of one channel: deliveries that wait for basic.ack, and publisher confirms."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.errors import AmqpChannelError, ReplyCode

C = TypeVar("C")
K = TypeVar("K")

# The gaps of a run are only freed with the whole run.
_RUN_TAGS_MAX: Final = 256

_GONE: Final[Any] = object()


@dataclass(slots=True)
class Taken(Generic[C, K]):
    """Deliveries of one consumer that were taken, ascending by tag."""

    consumer: C
    tags: Sequence[int]
    keys: list[K]


class _Run(Generic[C, K]):
    # Adjacent tags of one consumer. A key that was taken is `_GONE`.
    __slots__ = ("consumer", "first", "keys", "left")

    def __init__(self, first: int, consumer: C, keys: list[K]) -> None:
        self.first = first
        self.consumer = consumer
        self.keys = keys
        self.left = len(keys)

    @property
    def stop(self) -> int:
        return self.first + len(self.keys)

    def take(self, first: int, stop: int) -> Taken[C, K] | None:
        start, end = max(first - self.first, 0), min(stop - self.first, len(self.keys))
        keys = self.keys[start:end]
        tags: Sequence[int] = range(self.first + start, self.first + end)
        if self.left < len(self.keys):
            pairs = [(tag, key) for tag, key in zip(tags, keys, strict=True) if key is not _GONE]
            if not pairs:
                return None
            tags, keys = [tag for tag, _ in pairs], [key for _, key in pairs]
        self.left -= len(keys)
        if self.left:
            self.keys[start:end] = [_GONE] * (end - start)
        return Taken(self.consumer, tags, keys)


class Unacked(Generic[C, K]):
    """The deliveries that wait for basic.ack, basic.nack or basic.reject, by delivery tag. Adjacent
    deliveries of one consumer are a run, which is added, and acknowledged, at once.
    """

    __slots__ = ("_firsts", "_runs", "outstanding")

    def __init__(self) -> None:
        self.outstanding = 0
        self._runs: list[_Run[C, K]] = []
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return self.outstanding

    def __contains__(self, tag: int) -> bool:
        index = bisect_right(self._firsts, tag) - 1
        run = self._runs[index] if index >= 0 else None
        return run is not None and tag < run.stop and run.keys[tag - run.first] is not _GONE

    def add(self, first_tag: int, consumer: C, keys: Sequence[K]) -> None:
        """Add deliveries with consecutive tags, higher than all earlier ones."""
        self.outstanding += len(keys)
        if self._runs:
            last = self._runs[-1]
            assert first_tag >= last.stop, f"delivery tag {first_tag} was used already"
            if (
                last.stop == first_tag
                and last.consumer == consumer
                and len(last.keys) + len(keys) <= _RUN_TAGS_MAX
            ):
                last.keys += keys
                last.left += len(keys)
                return
        if keys:
            self._runs.append(_Run(first_tag, consumer, list(keys)))
            self._firsts.append(first_tag)

    def ack(self, tag: int, multiple: bool) -> list[Taken[C, K]]:
        """Take the deliveries of a basic.ack, nack or reject, ascending by tag. With `multiple`, tag 0 stands
        for all. Raises `AmqpChannelError` (406) if the tag is not outstanding.
        """
        if multiple and tag == 0:
            return self._take(0, self._runs[-1].stop) if self._runs else []
        index = bisect_right(self._firsts, tag) - 1
        run = self._runs[index] if index >= 0 else None
        if run is None or tag >= run.stop or run.keys[tag - run.first] is _GONE:
            raise AmqpChannelError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        if multiple:
            return self._take(0, tag + 1)
        key = run.keys[tag - run.first]
        run.left -= 1
        self.outstanding -= 1
        if run.left:
            run.keys[tag - run.first] = _GONE
        else:
            del self._runs[index], self._firsts[index]
        return [Taken(run.consumer, (tag,), [key])]

    def ack_run(self, tags: Sequence[tuple[int, bool]], taken: list[Taken[C, K]]) -> None:
        """Take the deliveries of several basic.ack; after an error, those before it are in `taken`."""
        position = 0
        while position < len(tags):
            tag, multiple = tags[position]
            if multiple:
                taken += self.ack(tag, True)
                position += 1
                continue
            count = 1
            while position + count < len(tags) and tags[position + count] == (tag + count, False):
                count += 1
            if count > 1 and self._whole(tag, tag + count):
                taken += self._take(tag, tag + count)
            else:
                for one in range(tag, tag + count):
                    taken += self.ack(one, False)
            position += count

    def restore(self, taken: Sequence[Taken[C, K]]) -> None:
        for part in taken:
            for tag, key in zip(part.tags, part.keys, strict=True):
                index = bisect_right(self._firsts, tag)
                run = self._runs[index - 1] if index else None
                if run is not None and tag < run.stop:
                    assert run.keys[tag - run.first] is _GONE, f"delivery tag {tag} is outstanding"
                    run.keys[tag - run.first] = key
                    run.left += 1
                else:
                    self._runs.insert(index, _Run(tag, part.consumer, [key]))
                    self._firsts.insert(index, tag)
                self.outstanding += 1

    def take_all(self) -> list[Taken[C, K]]:
        return self.ack(0, True)

    def _whole(self, first: int, stop: int) -> bool:
        index = bisect_right(self._firsts, first) - 1
        if index < 0:
            return False
        while index < len(self._runs):
            run = self._runs[index]
            if not run.first <= first < run.stop:
                return False
            if run.left < len(run.keys) and _GONE in run.keys[first - run.first : stop - run.first]:
                return False
            first = run.stop
            if first >= stop:
                return True
            index += 1
        return False

    def _take(self, first: int, stop: int) -> list[Taken[C, K]]:
        begin = max(bisect_right(self._firsts, first) - 1, 0)
        end = bisect_right(self._firsts, stop - 1)
        taken: list[Taken[C, K]] = []
        empty = 0
        for run in self._runs[begin:end]:
            part = run.take(first, stop) if run.stop > first else None
            if part is not None:
                taken.append(part)
                self.outstanding -= len(part.keys)
            empty += not run.left
        if empty:
            kept = [run for run in self._runs[begin:end] if run.left]
            self._runs[begin:end] = kept
            self._firsts[begin:end] = [run.first for run in kept]
        return taken


_WAITING: Final = 0
_DONE: Final = 1


class Confirm(NamedTuple):
    tag: int
    multiple: bool
    nack: bool


class ConfirmTracker:
    """The messages that wait for their queues, and the confirms to send.

    The messages are in a window of one byte each, by sequence number: a batch is marked with one slice, and
    the smallest waiting number is found by a search for a byte. `take` merges confirms as RabbitMQ does.
    """

    __slots__ = ("_base", "_counts", "_window", "acked", "acks", "nacked", "nacks")

    def __init__(self) -> None:
        self._base = 1  # the sequence number of the window's first byte
        self._window = bytearray()
        self._counts: dict[int, int] = {}  # the number of queues still to confirm, where there were several
        self.acks: list[range] = []  # not taken yet; disjoint, in the order of confirmation
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
        """Add routed messages. `seq`: the sequence number of the first, `next_seq`. `queues`: the number of
        queues to which each was routed; with 0 it is confirmed at once.
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
        """Note that a queue has taken messages, or was deleted; rejected ones are ignored."""
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
        """Note that a queue has refused messages: they are nacked, whatever other queues answer."""
        for seq in seqs:
            index = seq - self._base
            if index < 0 or self._window[index] != _WAITING:
                continue
            self._counts.pop(seq, None)
            self._window[index] = _DONE
            self.nacks.append(seq)

    def take(self) -> list[Confirm]:
        """Return the confirms to send: nacks singly, one ack for all up to the first message that waits or
        was nacked just now, the other acks singly.
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
    # Return None if the numbers are not adjacent and ascending.
    if isinstance(seqs, range):
        return seqs if seqs and seqs.step == 1 else None
    if not seqs or seqs[-1] - seqs[0] != len(seqs) - 1:
        return None
    run = range(seqs[0], seqs[-1] + 1)
    return run if list(seqs) == list(run) else None
