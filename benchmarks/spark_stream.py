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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import spec
from benchmarks.broker_process import OwnBroker
from benchmarks.cases import QUEUE, STREAM
from benchmarks.errors import MeasureError
from benchmarks.measure import Benchmark, Context, carry_through, options, preload
from benchmarks.processes import process_cpu_s
from benchmarks.queues091 import Queues
from benchmarks.results import Outcome, Row

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
    cpu, own, began = broker.cpu_s() or 0.0, time.process_time(), time.monotonic()
    (piece,) = reader.partitions()
    found = sum(batch.num_rows for batch in reader.read(piece))
    seconds, own = time.monotonic() - began, time.process_time() - own
    cpu = (broker.cpu_s() or 0.0) - cpu
    if found != count:
        raise MeasureError(f"the reader gave {found} rows of {count}")
    return {
        "case": "reader to Arrow, one process",
        "target": "broker",
        "rate_per_s": count / seconds,
        "cpu_us": cpu / count * 1e6,
        "reader_cpu_us": own / count * 1e6,
        "cores_busy": (cpu + own) / seconds,
    }


def _queries(context: Context, broker: OwnBroker, count: int, spark: Any, folder: Path) -> Iterator[Row]:
    """Into Parquet: without a broker, and with it."""
    from benchmarks.spark_floor import FORMAT

    made = {
        "count": str(count),
        "size": str(context.size_bytes),
        "minPartitions": str(context.options.spark_partitions),
        "arrowBatchSize": str(context.options.spark_batch),
    }
    floor = _query(broker, count, spark, folder / "floor", FORMAT, made)
    yield {"case": "query, rows made in the reader", "target": "floor", **floor}
    real = _query(broker, count, spark, folder / "stream", "amqp10", _options(context, broker))
    yield {
        "case": "query, stream to Parquet",
        "target": "broker",
        **real,
        "to_floor": real["rate_per_s"] / floor["rate_per_s"],
    }


def _query(
    broker: OwnBroker, count: int, spark: Any, folder: Path, source: str, options: dict[str, str]
) -> dict[str, float]:
    jvm = spark.sparkContext._gateway.proc.pid

    def into(name: str) -> float:
        began = time.monotonic()
        query = (
            spark.readStream.format(source)
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(folder / name / "out"))
            .option("checkpointLocation", str(folder / name / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return time.monotonic() - began

    def spent() -> tuple[float, float, float, float]:
        return broker.cpu_s() or 0.0, process_cpu_s(jvm), python_cpu_s(jvm), _machine_cpu_s()

    into("warm")
    before = spent()
    seconds = into("counted")
    broker_s, jvm_s, python_s, machine_s = (late - early for late, early in zip(spent(), before, strict=True))
    found = spark.read.parquet(str(folder / "counted" / "out")).select("offset").distinct().count()
    if found != count:
        raise MeasureError(f"{found} different offsets of {count} are in the Parquet files of {source}")
    return {
        "rate_per_s": count / seconds,
        "cpu_us": broker_s / count * 1e6,
        "python_cpu_us": python_s / count * 1e6,
        "jvm_cpu_us": jvm_s / count * 1e6,
        "cores_busy": (broker_s + jvm_s + python_s) / seconds,
        "machine_busy": machine_s / seconds,
    }


def _machine_cpu_s() -> float:
    """Processor time of everything that runs here, from /proc/stat (user, nice, system)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(map(int, fields[1:4])) / os.sysconf("SC_CLK_TCK")


def python_cpu_s(jvm: int) -> float:
    """Processor time of the processes under the JVM: its Python daemons and their workers."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry)] = int(fields[1])
    total = 0.0
    for pid in parents:
        above = parents[pid]
        while above > 1 and above != jvm:
            above = parents.get(above, 0)
        if above == jvm:
            try:
                total += process_cpu_s(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue  # a worker that ends takes its time along; Spark keeps them for a minute
    return total


def _options(context: Context, broker: OwnBroker) -> dict[str, str]:
    endpoint = broker.endpoint
    return {
        "url": f"amqp://guest:guest@{endpoint.host}:{endpoint.port}",
        "stream": QUEUE,
        "minPartitions": str(context.options.spark_partitions),
        "arrowBatchSize": str(context.options.spark_batch),
        "linkCredit": str(context.options.credit),
    }


@contextmanager
def session(cores: int, folder: Path) -> Iterator[Any]:
    from amqp10broker.spark.register import register
    from amqp10broker.spark.session import local_session
    from benchmarks.spark_floor import FloorSource

    spark = local_session(
        "benchmark", cores=f"local[{cores}]", conf={"spark.local.dir": str(folder / "local")}
    )
    try:
        register(spark)
        spark.dataSource.register(FloorSource)
        yield spark
    finally:
        spark.stop()


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
        verdict = f"the processors limit it, most of all {largest}"
    elif machine > 0.9 * processors:
        at_most = processors / sum(parts.values()) * 1e6
        verdict = f"other work had the rest; what it costs allows {at_most:,.0f} rows/s on free processors"
    else:
        verdict = f"processors are free: a single process limits it, or waiting ({largest} works most)"
    return f"query, stream to Parquet: {shares} a row; {busy:.2f} of {processors} processors: {verdict}"


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
