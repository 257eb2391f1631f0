"""Forecasts of many recordings by Spark are those that one process makes, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from amqp10broker.tools.analysis.what_if import answer_of_file, answers, files_of, table
from amqp10broker.tools.replay.many import COLUMNS, grid, table_rows
from tests.support.tape import write_tape
from tests.support.taped_publisher import BUSY, taped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = grid([20, 100], [400], [50.0])


def test_spark_says_what_one_process_says(spark: SparkSession, tmp_path: Path) -> None:
    """A recording a task; a file that is none has its row, and the others theirs."""
    for credit in (10, 20):
        tape = taped(BUSY, credit=credit, window=400, trip_s=0.05, messages=200)
        write_tape(tmp_path / f"{credit}.jsonl", tape)
    (tmp_path / "none.jsonl").write_text("{}\n")
    paths = files_of([str(tmp_path)])
    alone = [answer_of_file(path, SETTINGS) for path in paths]
    assert answers(spark, paths, SETTINGS) == alone
    found = table(spark, paths, SETTINGS)
    assert found.columns == list(COLUMNS)
    assert found.rdd.getNumPartitions() == 3
    rows = [row.asDict() for row in found.collect()]
    assert rows == [row for one in alone for row in table_rows(one)]
    assert [row["no_forecast"] is None for row in rows] == [True] * 4 + [False]
