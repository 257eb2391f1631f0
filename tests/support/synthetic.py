"""Recordings with planted throughput, latencies and stalls, for tests of the analysis.

Everything is drawn by numpy from a seed; the same seed gives the same files. Throughputs are exact: n is
the difference of the planted count at the ends of a tick.

A run is cut into ticks of equal length. Each tick has one event of every kind a stream has (its publishing
link, its confirms as the broker and as the client saw them, its consuming link, its deliveries), one of the
queue and one of the process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from amqp10broker.observe.flow_events import FIELDS, NO_CREDIT, NO_REASON, EventKind
from amqp10broker.observe.recording import RunRecord, event_schema, events_folder, write_run
from amqp10broker.sessions.diagnosis.wait_reasons import Wait

BEGAN_NS: Final = 1_790_000_000_000_000_000
QUEUE_CREDIT: Final = 256
_PART_TICKS: Final = 100_000
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Lognormal: half of the messages are faster than the median."""

    median_ms: float
    sigma: float = 0.4


@dataclass(frozen=True, slots=True)
class Stream:
    """What one publisher sends and, if `end_to_end` is given, one consumer receives."""

    rate_per_s: float
    confirm: Latency
    end_to_end: Latency | None = None
    publisher_waits: dict[int, float] = field(default_factory=dict)
    """Share of the link's time, by reason."""
    consumer_waits: dict[int, float] = field(default_factory=dict)
    credit_left: float = 0.5
    """Share of max_link_credit that is left in the mean; the next likewise of the window."""
    window_left: float = 0.7


@dataclass(frozen=True, slots=True)
class Plant:
    """One run: its row, what happens in it, how many events tell of it."""

    run: RunRecord
    streams: tuple[Stream, ...]
    seconds: float = 10.0
    warmup_share: float = 0.1
    ticks: int = 200
    memory_bytes: int = 60_000_000
    cpu_cores: float = 0.9
    queue_depth: int = 40

    @property
    def events_a_tick(self) -> int:
        return sum(7 if stream.end_to_end else 4 for stream in self.streams) + 2


def write(folder: Path, plants: Sequence[Plant], seed: int = 1) -> int:
    """Write the rows and events of all runs; return the number of events."""
    return sum(_write_run(folder, plant, seed + number) for number, plant in enumerate(plants))


def sweep(
    *,
    credits: Sequence[int] = (10, 50, 170, 500, 1000),
    windows: Sequence[int] = (50, 400, 2000),
    sizes: Sequence[int] = (100,),
    repetitions: int = 3,
    noise: float = 0.01,
    events: int = 100_000,
    seed: int = 1,
    rate_limit_per_s: float | None = None,
) -> list[Plant]:
    """Return runs of a sweep: throughput rises with each setting up to its knee and is flat beyond."""
    random = np.random.default_rng(seed)
    plants = []
    for number, cell in enumerate(product(sizes, windows, credits, range(repetitions))):
        size, window, credit, repetition = cell
        reach = [_saturating(credit / 100), _saturating(window / 200), _saturating(QUEUE_CREDIT / 100)]
        noisy = 1 + noise * random.standard_normal()
        rate = 60_000 * math.prod(reach) * (min(sizes) / size) ** 0.3 * noisy
        if rate_limit_per_s is not None:
            rate = min(rate, rate_limit_per_s)
        run = _run(
            f"sweep-{size}-{window}-{credit}-{rate_limit_per_s or 0:g}-{repetition}",
            number,
            benchmark="sweep",
            case="publish and consume",
            repetition=repetition,
            max_link_credit=credit,
            max_incoming_window=window,
            message_size_bytes=size,
            publishers=1,
            consumers=1,
            rate_limit_per_s=rate_limit_per_s,
        )
        plants.append(
            Plant(run, (_swept(rate, credit, window, reach),), memory_bytes=50_000_000 + 300 * credit * size)
        )
    ticks = max(20, round(events / len(plants) / plants[0].events_a_tick))
    return [replace(plant, ticks=ticks) for plant in plants]


