"""Does `amqp10broker what-if` foretell what another credit, window or round trip does to a client?

One recording is made, with one setting, of a publisher that sends as fast as credit allows. Then the same
publisher is measured at settings that the recording has not seen, and each rate is compared with the
forecast; and so are two consumers, one that settles at once and one that works on each message. Between
client and broker is a proxy that delays both directions, so that it is waiting that is measured: what the
machine does besides shows as a few milliseconds more of each round trip.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from amqp10broker.client.blocking import connect
from amqp10broker.frames.records import read_lines
from amqp10broker.replay.consumers import consumers
from amqp10broker.replay.forecast import Settings, forecasts
from amqp10broker.replay.pace import publishers, rate_of
from amqp10broker.replay.script import Script, read_script
from benchmarks.broker_process import OwnBroker
from benchmarks.delaying_proxy import DelayingProxy
from benchmarks.errors import BenchmarkError, MeasureError
from benchmarks.measure import Benchmark, Context, options
from benchmarks.queues091 import Queues
from benchmarks.results import Outcome, Row

COLUMNS: Final = ("rate_per_s", "forecast_per_s", "forecast_ratio")
QUEUE: Final = "bench"
MISS: Final = 0.15
GOAL: Final = 0.9
TRIPS_MIN: Final = 12
WARM_UP_TRIPS: Final = 2
BODY: Final = b"\x00\x53\x75\xa0\x64" + bytes(100)
_DEFAULT_WINDOW: Final = 400


@dataclass(frozen=True, slots=True)
class Setting:
    """What is varied."""

    credit: int
    window: int
    round_trip_ms: float

    @property
    def each_trip(self) -> int:
        """About so many messages go in a round trip."""
        return min(self.credit, self.window)

    @property
    def asked(self) -> Settings:
        """As a question to the forecast."""
        return Settings(self.credit, self.window, self.round_trip_ms)

    def __str__(self) -> str:
        return f"credit {self.credit}, window {self.window}, {self.round_trip_ms:g} ms"


@dataclass(frozen=True, slots=True)
class Reading:
    """What is varied of a consumer; `work_ms` on each message is its own."""

    credit: int
    round_trip_ms: float
    work_ms: float

    @property
    def asked(self) -> Settings:
        """As a question to the forecast."""
        return Settings(round_trip_ms=self.round_trip_ms, client_credit=self.credit)

    def __str__(self) -> str:
        return f"consumer with credit {self.credit}, {self.round_trip_ms:g} ms, {self.work_ms:g} ms of work"


RECORDED: Final = Setting(50, _DEFAULT_WINDOW, 20)
UNSEEN: Final = (
    Setting(1, _DEFAULT_WINDOW, 20),
    Setting(10, _DEFAULT_WINDOW, 20),
    Setting(25, _DEFAULT_WINDOW, 50),
    Setting(50, _DEFAULT_WINDOW, 50),
    Setting(100, _DEFAULT_WINDOW, 20),
    Setting(100, 50, 20),
    Setting(170, _DEFAULT_WINDOW, 50),
    Setting(170, 20, 50),
    Setting(400, 100, 80),
    Setting(30, _DEFAULT_WINDOW, 100),
)


READ: Final = (
    # The first of each line is recorded.
    (Reading(50, 20, 0), Reading(10, 20, 0), Reading(100, 20, 0), Reading(25, 50, 0), Reading(100, 80, 0)),
    (Reading(20, 20, 2), Reading(100, 20, 2), Reading(4, 20, 2), Reading(20, 100, 2), Reading(10, 50, 2)),
)


@contextmanager
def _recorded(
    context: Context, setting: Setting | Reading, prepare: Callable[[int], None]
) -> Iterator[tuple[int, list[Script]]]:
    """A port that is a round trip away from a broker; what that recorded is in the list afterwards."""

    settings = context.settings()
    if isinstance(setting, Setting):
        credit, window = setting.credit, setting.window
        settings = replace(settings, max_link_credit=credit, max_incoming_window=window)
    found: list[Script] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(settings, extra=(*settings.extra, "--record-frames", folder))
        with context.target(settings) as broker:
            if not isinstance(broker, OwnBroker):
                raise BenchmarkError("brokers are measured that are started here: leave out --target")
            with Queues(broker.endpoint) as queues:
                queues.declare({QUEUE: "classic"})
            prepare(broker.endpoint.port)
            with DelayingProxy(broker.endpoint.port, setting.round_trip_ms / 2000) as proxy:
                yield proxy.port, found
        (file,) = Path(folder).iterdir()
        with file.open(encoding="utf-8") as lines:
            found.append(read_script(read_lines(lines)))


def _published(context: Context, setting: Setting) -> tuple[Script, float]:
    """Publish at a setting; what the broker recorded of the publisher, and its rate in steady state."""
    trips = max(TRIPS_MIN, int(context.options.seconds * 1000 / setting.round_trip_ms))
    count = setting.each_trip * (WARM_UP_TRIPS + trips)
    with (
        _recorded(context, setting, lambda port: None) as (port, found),
        connect("127.0.0.1", port, timeout_s=120) as client,
    ):
        client.sender(f"/queues/{QUEUE}").send_many([BODY] * count, in_flight_max=count)
    (script,) = found
    script.parts = [part for part in script.parts if any(one.publishers for one in publishers(part))]
    if len(script.parts) != 1:
        raise MeasureError(f"{setting}: not one publisher was recorded, but {len(script.parts)}")
    ((publisher,),) = [one.publishers for one in publishers(script.parts[0])]
    return script, rate_of(publisher.arrivals[WARM_UP_TRIPS * setting.each_trip :])


def _read(context: Context, setting: Reading) -> tuple[Script, float]:
    """Consume at a setting; what the broker recorded of the consumer, and its rate in steady state."""
    lasts_ms = max(setting.round_trip_ms, setting.work_ms * setting.credit)
    trips = max(TRIPS_MIN, int(context.options.seconds * 1000 / lasts_ms))
    count = setting.credit * (WARM_UP_TRIPS + trips)

    def fill(port: int) -> None:
        with connect("127.0.0.1", port, timeout_s=120) as client:
            # More than will be taken: the end of a queue is no limit of a setting.
            client.sender(f"/queues/{QUEUE}").send_many([BODY] * (count + 2 * setting.credit))

    with (
        _recorded(context, setting, fill) as (port, found),
        connect("127.0.0.1", port, timeout_s=120) as client,
    ):
        receiver = client.receiver(f"/queues/{QUEUE}", credit=setting.credit)
        for _ in range(count):
            delivery = receiver.receive()
            if delivery is None:
                raise MeasureError(f"{setting}: no message came within 120 s")
            if setting.work_ms:
                time.sleep(setting.work_ms / 1000)
            receiver.accept(delivery)
    (script,) = found
    script.parts = [part for part in script.parts if any(one.sent for one in consumers(part))]
    if len(script.parts) != 1:
        raise MeasureError(f"{setting}: not one consumer was recorded, but {len(script.parts)}")
    (consumer,) = consumers(script.parts[0])
    return script, rate_of(consumer.sent[WARM_UP_TRIPS * setting.credit :])


def run(context: Context) -> Outcome:
    """Record once for each kind of client, measure at every other setting, and compare."""
    outcome = Outcome(COLUMNS, context.described_settings())
    for recorded, *unseen in ((RECORDED, *UNSEEN), *READ):
        _compared(context, recorded, unseen, outcome)
    outcome.notes.append(verdict(outcome.samples))
    outcome.status = 0 if _hits(outcome.samples) >= GOAL * len(outcome.samples) else 1
    return outcome


def _compared(
    context: Context, recorded: Setting | Reading, unseen: list[Setting] | list[Reading], outcome: Outcome
) -> None:
    script, rate = _measured(context, _scaled(context, recorded))
    context.say(f"recorded at {_scaled(context, recorded)}: {rate:.0f}/s")
    for setting in unseen[:: len(unseen) // 2] if context.quick else unseen:
        setting = _scaled(context, setting)
        found, without = forecasts(script, setting.asked)
        if len(found) != 1:
            raise BenchmarkError(f"no forecast: {'; '.join(without)}")
        _, rate = _measured(context, setting)
        ratio = found[0].run.rate / rate
        outcome.samples.append(
            {
                "case": str(setting),
                "target": "broker",
                "rate_per_s": rate,
                "forecast_per_s": found[0].run.rate,
                "forecast_ratio": ratio,
            }
        )
        context.say(f"{setting}: {rate:.0f}/s, forecast {found[0].run.rate:.0f}/s ({ratio:.2f})")


def _scaled(context: Context, setting: Setting | Reading) -> Setting | Reading:
    scale: float = context.options.scale
    longer = replace(setting, round_trip_ms=scale * setting.round_trip_ms)
    return longer if isinstance(longer, Setting) else replace(longer, work_ms=scale * longer.work_ms)


def _measured(context: Context, setting: Setting | Reading) -> tuple[Script, float]:
    return _published(context, setting) if isinstance(setting, Setting) else _read(context, setting)


def _hits(samples: list[Row]) -> int:
    return sum(abs(row["forecast_ratio"] - 1) <= MISS for row in samples)


def verdict(samples: list[Row]) -> str:
    """Say how many forecasts were good enough, and which were not."""
    missed = [
        f"{row['case']} ({row['forecast_ratio']:.2f})"
        for row in samples
        if abs(row["forecast_ratio"] - 1) > MISS
    ]
    said = f"{_hits(samples)} of {len(samples)} forecasts within {MISS:.0%} of the rate"
    return f"{said}; not so: {', '.join(missed)}." if missed else f"{said}."


BENCHMARK: Final = Benchmark(
    "what_if",
    "does a forecast from one recording hold at other credits, windows and round trips, of both sides?",
    run,
    options(
        seconds=(2.0, "of each setting, about"),
        scale=(1.0, "times the round trips: on a busy machine, where being woken takes milliseconds"),
    ),
    in_all=False,
)
