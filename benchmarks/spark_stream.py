"""How fast does a stream get into Parquet by Spark, and what limits it?

A stream is filled once. Then the same rows are read by raw frames (what the broker can give), by the
connector's reader alone in one process (frames to Arrow), and by a streaming query into Parquet; beside
that stands the same query with rows that are made in the reader, without a broker, which is Spark's own
cost. Processor time is that of the broker, of Spark's Python workers and of the JVM, each for a row: where
their sum times the rate is the number of processors, the machine is the limit, and the largest is to blame.

Needs the extra ``spark``. A query is run twice, and the second run counts: the first starts Python workers
and warms the JVM up.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import spec
from benchmarks.broker_process import OwnBroker
from benchmarks.cases import QUEUE, STREAM
from benchmarks.errors import MeasureError
from benchmarks.measure import Benchmark, Context, carry_through, options, preload
from benchmarks.queues091 import Queues
from benchmarks.results import Outcome, Row
from benchmarks.spark_costs import costs, session, to_parquet

COLUMNS: Final = (
    "rate_per_s",
    "cpu_us",
    "reader_cpu_us",
    "python_cpu_us",
    "jvm_cpu_us",
    "cores_busy",
    "to_floor",
    "to_raw",
)


def run(context: Context) -> Outcome:
    """Fill a stream, and read it in all ways."""
    options = context.options
    rows: int = options.spark_rows or (200_000 if context.quick else 2_000_000)
    outcome = Outcome(COLUMNS, context.described_settings())
    with OwnBroker(context.settings(), options.python) as broker, tempfile.TemporaryDirectory() as folder:
        with Queues(broker.endpoint) as known:
            known.declare({QUEUE: STREAM})
        preload(broker, (context.address(QUEUE),), rows, size_bytes=context.size_bytes)
        with session(options.spark_cores, Path(folder)) as spark:
            for repetition in range(context.repetitions):
                raw = _raw(context, broker, rows)
                for row in (
                    raw,
                    _reader(context, broker, rows),
                    *_queries(context, broker, rows, spark, Path(folder) / str(repetition)),
                ):
                    if row["target"] == "broker":
                        row["to_raw"] = row["rate_per_s"] / raw["rate_per_s"]
                    context.say_row(row)
                    outcome.samples.append(row)
    outcome.notes.append(_limit(outcome.samples, os.cpu_count() or 1))
    return outcome


def _raw(context: Context, broker: OwnBroker, count: int) -> Row:
    """What the broker gives to a client that looks at nothing."""
    group = spec.Consume(
        (context.address(QUEUE),), credit=1000, settle=spec.Settle.PRESETTLED, offset="first"
    )
    connections = (spec.connection(group),)
    seconds, cpu = carry_through(broker, connections, count, "delivered", name="raw")
    return {
        "case": "raw frames, one link",
        "target": "broker",
        "rate_per_s": count / seconds,
        "cpu_us": cpu / count * 1e6,
        "cores_busy": cpu / seconds,
    }


def _reader(context: Context, broker: OwnBroker, count: int) -> Row:
    """The connector's reader, without Spark."""
    from amqp10broker.spark.options import StreamOptions, parse_source
    from amqp10broker.spark.stream_source import StreamReader

    options = parse_source({**_options(context, broker), "minPartitions": "1"}, streaming=False)
    assert isinstance(options, StreamOptions)
    reader = StreamReader(options)
    with costs("reader to Arrow, one process", broker, count) as row:
        (piece,) = reader.partitions()
        found = sum(batch.num_rows for batch in reader.read(piece))
    if found != count:
        raise MeasureError(f"the reader gave {found} rows of {count}")
    return row


def _queries(context: Context, broker: OwnBroker, count: int, spark: Any, folder: Path) -> Iterator[Row]:
    """Into Parquet: without a broker, and with it."""
    from benchmarks.spark_floor import FORMAT

    real = _options(context, broker)
    made = {name: real[name] for name in ("minPartitions", "arrowBatchSize")}
    made |= {"count": str(count), "size": str(context.size_bytes)}
    rates: list[float] = []
    for case, target, source, asked in (
        ("query, rows made in the reader", "floor", FORMAT, made),
        ("query, stream to Parquet", "broker", "amqp10", real),
    ):
        place = folder / source
        to_parquet(spark, source, asked, place / "warm")
        with costs(case, broker, count, spark, target=target) as row:
            to_parquet(spark, source, asked, place / "counted")
        found = spark.read.parquet(str(place / "counted" / "out")).select("offset").distinct().count()
        if found != count:
            raise MeasureError(f"{found} different offsets of {count} are in the Parquet files of {source}")
        rates.append(row["rate_per_s"])
        yield row if target == "floor" else row | {"to_floor": rates[1] / rates[0]}


def _options(context: Context, broker: OwnBroker) -> dict[str, str]:
    endpoint = broker.endpoint
    return {
        "url": f"amqp://guest:guest@{endpoint.host}:{endpoint.port}",
        "stream": QUEUE,
        "minPartitions": str(context.options.spark_partitions),
        "arrowBatchSize": str(context.options.spark_batch),
        "linkCredit": str(context.options.credit),
    }


def _limit(samples: list[Row], processors: int) -> str:
    """What limits the query, from the last sample of it."""
    row = next(each for each in reversed(samples) if each["case"].startswith("query, stream"))
    parts = {
        "the broker": row["cpu_us"],
        "Python workers": row["python_cpu_us"],
        "the JVM": row["jvm_cpu_us"],
    }
    largest = max(parts, key=lambda name: parts[name])
    shares = ", ".join(f"{name} {cost:.2f} µs" for name, cost in parts.items())
    busy, machine = row["cores_busy"], row["machine_busy"]
    if busy > 0.85 * processors:
        delivery_outcome = f"the processors limit it, most of all {largest}"
    elif machine > 0.9 * processors:
        at_most = processors / sum(parts.values()) * 1e6
        delivery_outcome = (
            f"other work had the rest; what it costs allows {at_most:,.0f} rows/s on free processors"
        )
    else:
        delivery_outcome = (
            f"processors are free: a single process limits it, or waiting ({largest} works most)"
        )
    return (
        f"query, stream to Parquet: {shares} a row; {busy:.2f} of {processors} processors: {delivery_outcome}"
    )


BENCHMARK = Benchmark(
    "spark_stream",
    "How fast does a stream get into Parquet by Spark, and what limits it?",
    run,
    options(
        spark_rows=(int, "rows (default 2 000 000, with --quick 200 000)"),
        spark_cores=(2, "of local[N]"),
        spark_partitions=(2, "minPartitions"),
        spark_batch=(4096, "arrowBatchSize"),
    ),
)
