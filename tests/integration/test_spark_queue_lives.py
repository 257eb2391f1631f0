"""A query of a queue that is killed before each of its calls in turn: a real broker, real files, no Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.journals import LONG
from tests.support.spark_rows import Tally, declare, tally_rows, url

pytestmark = pytest.mark.integration

LIVES: Final = 450 if LONG else 45
MESSAGES: Final = 12
BATCH: Final = 5
TIMEOUT_S: Final = 1200.0


def live(broker: BrokerProcess, queue: str, folder: Path, deduplicate: str) -> tuple[int, Tally]:
    """Run all lives; how many were killed, and what the sink has."""
    given = {
        "url": url(broker),
        "queue": queue,
        "spoolLocation": folder / "spool",
        "deduplicate": deduplicate,
    }
    options = {**given, "maxMessagesPerTrigger": BATCH, "idleTimeout": "5s"}
    (folder / "notes").mkdir()
    settings = {"options": options, "folder": folder / "notes", "lives": LIVES, "messages": MESSAGES}
    (folder / "settings").write_text(json.dumps(settings, default=str))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark_queue_lives", str(folder / "settings")],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done
    sink = folder / "notes" / "sink"
    rows = [
        (name, content.encode())
        for path in sink.iterdir()
        if path.suffix != ".started"
        for name, content in json.loads(path.read_text())
    ]
    return int(done.stdout), tally_rows(rows, MESSAGES * (LIVES + 1))


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_killed_before_any_call_nothing_is_lost_and_batches_stay_what_they_were(
    broker: BrokerProcess, queue: str, tmp_path: Path, kind: str
) -> None:
    """Some messages are there twice: those that were stored when the process was killed, and not settled."""
    declare(broker, queue, kind)
    killed, found = live(broker, queue, tmp_path, "none")
    assert killed > LIVES // 2
    assert found.nothing_lost, found
    assert found.twice
    broker.wait_for_counts(queue, ready=0)


def test_with_deduplicate_each_message_is_there_once(
    broker: BrokerProcess, queue: str, tmp_path: Path
) -> None:
    """The same kills; what comes again is known by its message-id, also by the next process."""
    declare(broker, queue, "quorum", **{"x-delivery-limit": -1})
    killed, found = live(broker, queue, tmp_path, "messageId")
    assert killed > LIVES // 2
    assert found.exactly_once, found
    broker.wait_for_counts(queue, ready=0)
