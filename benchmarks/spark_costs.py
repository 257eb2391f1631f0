"""What both questions about Spark share: a session, a query into Parquet, processor time by who spends it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.broker_process import OwnBroker
from benchmarks.processes import descendants, process_cpu_s
from benchmarks.results import Row


@contextmanager
def session(cores: int, folder: Path) -> Iterator[Any]:
    """A local session that knows the connector and the floor's source."""
    from amqp10broker.spark.session import local_session, register
    from benchmarks.spark_floor import FloorSource

    conf = {"spark.local.dir": str(folder / "local")}
    spark = local_session("benchmark", cores=f"local[{cores}]", conf=conf)
    try:
        register(spark)
        spark.dataSource.register(FloorSource)
        yield spark
    finally:
        spark.stop()


def to_parquet(spark: Any, source: str, options: dict[str, str], place: Path) -> None:
    """Run a query from a source into Parquet until it has everything that is there."""
    stream = spark.readStream.format(source).options(**options).load().writeStream.format("parquet")
    stream = stream.option("path", str(place / "out")).option("checkpointLocation", str(place / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()


@contextmanager
def costs(
    case: str, broker: OwnBroker, count: int, spark: Any = None, *, target: str = "broker"
) -> Iterator[Row]:
    """Inside, work; behind it the row has the rate and who spent how much processor time a row of data.

    Args:
        case: what is measured.
        broker: whose processor time counts.
        count: rows.
        spark: the session that works, whose Python workers and JVM count; None: this process works.
        target: "broker" or "floor".
    """
    row: Row = {"case": case, "target": target}

    def spent() -> dict[str, float]:
        parts = {"cpu_us": broker.cpu_s() or 0.0}
        if spark is None:
            return parts | {"reader_cpu_us": time.process_time()}
        jvm = spark.sparkContext._gateway.proc.pid
        return parts | {"python_cpu_us": python_cpu_s(jvm), "jvm_cpu_us": process_cpu_s(jvm)}

    before, machine, began = spent(), _machine_cpu_s(), time.monotonic()
    yield row
    seconds = time.monotonic() - began
    parts = {name: late - before[name] for name, late in spent().items()}
    row |= {"rate_per_s": count / seconds, **{name: cpu / count * 1e6 for name, cpu in parts.items()}}
    row["cores_busy"] = sum(parts.values()) / seconds
    row["machine_busy"] = (_machine_cpu_s() - machine) / seconds


def _machine_cpu_s() -> float:
    """Processor time of everything that runs here, from /proc/stat (user, nice, system)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(map(int, fields[1:4])) / os.sysconf("SC_CLK_TCK")


def python_cpu_s(jvm: int) -> float:
    """Processor time of the processes under the JVM: its Python daemons and their workers."""
    total = 0.0
    for pid in descendants(jvm):
        try:
            total += process_cpu_s(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # a worker that ends takes its time along; Spark keeps them for a minute
    return total
