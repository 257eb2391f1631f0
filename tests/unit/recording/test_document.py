"""What docs/flow-events.md shows is run: it reads a recording that goes on, and one with older names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.observe.flow_events import NO_CREDIT, PACK, EventKind
from amqp10broker.observe.recording import EventWriter, RunRecord, write_run

DOCUMENT = Path(__file__).parents[3] / "docs" / "flow-events.md"


def test_the_queries_of_the_document_read_a_recording_that_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    link_in = PACK.pack(1, EventKind.LINK_IN, NO_CREDIT, *[0] * 8, 2_000_000_000, 0)
    with EventWriter(tmp_path, "r", "clients") as clients:
        clients.write(link_in)
    (clients.folder / "part-clients-00000.parquet").rename(clients.folder / "clients-00000.parquet")
    broker = EventWriter(tmp_path, "r", "broker", row_group_events=1)
    broker.write(link_in * 2)
    broker.complete_part()
    broker.write(link_in)
    (growing,) = broker.folder.glob("_*")
    write_run(tmp_path, RunRecord(run_id="r", benchmark="broker", began_ns=0))
    (tmp_path / "runs.parquet" / "_s-1.parquet").write_bytes(b"PAR1")
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {}
    exec(code.replace("DIR/", f"{tmp_path}/"), found)
    assert found["waited"].fetchall() == [(NO_CREDIT, 6.0)]
    assert (len(found["events"]), list(found["runs"]["run_id"])) == (3, ["r"])
    assert growing.exists()
    broker.abandon()
