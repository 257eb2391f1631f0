"""The batch on Spark: the same cells as DuckDB's, exact sums, quantiles within a bucket, one report."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from amqp10broker.observe.flow_events import CHANNEL_HANDLE, EVENTS, FIELDS, PACK, EventKind
from amqp10broker.observe.recording import EventWriter, write_run
from amqp10broker.tools.analysis.cells import RATIO, Cell, aggregate, bucket_of, collect, cut, read_events
from amqp10broker.tools.analysis.recommend import Aim, Recommendation
from amqp10broker.tools.analysis.report import ProgressLines, analyse, find_recording, measure_all, sum_up
from amqp10broker.tools.analysis.session import NothingToAnalyse
from tests.support import flow_oracle, synthetic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = ("run_id", "kind", "reason", "stream", "bucket", "amqp091")
DOUBLES = ("credit_s", "window_s", "queue_credit_s", "depth_s")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It has a sweep of 12 settings, two streams, an unfinished run, and a stray file being written. AMQP
    0-9-1 clients worked beside the two streams, and their queue had moments of many changes.
    """
    folder = tmp_path_factory.mktemp("recording")
    plants = synthetic.sweep(credits=(10, 50, 170, 500), windows=(50, 400, 2000), events=120_000)
    beside = synthetic.two_senders(events=9_000)
    synthetic.write(folder, plants + beside)
    with EventWriter(folder, beside[0].run.run_id, "broker") as writer:
        for each in of_channels(beside[0].run.began_ns):
            writer.write(each)
    write_run(folder, replace(plants[-1].run, ended_ns=None))
    growing = folder / EVENTS / f"run_id={plants[0].run.run_id}" / "_part-00001.parquet"
    growing.write_bytes(b"half of a file")
    return folder


def of_channels(began_ns: int) -> Iterator[bytes]:
    for number in range(50):
        for kind, handle in (
            (EventKind.LINK_IN, CHANNEL_HANDLE),
            (EventKind.LINK_OUT, CHANNEL_HANDLE + 1),
            (EventKind.QUEUE, 7),
        ):
            columns = {
                "ts_ns": began_ns + number * 10_000_019,
                "kind": int(kind),
                "handle": handle,
                "link_credit": number,
                "queue_credit": 3 * number,
                "queue_depth": number**3,
                "n": number,
                "value_ns": 1 + number % 7 * 1_500_007,
            }
            yield PACK.pack(*(columns.get(field.name, 0) for field in FIELDS))


@pytest.fixture(scope="module")
def cells(recording: Path, spark: SparkSession) -> list[Cell]:
    return sum_up(find_recording(recording), spark)


def key(cell: Cell) -> tuple[object, ...]:
    return tuple(getattr(cell, name) for name in KEYS)


def test_every_cell_is_the_one_that_duckdb_computes(recording: Path, cells: list[Cell]) -> None:
    """Counts, sums, maxima, times and buckets are equal, without a tolerance."""
    expected = flow_oracle.cells(recording, find_recording(recording).spans)
    assert {one.amqp091 for one in expected} == {False, True}
    by_key = {key(one): one for one in expected}
    assert len(cells) == len(by_key) == len(expected)
    for cell in cells:
        other = by_key[key(cell)]
        assert replace(cell, **dict.fromkeys(DOUBLES, 0.0)) == replace(other, **dict.fromkeys(DOUBLES, 0.0))
        for name in DOUBLES:
            assert getattr(cell, name) == pytest.approx(getattr(other, name), rel=1e-9)


def test_sums_are_those_of_the_files(recording: Path, cells: list[Cell]) -> None:
    """The simplest possible query checks them over the runs that have an end."""
    spans = [span for span in find_recording(recording).spans if span[2] is not None]
    with flow_oracle.connected(recording, spans) as db:
        expected = {
            row[:2]: row[2:]
            for row in db.sql(
                "select e.run_id, kind, count(*), sum(n), sum(bytes) from events e "
                "join runs r on e.run_id = r.run_id and ts_ns between began and ended group by all"
            ).fetchall()
        }
    found: dict[tuple[str, int], tuple[int, int, int]] = {}
    for cell in cells:
        events, n, size = found.get((cell.run_id, cell.kind), (0, 0, 0))
        found[cell.run_id, cell.kind] = (events + cell.events, n + cell.n, size + cell.bytes)
    assert {key: value for key, value in found.items() if key in expected} == expected
    assert {run_id for run_id, _, _ in spans} == {run_id for run_id, _ in expected}


