"""Samples of counters and gauges at requests, for the rates ``x_details``.

Each request for an object, a client's or the broker's own (`endpoints`), stores a sample of it, at most one
per interval, and a rate is the change between the last two. So an object has no rate at the first request.
Which node has an object does not matter, because the answer is what is sampled.

RabbitMQ's object ``message_stats`` is made of message counters. Instead of zeros it is absent where nothing
ever happened. Its members come in groups, which are complete or absent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias

from amqp10broker.api.messages import bad_request
from amqp10broker.dataclass import dataclass

SLACK_MS: Final = 10
"""Tolerance of the interval between two samples: requests are not exact to the millisecond."""
KEPT_MS: Final = 3_600_000
SAMPLES_MAX: Final = 240
"""The samples of one object. If there are more, those of its older half are thinned out."""
OBJECTS_MAX: Final = 20_000
"""Beyond this number the least recently requested objects are dropped."""
MANY: Final = 1_000
"""If there are more objects, each has only the samples that a rate needs."""
POINTS_MAX: Final = 1_000

Values: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Span:
    age_ms: int
    step_ms: int

    @classmethod
    def read(cls, query: Mapping[str, str], family: str) -> Span | None:
        """Return the history that a query requests; None: none."""
        age, step = (query.get(f"{family}_{which}", "") for which in ("age", "incr"))
        if not all(each.isascii() and each.isdigit() and int(each[:9]) for each in (age, step)):
            return None
        age_ms, step_ms = int(age[:9]) * 1000, int(step[:9]) * 1000
        if age_ms // step_ms > POINTS_MAX:
            text = f"{family}_age holds more than {POINTS_MAX} times {family}_incr: ask for fewer points"
            raise bad_request(text)
        return cls(age_ms, step_ms)


class Series:
    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Values]] = deque()

    def look(self, now_ms: int, values: Values, *, least_ms: int, most: int) -> None:
        samples = self._samples
        if samples and now_ms - samples[-1][0] < least_ms:
            return
        samples.append((now_ms, values))
        while now_ms - samples[0][0] > KEPT_MS and len(samples) > 2:
            samples.popleft()
        if len(samples) > most:
            self._thin(most)

    def details(self, name: str, span: Span | None) -> dict[str, Any]:
        """Return the rate of one value, and its history if requested."""
        rates = [_rate(name, *pair) for pair in pairwise(list(self._samples)[-2:])]
        found: dict[str, Any] = {"rate": rates[0] if rates else 0.0}
        return found if span is None else found | self._history(name, span)

    def unchanged_since(self, values: Values) -> int | None:
        """Return the time in ms since which all values were equal to these; None: too few samples."""
        alike: list[int] = []
        for when, told in reversed(self._samples):
            if told != values:
                break
            alike.append(when)
        return alike[-1] if len(alike) > 1 else None

    def _history(self, name: str, span: Span) -> dict[str, Any]:
        samples = list(self._samples)
        at = newest = samples[-1][0]
        points: list[dict[str, int]] = []
        place = len(samples) - 1
        while at >= newest - span.age_ms:
            while place >= 0 and samples[place][0] > at:
                place -= 1
            if place < 0:
                break
            points.append({"sample": samples[place][1].get(name, 0), "timestamp": at})
            at -= span.step_ms
        first, last = points[-1], points[0]
        seconds = (last["timestamp"] - first["timestamp"]) / 1000
        return {
            "samples": points,
            "avg": sum(point["sample"] for point in points) / len(points),
            "avg_rate": (last["sample"] - first["sample"]) / seconds if seconds else 0.0,
        }

    def _thin(self, most: int) -> None:
        samples = list(self._samples)
        if most < 4:
            self._samples = deque(samples[-most:])
            return
        half = len(samples) // 2
        self._samples = deque(samples[:half:2] + samples[half:])


class RateSamples:
    def __init__(self, interval_ms: int) -> None:
        self._least_ms = interval_ms - SLACK_MS
        self._series: dict[Hashable, Series] = {}

    def forget(self) -> None:
        self._series.clear()

    def unchanged_since(self, key: Hashable, values: Values) -> int | None:
        series = self._series.get(key)
        return None if series is None else series.unchanged_since(values)

    def look(self, key: Hashable, now_ms: int, values: Values) -> Series:
        """Store a sample of an object and return its series."""
        series = self._series.pop(key, None)
        if series is None:
            series = Series()
        self._series[key] = series  # now it is the most recently requested one
        if len(self._series) > OBJECTS_MAX:
            del self._series[next(iter(self._series))]
        series.look(
            now_ms, values, least_ms=self._least_ms, most=2 if len(self._series) > MANY else SAMPLES_MAX
        )
        return series


def rated(values: Values, series: Series, span: Span | None) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in values.items():
        shown[name] = value
        shown[f"{name}_details"] = series.details(name, span)
    return shown


def _rate(name: str, before: tuple[int, Values], after: tuple[int, Values]) -> float:
    return (after[1].get(name, 0) - before[1].get(name, 0)) * 1000 / max(1, after[0] - before[0])


Stats = dict[str, int]

_DELIVERING: Final = {
    "ack": "acknowledged",
    "deliver": "delivered",
    "deliver_no_ack": "delivered_settled",
    "get": "got",
    "get_no_ack": "got_settled",
    "get_empty": "got_nothing",
    "redeliver": "redelivered",
}


def queue_stats(counters: Mapping[str, int]) -> Stats:
    """Make the statistics of a queue's counters (`queues.queue_status.tally`)."""
    stats: Stats = {"publish": counters["published"]} if counters["published"] else {}
    return stats | _delivering(counters)


def client_stats(counters: Mapping[str, int]) -> Stats:
    """Make the statistics of clients' counters (`sessions.counters.ClientCounters`); missing ones are 0."""
    if not counters.get("published"):
        return _delivering(counters)
    unroutable, returned = (counters.get(name, 0) for name in ("unroutable", "returned"))
    return {
        "publish": counters["published"],
        "confirm": counters.get("confirmed", 0),
        "return_unroutable": returned,
        "drop_unroutable": unroutable - returned,
        **_delivering(counters),
    }


def _delivering(counters: Mapping[str, int]) -> Stats:
    delivering = {name: counters.get(counter, 0) for name, counter in _DELIVERING.items()}
    got = sum(delivering[name] for name in ("deliver", "deliver_no_ack", "get", "get_no_ack"))
    return {**delivering, "deliver_get": got} if got or delivering["get_empty"] else {}


def exchange_stats(counters: Mapping[str, int]) -> Stats:
    """Make the statistics of an exchange's counters (`routing.exchange.Exchange.counted`)."""
    published = counters["published"]
    if not published:
        return {}
    return {"publish_in": published, "publish_out": published - counters["unroutable"]}
