"""Finds the longest waits of single links, with time, duration and reason.

A wait is a chain of events of a link without a gap and without a delivery. To avoid sorting all events, they
are first added up by link, general reason and second; where the times of a second have a gap, the longest of
its events counts. So a wait is exact if nothing else happened in its seconds, and else too short by a part of
its first and last second. Waits of consumers without an obstacle (the queue was empty, or another consumer is
active) are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events.schema import GENERAL, NOT_HELD_UP, EventKind
from amqp10broker.observe.recording.link_names import LinkNameIndex
from amqp10broker.tools.analysis.figures import reason_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The longest ones of a recording.
WAITS_MAX: Final = 200
_NS: Final = 1_000_000_000
_PLACE: Final = ("run_id", "kind", "connection", "channel", "handle")
_WAIT: Final = (*_PLACE, "general", "began_ns", "ended_ns", "reason")


@dataclass(frozen=True, slots=True)
class LinkWait:
    """An uninterrupted wait of one link for one reason. `link`: its name (AMQP 0-9-1: consumer tag); None
    with the next four if no names were recorded.
    """

    run_id: str
    side: str
    link: str | None
    address: str | None
    client: str | None
    user: str | None
    vhost: str | None
    connection: int
    channel: int
    handle: int
    reason: str
    began_ns: int
    seconds: float

    @property
    def subject(self) -> str:
        numbers = f"connection {self.connection}, channel {self.channel}"
        if self.link is None:
            return f"{self.side}, {numbers}, handle {self.handle}"
        return f"{self.side} {self.link} ({numbers})" if self.link else f"{self.side}, {numbers}"


def find_waits(events: DataFrame) -> list[tuple[Any, ...]]:
    """Return the longest waits of all runs, the longest first, one row of `_WAIT` each."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    general = _general("reason")
    began = F.col("ts_ns") - F.col("value_ns")
    span = F.struct(F.col("value_ns").alias("length"), began.alias("began"), F.col("ts_ns").alias("ended"))
    links = F.col("kind").isin(int(EventKind.LINK_IN), int(EventKind.LINK_OUT))
    held = ~general.isin(list(NOT_HELD_UP))
    seconds = (
        events.where(links & held & (F.col("n") == 0) & (F.col("elapsed_ns") > 0))
        .groupBy(*_PLACE, general.alias("general"), F.floor(F.col("ts_ns") / _NS).alias("second"))
        .agg(
            F.sum("value_ns").alias("total"),
            F.min(began).alias("began"),
            F.max("ts_ns").alias("ended"),
            F.max(span).alias("longest"),
            F.max_by("reason", "ts_ns").alias("reason"),
        )
    )
    whole = F.col("total") == F.col("ended") - F.col("began")
    pieces = seconds.select(
        *_PLACE,
        "general",
        "reason",
        F.when(whole, F.col("began")).otherwise(F.col("longest.began")).alias("began_ns"),
        F.when(whole, F.col("ended")).otherwise(F.col("longest.ended")).alias("ended_ns"),
    )
    along = Window.partitionBy(*_PLACE, "general").orderBy("began_ns")
    apart = F.coalesce(F.lag("ended_ns").over(along) != F.col("began_ns"), F.lit(True))
    chains = pieces.withColumn("chain", F.sum(apart.cast("int")).over(along))
    waits = chains.groupBy(*_PLACE, "general", "chain").agg(
        F.min("began_ns").alias("began_ns"),
        F.max("ended_ns").alias("ended_ns"),
        F.max_by("reason", "ended_ns").alias("reason"),
    )
    order = [(F.col("ended_ns") - F.col("began_ns")).desc(), *_PLACE, "began_ns"]
    longest = waits.select(*_WAIT).orderBy(*order).limit(WAITS_MAX).toArrow().to_pydict()
    return list(zip(*(longest[name] for name in _WAIT), strict=True))


def name_waits(rows: Iterable[Sequence[Any]], names: Mapping[str, LinkNameIndex]) -> list[LinkWait]:
    return [_named(row, names.get(row[0])) for row in rows]


def _named(row: Sequence[Any], names: LinkNameIndex | None) -> LinkWait:
    run_id, kind, connection, channel, handle, _, began_ns, ended_ns, reason = row
    name = None if names is None else names.find((kind, connection, channel, handle), began_ns)
    return LinkWait(
        run_id=run_id,
        side="publisher" if kind == EventKind.LINK_IN else "consumer",
        **{each: getattr(name, each, None) for each in ("link", "address", "client", "user", "vhost")},
        connection=connection,
        channel=channel,
        handle=handle,
        reason=reason_name(reason),
        began_ns=began_ns,
        seconds=(ended_ns - began_ns) / _NS,
    )


def _general(column: str) -> Column:
    from pyspark.sql import functions as F

    value = F.col(column).cast("int")
    return reduce(
        lambda otherwise, case: F.when(value == case, F.lit(GENERAL[case])).otherwise(otherwise),
        [reason for reason, general in GENERAL.items() if reason != general],
        value,
    )
