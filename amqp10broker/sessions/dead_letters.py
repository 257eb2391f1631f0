"""The routing and forwarding of dead letters, at most once or at least once.

A batch of dead letters has few different heads, mostly one; queues are determined once for each head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.message.convert import routing_headers
from amqp10broker.message.dead_letter_heads import REMEMBERED_MAX, Cause, DeadLettered, DeadLetterHeads
from amqp10broker.message.death_history import is_cycle
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.commands import (
    Confirmed,
    DeadLetterReason,
    DeadLetters,
    DeadMessage,
    Publish,
    PublisherRef,
    PublishRejected,
    ReplyTo,
    Unconfirmed,
)
from amqp10broker.routing.exchange import Exchange

_HEAD: Final = itemgetter(0)


class DeadLetterRoute(NamedTuple):
    """The destination of messages with one head. `cycles`: queues that do not get them, because the messages
    came from there without an action of a client.
    """

    head: bytes
    queues: Sequence[DeclaredQueue]
    cycles: Sequence[DeclaredQueue]


class DeadLetterRouter:
    """Routes the messages that leave one queue for one reason at one time."""

    __slots__ = ("_heads", "_routes", "_vhost", "exchange")

    def __init__(self, vhost: VirtualHost, cause: Cause) -> None:
        self.exchange: Exchange | None = vhost.topology.find_exchange(cause.exchange)
        self._vhost = vhost
        self._heads = DeadLetterHeads(cause)
        self._routes: dict[bytes, DeadLetterRoute] = {}

    def routes(self, messages: Iterable[Message]) -> Iterator[tuple[DeadLetterRoute, list[Message]]]:
        """Count messages, and iterate over them by route, in order."""
        for head, run in groupby(messages, _HEAD):
            route = self._routes.get(head)
            if route is not None:
                yield self._counted(route, [(route.head, content) for _, content in run])
                continue
            dead = self._heads.of(head)
            letters = [(dead.head, content) for _, content in run]
            route, cacheable = self._route(dead, letters[0])
            if cacheable:
                if len(self._routes) >= REMEMBERED_MAX:
                    self._routes.clear()
                self._routes[head] = route
                yield self._counted(route, letters)
                continue
            for letter in letters:
                yield self._counted(self._route(dead, letter)[0], [letter])

    def _counted(
        self, route: DeadLetterRoute, letters: list[Message]
    ) -> tuple[DeadLetterRoute, list[Message]]:
        if self.exchange is not None:
            self.exchange.published += len(letters)
            if not route.queues:
                self.exchange.unroutable += len(letters)
        return route, letters

    def _route(self, dead: DeadLettered, letter: Message) -> tuple[DeadLetterRoute, bool]:
        if self.exchange is None:
            return DeadLetterRoute(dead.head, (), ()), True
        queues: Sequence[DeclaredQueue]
        queues, cacheable = self._vhost.route(
            self.exchange, dead.routing_keys, lambda: routing_headers(letter)
        )
        cycles = [queue for queue in queues if is_cycle(dead.deaths, queue.name)]
        if cycles:
            queues = [queue for queue in queues if queue not in cycles]
        return DeadLetterRoute(dead.head, queues, cycles), cacheable


class Routed(NamedTuple):
    """The destinations of a batch: queues with their messages in order, and the names of those in
    `DeadLetterRoute.cycles`.
    """

    to: list[tuple[DeclaredQueue, list[Message]]]
    cycles: Sequence[str]


def route_dead_letters(vhost: VirtualHost, queue: str, letters: DeadLetters, now_ms: int) -> Routed:
    """Add the death event to dead messages, and route them at most once; unroutable ones are dropped."""
    router = DeadLetterRouter(
        vhost, Cause(queue, letters.reason, now_ms, letters.exchange, letters.routing_key)
    )
    if router.exchange is None:
        return Routed([], ())
    to: dict[DeclaredQueue, list[Message]] = {}
    dropped: dict[str, None] = {}
    for route, run in router.routes(letters.messages):
        for target in route.queues:
            messages = to.get(target)
            if messages is None:
                to[target] = run if len(route.queues) == 1 else list(run)
            else:
                messages += run
        if route.cycles:
            dropped.update(dict.fromkeys(target.name for target in route.cycles))
    return Routed(list(to.items()), tuple(dropped))


# The queue releases a few dead messages at a time, and `Forwarding` publishes them with confirms. A message
# that is unroutable, refused, or not confirmed in time is sent again to the queues that have not taken it. So
# a queue may get it twice, and out of order. After a restart the queue releases again what was not settled.

RETRY_MS: Final = 180_000
"""The time to wait for a confirm: RabbitMQ's `dead_letter_worker_publisher_confirm_timeout`."""

