"""Adds up all events of a recording in one pass, to a few hundred cells.

A cell is a run, a kind of event, a reason, a stream, a bucket of the log-histogram and a protocol. Each
column is a sum or a maximum, so that the same expressions serve the batch and the stream. A count belongs to
the run if the event's time lies in it, and an elapsed time with the part that lies in it
(`docs/analysis.md`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events.schema import CHANNEL_HANDLE, EVENTS, FIELDS, EventKind
from amqp10broker.tools.analysis.statistics import BUCKETS_AN_OCTAVE, ZERO_BUCKET

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# `value_ns` is the time since the same object was last observed.
ELAPSED_KINDS: Final = (
    EventKind.LINK_IN, EventKind.LINK_OUT, EventKind.CONNECTION_IN, EventKind.CONNECTION_OUT,
    EventKind.CLIENT_SENT, EventKind.CLIENT_RECEIVED, EventKind.QUEUE, EventKind.PROCESS,
)  # fmt: skip
# `value_ns` is the latency of each of the n messages.
LATENCY_KINDS: Final = (
    EventKind.CONFIRM,
    EventKind.SETTLE,
    EventKind.CLIENT_CONFIRM,
    EventKind.CLIENT_DELIVERY,
)
# `channel` is the number of a stream of the load generator.
STREAM_KINDS: Final = (
    EventKind.CLIENT_CONFIRM,
    EventKind.CLIENT_DELIVERY,
    EventKind.CLIENT_SENT,
    EventKind.CLIENT_RECEIVED,
)
# `handle` determines the protocol.
LINK_KINDS: Final = (EventKind.LINK_IN, EventKind.LINK_OUT)
# `queue_depth` is of the object itself, not of the queue of a link.
DEPTH_KINDS: Final = (EventKind.QUEUE, EventKind.CONNECTION_OUT)
_NS: Final = 1_000_000_000
_ROUNDING: Final = 1e-9
_NEVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Cell:
    """Sums over the events of one run that agree in kind, reason, stream, bucket and protocol.

    Attributes:
        stream: of the load generator; 0 for kinds that have none.
        bucket: of the log-histogram; None for kinds that are not latencies.
        amqp091: of channels and consumers of AMQP 0-9-1, which have neither link credit nor windows; False
            for kinds not about links.
        elapsed_ns: the part that lies in the run; 0 for kinds without elapsed time.
    """

    run_id: str
    kind: int
    reason: int
    stream: int
    bucket: int | None
    amqp091: bool
    events: int
    n: int
    bytes: int
    elapsed_ns: int
    credit_s: float
    window_s: float
    queue_credit_s: float
    depth_s: float
    link_credit_max: int
    queue_credit_max: int
    depth_max: int
    bytes_max: int
    last_ns: int


def event_type() -> StructType:
    """Return the columns of the event files and the partition, for Spark."""
    from pyspark.sql import types

    spark_types = {"int8": types.ByteType(), "int32": types.IntegerType(), "int64": types.LongType()}
    columns = [types.StructField(field.name, spark_types[field.parquet], nullable=False) for field in FIELDS]
    return types.StructType([*columns, types.StructField("run_id", types.StringType(), nullable=False)])


def read_events(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the events of a recording, with the column `run_id`."""
    return spark.read.schema(event_type()).parquet(str(folder / EVENTS))


def cut(events: DataFrame, runs: Sequence[tuple[str, int, int | None]]) -> DataFrame:
    """Add the part of each event that lies in its run, and drop events of other runs. `runs`: run id, its
    beginning and its end in ns; None is the last event. Returns the events with the columns `inside` and
    `elapsed_ns`.
    """
    from pyspark.sql import functions as F

    rows = [(run_id, began, _NEVER if ended is None else ended) for run_id, began, ended in runs]
    spans = events.sparkSession.createDataFrame(rows, "run_id string, began bigint, ended bigint")
    # By a hash of the name: a join by number costs half of one by text, which is half of the whole pass. The
    # probability that two of 10 000 names share one is 3 in 10^12.
    key = F.xxhash64("run_id").alias("run_key")
    named = F.broadcast(spans.select(key, "began", "ended"))
    joined = events.withColumn("run_key", key).join(named, "run_key")
    ts, began, ended = F.col("ts_ns"), F.col("began"), F.col("ended")
    part = F.least(ts, ended) - F.greatest(ts - F.col("value_ns"), began)
    return joined.select(
        *events.columns,
        ts.between(began, ended).alias("inside"),
        F.when(_is(ELAPSED_KINDS), F.greatest(part, F.lit(0))).otherwise(F.lit(0)).alias("elapsed_ns"),
    )