def test_quantiles_are_within_a_bucket_of_the_exact_ones(recording: Path, cells: list[Cell]) -> None:
    found = find_recording(recording)
    measured = {each.figures.run_id: each.figures for each in measure_all(found, cells)}
    for span in found.spans[:40:15]:
        figures = measured[span[0]]
        for kind, values in (
            (
                EventKind.CLIENT_CONFIRM,
                (figures.confirm_p50_ms, figures.confirm_p99_ms, figures.confirm_p999_ms),
            ),
            (
                EventKind.CLIENT_DELIVERY,
                (figures.end_to_end_p50_ms, figures.end_to_end_p99_ms, figures.end_to_end_p999_ms),
            ),
        ):
            for share, value in zip((0.5, 0.99, 0.999), values, strict=True):
                exact = flow_oracle.exact_quantile(recording, span[0], kind, share, span) / 1e6
                assert exact / RATIO <= value <= exact * RATIO


def test_planted_figures_are_found(recording: Path, cells: list[Cell]) -> None:
    """Throughput is exact; stalls and utilisation are as drawn."""
    plants = synthetic.sweep(credits=(10, 50, 170, 500), windows=(50, 400, 2000), events=120_000)
    measured = measure_all(find_recording(recording), cells)
    by_run = {each.figures.run_id: each for each in measured}
    for plant in plants[:-1]:
        found, stream = by_run[plant.run.run_id], plant.streams[0]
        assert found.figures.throughput_per_s == pytest.approx(stream.rate_per_s, rel=0.006)
        assert found.figures.publisher_stall_share == pytest.approx(
            sum(stream.publisher_waits.values()), abs=0.11
        )
        assert found.figures.credit_utilisation == pytest.approx(1 - stream.credit_left, abs=0.05)
        assert found.figures.window_utilisation == pytest.approx(1 - stream.window_left, abs=0.03)
        assert found.figures.cpu_cores == pytest.approx(plant.cpu_cores, rel=1e-6)


@pytest.mark.parametrize("value", [0, 1, 2, 3, 1023, 1024, 1025, 2**29, 2**30 - 1, 2**40, 10**12])
def test_buckets_of_spark_are_those_of_the_definition(spark: SparkSession, value: int) -> None:
    """They agree at the edges, too, where a rounding error shows."""
    from amqp10broker.tools.analysis.cells import lower_edge_ns

    frame = spark.range(value, value + 1).select(bucket_of("id").alias("bucket"))
    (row,) = frame.collect()
    assert lower_edge_ns(row.bucket) <= value < lower_edge_ns(row.bucket + 1)


def test_parts_of_a_run_add_up_to_the_run(recording: Path, spark: SparkSession, cells: list[Cell]) -> None:
    """For a cut in two at any time the counts add up: nothing is counted twice."""
    run = find_recording(recording).runs[3]
    began, ended = run["began_ns"], run["ended_ns"]
    middle = began + (ended - began) * 2 // 7
    parts: dict[tuple[int, int], int] = {}
    for number, span in enumerate(((began, middle), (middle + 1, ended))):
        events = cut(read_events(spark, recording), [(run["run_id"], *span)])
        for cell in collect(aggregate(events)):
            parts[cell.kind, number] = parts.get((cell.kind, number), 0) + cell.n
    whole: dict[int, int] = {}
    for cell in cells:
        if cell.run_id == run["run_id"]:
            whole[cell.kind] = whole.get(cell.kind, 0) + cell.n
    assert {kind: parts.get((kind, 0), 0) + parts.get((kind, 1), 0) for kind in whole} == whole


def test_the_job_writes_report_and_tables_and_tells_its_steps(
    recording: Path, spark: SparkSession, tmp_path: Path
) -> None:
    said = io.StringIO()
    result = analyse(recording, tmp_path / "a" / "b", Aim(), spark, ProgressLines(said))
    found = next(one for one in result.recommended if isinstance(one, Recommendation))
    assert found.chosen.settings == (170, 400, 256)
    assert result.report.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in result.files) == sorted(
        path.name for path in (tmp_path / "a" / "b").iterdir()
    )
    configurations = pq.read_table(tmp_path / "a" / "b" / "configurations.parquet")
    assert configurations.num_rows == 13
    again = duckdb.sql(f"select count(*) from read_csv('{tmp_path}/a/b/runs.csv')").fetchall()
    assert again == [(39,)]
    assert [line.partition("] ")[2] for line in said.getvalue().splitlines()][-1:] == [
        "9 tables and the report written",
    ]


def test_events_of_warm_up_alone_are_nothing_to_analyse(spark: SparkSession, tmp_path: Path) -> None:
    """The run has begun but not finished its warm-up."""
    (plant,) = synthetic.two_senders(repetitions=1, events=400)
    synthetic.write(tmp_path, [plant])
    write_run(tmp_path, replace(plant.run, began_ns=plant.run.began_ns + 10**12, ended_ns=None))
    with pytest.raises(NothingToAnalyse, match="no event lies in the time that counts"):
        analyse(tmp_path, tmp_path / "out", Aim(), spark, ProgressLines(None))
