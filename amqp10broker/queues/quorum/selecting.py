"""Consumers that select from a quorum queue: their cursors, and the leader's search through the queue.

The messages taken from the middle of the queue are part of the state, the evaluation of filters is not: the
leader searches the queue and proposes the result (`commands.Selected`). Every member moves the cursors and
hands out the messages of the command without evaluating a filter. A cursor is exact: no message before it is
wanted by its consumer and was not offered. So a new leader continues where the last one was, and a consumer
that selects nothing makes others wait for one search only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from amqp10broker.queues.commands import ConsumerRef
from amqp10broker.queues.queue_status import ConsumerStatus, Looking
from amqp10broker.queues.quorum.commands import SearchResult, Selected, SelectedInLevels
from amqp10broker.queues.quorum.consumer import ConsumerSelection, QuorumConsumer
from amqp10broker.queues.quorum.messages import Messages
from amqp10broker.queues.quorum.ordered_entries import NEVER
from amqp10broker.queues.quorum.ready import FAIR_LEVELS, RETURNS, Place

AGAIN: Final = -1
"""Index in a cursor, behind those of `ReadyIndexes.lines`, for places in `Again`."""

AGAIN_MAX: Final = 4096
"""Places that `Again` remembers. Beyond that, consumers that have not looked at them start again at its
beginning.
"""

WINDOW_MAX: Final = 128


class Again:
    """Places where messages wait again: returned unseen, or offered to a consumer that could not take them.
    Places are numbered, and a cursor contains such a number. So each consumer with a cursor beyond a place
    looks at it again.
    """

    __slots__ = ("first", "places")

    def __init__(self) -> None:
        self.first = 0
        self.places: deque[Place] = deque()

    @property
    def next(self) -> int:
        return self.first + len(self.places)

    def since(self, number: int) -> Iterator[Place]:
        if number < self.next:
            for at in range(number - self.first, len(self.places)):
                yield self.places[at]


class Selecting:
    __slots__ = ("_messages", "able", "again", "by_ref")

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self.by_ref: dict[ConsumerRef, QuorumConsumer] = {}
        self.able: dict[ConsumerRef, QuorumConsumer] = {}
        self.again = Again()

    def __bool__(self) -> bool:
        return bool(self.by_ref)

    def parts(self) -> dict[ConsumerRef, ConsumerStatus]:
        parts: dict[ConsumerRef, ConsumerStatus] = {}
        for ref, each in self.by_ref.items():
            selection = each.selection
            assert selection is not None
            rests = each.credit > 0 and not self.has_more(each)
            looking = Looking(True, selection.looked_at, selection.passed, rests)
            parts[ref] = each.part._replace(looking=looking)
        return parts

    def add(self, consumer: QuorumConsumer, wanted: bytes) -> None:
        consumer.selection = ConsumerSelection(
            wanted, [*[0] * len(self._messages.ready.lines), self.again.next]
        )
        self.by_ref[consumer.ref] = consumer

    def forget(self, ref: ConsumerRef) -> None:
        self.able.pop(ref, None)
        if self.by_ref.pop(ref, None) is not None:
            self._forget_passed()

    def clear(self) -> None:
        self.by_ref.clear()
        self.able.clear()
        self._forget_passed()

    def stand_again(self, places: Iterable[Place]) -> None:
        """Record places behind cursors at which messages wait again."""
        if not self.by_ref:
            return
        again = self.again
        again.places.extend(places)
        while len(again.places) > AGAIN_MAX:
            line, key = again.places.popleft()
            again.first += 1
            for consumer in self.by_ref.values():
                at = _at(consumer)
                if at[AGAIN] < again.first:
                    at[AGAIN] = again.first
                    at[line] = min(at[line], key)

    def advance(self, consumer: QuorumConsumer, at: Sequence[int]) -> None:
        """Advance a consumer's cursor to a position. If more places were added to `again` since the leader's
        search than are remembered, the cursor goes back to the first of them.
        """
        assert consumer.selection is not None
        if at[AGAIN] >= self.again.first:
            consumer.selection.at = list(at)

    def passed(self, consumer: QuorumConsumer) -> bool:
        """Return whether a draining consumer has looked through what was there at its request."""
        assert consumer.selection is not None
        at, ends = consumer.selection.at, consumer.selection.ends
        assert ends is not None
        if any(place[1] < at[place[0]] for place in _until(self.again, at[AGAIN], ends[AGAIN])):
            return False
        for line, start, end in zip(self._messages.ready.lines, at, ends, strict=False):
            keys, _ = line.look(start, 1)
            if keys and keys[0] < end:
                return False
        return True

    def ends(self) -> list[int]:
        return [*self._messages.ready.ends(self._messages.next_index), self.again.next]

    def bounds(self, priority: int) -> list[int] | None:
        """Return by line the keys below which consumers of a priority may have messages; None: no bound.
        Consumers that select, of this or a higher priority, have yet to look at messages from there on.
        """
        ats = [_at(each) for each in self.able.values() if each.priority >= priority]
        return self._below(ats) if ats else None

    def _below(self, ats: Sequence[Sequence[int]]) -> list[int]:
        *bounds, again = map(min, zip(*ats, strict=True))
        for line, key in self.again.since(again):
            bounds[line] = min(bounds[line], key)
        return bounds

    def forget_passed(self) -> None:
        if self.again.places:
            self._forget_passed()

    def _forget_passed(self) -> None:
        again = self.again
        if not self.by_ref:
            # As in a state without consumers that select: its snapshot lacks the number.
            again.first = 0
            again.places.clear()
            return
        first = min(_at(each)[AGAIN] for each in self.by_ref.values())
        while again.first < first:
            again.places.popleft()
            again.first += 1

    def has_more(self, consumer: QuorumConsumer) -> bool:
        at = _at(consumer)
        lines = self._messages.ready.lines
        return at[AGAIN] < self.again.next or any(
            line.look(start, 1)[0] for line, start in zip(lines, at, strict=False)
        )

    def look(self, budget: int) -> Selected | None:
        """Search the queue and return the result as a command, without a change of state. Returns none: there
        is nothing to look at for any consumer with credit.
        """
        waiting: dict[int, list[_Sight]] = {}
        taken: dict[Place, None] = {}
        for consumer in self.able.values():
            assert consumer.selection is not None
            if consumer.selection.ends is not None or self.has_more(consumer):
                sight = _Sight(self._messages, self.again, consumer, taken)
                waiting.setdefault(consumer.priority, []).append(sight)
        if not waiting:
            return None
        ends = self.ends()
        looks: list[SearchResult] = []
        for _, group in sorted(waiting.items(), reverse=True):
            # If any of the budget is left for those of lower priority, the others have seen all or have no
            # credit.
            budget = _look_in_turns(group, ends, budget)
            looks += [each.found for each in group if each.had_turn]
        # The first group may have used up the budget: next time it is the last.
        for group in waiting.values():
            first = group[0].consumer.ref
            self.able[first] = self.able.pop(first)
        fair = self._messages.ready.levels == FAIR_LEVELS
        return Selected(looks) if fair else SelectedInLevels(looks)


def _look_in_turns(group: Sequence[_Sight], ends: Sequence[int], budget: int) -> int:
    ring = deque(group)
    while ring and budget > 0:
        sight = ring.popleft()
        turn = sight.consumer.turn if ring else sight.credit
        looked_at, more = sight.look(turn, ends, budget)
        budget -= looked_at
        if more:
            ring.append(sight)
    return budget


class _Sight:
    """One consumer's search: the cursor and messages that it would have."""

    def __init__(
        self, messages: Messages, again: Again, consumer: QuorumConsumer, taken: dict[Place, None]
    ) -> None:
        assert consumer.selection is not None
        self._messages = messages
        self._again = again
        self._taken = taken
        self._wanted = consumer.selection.filter
        self._room = consumer.room
        self._step = self._budget = 0
        self.consumer = consumer
        self.at = list(consumer.selection.at)
        self.credit = consumer.credit
        self._chosen: list[Place] = []
        self.found = SearchResult(consumer.ref, self.at, self._chosen)
        self.had_turn = False

    def look(self, turn: int, ends: Sequence[int], budget: int) -> tuple[int, bool]:
        self.had_turn = True
        self._budget = budget
        self._step = max(1, turn)
        left = self.credit - turn
        self.credit = turn
        through = (
            self._look_again()
            and self._line(RETURNS, ends[RETURNS])
            and all(self._level(number, ends) for number in range(1, self._messages.ready.tail_line))
        )
        self.credit += left
        selection = self.consumer.selection
        assert selection is not None
        selection.looked_at += budget - self._budget
        return budget - self._budget, not through and self.credit > 0 and self._room > 0

    @property
    def _goes_on(self) -> bool:
        return self.credit > 0 and self._room > 0 and self._budget > 0

    def _look_again(self) -> bool:
        # Returns whether all of it was looked at.
        for line, key in self._again.since(self.at[AGAIN]):
            if key < self.at[line]:
                if not self._goes_on:
                    return False
                self._budget -= 1
                entries = self._messages.ready.find(line, [key])
                if entries and self._choose(line, [key], [entries[0][2]])[0] is not None:
                    return False
            self.at[AGAIN] += 1
        return True

    def _line(self, number: int, end: int) -> bool:
        # Returns whether the search reached the key.
        line = self._messages.ready.lines[number]
        while self.at[number] < end:
            if not self._goes_on:
                return False
            keys, expiries = line.look(self.at[number], min(self._step, WINDOW_MAX, self._budget))
            if not keys or keys[-1] >= end:
                keys = keys[: bisect_left(keys, end)]
            if not keys:
                self.at[number] = end
                break
            self._budget -= len(keys)
            stopped, found = self._choose(number, keys, expiries)
            if stopped is not None:
                self.at[number] = stopped
                return False
            self.at[number] = keys[-1] + 1
            self._step = max(1, self.credit) if found else 2 * self._step
        return True

    def _level(self, number: int, ends: Sequence[int]) -> bool:
        ready, tail = self._messages.ready, self._messages.ready.tail_line
        if number != ready.normal_line:
            return self._line(number, ends[number])
        while (keys := ready.tail.look(self.at[tail], 1)[0]) != []:
            if not (self._line(number, ready.behind[keys[0]]) and self._line(tail, keys[0] + 1)):
                return False
        return self._line(number, ends[number]) and self._line(tail, ends[tail])

    def _choose(self, line: int, keys: list[int], expiries: list[int]) -> tuple[int | None, bool]:
        messages = self._messages
        found = messages.read(messages.ready.indexes_of(line, keys))
        wanted = self._wanted.matching(found, messages.now_ms)
        for at in wanted:
            place = line, keys[at]
            if place in self._taken:
                continue  # by another consumer of the same search
            expired = NEVER < expiries[at] <= messages.expired_at
            if not expired:
                if self.credit <= 0 or self._room <= 0:
                    return keys[at], True
                self.credit -= 1
                self._room -= len(found[at][1])
            # An expired message goes when it is reached.
            self._taken[place] = None
            self._chosen.append(place)
        return None, bool(wanted)


def _at(consumer: QuorumConsumer) -> list[int]:
    assert consumer.selection is not None
    return consumer.selection.at


def _until(again: Again, start: int, end: int) -> Iterator[Place]:
    for number, place in enumerate(again.since(start), start):
        if number >= end:
            return
        yield place