def uncut(events: DataFrame) -> DataFrame:
    """Add the columns of `cut` for events that all count in full."""
    from pyspark.sql import functions as F

    return events.select(
        *events.columns,
        F.lit(True).alias("inside"),
        F.when(_is(ELAPSED_KINDS), F.col("value_ns")).otherwise(F.lit(0)).alias("elapsed_ns"),
    )


def aggregate(events: DataFrame, *more_keys: Column) -> DataFrame:
    """Add up the cells: one pass, one shuffle of small partial sums."""
    from pyspark.sql import functions as F

    def counted(column: str) -> Column:
        return F.when(F.col("inside"), F.col(column)).otherwise(F.lit(0))

    # A double: elapsed nanoseconds times a credit of 2^32 would not fit into 64 bits.
    seconds = F.col("elapsed_ns") / F.lit(float(_NS))
    stream = F.when(_is(STREAM_KINDS), F.col("channel")).otherwise(F.lit(0))
    bucket = F.when(_is(LATENCY_KINDS), bucket_of("value_ns"))
    ts = F.when(F.col("inside") | (F.col("elapsed_ns") > 0), F.col("ts_ns"))
    cells = events.groupBy(
        *more_keys,
        "run_id",
        F.col("kind").cast("int").alias("kind"),
        F.col("reason").cast("int").alias("reason"),
        stream.alias("stream"),
        bucket.alias("bucket"),
        (_is(LINK_KINDS) & (F.col("handle") >= F.lit(CHANNEL_HANDLE))).alias("amqp091"),
    ).agg(
        F.sum(F.col("inside").cast("long")).alias("events"),
        F.sum(counted("n")).alias("n"),
        F.sum(counted("bytes")).alias("bytes"),
        F.sum("elapsed_ns").alias("elapsed_ns"),
        F.sum(seconds * F.col("link_credit")).alias("credit_s"),
        F.sum(seconds * F.col("incoming_window")).alias("window_s"),
        F.sum(seconds * F.col("queue_credit")).alias("queue_credit_s"),
        F.sum(seconds * F.col("queue_depth")).alias("depth_s"),
        F.max(counted("link_credit")).alias("link_credit_max"),
        F.max(counted("queue_credit")).alias("queue_credit_max"),
        F.max(F.when(_is(DEPTH_KINDS), counted("queue_depth")).otherwise(F.lit(0))).alias("depth_max"),
        F.max(counted("bytes")).alias("bytes_max"),
        F.max(ts).alias("last_ns"),
    )
    # Events that do not count are dropped here and not before: a test of each event costs more.
    return cells.where("last_ns is not null")


def bucket_of(column: str) -> Column:
    """Return the bucket of the log-histogram (`histogram`) for a value in ns."""
    from pyspark.sql import functions as F

    value = F.col(column)
    # Spark divides logarithms, and gets a little less than 29 for 2^29.
    place = F.floor(F.log2(value) * F.lit(float(BUCKETS_AN_OCTAVE)) + F.lit(_ROUNDING)).cast("int")
    return F.when(value < 1, F.lit(ZERO_BUCKET)).otherwise(place)


def cells_of(columns: dict[str, list[Any]]) -> list[Cell]:
    names = Cell.__dataclass_fields__
    return [Cell(*values) for values in zip(*(columns[name] for name in names), strict=True)]


def collect(cells: DataFrame) -> list[Cell]:
    found = cells_of(cells.toArrow().to_pydict())
    return sorted(
        found,
        key=lambda cell: (cell.run_id, cell.kind, cell.reason, cell.stream, cell.bucket or 0, cell.amqp091),
    )


def _is(kinds: Iterable[EventKind]) -> Column:
    from pyspark.sql import functions as F

    return F.col("kind").isin([int(kind) for kind in kinds])
