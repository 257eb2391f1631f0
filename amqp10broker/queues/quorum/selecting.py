"""Consumers of a quorum queue that select or browse.

The messages that consumers take from the middle of the queue are part of the state. The evaluation of filters
is not: the leader searches the queue and proposes the result (`commands.Selected`). Every member moves the
cursors and hands out the messages of the command. A cursor is exact: no message before it is wanted by its
consumer and was not offered. So a new leader continues where the last one stopped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from heapq import heappop, heappush
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters.filter_set import Filters, MessageFilter
from amqp10broker.protocols.serial import MASK, limit_left
from amqp10broker.queues.commands import (
    NO_BOUND,
    Cancel,
    ConsumerRef,
    Credit,
    GiveBack,
    PeerId,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from amqp10broker.queues.machine import SCAN_MAX, Outbox
from amqp10broker.queues.queue_status import ConsumerStatus, Looking
from amqp10broker.queues.quorum.commands import (
    Browsing,
    QuorumCommand,
    SearchResult,
    Selected,
    SelectedInLevels,
)
from amqp10broker.queues.quorum.consumer import ConsumerSelection, QuorumConsumer
from amqp10broker.queues.quorum.messages import Messages
from amqp10broker.queues.quorum.ordered_entries import NEVER
from amqp10broker.queues.quorum.ready import FAIR_LEVELS, RETURNS, Place

AGAIN: Final = -1
"""The index in a cursor for places in `Again`."""

AGAIN_MAX: Final = 4096
"""The number of places in `Again`. Consumers that have not looked at earlier ones begin again there."""

WINDOW_MAX: Final = 128


class Again:
    """Places at which messages wait again: returned unseen, or offered to a consumer that could not take
    them. Places are numbered, and each consumer with a cursor beyond a place looks at it again.
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
            self.forget_passed()

    def clear(self) -> None:
        self.by_ref.clear()
        self.able.clear()
        self.forget_passed()

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
        search than it holds, the cursor goes back to the first of them.
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
        """Return for each line the key below which consumers of a priority may have messages; None: no bound.
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
        again = self.again
        if not self.by_ref:
            # As in a state without consumers that select: its snapshot does not have the number.
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
        """Search the queue and return the result as a command. Returns None if there is nothing to look at
        for any consumer with credit.
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
            # If budget is left for those of lower priority, the others have seen all messages or have no
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
    """One consumer's search."""

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
        # Return whether all of it was looked at.
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
        # Return whether the search reached the key.
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
                continue  # another consumer of the same search takes it
            expired = NEVER < expiries[at] <= messages.expired_at
            if not expired:
                if self.credit <= 0 or self._room <= 0:
                    return keys[at], True
                self.credit -= 1
                self._room -= len(found[at][1])
            # An expired message is removed when it is reached.
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


OF_CONSUMERS: Final = (Credit, Settle, GiveBack, Cancel, Unsubscribe)


@dataclass(eq=False)
class Browser:
    """A browsing consumer.

    Attributes:
        room: bytes of contents that it may get now.
        delivery_count: the messages that it got, as `Credit` counts them.
        at: for each line the key before which everything was looked at.
        behind, on_its_way: places of messages to deliver again, or that its session may not have.
        ends: for a drain: the keys up to which it must look.
    """

    ref: ConsumerRef
    wanted: MessageFilter | None
    name: str
    at: list[int]
    credit: int = 0
    room: int = NO_BOUND
    delivery_count: int = 0
    epoch: int = 0
    handed_out: int = 0
    behind: list[Place] = field(default_factory=list)
    on_its_way: dict[int, Place] = field(default_factory=dict)
    ends: list[int] | None = None
    looked_at: int = 0

    @property
    def shown(self) -> list[int]:
        """For each line the key from which messages must still be delivered, including those given back."""
        at = list(self.at)
        for line, key in self.behind:
            at[line] = min(at[line], key)
        return at


