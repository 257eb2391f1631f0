"""Messages that can be told apart by a selector, selectors, and a queue of such messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.filters.filter_set import Filters, from_amqp10
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from amqp10broker.queues.commands import TICK, ConsumerRef, Deliver, DeliveryOutcome
from amqp10broker.queues.queue_status import Looking
from amqp10broker.queues.quorum.commands import QuorumCommand, Selected, decode_commands, encode_commands
from amqp10broker.queues.quorum.queue import QuorumQueue, encode_snapshot
from tests.support.queue_bench import NOTHING, Bench, only

SELECTOR = Symbol("apache.org:selector-filter:string")
SQL = Symbol("amqp:sql-filter")


def coloured(
    number: int, colour: str, *, priority: int | None = None, ttl: int | None = None, durable: bool = False
) -> Message:
    """Return a message with the property ``colour`` and a number after # in its content."""
    header = Header(durable=durable, priority=priority, ttl=ttl)
    properties = Described(ULong(0x74), {"colour": colour})
    body = Described(ULong(0x75), b"#%d" % number)
    return make_head(header, None, "", "q"), encode(properties) + encode(body)


def selector(text: str, descriptor: Symbol = SELECTOR) -> Filters:
    name = Symbol("sql-filter") if descriptor == SQL else Symbol("jms-selector")
    found = from_amqp10({name: Described(descriptor, text)})
    assert not found.refused, found.refused
    return found.filters


def numbers_of(messages: Iterable[Message]) -> list[int]:
    return [int(content.rpartition(b"#")[2]) for _, content in messages]


class Colours(Bench):
    """A queue of messages by colour, numbered from 0; `followed`: another member follows a quorum queue.

    `scan_max`: how many messages the queue looks at in one turn.
    """

    def __init__(
        self,
        kind: str = "quorum",
        *,
        scan_max: int = 1_000,
        followed: bool = True,
        given: Mapping[str, Any] = NOTHING,
        **settings: Any,
    ) -> None:
        super().__init__(kind, given={"scan_max": scan_max, **given}, **settings)
        self.count = 0
        self.scan_max = scan_max
        self.follower: QuorumQueue | None = None
        if isinstance(self.queue, QuorumQueue):
            self.queue.browsers.scan_max = scan_max
            if followed:
                self.follower = QuorumQueue("q", settings=self.settings, now_ms=self.now)
                self.follower.follow()

    def apply(self, command: QuorumCommand) -> None:
        if self.follower is None:
            super().apply(command)
            return
        entry = b"".join(encode_commands([command], self.now, self.queue.messages.next_index).pieces)
        super().apply(command)
        for each in decode_commands(entry).commands:
            self.follower.apply(each, self.now)
        assert encode_snapshot(self.follower) == encode_snapshot(self.queue)

    def put(self, *colours: str, priority: int | None = None, ttl: int | None = None) -> list[object]:
        first, self.count = self.count, self.count + len(colours)
        batch = [
            coloured(number, each, priority=priority, ttl=ttl) for number, each in enumerate(colours, first)
        ]
        return self.publish_all(batch)

    def selects(self, filters: Filters | None, credit: int = 0, **options: Any) -> ConsumerRef:
        return self.consumer(credit, filters=filters, **options)

    def look(self) -> Selected | None:
        found: Selected | None = self.queue.look(self.scan_max)
        return found

    def turns(self) -> int:
        """Run the queue until it has no more to examine; return the number of turns."""
        count = 0
        if not isinstance(self.queue, QuorumQueue):
            while (due := self.queue.deadline()) is not None and due <= self.now:
                self.do(TICK)
                count += 1
            return count
        while (found := self.look()) is not None:
            self.do(found)
            count += 1
        while self.queue.browsers.unfinished:
            self.queue.show_on()
            self.take()
            count += 1
        return count

    def numbers(self, ref: ConsumerRef) -> list[int]:
        """Return the numbers of a consumer's deliveries after the queue has looked."""
        self.turns()
        return numbers_of(self.delivered(self.told, ref))

    def decide(self, ref: ConsumerRef, number: int, outcome: DeliveryOutcome) -> list[object]:
        found = [each for each in only(self.told, Deliver) if each.consumer == ref]
        pairs = [pair for each in found for pair in zip(each.keys, each.messages, strict=True)]
        keys = [key for key, message in pairs if numbers_of([message]) == [number]]
        return self.settle(ref, outcome, keys[-1:])

    def looking(self, ref: ConsumerRef) -> Looking:
        looking: Looking | None = self.queue.queue_status().parts[ref].looking
        assert looking is not None
        return looking

    def dead_numbers(self) -> list[tuple[str, list[int]]]:
        """Return reasons and numbers of messages dead-lettered since the last call."""
        return [(each.reason.value, numbers_of(each.messages)) for each in self.dead_letters()]
