"""A program that runs queries of the data source, as a Spark application of its own; tests kill it.

    python -m tests.support.spark_driver PLAN.json

The plan is written by `tests.support.spark_process`, which documents it. How a query ended stands in a file
of its own, ``outcomes/NAME``, as JSON; each failure on the way in ``outcomes/NAME.1`` and so on.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqp10broker.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Plan = Mapping[str, Any]

# Spark gives the Python process of a source ten seconds to start: too few for several on a busy machine.
STARTING = threading.Lock()
_NOT_IN_TIME = "Python worker failed to connect back"
_POLL_S = 0.05


def started(start: Callable[[], Any]) -> Any:
    """Start a streaming query, and wait until its source is there or it has failed.

    Spark gives the Python process of a source ten seconds to start, which no setting changes. A query that
    ended because of that has done nothing, and is started again.
    """
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(_POLL_S)
        failure = query.exception()
        if failure is None or _NOT_IN_TIME not in str(failure):
            return query


def run_range(spark: SparkSession, plan: Plan) -> dict[str, Any]:
    """Show without a data source that executors run, and report their number and Java."""
    from pyspark.sql.functions import udf

    def where(row: int) -> str:
        import os

        return os.environ["SPARK_EXECUTOR_DIRS"]

    rows = spark.range(0, int(plan["rows"]), 1, 4).select(udf(where)("id").alias("executor"))
    counts = rows.groupBy("executor").count().collect()
    java = spark.sparkContext._jvm.java.lang.System.getProperty("java.specification.version")
    return {"rows": sum(row["count"] for row in counts), "executors": len(counts), "java": java}


def run_batch(spark: SparkSession, plan: Plan) -> dict[str, Any]:
    frame = spark.read.format("amqp10").options(**plan["source"]).load()
    frame.write.parquet(plan["sink"])
    return {"rows": spark.read.parquet(plan["sink"]).count()}


def run_stream(spark: SparkSession, plan: Plan) -> dict[str, Any]:
    """Read ``spark.readStream`` to Parquet, to copies of each batch, or back to the broker."""
    frame = spark.readStream.format("amqp10").options(**plan["source"]).load()
    if "slow_ms" in plan:
        frame = slowed(frame, int(plan["slow_ms"]), plan["marks"])
    writer = frame.writeStream.option("checkpointLocation", plan["checkpoint"]).trigger(**plan["trigger"])
    if "to" in plan:
        writer = writer.format("amqp10").options(**plan["to"])
    elif "copies" in plan:
        writer = writer.foreachBatch(copying(Path(plan["copies"]), plan.get("stop_in")))
    else:
        writer = writer.format("parquet").option("path", plan["sink"])
    with STARTING:
        query = started(writer.start)
    query.awaitTermination()
    return {"rows": sum(each["numInputRows"] for each in query.recentProgress)}


def copying(folder: Path, stop_in: int | None) -> Callable[[DataFrame, int], None]:
    """Keep each attempt at each batch as ``folder/BATCH/ATTEMPT``, rows in order of arrival."""

    def copy(frame: DataFrame, batch: int) -> None:
        place = folder / str(batch)
        attempt = len(list(place.iterdir())) if place.exists() else 0
        frame.coalesce(1).write.parquet(str(place / str(attempt)))
        if batch == stop_in:
            (folder / "stopped").touch()
            threading.Event().wait()

    return copy


def slowed(frame: DataFrame, delay_ms: int, marks: str) -> DataFrame:
    """Pass the rows through slow Python workers, which a test can kill."""

    def wait(batches: Any) -> Any:
        import os
        import time
        from pathlib import Path

        mark = Path(marks, str(os.getpid()))
        for batch in batches:
            mark.touch()
            time.sleep(delay_ms / 1000)
            mark.unlink()
            yield batch

    return frame.mapInArrow(wait, frame.schema)


RUNS: Mapping[str, Callable[[SparkSession, Plan], dict[str, Any]]] = {
    "range": run_range,
    "batch": run_batch,
    "stream": run_stream,
}


def run(spark: SparkSession, plan: Plan, note: Path) -> None:
    """Run one query, and retry it if the plan says so; record its outcome."""
    for attempt in range(1, int(plan.get("attempts", 1)) + 1):
        try:
            outcome = {"outcome": "ended", **RUNS[plan["run"]](spark, plan)}
        except Exception as error:
            outcome = {"outcome": "failed", "error": str(error), "type": type(error).__name__}
            write(note.with_name(f"{note.name}.{attempt}"), outcome)
        else:
            break
    write(note, outcome)


def write(path: Path, outcome: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(outcome))
    os.replace(temporary, path)


def main() -> int:
    """Run all queries of the plan at the same time."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    spark = local_session("driver", cores=plan["master"], conf=plan["conf"])
    if any(query["run"] != "range" for query in plan["queries"].values()):
        from amqp10broker.spark.session import register

        register(spark)
    outcomes = Path(plan["outcomes"])
    threads = [
        threading.Thread(target=run, args=(spark, query, outcomes / name))
        for name, query in plan["queries"].items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
