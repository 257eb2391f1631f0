"""What does a topic route cost among many bindings?

Nothing is sent: the broker's routing room is called in this process, so there is no load and no floor. One
topic exchange has 10, 1 000 or 100 000 bindings, a quarter each of four shapes: without wildcards, with `*`,
with `#` at the end, with `#` and `*`. A key is routed that one of them matches, or none. The table of
patterns is walked along the key, so the cost must be the same in each column; a broker asks for a route
only when a link's or a channel's cache does not know it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from amqp10broker.routing.exchange import Binding, Destination, Exchange, ExchangeSpec
from amqp10broker.routing.topology import Topology
from benchmarks.errors import MeasureError
from benchmarks.measure import Benchmark, Context, options
from benchmarks.results import Outcome, Row

_EXCHANGE: Final = "topics"
_COLUMNS: Final = ("route_us", "bind_us", "unbind_us")
# Routes between two looks at the clock.
_BLOCK: Final = 200

_SHAPES: Final[tuple[tuple[str, str, str], ...]] = (
    ("exact", "stock.s{}.price", "stock.s{}.price"),
    ("*", "stock.*.s{}", "stock.any.s{}"),
    ("# at the end", "s{}.#", "s{}.a.b.c"),
    ("# and *", "#.s{}.*", "stock.s{}.any"),
)
"""Name, pattern, and a key that it matches."""


def _bindings(count: int) -> list[Binding]:
    return [
        Binding(
            _EXCHANGE, Destination("queue", f"q{number}"), _SHAPES[number % len(_SHAPES)][1].format(number)
        )
        for number in range(count)
    ]


def _keys(count: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return for each case a key and the queues it must be routed to."""
    keys: dict[str, tuple[str, tuple[str, ...]]] = {"no match": ("nothing.of.that.kind", ())}
    for shape, (name, _, key) in enumerate(_SHAPES):
        # A binding of that shape from the middle of the list.
        number = count // 2 // len(_SHAPES) * len(_SHAPES) + shape
        if number < count:
            keys[name] = (key.format(number), (f"q{number}",))
    return keys


def _route_us(topology: Topology, exchange: Exchange, key: str, seconds: float) -> float:
    keys = (key,)
    done = 0
    began = time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        for _ in range(_BLOCK):
            topology.route(exchange, keys)
        done += _BLOCK
    return taken / done * 1e6


def _each_us(call: Callable[[Binding], bool], bindings: list[Binding]) -> float:
    began = time.perf_counter()
    for binding in bindings:
        call(binding)
    return (time.perf_counter() - began) / len(bindings) * 1e6


def _bind(topology: Topology, binding: Binding) -> bool:
    new = topology.plan_bind(binding)
    topology.put_binding(binding)
    return new


def _unbind(topology: Topology, binding: Binding) -> bool:
    there = topology.plan_unbind(binding) is not None
    topology.drop_binding(binding)
    return there


def _measure(context: Context, count: int) -> list[Row]:
    topology = Topology("/", lambda name: True)
    topology.put_exchange(ExchangeSpec(_EXCHANGE, "topic"))
    exchange = topology.lookup_exchange(_EXCHANGE)
    bindings = _bindings(count)
    bind_us = _each_us(partial(_bind, topology), bindings)
    samples: list[Row] = []
    for name, (key, expected) in _keys(count).items():
        found, _ = topology.route(exchange, (key,))
        if found != expected:
            raise MeasureError(f"{key} was routed to {found} and not to {expected}")
        _route_us(topology, exchange, key, context.warmup_s / 10)
        route_us = _route_us(topology, exchange, key, context.duration_s / 10)
        samples.append({"case": f"{count} bindings, {name}", "target": "broker", "route_us": route_us})
        context.say(f"{samples[-1]['case']:32} {route_us:8.2f} µs a route")
    unbind_us = _each_us(partial(_unbind, topology), bindings)
    samples.append(
        {
            "case": f"{count} bindings, changing",
            "target": "broker",
            "bind_us": bind_us,
            "unbind_us": unbind_us,
        }
    )
    return samples


def run(context: Context) -> Outcome:
    """Measure each number of bindings."""
    samples: list[Row] = []
    for _ in range(context.repetitions):
        for count in context.options.bindings:
            samples += _measure(context, count)
    return Outcome(_COLUMNS, context.described_settings(), samples)


BENCHMARK = Benchmark(
    "topic",
    "What does a topic route cost among many bindings?",
    run,
    options(bindings=([10, 1000, 100_000], "bindings")),
)