def two_senders(*, repetitions: int = 3, events: int = 20_000) -> list[Plant]:
    """Return runs with a fast and a slow stream, as in the benchmark of that name."""
    plants = []
    for repetition in range(repetitions):
        run = _run(
            f"two_senders-{repetition}",
            repetition,
            benchmark="two_senders",
            case="5 ms",
            repetition=repetition,
            max_link_credit=170,
            max_incoming_window=400,
            message_size_bytes=12,
            publishers=2,
            consumers=0,
            settings=json.dumps({"streams": ["fast", "slow"]}),
        )
        fast = Stream(50_000.0 * (1 + 0.01 * repetition), Latency(1.5), publisher_waits={NO_CREDIT: 0.1})
        slow = Stream(
            5_000.0,
            Latency(20.0),
            publisher_waits={Wait.CREDIT_WITHHELD.number: 0.85},
            credit_left=0.05,
        )
        plants.append(Plant(run, (fast, slow), ticks=max(20, events // repetitions // 10)))
    return plants


def _run(run_id: str, number: int, **values: Any) -> RunRecord:
    """Return the row of a run of nine seconds, the first of which begins at `BEGAN_NS`."""
    began = BEGAN_NS + number * 20 * _NS
    return RunRecord(
        run_id=run_id,
        began_ns=began + _NS,
        ended_ns=began + 10 * _NS,
        max_queue_credit=QUEUE_CREDIT,
        queue_type="classic",
        protocol="amqp10",
        durable=False,
        sample_ms=10,
        events_dropped=0,
        **values,
    )


def _swept(rate: float, credit: int, window: int, reach: Sequence[float]) -> Stream:
    """Little's law gives the latency: messages under way, divided by the rate."""
    under_way = min(credit, window) / 2
    withheld, closed = (1 - reach[0]) * 0.8, (1 - reach[1]) * 0.8
    return Stream(
        rate,
        Latency(0.2 + under_way / rate * 1e3, 0.5),
        Latency(0.4 + 2 * under_way / rate * 1e3, 0.6),
        {Wait.CREDIT_WITHHELD.number: withheld, Wait.PEER_WINDOW_CLOSED.number: closed * (1 - withheld)},
        {Wait.QUEUE_EMPTY.number: 0.6 - 0.4 * math.prod(reach), Wait.WRITER_BLOCKED.number: 0.05},
        credit_left=max(0.03, 1 - 40 / credit) if credit > 40 else 0.03,
        window_left=max(0.05, 1 - 60 / window) if window > 60 else 0.05,
    )


def _saturating(x: float) -> float:
    return float(x / (1 + x**8) ** (1 / 8))


def _write_run(folder: Path, plant: Plant, seed: int) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = events_folder(folder, plant.run.run_id)
    target.mkdir(parents=True, exist_ok=True)
    schema = event_schema()
    count = 0
    for number, columns in enumerate(_parts(plant, seed)):
        arrays = [pa.array(columns[each.name], type=pa.type_for_alias(each.parquet)) for each in FIELDS]
        table = pa.Table.from_arrays(arrays, schema=schema)
        hidden = target / f"_part-{number:05}.parquet"
        pq.write_table(table, str(hidden), compression="zstd", row_group_size=131_072)
        hidden.rename(target / f"part-{number:05}.parquet")
        count += len(table)
    write_run(folder, plant.run)
    return count


def _parts(plant: Plant, seed: int) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(seed)
    warmup_s = plant.seconds * plant.warmup_share
    first_ns = plant.run.began_ns - round(warmup_s * _NS)
    tick_ns = max(1, round(plant.seconds * _NS / plant.ticks))
    for start in range(0, plant.ticks, _PART_TICKS):
        # Edges of the ticks of this part, and n as the difference of a planted count.
        edges: Any = np.arange(start, min(start + _PART_TICKS, plant.ticks) + 1, dtype=np.int64)
        maker = _Maker(random, first_ns + edges[1:] * tick_ns, tick_ns)
        for number, stream in enumerate(plant.streams):
            planted = np.floor(edges * (stream.rate_per_s * tick_ns / _NS) + 1e-6).astype(np.int64)
            _stream_events(maker, plant, stream, number, np.diff(planted))
        maker.add(
            EventKind.QUEUE, value_ns=tick_ns, queue_depth=random.poisson(plant.queue_depth, maker.ticks)
        )
        maker.add(
            EventKind.PROCESS,
            n=round(plant.cpu_cores * tick_ns),
            value_ns=tick_ns,
            bytes=plant.memory_bytes + random.integers(-100_000, 1, maker.ticks),
        )
        yield maker.columns()


def _stream_events(maker: _Maker, plant: Plant, stream: Stream, number: int, n: Any) -> None:
    run, tick_ns, random = plant.run, maker.tick_ns, maker.random
    size = run.message_size_bytes or 0
    credit, window = run.max_link_credit or 0, run.max_incoming_window or 0
    maker.add(
        EventKind.LINK_IN,
        n=n,
        value_ns=tick_ns,
        reason=maker.reasons(stream.publisher_waits),
        handle=number,
        connection=number,
        link_credit=maker.around(stream.credit_left, credit),
        incoming_window=maker.around(stream.window_left, window),
        queue_credit=random.poisson(credit * 0.2, maker.ticks),
    )
    maker.add(EventKind.CONFIRM, n=n, value_ns=maker.latencies(stream.confirm) // 2, connection=number)
    client = {"channel": number, "connection": number}
    maker.add(EventKind.CLIENT_CONFIRM, n=n, value_ns=maker.latencies(stream.confirm), **client)
    maker.add(EventKind.CLIENT_SENT, n=n, bytes=n * size, value_ns=tick_ns, **client)
    if stream.end_to_end is None:
        return
    maker.add(
        EventKind.LINK_OUT,
        n=n,
        value_ns=tick_ns,
        reason=maker.reasons(stream.consumer_waits),
        handle=number,
        connection=1000 + number,
        link_credit=maker.around(0.8, 1000),
        incoming_window=maker.around(0.9, 2048),
        queue_credit=maker.around(0.6, run.max_queue_credit or 0),
    )
    maker.add(EventKind.CLIENT_DELIVERY, n=n, value_ns=maker.latencies(stream.end_to_end), **client)
    maker.add(EventKind.CLIENT_RECEIVED, n=n, bytes=n * size, value_ns=tick_ns, **client)


class _Maker:
    """Columns of one part; the events of a tick lie together."""

    def __init__(self, random: Any, ts_ns: Any, tick_ns: int) -> None:
        self.random = random
        self.ticks = len(ts_ns)
        self.tick_ns = tick_ns
        self._ts_ns = ts_ns
        self._kinds: list[dict[str, Any]] = []

    def add(self, kind: EventKind, **values: Any) -> None:
        """Add one event of a kind to each tick; a value is one number or one per tick."""
        self._kinds.append({"kind": int(kind), "ts_ns": self._ts_ns, **values})

    def around(self, share: float, most: int) -> Any:
        """Return numbers from 0 to `most` whose mean is about that share of it."""
        return self.random.binomial(most, min(max(share, 0.0), 1.0), self.ticks)

    def latencies(self, latency: Latency) -> Any:
        drawn = self.random.lognormal(math.log(latency.median_ms * 1e6), latency.sigma, self.ticks)
        return drawn.astype(np.int64)

    def reasons(self, shares: dict[int, float]) -> Any:
        """Return one reason per tick in the shares' ratio."""
        values = [int(NO_REASON), *(int(reason) for reason in shares)]
        odds = [max(0.0, 1 - sum(shares.values())), *shares.values()]
        return self.random.choice(values, self.ticks, p=np.array(odds) / sum(odds))

    def columns(self) -> dict[str, Any]:
        made = {}
        for each in FIELDS:
            column: Any = np.zeros((self.ticks, len(self._kinds)), dtype=np.int64)
            for place, values in enumerate(self._kinds):
                column[:, place] = values.get(each.name, 0)
            made[each.name] = column.ravel()
        return made
