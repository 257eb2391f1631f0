"""What does the analysis of a recording cost, and does it grow in proportion to the events?

Synthetic recordings (`synthetic`) of each size are written to a temporary folder, analysed by the same pass
as `amqp10broker analyse` makes, and removed. DuckDB adds up the same cells from the same files beside it,
as a peer that has no cluster. Each Spark measurement is a process of its own, so that its memory is its
own: the sum of the resident sets of the JVM, its executors and Python, at its highest.

Needs the extra ``spark``, and duckdb for the peer. Nothing is sent and no broker is started.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import MeasureError
from benchmarks.measure import Benchmark, Context, options
from benchmarks.processes import family_rss_bytes, own_rss_peak_bytes
from benchmarks.results import Outcome, Row

_COLUMNS: Final = ("events", "analyse_s", "events_per_s", "rss_mb", "disk_mb", "cells")
_MILLION: Final = 1_000_000
_LOOK_S: Final = 0.1
_LIMIT_S: Final = 1800.0


def run(context: Context) -> Outcome:
    """Measure every size on every engine."""
    options = context.options
    sizes: list[int] = options.events or (
        [_MILLION // 5] if context.quick else [10 * _MILLION, 30 * _MILLION]
    )
    repetitions: int = options.repetitions or 1
    samples: list[Row] = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="amqp10broker-analyse-", dir=options.data_root) as folder:
            recording = Path(folder) / "recording"
            context.say(f"writing {size:,} events")
            written, disk_mb = _write(recording, size)
            case = f"{size / _MILLION:g} million"
            for _ in range(repetitions):
                for engine in _engines(options):
                    row = {"case": case, "target": engine, "events": written, "disk_mb": disk_mb}
                    samples.append(row | _measure(engine, recording, Path(folder), options.cores))
                    took, speed = samples[-1]["analyse_s"], samples[-1]["events_per_s"]
                    context.say(f"{engine:14} {case:14} {took:8.1f} s, {speed:12,.0f} events/s")
    return Outcome(_COLUMNS, {"events": sizes, "repetitions": repetitions, "cores": options.cores}, samples)


def _engines(options: argparse.Namespace) -> list[str]:
    engines = ["spark local"]
    if options.cluster:
        engines.append("spark cluster")
    return engines if options.no_peer else [*engines, "duckdb"]


def _write(recording: Path, size: int) -> tuple[int, float]:
    from benchmarks import synthetic

    plants = synthetic.sweep(
        events=size, credits=(10, 50, 170, 500, 1000, 4000), windows=(50, 400, 2000, 10_000), repetitions=2
    )
    written = synthetic.write(recording, plants)
    return written, sum(path.stat().st_size for path in recording.rglob("*.parquet")) / 1e6


def _measure(engine: str, recording: Path, folder: Path, cores: int) -> Row:
    """Run one engine in a process of its own and watch its memory, children included."""
    command = [sys.executable, "-m", "benchmarks.analyse", engine, str(recording), str(folder), str(cores)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        _watched(process.pid) as highest,
    ):
        try:
            out, err = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise MeasureError(f"{engine}: not done after {_LIMIT_S:g} s") from None
    if process.returncode:
        raise MeasureError(f"{engine}: {err.strip().splitlines()[-1] if err.strip() else 'failed'}")
    told: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    events_per_s = told["events"] / told["seconds"]
    return {
        "analyse_s": told["seconds"],
        "events_per_s": events_per_s,
        # One that is over before it was looked at has at least its own.
        "rss_mb": max(highest[0], told["rss_peak_bytes"]) / 1e6,
        "cells": told["cells"],
        "counted": told["events"],
    }


@contextmanager
def _watched(pid: int) -> Iterator[list[int]]:
    """Inside, the first element becomes the highest memory of the process and all it has started."""
    highest, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            highest[0] = max(highest[0], family_rss_bytes(pid))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield highest
    finally:
        ended.set()
        watcher.join()


def _spark(recording: Path, master: str, conf: dict[str, str]) -> tuple[float, int, int]:
    """Seconds of the pass and of what follows from it, without the start of the session; events; cells."""
    from amqp10broker.analysis.inputs import find_recording
    from amqp10broker.analysis.job import measure_all, sum_up
    from amqp10broker.analysis.progress import Progress
    from amqp10broker.analysis.session import analysis_session

    spark = analysis_session(master, "1g", conf)
    try:
        began = time.perf_counter()
        found = find_recording(recording)
        cells = sum_up(found, spark, Progress(None))
        measured = measure_all(found, cells)
        return time.perf_counter() - began, sum(each.figures.events for each in measured), len(cells)
    finally:
        spark.stop()


def _duckdb(recording: Path) -> tuple[float, int, int]:
    from amqp10broker.analysis.inputs import find_recording
    from amqp10broker.analysis.job import measure_all
    from tests.support import flow_oracle

    began = time.perf_counter()
    found = find_recording(recording)
    cells = flow_oracle.cells(recording, found.spans)
    measured = measure_all(found, cells)
    return time.perf_counter() - began, sum(each.figures.events for each in measured), len(cells)


def _one(engine: str, recording: Path, folder: Path, cores: int) -> tuple[float, int, int]:
    if engine == "duckdb":
        return _duckdb(recording)
    if engine == "spark local":
        return _spark(recording, f"local[{cores}]", {})
    from tests.support.spark_cluster import spark_cluster

    logs = Path(tempfile.mkdtemp(prefix="cluster-", dir=folder))
    with spark_cluster(logs) as cluster:
        return _spark(recording, cluster.url, cluster.conf | {"spark.executor.extraJavaOptions": ""})


def main(arguments: list[str]) -> int:
    """Measure one engine in this process and print one line of JSON."""
    engine, recording, folder, cores = arguments
    seconds, events, cells = _one(engine, Path(recording), Path(folder), int(cores))
    told = {"seconds": seconds, "events": events, "cells": cells, "rss_peak_bytes": own_rss_peak_bytes()}
    print(json.dumps(told))
    return 0


BENCHMARK = Benchmark(
    "analyse",
    "What does the analysis of a recording cost? Synthetic events, Spark and DuckDB",
    run,
    options(
        events=([], "events of a recording (10 000 000 and 30 000 000)"),
        cluster=(False, "also on a standalone cluster of two workers"),
        cores=(2, "of the local session"),
        no_peer=(False, "leave out DuckDB"),
    ),
    # Needs Java and the extra spark, which the others do not.
    in_all=False,
)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
