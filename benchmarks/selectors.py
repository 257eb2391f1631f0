"""What does a selector cost a message of a queue?

Nothing is sent: a classic queue in memory is driven in this process, batch by batch: published, delivered,
settled. The same messages go through a plain consumer, one whose selector passes all, one that shares the
queue with another so that each selects half, and past one that browses. Each case stands beside the plain one
of the same run.
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


def _messages() -> list[Message]:
    head = make_head(Header(durable=True), None, "", "q")
    return [
        (
            head,
            encode(Described(ULong(0x74), {"half": number % 2, "region": "EU"}))
            + encode(Described(ULong(0x75), b"x" * 100)),
        )
        for number in range(_BATCH)
    ]


class _Scene:
    """A queue with consumers, and the batches that go through it."""

    def __init__(self, *wanted: Filters | None, browses: bool = False) -> None:
        self._queue = ClassicQueue("q", durable=False)
        peer = PeerId(0, 0, 1)
        self._publisher = PublisherRef(peer, 0)
        self._messages = _messages()
        self._seen: dict[ConsumerRef, int] = {}
        for number, filters in enumerate(wanted, 1):
            self._add(ConsumerRef(peer, number), Subscribe(ConsumerRef(peer, number), False, filters=filters))
        self._browser = ConsumerRef(peer, 99)
        if browses:
            self._add(self._browser, Subscribe(self._browser, False, counted=False, browse=True))

    def _add(self, ref: ConsumerRef, command: Subscribe) -> None:
        self._queue.apply(command, 0)
        self._seen[ref] = 0

    def rounds(self) -> None:
        """Some batches."""
        queue = self._queue
        for _ in range(_ROUNDS):
            for ref, seen in self._seen.items():
                queue.apply(Credit(ref, seen, _BATCH, False, seen), 0)
            queue.apply(Publish(self._publisher, range(_BATCH), self._messages, True), 0)
            for effects in queue.take_effects().values():
                for effect in effects:
                    if isinstance(effect, Deliver):
                        self._seen[effect.consumer] += len(effect.keys)
                        if effect.consumer != self._browser:
                            queue.apply(Settle(effect.consumer, effect.keys, Verdict.ACCEPT), 0)
        assert not queue.ready, "all went through"


_CASES: Final[dict[str, Callable[[], _Scene]]] = {
    _PLAIN: lambda: _Scene(None),
    "selects all": lambda: _Scene(_selector("region = 'EU'")),
    "two that select half each": lambda: _Scene(_selector("half = 0"), _selector("half = 1")),
    "plain, and one that selects nothing": lambda: _Scene(None, _selector("region = 'US'")),
    "plain, and a browser": lambda: _Scene(None, browses=True),
}


def run(context: Context) -> Outcome:
    """Measure each case, one round after the other so that all meet the same machine."""
    scenes = {name: make() for name, make in _CASES.items()}
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
            message_us, ratio = seconds / done * 1e6, seconds / taken[_PLAIN]
            samples.append(
                {"case": name, "target": "broker", "message_us": message_us, "ratio_to_plain": ratio}
            )
            context.say(f"{name:40} {message_us:6.2f} µs a message, {ratio:5.2f} times plain")
    return Outcome(_COLUMNS, context.described_settings(), samples)


BENCHMARK = Benchmark("selectors", "What does a selector cost a message of a queue?", run)
