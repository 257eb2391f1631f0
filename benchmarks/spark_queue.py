"""How fast do rows get into a queue by Spark, and out of it?

For each type of queue four figures, with the same rows: the sink's writer alone in one process (Arrow to
accepted messages), the source's reader alone (messages to spool to Arrow), a DataFrame written by tasks, and
a streaming query from the queue into Parquet. Processor time is that of the broker, of Python and of the
JVM, each for a row. The driver alone takes from a queue, so that the last figure does not grow with cores.

Needs the extra ``spark``. A query is run twice, and the second run counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.broker_process import OwnBroker
from benchmarks.cases import QUEUE
from benchmarks.errors import MeasureError
from benchmarks.measure import Benchmark, Context, options
from benchmarks.queues091 import Queues
from benchmarks.results import Outcome, Row
from benchmarks.spark_costs import costs, session, to_parquet

COLUMNS: Final = ("rate_per_s", "cpu_us", "reader_cpu_us", "python_cpu_us", "jvm_cpu_us", "cores_busy")
_BATCH_ROWS: Final = 4000
_TRIGGER: Final = 50_000
"""maxMessagesPerTrigger: a micro-batch costs some 0.2 s whatever is in it."""


def run(context: Context) -> Outcome:
    """Fill and empty a queue of each type in both ways."""
    rows: int = context.options.queue_rows or (40_000 if context.quick else 400_000)
    rows -= rows % _BATCH_ROWS
    outcome = Outcome(COLUMNS, context.described_settings())
    with tempfile.TemporaryDirectory() as folder, session(context.options.queue_cores, Path(folder)) as spark:
        for repetition in range(context.repetitions):
            for kind in ("classic", "quorum"):
                with OwnBroker(context.settings(), context.options.python) as broker:
                    with Queues(broker.endpoint) as known:
                        known.declare({QUEUE: kind})
                    place = Path(folder) / f"{kind}{repetition}"
                    place.mkdir()
                    for row in _figures(context, broker, rows, spark, place):
                        row["case"] = f"{kind}: {row['case']}"
                        context.say_row(row)
                        outcome.samples.append(row)
    return outcome


def _figures(context: Context, broker: OwnBroker, count: int, spark: Any, place: Path) -> Iterator[Row]:
    with costs("writer, one process", broker, count) as row:
        written = _write(context, broker, count)
    yield _whole(row, written, count)
    with costs("reader, one process", broker, count) as row:
        found = _read(broker, count, place)
    yield _whole(row, found, count)
    _in_and_out(context, broker, count, spark, place / "warm")
    yield from _in_and_out(context, broker, count, spark, place / "counted")


def _in_and_out(context: Context, broker: OwnBroker, count: int, spark: Any, place: Path) -> tuple[Row, Row]:
    """Both ways within Spark."""
    with costs("DataFrame to queue", broker, count, spark) as into:
        _save(context, broker, count, spark)
    with costs("queue to Parquet", broker, count, spark) as out:
        to_parquet(spark, "amqp10", _source(broker, place.with_suffix(".spool")), place)
    return into, _whole(out, spark.read.parquet(str(place / "out")).count(), count)


def _whole(row: Row, found: int, count: int) -> Row:
    if found != count:
        raise MeasureError(f"{row['case']}: {found} rows of {count}")
    return row


def _write(context: Context, broker: OwnBroker, count: int) -> int:
    """What a task of the sink does."""
    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructField, StructType

    from amqp10broker.spark.options import parse_sink
    from amqp10broker.spark.sink import Encoder, Sending, plan

    options = parse_sink(_sink(broker), streaming=False)
    encoder = Encoder(plan(StructType([StructField("body", BinaryType())]), options), f"{'0' * 36}-17-0-")
    bodies = pa.array([b"x" * context.size_bytes] * _BATCH_ROWS)
    batch = pa.RecordBatch.from_arrays([bodies], ["body"])
    with Sending(options, options.address) as sending:
        for _ in range(count // _BATCH_ROWS):
            sending.send(encoder.encode(batch))
        sending.settle_down_to(0)
        return sending.sent


def _read(broker: OwnBroker, count: int, place: Path) -> int:
    """What driver and tasks of the source do, one after the other."""
    from amqp10broker.spark.options import QueueOptions, parse_source
    from amqp10broker.spark.queue_source import QueueStreamReader

    options = parse_source(_source(broker, place / "alone"), streaming=True)
    assert isinstance(options, QueueOptions)
    reader = QueueStreamReader(options)
    start, found = reader.initialOffset(), 0
    while found < count:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            break
        for part in reader.partitions(start, end):
            found += sum(batch.num_rows for batch in reader.read(part))
        start = end
    reader.stop()
    return found


def _save(context: Context, broker: OwnBroker, count: int, spark: Any) -> None:
    table = spark.range(0, count, numPartitions=context.options.queue_cores)
    bodies = table.selectExpr(f"rpad(cast(id as string), {context.size_bytes}, '.') as body")
    bodies.write.format("amqp10").options(**_sink(broker)).mode("append").save()


def _sink(broker: OwnBroker) -> dict[str, str]:
    return {"url": _url(broker), "address": f"/queues/{QUEUE}"}


def _source(broker: OwnBroker, spool: Path) -> dict[str, str]:
    return {
        "url": _url(broker),
        "queue": QUEUE,
        "spoolLocation": str(spool),
        "maxMessagesPerTrigger": str(_TRIGGER),
    }


def _url(broker: OwnBroker) -> str:
    return f"amqp://guest:guest@{broker.endpoint.host}:{broker.endpoint.port}"


BENCHMARK = Benchmark(
    "spark_queue",
    "How fast do rows get into a queue by Spark, and out of it?",
    run,
    options(queue_rows=(int, "rows (default 400 000, with --quick 40 000)"), queue_cores=(2, "of local[N]")),
)
