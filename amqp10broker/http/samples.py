"""What changes, by looks at it: the rates ``x_details`` beside counters and gauges.

Nothing is sampled while nobody asks. Each look at an object, a client's or the broker's own (`looks`), leaves
a sample of it, no more than one in an interval, and a rate is what changed between the last two. So an object
has no rate at the first look. Which node has an object does not matter, for what is looked at is what is
sampled (ADR 0068).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from http import HTTPStatus
from itertools import pairwise
from typing import Any, Final, TypeAlias

from amqp10broker.dataclass import dataclass
from amqp10broker.http.messages import Refused

SLACK_MS: Final = 10
"""By so much less than an interval two samples may lie apart: looks are not on the millisecond."""
KEPT_MS: Final = 3_600_000
"""How long samples are kept."""
SAMPLES_MAX: Final = 240
"""Of one object. Beyond, those of its older half lie twice as far apart."""
OBJECTS_MAX: Final = 20_000
"""Those that nobody has looked at for longest are forgotten."""
MANY: Final = 1_000
"""Of more objects than these, each has only what a rate needs."""
POINTS_MAX: Final = 1_000
"""Of a history."""

Values: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A history that is asked for.

    Attributes:
        age_ms: how far back it goes.
        step_ms: between two of its points.
    """

    age_ms: int
    step_ms: int

    @classmethod
    def read(cls, query: Mapping[str, str], family: str) -> Span | None:
        """What a query asks for; None: no history.

        Args:
            query: of the request.
            family: ``msg_rates``, ``lengths``, ``data_rates`` or ``node_stats``.

        Raises:
            Refused: 400, more points than there may be.
        """
        age, step = (query.get(f"{family}_{which}", "") for which in ("age", "incr"))
        if not all(each.isascii() and each.isdigit() and int(each[:9]) for each in (age, step)):
            return None
        age_ms, step_ms = int(age[:9]) * 1000, int(step[:9]) * 1000
        if age_ms // step_ms > POINTS_MAX:
            text = f"{family}_age holds more than {POINTS_MAX} times {family}_incr: ask for fewer points"
            raise Refused(HTTPStatus.BAD_REQUEST, "bad_request", text)
        return cls(age_ms, step_ms)


class Series:
    """The samples of one object."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Values]] = deque()

    def look(self, now_ms: int, values: Values, *, least_ms: int, most: int) -> None:
        """Somebody looks at the object.

        Args:
            now_ms: when.
            values: of it.
            least_ms: between two samples.
            most: samples to keep.
        """
        samples = self._samples
        if samples and now_ms - samples[-1][0] < least_ms:
            return
        samples.append((now_ms, values))
        while now_ms - samples[0][0] > KEPT_MS and len(samples) > 2:
            samples.popleft()
        if len(samples) > most:
            self._thin(most)

    def details(self, name: str, span: Span | None) -> dict[str, Any]:
        """The rate of one value, and its history if that is asked for."""
        rates = [_rate(name, *pair) for pair in pairwise(list(self._samples)[-2:])]
        found: dict[str, Any] = {"rate": rates[0] if rates else 0.0}
        return found if span is None else found | self._history(name, span)

    def unchanged_since(self, values: Values) -> int | None:
        """From which sample on, in ms, all were as these values; None: it is not known of two samples."""
        alike: list[int] = []
        for when, told in reversed(self._samples):
            if told != values:
                break
            alike.append(when)
        return alike[-1] if len(alike) > 1 else None

    def _history(self, name: str, span: Span) -> dict[str, Any]:
        """Points from the newest sample back, as far as there were looks."""
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


class Samples:
    """Of all objects that are looked at."""

    def __init__(self, interval_ms: int) -> None:
        """Begin without any.

        Args:
            interval_ms: between two samples of an object, more or less.
        """
        self._least_ms = interval_ms - SLACK_MS
        self._series: dict[Hashable, Series] = {}

    def forget(self) -> None:
        """Begin anew."""
        self._series.clear()

    def unchanged_since(self, key: Hashable, values: Values) -> int | None:
        """See `Series.unchanged_since`."""
        series = self._series.get(key)
        return None if series is None else series.unchanged_since(values)

    def look(self, key: Hashable, now_ms: int, values: Values) -> Series:
        """Somebody looks at an object.

        Args:
            key: of the object; another one if it was deleted and made anew need not be told apart.
            now_ms: the time.
            values: all of it that has a rate.

        Returns:
            What is known of it.
        """
        series = self._series.pop(key, None)
        if series is None:
            series = Series()
        self._series[key] = series  # now the last one that was looked at
        if len(self._series) > OBJECTS_MAX:
            del self._series[next(iter(self._series))]
        series.look(
            now_ms, values, least_ms=self._least_ms, most=2 if len(self._series) > MANY else SAMPLES_MAX
        )
        return series


def rated(values: Values, series: Series, span: Span | None) -> dict[str, Any]:
    """Values with their rates beside them."""
    shown: dict[str, Any] = {}
    for name, value in values.items():
        shown[name] = value
        shown[f"{name}_details"] = series.details(name, span)
    return shown


def _rate(name: str, before: tuple[int, Values], after: tuple[int, Values]) -> float:
    """A change per second. A counter that is there for the first time was 0."""
    return (after[1].get(name, 0) - before[1].get(name, 0)) * 1000 / max(1, after[0] - before[0])
