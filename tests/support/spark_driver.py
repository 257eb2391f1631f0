"""A program that runs one query of the data source, as a Spark application of its own; tests kill it.

    python -m tests.support.spark_driver PLAN.json

The plan is written by `tests.support.spark_process`. The last line of standard output is the outcome, as
JSON: ``{"outcome": "ended", ...}`` or ``{"outcome": "failed", "error": ...}``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqp10broker.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Plan = Mapping[str, Any]


def run_range(spark: SparkSession, plan: Plan) -> dict[str, Any]:
    """No data source: proves that executors run, and tells on how many, and by which Java."""
    from pyspark.sql.functions import udf

    def where(row: int) -> str:
        import os

        return os.environ["SPARK_EXECUTOR_DIRS"]

    rows = spark.range(0, int(plan["rows"]), 1, 4).select(udf(where)("id").alias("executor"))
    counts = rows.groupBy("executor").count().collect()
    java = spark.sparkContext._jvm.java.lang.System.getProperty("java.specification.version")
    return {"rows": sum(row["count"] for row in counts), "executors": len(counts), "java": java}


def run_batch(spark: SparkSession, plan: Plan) -> dict[str, Any]:
    """``spark.read`` to Parquet."""
    frame = spark.read.format("amqp10").options(**plan["source"]).load()
    frame.write.parquet(plan["sink"])
    return {"rows": spark.read.parquet(plan["sink"]).count()}


def run_stream(spark: SparkSession, plan: Plan) -> dict[str, Any]:
    """``spark.readStream`` to Parquet or back to the broker, with a checkpoint."""
    frame = spark.readStream.format("amqp10").options(**plan["source"]).load()
    if plan.get("slow_ms"):
        frame = slowed(frame, int(plan["slow_ms"]))
    writer = frame.writeStream.option("checkpointLocation", plan["checkpoint"]).trigger(**plan["trigger"])
    if "to" in plan:
        query = writer.format("amqp10").options(**plan["to"]).start()
    elif "copies" in plan:
        query = writer.foreachBatch(copying(Path(plan["copies"]), plan.get("stop_in"))).start()
    else:
        query = writer.format("parquet").start(plan["sink"])
    query.awaitTermination()
    return {"rows": sum(each["numInputRows"] for each in query.recentProgress)}


def copying(folder: Path, stop_in: int | None) -> Callable[[DataFrame, int], None]:
    """A sink that keeps each attempt at each batch: ``folder/BATCH/ATTEMPT``, rows in the order they came.

    Args:
        folder: where.
        stop_in: stop for ever behind writing this batch, before Spark notes that it is done.
    """

    def copy(frame: DataFrame, batch: int) -> None:
        place = folder / str(batch)
        attempt = len(list(place.iterdir())) if place.exists() else 0
        frame.coalesce(1).write.parquet(str(place / str(attempt)))
        if batch == stop_in:
            (folder / "stopped").touch()
            threading.Event().wait()

    return copy


def slowed(frame: DataFrame, delay_ms: int) -> DataFrame:
    """The same rows through a Python worker that takes its time for each batch of them, to be killed in."""

    def wait(batches: Any) -> Any:
        import time

        for batch in batches:
            time.sleep(delay_ms / 1000)
            yield batch

    return frame.mapInArrow(wait, frame.schema)


RUNS: Mapping[str, Callable[[SparkSession, Plan], dict[str, Any]]] = {
    "range": run_range,
    "batch": run_batch,
    "stream": run_stream,
}


def main() -> int:
    """Run the plan, and print how it ended."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    spark = local_session("driver", cores=plan["master"], conf=plan["conf"])
    try:
        if plan["run"] != "range":
            from amqp10broker.spark.register import register

            register(spark)
        outcome = {"outcome": "ended", **RUNS[plan["run"]](spark, plan)}
    except Exception as error:
        outcome = {"outcome": "failed", "error": str(error), "type": type(error).__name__}
    # The newline first: a library may have left a line unfinished.
    sys.stdout.write("\n" + json.dumps(outcome) + "\n")
    sys.stdout.flush()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
