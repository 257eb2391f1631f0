"""Does `amqp10broker what-if` foretell what another credit, window or round trip does to a publisher?

One recording is made, with one setting. Then the same publisher, which sends as fast as credit allows, is
measured at settings that the recording has not seen, and each rate is compared with the forecast. Between
client and broker is a proxy that delays both directions, so that it is waiting that is measured: what the
machine does besides shows as a few milliseconds more of each round trip.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from amqp10broker.client.blocking import connect
from amqp10broker.frames.records import read_lines
from amqp10broker.replay.forecast import Settings, forecasts
from amqp10broker.replay.pace import publishers, rate_of
from amqp10broker.replay.script import Script, read_script
from benchmarks.broker_process import OwnBroker
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

    def __str__(self) -> str:
        return f"credit {self.credit}, window {self.window}, {self.round_trip_ms:g} ms"


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


def _published(context: Context, setting: Setting) -> Script:
    """Publish at a setting; what the broker recorded of the publisher."""
    from tests.support.cutting_proxy import CuttingProxy

    settings = replace(context.settings(), max_link_credit=setting.credit, max_incoming_window=setting.window)
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(settings, extra=(*settings.extra, "--record-frames", folder))
        with context.target(settings) as broker:
            if not isinstance(broker, OwnBroker):
                raise BenchmarkError("brokers are measured that are started here: leave out --target")
            with Queues(broker.endpoint) as queues:
                queues.declare({QUEUE: "classic"})
            with CuttingProxy(broker.endpoint.port) as proxy:
                proxy.delay(setting.round_trip_ms / 2000)
                trips = max(TRIPS_MIN, int(context.options.seconds * 1000 / setting.round_trip_ms))
                count = setting.each_trip * (WARM_UP_TRIPS + trips)
                with connect("127.0.0.1", proxy.port, timeout_s=120) as client:
                    sender = client.sender(f"/queues/{QUEUE}")
                    sender.send_many([BODY] * count, in_flight_max=count)
        (file,) = Path(folder).iterdir()
        with file.open(encoding="utf-8") as lines:
            script = read_script(read_lines(lines))
    script.parts = [part for part in script.parts if any(one.publishers for one in publishers(part))]
    if len(script.parts) != 1:
        raise MeasureError(f"{setting}: not one publisher was recorded, but {len(script.parts)}")
    return script


def _rate(script: Script, setting: Setting) -> float:
    """Messages a second that came to the broker in steady state."""
    ((publisher,),) = [one.publishers for one in publishers(script.parts[0])]
    return rate_of(publisher.arrivals[WARM_UP_TRIPS * setting.each_trip :])


def run(context: Context) -> Outcome:
    """Record once, measure at every other setting, and compare."""
    outcome = Outcome(COLUMNS, context.described_settings())
    scale: float = context.options.scale
    recorded, *unseen = [
        replace(each, round_trip_ms=scale * each.round_trip_ms) for each in (RECORDED, *UNSEEN)
    ]
    script = _published(context, recorded)
    context.say(f"recorded at {recorded}: {_rate(script, recorded):.0f}/s")
    for setting in unseen[:: len(unseen) // 2] if context.quick else unseen:
        found, without = forecasts(script, Settings(setting.credit, setting.window, setting.round_trip_ms))
        if len(found) != 1:
            raise BenchmarkError(f"no forecast: {'; '.join(without)}")
        rate = _rate(_published(context, setting), setting)
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
    outcome.notes.append(verdict(outcome.samples))
    outcome.status = 0 if _hits(outcome.samples) >= GOAL * len(outcome.samples) else 1
    return outcome


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
    "does a forecast from one recording hold at other credits, windows and round trips?",
    run,
    options(
        seconds=(2.0, "of each setting, about"),
        scale=(1.0, "times the round trips: on a busy machine, where being woken takes milliseconds"),
    ),
    in_all=False,
)
