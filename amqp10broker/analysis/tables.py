"""The tables beside the report, as CSV for people and as Parquet for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from amqp10broker.analysis.configurations import METRICS, Compared, ConfigurationFigures
from amqp10broker.analysis.figures import Configuration, Measured, in_milliseconds
from amqp10broker.analysis.histogram import quantiles
from amqp10broker.analysis.recommend import Recommendation, Undecided
from amqp10broker.flowevents.schema import CONFIGURATION

Row = dict[str, Any]

CURVE: Final = (
    0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999,
)  # fmt: skip
"""Shares at which latency curves are drawn and tabled."""


def tables_of(
    measured: Sequence[Measured],
    found: Sequence[ConfigurationFigures],
    compared: Sequence[Compared],
    recommended: Sequence[Recommendation | Undecided],
) -> dict[str, list[Row]]:
    """All tables by name; a table without rows is left out."""
    tables = {
        "runs": [_spread(asdict(each.figures)) for each in measured],
        "configurations": [_configuration(each) for each in found],
        "stalls": [_spread(asdict(stall)) for each in measured for stall in each.stalls],
        "streams": [_spread(asdict(stream)) for each in measured for stream in each.streams],
        "latencies": [row for each in found for row in _latencies(each)],
        "comparison": [_comparison(each) for each in compared],
        "recommendations": [recommendation_row(each) for each in recommended],
    }
    return {name: rows for name, rows in tables.items() if rows}


def write_tables(folder: Path, tables: Mapping[str, Sequence[Row]]) -> list[Path]:
    """Write each as ``NAME.csv`` and ``NAME.parquet``.

    Args:
        folder: must be there.
        tables: rows by name; all rows of a table have the same columns.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    written = []
    for name, rows in tables.items():
        table = pa.Table.from_pylist(list(rows))
        # A column in which nothing is known has no type of its own, and Parquet readers differ about it.
        fields = [
            pa.field(each.name, pa.float64()) if pa.types.is_null(each.type) else each
            for each in table.schema
        ]
        table = table.cast(pa.schema(fields))
        pyarrow.csv.write_csv(table, str(folder / f"{name}.csv"))
        pq.write_table(table, str(folder / f"{name}.parquet"), compression="zstd")
        written += [folder / f"{name}.csv", folder / f"{name}.parquet"]
    return written


def recommendation_row(one: Recommendation | Undecided) -> Row:
    """One recommendation as a row."""
    row: Row = {"group": one.group, "aim": one.aim}
    if isinstance(one, Undecided):
        names = ("settings", "figure", "mean", "low", "high", "best", "best_mean", "as_good", "command_line")
        return {
            **row,
            **dict.fromkeys(names),
            "reasons": "; ".join([one.reason, *one.seen]),
            "weak": None,
            "notes": None,
        }
    return {
        **row,
        "settings": one.chosen.name(),
        "figure": f"{one.figure} ({one.unit})",
        "mean": one.chosen_figure.mean,
        "low": one.chosen_figure.low,
        "high": one.chosen_figure.high,
        "best": one.best.name(),
        "best_mean": one.best_figure.mean,
        "as_good": "; ".join(each.name() for each in one.as_good),
        "command_line": one.command_line,
        "reasons": "; ".join(one.reasons),
        "weak": "; ".join(one.weak),
        "notes": "; ".join(one.notes),
    }


def _named(configuration: Configuration) -> Row:
    return dict(zip(CONFIGURATION, configuration, strict=True))


def _spread(row: Row) -> Row:
    """Put the values of the configuration in its place."""
    rest = {name: value for name, value in row.items() if name not in ("run_id", "configuration")}
    return {"run_id": row["run_id"], **_named(row["configuration"]), **rest}


def _configuration(each: ConfigurationFigures) -> Row:
    row: Row = {**_named(each.configuration), "repetitions": len(each.runs)}
    for metric in METRICS:
        known = each.estimates.get(metric)
        row[metric] = None if known is None else known.mean
        row[f"{metric}_low"] = None if known is None else known.low
        row[f"{metric}_high"] = None if known is None else known.high
    return row


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
    row = asdict(each)
    best = dict(zip(CONFIGURATION, row.pop("best"), strict=True))
    named = _named(row.pop("configuration"))
    for name in ("max_link_credit", "max_incoming_window", "max_queue_credit"):
        named[f"best_{name}"] = best[name]
    return {**named, **row, "relative": each.relative}
