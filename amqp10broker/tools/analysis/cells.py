"""Adds up all events of a recording in one pass, to a few hundred cells; and statistics of few repetitions.

A cell is a run, a kind of event, a reason, a stream, a bucket of the log-histogram and a protocol. Each
column is a sum or a maximum, so that batch and stream have the same expressions. A count belongs to the run
if the event's time lies in it, and an elapsed time with the part in it (`docs/analysis.md`).

Intervals are Student's; one repetition has None, never zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events import CHANNEL_HANDLE, EVENTS, FIELDS, EventKind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


BUCKETS_AN_OCTAVE: Final = 16
RATIO: Final = 2 ** (1 / BUCKETS_AN_OCTAVE)
"""Upper edge of a bucket divided by its lower edge: the bound of the error of a quantile."""
ZERO_BUCKET: Final = -1

Counts = Mapping[int, int]


def lower_edge_ns(bucket: int) -> float:
    return 0.0 if bucket <= ZERO_BUCKET else 2.0 ** (bucket / BUCKETS_AN_OCTAVE)


def merge(parts: Iterable[Counts]) -> dict[int, int]:
    whole: dict[int, int] = {}
    for part in parts:
        for bucket, count in part.items():
            whole[bucket] = whole.get(bucket, 0) + count
    return whole


def quantiles(counts: Counts, shares: Sequence[float]) -> list[float | None]:
    """Return the quantile in ns for each share from 0 to 1; None: nothing was counted."""
    filled = sorted((bucket, count) for bucket, count in counts.items() if count > 0)
    total = sum(count for _, count in filled)
    if not total:
        return [None] * len(shares)
    found: dict[float, float] = {}
    below, place = 0, 0
    for share in sorted(set(shares)):
        rank = share * total
        while below + filled[place][1] < rank and place < len(filled) - 1:
            below += filled[place][1]
            place += 1
        bucket, count = filled[place]
        # The values of a bucket are assumed to be evenly spread, on the logarithmic scale.
        inside = min(max((rank - below) / count, 0.0), 1.0)
        found[share] = lower_edge_ns(bucket) * RATIO**inside
    return [found[share] for share in shares]


def quantile(counts: Counts, share: float) -> float | None:
    return quantiles(counts, (share,))[0]


CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repetitions and, from two on, the interval that contains the true mean. `deviation`: of one
    repetition; None if there is only one.
    """

    mean: float
    low: float | None
    high: float | None
    repetitions: int
    deviation: float | None = None

    @property
    def half_width(self) -> float | None:
        return None if self.high is None else self.high - self.mean


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Return mean and interval of repetitions, or None if there are none. `confidence`: share of such
    intervals that contain the true mean.
    """
    if not values:
        return None
    mean = statistics.fmean(values)
    count = len(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    deviation = statistics.stdev(values, mean)
    half = _student_quantile(confidence, count - 1) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count, deviation)


@dataclass(frozen=True, slots=True)
class Scatter:
    """The scatter of repetitions, pooled over the settings that are compared. `noise`: deviation of one
    repetition from its mean, as a share of it.
    """

    noise: float
    freedom: int
    repetitions: float

    @property
    def typical(self) -> float:
        """The smallest difference that two settings with this mean number of repetitions show."""
        return self.visible(self.repetitions, self.repetitions)

    def visible(self, one: float, other: float) -> float:
        """Return the smallest difference, as a share of the better mean, that two settings show with so many
        repetitions.
        """
        quantile = _student_quantile(CONFIDENCE, self.freedom)
        return quantile * self.noise * math.sqrt(1 / one + 1 / other)


def scatter(groups: Sequence[Sequence[float]]) -> Scatter | None:
    """Return the scatter of repetitions, modelled as the same share of the mean for each setting.

    Two or three repetitions alone estimate their own scatter so badly that nearly no difference could be
    shown, or, where they are close by accident, any.

    `groups`: the repetitions of each setting; those with one, or a mean of 0, do not count. None: no setting
    has two.
    """
    squares, freedom = 0.0, 0
    for values in groups:
        mean = statistics.fmean(values) if values else 0.0
        if len(values) > 1 and mean:
            squares += sum((value / mean - 1) ** 2 for value in values)
            freedom += len(values) - 1
    if not freedom:
        return None
    repeated = [len(values) for values in groups if len(values) > 1]
    return Scatter(math.sqrt(squares / freedom), freedom, sum(repeated) / len(repeated))


def _student_quantile(confidence: float, freedom: int) -> float:
    # The import takes a tenth of a second, which readers of an estimate do not need.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))


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
        stream: that of the load generator; 0 for other kinds.
        bucket: that of the log-histogram; None for kinds that are not latencies.
        amqp091: channels and consumers, which have neither link credit nor windows.
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
    return spark.read.schema(event_type()).parquet(str(folder / EVENTS))


def cut(events: DataFrame, runs: Sequence[tuple[str, int, int | None]]) -> DataFrame:
    """Add the columns `inside` and `elapsed_ns`, the part of each event that lies in its run, and drop events
    of other runs. `runs`: run id, beginning and end in ns; None: the last event.
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
    # Events that do not count are dropped here and not before: a test of each event takes longer.
    return cells.where("last_ns is not null")


def bucket_of(column: str) -> Column:
    """Return the bucket of the log-histogram for a value in ns."""
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
