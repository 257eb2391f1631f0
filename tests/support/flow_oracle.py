"""DuckDB over the files of a recording: what Spark must find, computed by somebody else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from amqp10broker.observe.flow_events import EVENTS, EventKind
from amqp10broker.tools.analysis.cells import Cell
from amqp10broker.tools.analysis.figures import Measured
from amqp10broker.tools.analysis.report import RecordingData, find_recording, measure_all

_ELAPSED = "(1, 2, 7, 8, 9, 11, 12, 13)"
_LATENCY = "(3, 4, 5, 6)"
_STREAMS = "(5, 6, 11, 12)"

_CELLS = f"""
with cut as (
    select e.*, e.ts_ns between r.began and r.ended as inside,
        case when kind in {_ELAPSED}
            then greatest(least(ts_ns, r.ended) - greatest(ts_ns - value_ns, r.began), 0)
            else 0 end as elapsed
    from events e join runs r on e.run_id = r.run_id
)
select run_id, kind, reason, case when kind in {_STREAMS} then channel else 0 end as stream,
    case when kind not in {_LATENCY} then null when value_ns < 1 then -1
        else floor(log2(value_ns) * 16 + 1e-9)::int end as bucket,
    kind in (1, 2) and handle >= 2147483648 as amqp091,
    count(*) filter (inside) as events,
    coalesce(sum(n) filter (inside), 0)::bigint as n,
    coalesce(sum(bytes) filter (inside), 0)::bigint as bytes,
    sum(elapsed)::bigint as elapsed_ns, sum(elapsed / 1e9 * link_credit) as credit_s,
    sum(elapsed / 1e9 * incoming_window) as window_s, sum(elapsed / 1e9 * queue_credit) as queue_credit_s,
    sum(elapsed / 1e9 * queue_depth) as depth_s,
    coalesce(max(link_credit) filter (inside), 0) as link_credit_max,
    coalesce(max(queue_credit) filter (inside), 0) as queue_credit_max,
    coalesce(max(queue_depth) filter (inside and kind in (8, 9)), 0) as depth_max,
    coalesce(max(bytes) filter (inside), 0) as bytes_max, max(ts_ns) as last_ns
from cut where inside or elapsed > 0 group by all order by run_id, kind, reason, stream, bucket, amqp091
"""


def cells(folder: Path, spans: Iterable[tuple[str, int, int | None]]) -> list[Cell]:
    """Return the cells of a recording, as `tools.analysis.cells` defines them."""
    with connected(folder, spans) as db:
        rows = db.sql(_CELLS).fetchall()
    return [Cell(*row) for row in rows]


def connected(folder: Path, spans: Iterable[tuple[str, int, int | None]] = ()) -> duckdb.DuckDBPyConnection:
    db = duckdb.connect()
    files = f"{folder}/{EVENTS}/*/[!_]*.parquet"
    db.sql(
        f"create view events as select * from read_parquet('{files}', hive_partitioning = true, "
        "hive_types = {'run_id': varchar})"
    )
    db.sql("create table runs (run_id varchar, began bigint, ended bigint)")
    for run_id, began, ended in spans:
        db.execute(
            "insert into runs values (?, ?, ?)", [run_id, began, 2**63 - 1 if ended is None else ended]
        )
    return db


def exact_quantile(folder: Path, run_id: str, kind: EventKind, share: float, span: Sequence[Any]) -> int:
    """Return the smallest latency in ns that this many messages do not exceed, by sorting all."""
    with connected(folder) as db:
        found = db.execute(
            """
            with chosen as (select value_ns, n from events
                          where run_id = ? and kind = ? and n > 0 and ts_ns between ? and ?),
                 summed as (select value_ns, sum(n) over (order by value_ns) as below, sum(n) over () as total
                            from chosen)
            select min(value_ns) from summed where below >= ? * total
            """,
            [run_id, int(kind), span[1], span[2], share],
        ).fetchone()
    return int(found[0])


def measured(folder: Path) -> tuple[RecordingData, list[Measured]]:
    recording = find_recording(folder)
    return recording, measure_all(recording, cells(folder, recording.spans))
