"""What does a selector cost a message of a queue?

Nothing is sent: a classic queue in memory, and a quorum queue without its log, are driven in this process,
batch by batch: published, delivered, settled. The same messages go through a plain consumer, one whose
selector passes all, one that shares the queue with another so that each selects half, and past one that
browses. Most messages have the same application-properties as many others; in one case no two have. Each case
stands beside the plain one of the same kind of queue in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from amqp10broker.amqp10.codec import encode
from amqp10broker.amqp10.performatives import Header
from amqp10broker.amqp10.types import Described, Symbol, ULong
from amqp10broker.message.filters.filters import SELECTOR, Filters, from_amqp10
from amqp10broker.message.message import Message, make_head
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    Command,
    ConsumerRef,
    Credit,
    PeerId,
    Publish,
    PublisherRef,
    Settle,
    Subscribe,
    Verdict,
)
from amqp10broker.queues.effects import Deliver
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.turns import SCAN_MAX
from benchmarks.measure import Benchmark, Context
from benchmarks.results import Outcome, Row

_COLUMNS: Final = ("message_us", "ratio_to_plain")
_BATCH: Final = 100
_ROUNDS: Final = 20
_PLAIN: Final = "plain"


def _selector(text: str) -> Filters:
    found = from_amqp10({Symbol("jms-selector"): Described(Symbol(SELECTOR), text)})
    assert not found.refused, "a selector of the benchmark is one"
    return found.filters


def _messages(*, alike: bool = True) -> list[Message]:
    head = make_head(Header(durable=True), None, "", "q")
    return [
        (
            head,
            encode(Described(ULong(0x74), {"half": number % 2 if alike else number, "region": "EU"}))
            + encode(Described(ULong(0x75), b"x" * 100)),
        )
        for number in range(_BATCH)
    ]


class _Scene:
    """A queue with consumers, and the batches that go through it."""

    def __init__(
        self, queue: QueueMachine, *wanted: Filters | None, browses: bool = False, alike: bool = True
    ) -> None:
        self._queue = queue
        peer = PeerId(0, 0, 1)
        self._publisher = PublisherRef(peer, 0)
        self._messages = _messages(alike=alike)
        self._seen: dict[ConsumerRef, int] = {}
        for number, filters in enumerate(wanted, 1):
            self._add(ConsumerRef(peer, number), Subscribe(ConsumerRef(peer, number), False, filters=filters))
        self._browser = ConsumerRef(peer, 99)
        if browses:
            self._add(self._browser, Subscribe(self._browser, False, counted=False, browse=True))

    def _ask(self, command: Command) -> None:
        queue = self._queue
        if isinstance(queue, QuorumQueue):
            (asked,) = queue.browsers.marked([command])
            queue.apply(asked, 0)
        else:
            queue.apply(command, 0)

    def _look(self) -> None:
        """A quorum queue looks for those that select when it has carried out what was asked."""
        queue = self._queue
        while isinstance(queue, QuorumQueue) and (selected := queue.look(SCAN_MAX)) is not None:
            queue.apply(selected, 0)

    def _add(self, ref: ConsumerRef, command: Subscribe) -> None:
        self._ask(command)
        self._seen[ref] = 0

    def rounds(self) -> None:
        """Some batches."""
        queue = self._queue
        for _ in range(_ROUNDS):
            for ref, seen in self._seen.items():
                self._ask(Credit(ref, seen, _BATCH, False, seen))
            self._ask(Publish(self._publisher, range(_BATCH), self._messages, True))
            self._look()
            for effects in queue.take_effects().values():
                for effect in effects:
                    if isinstance(effect, Deliver):
                        self._seen[effect.consumer] += len(effect.keys)
                        if effect.consumer != self._browser:
                            self._ask(Settle(effect.consumer, effect.keys, Verdict.ACCEPT))
        assert not queue.ready, "all went through"


_CASES: Final[dict[str, Callable[[QueueMachine], _Scene]]] = {
    _PLAIN: lambda queue: _Scene(queue, None),
    "selects all": lambda queue: _Scene(queue, _selector("region = 'EU'")),
    "selects all, no two alike": lambda queue: _Scene(queue, _selector("region = 'EU'"), alike=False),
    "two that select half each": lambda queue: _Scene(queue, _selector("half = 0"), _selector("half = 1")),
    "plain, and one that selects nothing": lambda queue: _Scene(queue, None, _selector("region = 'US'")),
    "plain, and a browser": lambda queue: _Scene(queue, None, browses=True),
}
_KINDS: Final[dict[str, Callable[[], QueueMachine]]] = {
    "": lambda: ClassicQueue("q", durable=False),
    "quorum: ": lambda: QuorumQueue("q", now_ms=0),
}


def run(context: Context) -> Outcome:
    """Measure each case, one round after the other so that all meet the same machine."""
    scenes = {kind + name: make(_KINDS[kind]()) for kind in _KINDS for name, make in _CASES.items()}
    samples: list[Row] = []
    for _ in range(context.repetitions):
        taken = dict.fromkeys(scenes, 0.0)
        done = 0
        ended = time.monotonic() + context.duration_s
        while time.monotonic() < ended:
            for name, scene in scenes.items():
                began = time.process_time()
                scene.rounds()
                taken[name] += time.process_time() - began
            done += _ROUNDS * _BATCH
        for name, seconds in taken.items():
            plain = next(kind for kind in reversed(_KINDS) if name.startswith(kind)) + _PLAIN
            message_us, ratio = seconds / done * 1e6, seconds / taken[plain]
            samples.append(
                {"case": name, "target": "broker", "message_us": message_us, "ratio_to_plain": ratio}
            )
            context.say(f"{name:40} {message_us:6.2f} µs a message, {ratio:5.2f} times plain")
    return Outcome(_COLUMNS, context.described_settings(), samples)


BENCHMARK = Benchmark("selectors", "What does a selector cost a message of a queue?", run)