class Browsers:
    """Consumers that receive copies of messages and are not part of the state. Only the leader has them, and
    applies their commands between two entries (`commands.Browsing`). In a cluster the node of a browser
    records its progress (`Browser.shown`), from which the next leader continues.
    """

    __slots__ = ("_messages", "_name", "_outbox", "by_ref", "scan_max", "unfinished")

    def __init__(self, name: str, messages: Messages, outbox: Outbox) -> None:
        self._name = name
        self._messages = messages
        self._outbox = outbox
        self.by_ref: dict[ConsumerRef, Browser] = {}
        self.scan_max = SCAN_MAX
        self.unfinished = False

    def __bool__(self) -> bool:
        return bool(self.by_ref)

    def marked(self, commands: Iterable[QuorumCommand]) -> list[QuorumCommand]:
        """Wrap the commands of browsers in `Browsing`."""
        found: list[QuorumCommand] = []
        coming = dict.fromkeys(self.by_ref)
        for command in commands:
            if isinstance(command, Subscribe) and command.browse:
                coming[command.consumer] = None
                found.append(Browsing(command))
            elif isinstance(command, OF_CONSUMERS) and command.consumer in coming:
                found.append(Browsing(command))
            else:
                found.append(command)
        return found

    def parts(self) -> dict[ConsumerRef, ConsumerStatus]:
        parts: dict[ConsumerRef, ConsumerStatus] = {}
        for ref, each in self.by_ref.items():
            rests = each.credit > 0 and not self._has_more(each)
            looking = Looking(each.wanted is not None, each.looked_at, each.handed_out, rests)
            parts[ref] = ConsumerStatus(ref, each.credit, name=each.name, looking=looking, browses=True)
        return parts

    def carry_out(self, command: Browsing) -> None:
        asked = command.command
        if isinstance(asked, Subscribe):
            self._subscribe(asked)
            return
        browser = self.by_ref.get(asked.consumer)
        if browser is None:
            return
        match asked:
            case Credit():
                self._credit(browser, asked)
            case GiveBack():
                self._give_back(browser, asked)
            case Settle():
                if asked.answer:
                    self._outbox.tell(asked.consumer.reply_to, Settled(asked.consumer, asked.keys))
            case Cancel() | Unsubscribe():
                self._outbox.withdraw(browser)
                del self.by_ref[asked.consumer]

    def _subscribe(self, command: Subscribe) -> None:
        wanted = None
        if command.filters is not None:
            assert isinstance(command.filters, Filters)
            wanted = command.filters.messages
        ref = command.consumer
        at = list(command.shown) or [0] * len(self._messages.ready.lines)
        self.by_ref[ref] = Browser(ref, wanted, command.name, at)
        if command.answer:
            self._outbox.tell(ref.reply_to, Subscribed(ref))

    def _credit(self, browser: Browser, command: Credit) -> None:
        if browser.ends is not None:
            self._answer(browser, drain=True)
        waiting = browser.handed_out - command.seen
        for index in list(browser.on_its_way)[: len(browser.on_its_way) - waiting]:
            del browser.on_its_way[index]
        browser.credit = limit_left(command.delivery_count, command.credit, browser.delivery_count)
        browser.room = command.room
        if command.drain:
            # The present ends of the queue: messages that come during the search do not count for the drain.
            browser.ends = self._messages.ready.ends(self._messages.next_index)
        self.show()
        if not command.drain:
            self._answer(browser, drain=False)

    def _give_back(self, browser: Browser, command: GiveBack) -> None:
        self._outbox.withdraw(browser)
        if browser.ends is not None:
            self._answer(browser, drain=True)
        waiting = browser.handed_out - command.seen
        missed = dict.fromkeys(command.keys)
        missed |= dict.fromkeys(list(browser.on_its_way)[len(browser.on_its_way) - waiting :])
        for index, place in browser.on_its_way.items():
            if index in missed:
                heappush(browser.behind, place)
        for index in command.keys:
            # Another leader delivered it, and recorded where it waited then.
            stands = None if index in browser.on_its_way else self._messages.ready.where(index)
            if stands is not None and stands[1] < browser.at[stands[0]]:
                heappush(browser.behind, stands)
        browser.on_its_way.clear()
        browser.handed_out = command.seen
        browser.delivery_count = command.delivery_count
        browser.epoch = command.epoch
        browser.credit = 0

    def _answer(self, browser: Browser, *, drain: bool) -> None:
        browser.ends = None
        if drain:
            browser.delivery_count = (browser.delivery_count + browser.credit) & MASK
            browser.credit = 0
        available = self._messages.ready.length if self._has_more(browser) else 0
        self._outbox.reply(browser, available, drain=drain)

    def show(self) -> None:
        left = self.scan_max
        self.unfinished = False
        for browser in self.by_ref.values():
            before = browser.looked_at
            if browser.credit and left > 0:
                self._look(browser, left)
            left -= browser.looked_at - before
            if browser.credit and self._has_more(browser):
                self.unfinished = True
            if browser.ends is not None and (not browser.credit or self._has_passed(browser)):
                self._answer(browser, drain=True)

    def _has_more(self, browser: Browser) -> bool:
        if browser.behind:
            return True
        lines = self._messages.ready.lines
        return any(line.look(at, 1)[0] for line, at in zip(lines, browser.at, strict=True))

    def _has_passed(self, browser: Browser) -> bool:
        if not self._has_more(browser):
            return True
        assert browser.ends is not None
        return not browser.behind and all(at >= end for at, end in zip(browser.at, browser.ends, strict=True))

    def _look(self, browser: Browser, budget: int) -> None:
        ready = self._messages.ready
        ends = browser.looked_at + budget
        while browser.behind and browser.credit and browser.looked_at < ends:
            number, key = heappop(browser.behind)
            keys, expiries = ready.lines[number].look(key, 1)
            if keys == [key]:
                self._look_through(browser, number, keys, expiries)
        for number, line in enumerate(ready.lines):
            step = max(1, browser.credit)
            while browser.credit and browser.looked_at < ends:
                most = min(step, WINDOW_MAX, ends - browser.looked_at)
                keys, expiries = line.look(browser.at[number], most)
                if not keys:
                    break
                browser.at[number] = keys[-1] + 1
                found = self._look_through(browser, number, keys, expiries)
                step = max(1, browser.credit) if found else 2 * step

    def _look_through(self, browser: Browser, number: int, keys: list[int], expiries: list[int]) -> bool:
        # Return whether the browser wants any of these messages.
        messages = self._messages
        browser.looked_at += len(keys)
        indexes = messages.ready.indexes_of(number, keys)
        found = messages.read(indexes)
        places: Iterable[int] = range(len(keys))
        if browser.wanted is not None:
            places = browser.wanted.matching(found, messages.now_ms)
        alive = [at for at in places if not NEVER < expiries[at] <= messages.expired_at]
        shown: list[int] = []
        for at in alive:
            if browser.credit and browser.room > 0:
                shown.append(at)
                browser.credit -= 1
                browser.room -= len(found[at][1])
                browser.on_its_way[indexes[at]] = number, keys[at]
            else:
                heappush(browser.behind, (number, keys[at]))
        if shown:
            browser.handed_out += len(shown)
            browser.delivery_count = (browser.delivery_count + len(shown)) & MASK
            if browser.room <= 0:
                browser.credit = 0
            self._outbox.deliver(
                browser,
                [indexes[at] for at in shown],
                [found[at] for at in shown],
                again=bool(messages.counts),
            )
        return bool(alive)

    def lose(self, is_gone: Callable[[PeerId], bool]) -> None:
        for ref in [each for each in self.by_ref if is_gone(each.reply_to)]:
            self._outbox.withdraw(self.by_ref.pop(ref))

    def clear(self) -> None:
        self.by_ref.clear()
        self.unfinished = False

    def delete(self) -> None:
        self._outbox.end(self.by_ref.values(), self._name)
        self.clear()
