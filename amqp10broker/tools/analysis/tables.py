"""The tables beside the report, as CSV and as Parquet.

Each analysis writes each table, also without a row, with the same columns and types, so that programs can
rely on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events import CONFIGURATION, GENERAL, NOT_HELD_UP, RUN_FIELDS, EventKind
from amqp10broker.observe.recording import LinkNameIndex
from amqp10broker.tools.analysis.cells import quantiles
from amqp10broker.tools.analysis.figures import (
    DEFAULTS,
    GROUP,
    METRICS,
    SETTINGS,
    Compared,
    Configuration,
    ConfigurationFigures,
    Measured,
    RunStats,
    Stall,
    StreamStats,
    groups,
    in_milliseconds,
    reason_name,
)
from amqp10broker.tools.analysis.recommend import NoRecommendation, Recommendation

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
    return [_of_link(row, names.get(row[0])) for row in rows]


def _of_link(row: Sequence[Any], names: LinkNameIndex | None) -> LinkWait:
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


Row = dict[str, Any]
Columns = dict[str, str]

# Quantiles of latency curves.
CURVE: Final = (
    0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999,
)  # fmt: skip
_TYPES: Final = {
    "str": "string", "int": "int64", "int | None": "int64", "float": "double", "float | None": "double",
    "bool": "bool", "bool | None": "bool", "str | None": "string",
}  # fmt: skip
# Fields of records that other columns represent.
_SPREAD: Final = ("run_id", "configuration", "best")
# Suffixes of the columns of an estimated figure, and the field of each.
_ENDS: Final = {"": "mean", "_low": "low", "_high": "high"}
# A spreadsheet evaluates a text that begins with one of these as a formula.
_RISKY: Final = ("=", "+", "-", "@", "\t", "\r")


def columns_of(record: type) -> Columns:
    """Return the columns for the fields of a record, without those that other columns represent."""
    return {each.name: _TYPES[str(each.type)] for each in fields(record) if each.name not in _SPREAD}


def schema_of(columns: Columns) -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


_RUN_TYPES: Final = dict(RUN_FIELDS)
_NAMED: Final = {name: _RUN_TYPES[name] for name in CONFIGURATION}
_BEST: Final = {f"best_{name}": "int64" for name in SETTINGS}
_RUN: Final = {"run_id": "string", **_NAMED}

TABLES: Final[Mapping[str, Columns]] = {
    "runs": _RUN | columns_of(RunStats),
    "configurations": _NAMED
    | {"repetitions": "int64"}
    | {f"{metric}{end}": "double" for metric in METRICS for end in _ENDS},
    "stalls": _RUN | columns_of(Stall),
    "configuration_stalls": _NAMED | {"repetitions": "int64"} | columns_of(Stall),
    "streams": _RUN | columns_of(StreamStats),
    "waits": {"run_id": "string"} | columns_of(LinkWait),
    "latencies": _NAMED | {"latency": "string", "share": "double", "ms": "double", "messages": "int64"},
    "comparison": _NAMED | _BEST | columns_of(Compared) | {"relative": "double"},
    "recommendations": {"group": "string", "aim": "string"}
    | {name: _RUN_TYPES[name] for name in (*GROUP, *SETTINGS, "rate_limit_per_s")}
    | dict.fromkeys(("settings", "figure"), "string")
    | dict.fromkeys(("mean", "low", "high"), "double")
    | {"best": "string", "best_mean": "double", "proven": "bool", "default": "bool"}
    | dict.fromkeys(("as_good", "command_line", "reasons", "weak", "notes"), "string"),
}


def tables_of(
    measured: Sequence[Measured],
    found: Sequence[ConfigurationFigures],
    compared: Sequence[Compared],
    recommended: Sequence[Recommendation | NoRecommendation],
    waits: Sequence[LinkWait],
) -> dict[str, list[Row]]:
    return {
        "runs": [_spread(asdict(each.figures)) for each in measured],
        "configurations": [_configuration(each) for each in found],
        "stalls": [_spread(asdict(stall)) for each in measured for stall in each.stalls],
        "configuration_stalls": [row for each in found for row in _stalls(each, measured)],
        "streams": [_spread(asdict(stream)) for each in measured for stream in each.streams],
        "waits": [asdict(each) for each in waits],
        "latencies": [row for each in found for row in _latencies(each)],
        "comparison": [_comparison(each) for each in compared],
        "recommendations": [
            recommendation_row(one, members[0])
            for members, one in zip(groups(found), recommended, strict=True)
        ],
    }


def write_tables(folder: Path, tables: Mapping[str, Sequence[Row]]) -> list[Path]:
    """Write each table as ``NAME.csv`` and ``NAME.parquet``, replacing earlier files."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    written = []
    for name, columns in TABLES.items():
        schema = schema_of(columns)
        rows = list(tables[name])
        table = pa.Table.from_pylist(rows, schema=schema)
        harmless = pa.Table.from_pylist([_harmless(row) for row in rows], schema=schema)
        pyarrow.csv.write_csv(harmless, str(folder / f"{name}.csv"))
        pq.write_table(table, str(folder / f"{name}.parquet"), compression="zstd")
        written += [folder / f"{name}.csv", folder / f"{name}.parquet"]
    return written


