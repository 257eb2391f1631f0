"""Routing of dead letters from a batch of a queue to the queues of its dead-letter exchange.

The heads of a batch are few, mostly one, so the destination is determined once for each head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from amqp10broker.message.dead_lettering import REMEMBERED_MAX, Cause, DeadLettered, Dying
from amqp10broker.message.death_history import is_cycle
from amqp10broker.message.message import Message
from amqp10broker.message.routing_headers import routing_headers
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.effects import DeadLetters
from amqp10broker.routing.exchange import Exchange

_HEAD: Final = itemgetter(0)


class Fate(NamedTuple):
    """The destination of messages with one head."""

    head: bytes
    queues: Sequence[DeclaredQueue]
    cycles: Sequence[DeclaredQueue]
    """Queues that do not get the messages because these came from there without an action of a client."""


class Judge:
    """Determines where messages go that leave one queue for one reason at one time."""

    __slots__ = ("_dying", "_fates", "_vhost", "exchange")

    def __init__(self, vhost: VirtualHost, cause: Cause) -> None:
        self.exchange: Exchange | None = vhost.topology.find_exchange(cause.exchange)
        self._vhost = vhost
        self._dying = Dying(cause)
        self._fates: dict[bytes, Fate] = {}

    def fates(self, messages: Iterable[Message]) -> Iterator[tuple[Fate, list[Message]]]:
        """Iterate over messages by fate, in order; empty without the exchange or a bound queue."""
        for head, run in groupby(messages, _HEAD):
            fate = self._fates.get(head)
            if fate is not None:
                yield fate, [(fate.head, content) for _, content in run]
                continue
            dead = self._dying.of(head)
            letters = [(dead.head, content) for _, content in run]
            fate, cacheable = self._fate(dead, letters[0])
            if cacheable:
                if len(self._fates) >= REMEMBERED_MAX:
                    self._fates.clear()
                self._fates[head] = fate
                yield fate, letters
                continue
            for letter in letters:
                yield self._fate(dead, letter)[0], [letter]

    def _fate(self, dead: DeadLettered, letter: Message) -> tuple[Fate, bool]:
        if self.exchange is None:
            return Fate(dead.head, (), ()), True
        queues: Sequence[DeclaredQueue]
        queues, cacheable = self._vhost.route(
            self.exchange, dead.routing_keys, lambda: routing_headers(letter)
        )
        cycles = [queue for queue in queues if is_cycle(dead.deaths, queue.name)]
        if cycles:
            queues = [queue for queue in queues if queue not in cycles]
        return Fate(dead.head, queues, cycles), cacheable


class Routed(NamedTuple):
    """The destinations of the messages of one batch."""

    to: list[tuple[DeclaredQueue, list[Message]]]
    """Each queue once, with its messages in the order in which they left."""
    cycles: Sequence[str]
    """Names of queues that did not get some message because it came from there."""


def route_dead_letters(vhost: VirtualHost, queue: str, letters: DeadLetters, now_ms: int) -> Routed:
    """Add the death event to dead messages, and route them at most once; unroutable ones are dropped."""
    judge = Judge(vhost, Cause(queue, letters.reason, now_ms, letters.exchange, letters.routing_key))
    if judge.exchange is None:
        return Routed([], ())
    to: dict[DeclaredQueue, list[Message]] = {}
    dropped: dict[str, None] = {}
    for fate, run in judge.fates(letters.messages):
        judge.exchange.count(len(run), routed=bool(fate.queues))
        for target in fate.queues:
            messages = to.get(target)
            if messages is None:
                to[target] = run if len(fate.queues) == 1 else list(run)
            else:
                messages += run
        if fate.cycles:
            dropped.update(dict.fromkeys(target.name for target in fate.cycles))
    return Routed(list(to.items()), tuple(dropped))
