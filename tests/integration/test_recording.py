"""Recordings by the real process: what clients did stands in the files, whatever happens meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from proton import Delivery

from amqp10broker.observe.flow_events import EventKind
from amqp10broker.observe.recording import RunRecord, read_events, read_runs
from tests.support.broker_process import REPOSITORY, BrokerProcess, StartBroker, run_program

pytestmark = pytest.mark.usefixtures("deadline")

COUNT: Final = 300
WAIT_S: Final = 30.0


def total(recording: Path, run_id: str, kind: EventKind, column: str = "n") -> int:
    """DuckDB sums a column over events of a kind, since it must read what pyarrow reads."""
    files = recording / "events" / f"run_id={run_id}" / "*.parquet"
    query = f"select coalesce(sum({column}), 0)::bigint from '{files}' where kind = {int(kind)}"
    (row,) = duckdb.sql(query).fetchall()
    table = read_events(recording, run_id)
    kinds, values = table["kind"].to_pylist(), table[column].to_pylist()
    assert row[0] == sum(value for each, value in zip(kinds, values, strict=True) if each == kind)
    return int(row[0])


def until(condition: Callable[[], Any], what: str) -> Any:
    """Poll until the condition holds, for effects of another process."""
    end = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.01)
    return value


def look_at(broker: BrokerProcess) -> None:
    """Wait for a sample: the recorder misses a link that comes and goes between two samples."""

    def looks() -> int:
        return int(broker.ask("record-status")["recording"]["looks"])

    before = looks()
    until(lambda: looks() >= before + 2, "a look of the recorder")


def publish_and_consume(clients: Any, broker: BrokerProcess, queue: str) -> None:
    client = clients(broker)
    sender = client.sender(queue)
    outcomes = sender.send(*["x" * 100] * COUNT)
    assert {each.state for each in outcomes} == {Delivery.ACCEPTED}
    receiver = client.receiver(queue, credit=COUNT)
    receiver.settle(receiver.take(COUNT))
    broker.wait_for_counts(queue, ready=0)
    if broker.ask("record-status")["recording"]:
        look_at(broker)
    client.close()


def test_what_proton_did_stands_in_the_files(start_broker: StartBroker, clients: Any, tmp_path: Path) -> None:
    """Each delivery is recorded once per direction, with times of some confirms and settlements."""
    recording = tmp_path / "recording"
    broker = start_broker("--record", str(recording), "--record-run", "one", "--record-every", "10")
    publish_and_consume(clients, broker, "q")
    broker.stop()
    assert total(recording, "one", EventKind.LINK_IN) == COUNT
    assert total(recording, "one", EventKind.LINK_OUT) == COUNT
    confirmed, settled = (total(recording, "one", kind) for kind in (EventKind.CONFIRM, EventKind.SETTLE))
    assert confirmed <= COUNT
    assert settled <= COUNT
    (run,) = read_runs(recording)
    check_row(run, 10)
    observed_ns = total(recording, "one", EventKind.PROCESS, "value_ns")
    assert 0.5 * (run.ended_ns - run.began_ns) < observed_ns < 1.1 * (run.ended_ns - run.began_ns)
    assert 100 * COUNT < total(recording, "one", EventKind.CONNECTION_IN, "bytes") < 1000 * COUNT
    assert not list(recording.rglob("_*"))


def check_row(run: RunRecord, every_ms: int) -> None:
    assert (run.run_id, run.benchmark, run.sample_ms) == ("one", "broker", every_ms)
    assert (run.max_link_credit, run.max_incoming_window, run.max_queue_credit) == (170, 400, 256)
    assert run.events_dropped == 0
    assert '"name": "q"' in run.settings
    assert os.uname().nodename not in str(run)


def test_a_recording_begins_and_ends_while_the_broker_runs(
    start_broker: StartBroker, clients: Any, tmp_path: Path
) -> None:
    """The command line controls it; earlier deliveries are not recorded."""
    broker = start_broker()
    recording = tmp_path / "recording"
    client = clients(broker)
    sender = client.sender("q")
    sender.send(*["before"] * 7)
    assert "is not recording" in (before := broker.run_command("record", "status")).stdout
    assert before.returncode == 1
    started = broker.run_command("record", "start", str(recording), "--every", "10", "--run", "r")
    assert (started.returncode, started.stdout) == (0, f"recording to {recording}, run r\n")
    sender.send(*["during"] * 5)
    shown = broker.run_command("record", "status")
    assert (shown.returncode, "every 10 ms" in shown.stdout) == (0, True)
    assert "recording to" in broker.run_command("status").stdout
    again = broker.run_command("record", "start", str(recording))
    assert (again.returncode, "records already into" in again.stderr) == (1, True)
    stopped = broker.run_command("record", "stop")
    assert (stopped.returncode, "0 dropped" in stopped.stdout) == (0, True)
    sender.send(*["after"] * 3)
    assert total(recording, "r", EventKind.LINK_IN) == 5
    stopped = broker.run_command("record", "stop")
    assert (stopped.returncode, "is not recording" in stopped.stderr) == (1, True)
    assert broker.ask("record-status") == {"recording": None, "failed": None}


def test_a_broker_that_starts_again_records_a_run_of_its_own(
    start_broker: StartBroker, clients: Any, tmp_path: Path
) -> None:
    """Its configured name stays the same, and another broker writes into the same folder meanwhile."""
    recording = tmp_path / "recording"
    arguments = ("--record", str(recording), "--record-run", "prod", "--record-every", "10")
    one, other = start_broker(*arguments), start_broker(*arguments)
    for broker in (one, other):
        publish_and_consume(clients, broker, "q")
    broker.ask("set", name="max_link_credit", value=50)
    # Not before the helper has made the run; then the next name is not free any more.
    until(
        lambda: (recording / "runs.parquet" / "prod-3.parquet").exists(), "the next run of the other broker"
    )
    publish_and_consume(clients, broker, "q")
    for broker in (one, other):
        broker.stop()
    again = start_broker(*arguments)
    publish_and_consume(clients, again, "q")
    assert again.ask("record-status")["recording"]["run_id"] == "prod-4"
    again.stop()
    assert again.wait_for_log("recording")["run_id"] == "prod-4"
    runs = read_runs(recording)
    assert {run.run_id for run in runs} == {"prod", "prod-2", "prod-3", "prod-4"}
    for run in runs:
        assert total(recording, run.run_id, EventKind.LINK_IN) == COUNT
        assert (run.protocol, run.events_dropped) == ("amqp10", 0)
        at = read_events(recording, run.run_id)["ts_ns"].to_pylist()
        assert run.began_ns <= min(at) <= max(at) <= run.ended_ns, "nothing of another run"


@pytest.mark.parametrize("lacks_pyarrow", [False, True])
def test_a_broker_that_cannot_record_does_not_listen(tmp_path: Path, lacks_pyarrow: bool) -> None:
    """It reports the cause first: the folder, or the extra that is not installed."""
    (tmp_path / "pyarrow.py").write_text("raise ImportError('hidden by a test')")
    (tmp_path / "file").write_text("in the way")
    search = [str(tmp_path)] if lacks_pyarrow else []
    recording = tmp_path / ("new" if lacks_pyarrow else "file")
    ended = run_program(
        *("serve", "--port", "0", "--admin-socket", "", "--record", str(recording)),
        PYTHONPATH=os.pathsep.join([*search, str(REPOSITORY)]),
    )
    says = "pip install 'amqp10broker[record]'" if lacks_pyarrow else "cannot be written"
    assert (ended.returncode, says in ended.stderr) == (1, True), ended.stderr
    assert "listening" not in ended.stderr
