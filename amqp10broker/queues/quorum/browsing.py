"""Consumers that browse a quorum queue: they receive copies of messages and are not part of its state.

Their commands are in no log entry (`commands.Browsing`): the leader applies them between two entries, and no
other member has them. In a cluster the node of a browser records its progress (`Browser.shown`), from which
the next leader continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from amqp10broker.message.filters.filters import Filters
from amqp10broker.protocols.serial import MASK, limit_left
from amqp10broker.queues.commands import (
    NO_BOUND,
    Cancel,
    ConsumerRef,
    Credit,
    GiveBack,
    PeerId,
    Settle,
    Subscribe,
    Unsubscribe,
)
from amqp10broker.queues.effects import CreditReply, QueueDeleted, Settled, Subscribed
from amqp10broker.queues.machine import Outbox
from amqp10broker.queues.queue_status import ConsumerStatus, Looking
from amqp10broker.queues.quorum.commands import Browsing, QuorumCommand
from amqp10broker.queues.quorum.messages import Messages
from amqp10broker.queues.quorum.ordered_entries import NEVER
from amqp10broker.queues.round_robin import SCAN_MAX

if TYPE_CHECKING:
    from amqp10broker.message.filters.filters import MessageFilter

WINDOW_MAX: Final = 128
OF_CONSUMERS: Final = (Credit, Settle, GiveBack, Cancel, Unsubscribe)
"""Commands that a subscribed browser may send."""


class Browser:
    """A browsing consumer. `room`: bytes of contents that it may be shown now. `delivery_count`: messages
    shown, as `Credit` counts them; a drain advances it. `at`: by line (`ReadyIndexes.lines`) the key before
    which everything was looked at. `on_its_way`: index -> (line, key) of messages that its session may not
    have. `ends`: of a drain: the keys up to which it must have looked; None: none is under way.
    """

    def __init__(self, ref: ConsumerRef, wanted: MessageFilter | None, name: str, lines: int) -> None:
        self.ref = ref
        self.wanted = wanted
        self.name = name
        self.credit = 0
        self.room = NO_BOUND
        self.delivery_count = 0
        self.epoch = 0
        self.handed_out = 0
        self.at = [0] * lines
        self.behind: list[tuple[int, int]] = []
        self.on_its_way: dict[int, tuple[int, int]] = {}
        self.ends: list[int] | None = None
        self.looked_at = 0

    @property
    def shown(self) -> list[int]:
        """By line the key from which on messages are to be shown, those that were given back included."""
        at = list(self.at)
        for line, key in self.behind:
            at[line] = min(at[line], key)
        return at


class Browsers:
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
        browser = self.by_ref[ref] = Browser(ref, wanted, command.name, len(self._messages.ready.lines))
        if command.shown:
            browser.at[:] = command.shown
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
            # Where the queue ends now: messages that come during the search do not count for the drain.
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
            # Shown by another leader, which had recorded where it waited then.
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
        self._outbox.flush(browser)
        ready = self._messages.ready.length if self._has_more(browser) else 0
        reply = CreditReply(browser.ref, browser.delivery_count, browser.credit, ready, drain, browser.epoch)
        self._outbox.tell(browser.ref.reply_to, reply)

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
        # Returns whether the browser wants any of these messages.
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
            self._outbox.deliver(browser, [indexes[at] for at in shown], [found[at] for at in shown])
            if messages.counts:
                self._outbox.deliver_again(browser)
        return bool(alive)

    def lose(self, is_gone: Callable[[PeerId], bool]) -> None:
        for ref in [each for each in self.by_ref if is_gone(each.reply_to)]:
            self._outbox.withdraw(self.by_ref.pop(ref))

    def clear(self) -> None:
        self.by_ref.clear()
        self.unfinished = False

    def delete(self) -> None:
        for browser in self.by_ref.values():
            self._outbox.flush(browser)
            self._outbox.tell(browser.ref.reply_to, QueueDeleted(browser.ref, self._name))
        self.clear()