def _harmless(row: Row) -> Row:
    # Escapes texts from clients, such as the name of a stream, so that a spreadsheet does not evaluate them.
    return {
        name: f"'{value}" if isinstance(value, str) and value.startswith(_RISKY) else value
        for name, value in row.items()
    }


def recommendation_row(one: Recommendation | NoRecommendation, member: ConfigurationFigures) -> Row:
    row: Row = {"group": one.group, "aim": one.aim, **dict(zip(GROUP, member.group, strict=True))}
    if isinstance(one, NoRecommendation):
        return {**row, "reasons": one.reason}
    return {
        **row,
        **dict(zip(SETTINGS, one.chosen.settings, strict=True)),
        "rate_limit_per_s": one.chosen.rate_limit_per_s,
        "settings": one.chosen.name(),
        "figure": f"{one.figure} ({one.unit})",
        "mean": one.chosen_figure.mean,
        "low": one.chosen_figure.low,
        "high": one.chosen_figure.high,
        "best": one.best.name(),
        "best_mean": one.best_figure.mean,
        "proven": one.unproven is None,
        "default": one.chosen.settings == DEFAULTS,
        "as_good": "; ".join(each.name() for each in one.as_good),
        "command_line": one.command_line,
        "reasons": "; ".join(one.reasons),
        "weak": "; ".join(one.weak),
        "notes": "; ".join(one.notes),
    }


def _named(configuration: Configuration) -> Row:
    return dict(zip(CONFIGURATION, configuration, strict=True))


def _spread(row: Row) -> Row:
    rest = {name: value for name, value in row.items() if name not in _SPREAD}
    return {"run_id": row["run_id"], **_named(row["configuration"]), **rest}


def _configuration(each: ConfigurationFigures) -> Row:
    row: Row = {**_named(each.configuration), "repetitions": len(each.runs)}
    for metric in METRICS:
        known = each.estimates.get(metric)
        row |= {f"{metric}{end}": getattr(known, name, None) for end, name in _ENDS.items()}
    return row


def _stalls(each: ConfigurationFigures, measured: Sequence[Measured]) -> Iterable[Row]:
    # Seconds of all repetitions together, and the mean share.
    own = {run.run_id for run in each.runs}
    seconds: dict[tuple[str, str], float] = {}
    for one in measured:
        for stall in one.stalls if one.figures.run_id in own else ():
            key = (stall.side, stall.reason)
            seconds[key] = seconds.get(key, 0.0) + stall.seconds
    for (side, reason), share in each.stalls.items():
        yield {
            **_named(each.configuration),
            "repetitions": len(each.runs),
            "side": side,
            "reason": reason,
            "seconds": seconds[side, reason],
            "share": share,
        }


def _latencies(each: ConfigurationFigures) -> Iterable[Row]:
    for name, counts in each.histograms.items():
        for share, value in zip(CURVE, in_milliseconds(quantiles(counts, CURVE)), strict=True):
            yield {
                **_named(each.configuration),
                "latency": name,
                "share": share,
                "ms": value,
                "messages": sum(counts.values()),
            }


def _comparison(each: Compared) -> Row:
    row, best = asdict(each), _named(each.best)
    beside = {f"best_{name}": best[name] for name in SETTINGS}
    rest = {name: value for name, value in row.items() if name not in _SPREAD}
    return {**_named(each.configuration), **beside, **rest, "relative": each.relative}
