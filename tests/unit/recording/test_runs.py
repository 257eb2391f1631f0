"""Rows of runs: one file each, replaced as a whole, read back as they were."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqp10broker.observe.flow_events import RUN_FIELDS
from amqp10broker.observe.recording.runs import (
    EventWriter,
    RunRecord,
    claim_run,
    read_run,
    read_runs,
    write_run,
)

WHOLE = RunRecord(
    run_id="sweep-1",
    benchmark="sweep",
    case="both 100 B",
    repetition=3,
    began_ns=1_700_000_000_000_000_000,
    ended_ns=1_700_000_005_000_000_000,
    max_link_credit=170,
    max_incoming_window=400,
    max_queue_credit=256,
    message_size_bytes=100,
    queue_type="quorum",
    protocol="amqp10",
    publishers=2,
    consumers=1,
    rate_limit_per_s=1e4,
    durable=True,
    sample_ms=50,
    events_dropped=0,
    broker_version="1",
    python_version="3.11",
    machine="two cores",
    settings='{"a": 1}',
)


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = write_run(tmp_path, WHOLE)
    assert path == tmp_path / "runs.parquet" / "sweep-1.parquet"
    assert read_runs(tmp_path) == [WHOLE]
    assert read_run(tmp_path, "sweep-1") == WHOLE
    types = pq.ParquetFile(path).schema_arrow
    assert [(name, str(types.field(name).type)) for name, _ in RUN_FIELDS] == list(RUN_FIELDS)


def test_a_name_that_has_a_run_gets_a_number(tmp_path: Path) -> None:
    """The rows of those before stay as they are."""
    for began_ns, expected in enumerate([("prod", 1), ("prod-2", 2), ("prod-3", 3)]):
        row, number = claim_run(tmp_path, replace(WHOLE, run_id="prod", began_ns=began_ns))
        assert (row.run_id, number) == expected
        assert read_run(tmp_path, row.run_id) == row
    assert claim_run(tmp_path, replace(WHOLE, run_id="prod"), 7)[1] == 7
    assert claim_run(tmp_path, replace(WHOLE, run_id="prod"))[1] == 4
    assert [run.began_ns for run in read_runs(tmp_path)][:3] == [0, 1, 2]


@pytest.mark.parametrize("there", ["row", "events", "growing"])
def test_whatever_is_there_of_a_run_takes_its_name(tmp_path: Path, there: str) -> None:
    """A row without events, events without a row, and those of a helper that was killed."""
    if there == "row":
        write_run(tmp_path, WHOLE)
    else:
        with EventWriter(tmp_path, WHOLE.run_id) as writer:
            (writer.folder / ("_" * (there == "growing") + "part-broker-00000.parquet")).write_bytes(b"")
    assert claim_run(tmp_path, WHOLE)[0].run_id == "sweep-1-2"


def test_of_many_who_ask_at_once_each_gets_a_run_of_his_own(tmp_path: Path) -> None:
    """As two brokers with one folder do."""
    barrier = threading.Barrier(8)

    def claim(publisher_count: int) -> str:
        barrier.wait()
        row, _ = claim_run(tmp_path, replace(WHOLE, run_id="prod", publishers=publisher_count))
        assert read_run(tmp_path, row.run_id).publishers == publisher_count
        return row.run_id

    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(claim, range(8)))
    assert sorted(got) == sorted(["prod", *(f"prod-{number}" for number in range(2, 9))])