LOOK_MS: Final = 1_000
"""The interval of checks for a route or room. RabbitMQ waits as long as for a confirm."""

Post = tuple[DeclaredQueue, Publish]


class DeadLetterTarget(NamedTuple):
    exchange: str
    routing_key: str | None


@dataclass(eq=False, slots=True)
class _Outstanding:
    """One message that is not confirmed by all queues. `waiting`: target queues that have not answered, with
    the message's number there. `former`: the same for queues that are no longer bound.
    """

    letter: DeadMessage
    died_ms: int
    due_ms: int
    waiting: dict[DeclaredQueue, int] = field(default_factory=dict)
    former: dict[DeclaredQueue, int] = field(default_factory=dict)
    refused: set[DeclaredQueue] = field(default_factory=set)
    taken: set[DeclaredQueue] = field(default_factory=set)
    routed_at: int = -1

    @property
    def stuck(self) -> bool:
        return bool(self.refused) or not self.waiting

    def may_go(self, version: int) -> bool:
        if not self.stuck:
            return False
        return self.routed_at != version or any(not queue.handle.figures().full for queue in self.refused)

    @property
    def done(self) -> bool:
        return bool(self.taken) and not self.waiting and not self.refused


@dataclass(eq=False)
class Forwarding:
    """The dead letters of one queue that have been sent and are not confirmed."""

    _queue: str
    destination: DeadLetterTarget
    _reply_to: ReplyTo
    retry_ms: int = RETRY_MS
    unrouted: int = 0
    _outstanding: dict[int, _Outstanding] = field(default_factory=dict)
    _sent: dict[int, _Outstanding] = field(default_factory=dict)
    _next_id: int = 1
    _looked_ms: int = 0
    _refs: dict[DeclaredQueue, PublisherRef] = field(default_factory=dict)
    _queues: dict[PublisherRef, DeclaredQueue] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._outstanding)

    def send(self, letters: Iterable[DeadMessage], vhost: VirtualHost, now_ms: int) -> list[Post]:
        """Forward messages, and return the commands to send. Keys that were sent before are ignored."""
        if not self._outstanding:
            self._looked_ms = now_ms
        fresh = []
        for letter in letters:
            if letter.key not in self._outstanding:
                outstanding = self._outstanding[letter.key] = _Outstanding(letter, now_ms, now_ms)
                fresh.append(outstanding)
        return self._publish(fresh, vhost, now_ms)

    def confirmed(self, effect: Confirmed) -> list[int]:
        """Return the keys of messages that all their queues have confirmed."""
        done: list[int] = []
        for outstanding, queue in self._answered(effect):
            if outstanding.former.pop(queue, None) is None:
                del outstanding.waiting[queue]
            outstanding.taken.add(queue)
            if outstanding.done:
                done.append(outstanding.letter.key)
        self._forget(done)
        return done

    def refused(self, effect: PublishRejected | Unconfirmed) -> None:
        for outstanding, queue in self._answered(effect):
            if outstanding.former.pop(queue, None) is None:
                del outstanding.waiting[queue]
                outstanding.refused.add(queue)

    def redirect(self, destination: DeadLetterTarget, now_ms: int) -> None:
        """Change the destination; messages that no queue has at present are due at once."""
        if destination != self.destination:
            self.destination = destination
            for each in self._outstanding.values():
                if not each.waiting:
                    each.due_ms = now_ms

    def due(self, vhost: VirtualHost, now_ms: int) -> tuple[list[Post], list[int]]:
        """Send messages again that have waited long enough, or for which there is a route or room now."""
        self._looked_ms = now_ms
        version = vhost.version
        late = [each for each in self._outstanding.values() if each.due_ms <= now_ms or each.may_go(version)]
        posts = self._publish(late, vhost, now_ms)
        done = [each.letter.key for each in late if each.done]
        self._forget(done)
        return posts, done

    def deadline(self) -> int | None:
        """Return the time at which `due` has work."""
        look_ms = self._looked_ms + LOOK_MS
        return min(
            (min(each.due_ms, look_ms) if each.stuck else each.due_ms for each in self._outstanding.values()),
            default=None,
        )

    def forget(self) -> None:
        self._forget(list(self._outstanding))

    def _answered(
        self, effect: Confirmed | PublishRejected | Unconfirmed
    ) -> Iterator[tuple[_Outstanding, DeclaredQueue]]:
        # Only messages that the target queue has not answered before count.
        queue = self._queues.get(effect.publisher)
        for number in effect.ids:
            outstanding = self._sent.pop(number, None)
            if outstanding is not None and queue is not None:
                yield outstanding, queue

    def _forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            gone = self._outstanding.pop(key)
            for number in (*gone.waiting.values(), *gone.former.values()):
                del self._sent[number]
        if not self._outstanding:
            # Otherwise references to queues that are declared and deleted would accumulate.
            self._refs.clear()
            self._queues.clear()

    def _publish(self, outstanding: Sequence[_Outstanding], vhost: VirtualHost, now_ms: int) -> list[Post]:
        routers: dict[tuple[DeadLetterReason, int], DeadLetterRouter] = {}
        to: dict[DeclaredQueue, tuple[list[int], list[Message]]] = {}
        self.unrouted = 0
        for each in outstanding:
            message, reason = each.letter.message, each.letter.reason
            router = routers.get((reason, each.died_ms))
            if router is None:
                cause = Cause(self._queue, reason, each.died_ms, *self.destination)
                router = routers[(reason, each.died_ms)] = DeadLetterRouter(vhost, cause)
            ((route, (letter,)),) = router.routes((message,))
            self.unrouted += not route.queues and not each.taken
            each.due_ms, each.routed_at = now_ms + self.retry_ms, vhost.version
            for queue, number in self._numbered(each, route.queues).items():
                numbers, messages = to.setdefault(queue, ([], []))
                numbers.append(number)
                messages.append(letter)
        return [
            (queue, Publish(self._ref(queue), numbers, messages, settled=False))
            for queue, (numbers, messages) in to.items()
        ]

    def _numbered(self, each: _Outstanding, queues: Iterable[DeclaredQueue]) -> dict[DeclaredQueue, int]:
        # A message still has to be sent to some queues. A queue that has not answered retains its number, so
        # that a late answer to the first attempt counts, too.
        before = each.waiting | each.former
        each.waiting, each.refused = {}, set()
        for queue in queues:
            if queue in each.taken:
                continue
            number = before.pop(queue, None)
            if number is None:
                number = self._next_id
                self._next_id += 1
                self._sent[number] = each
            each.waiting[queue] = number
        each.former = before
        return each.waiting

    def _ref(self, queue: DeclaredQueue) -> PublisherRef:
        ref = self._refs.get(queue)
        if ref is None:
            ref = self._refs[queue] = self._reply_to.publisher()
            self._queues[ref] = queue
        return ref
