"""What is there after Python workers and whole drivers were killed in the middle of streaming queries.

One application runs four queries at the same time: of a stream and of a queue, each into Parquet and into
copies of every batch. A Python worker of the first two is killed at work; their queries fail and are
started again. Then the driver is killed, while the copying queries stand behind a batch that was written
but not noted. The next driver reads all that is left, and what was published meanwhile.

What counts in a Parquet sink is what Spark's own log of it lists, so sinks are read with ``spark.read``.
AMQP10BROKER_LONG makes it long.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.journal_harness import LONG
from tests.support.spark_process import DriverProcess, Query, batches, spark_driver, stream_query
from tests.support.spark_rows import Tally, declare, publish, read_copies, tally, tally_rows, url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.long]

KILLED_DRIVERS: Final = 20 if LONG else 1
BATCH: Final = 400
BATCHES_BEFORE_A_KILL: Final = 2
COUNT: Final = BATCH * (8 if LONG else 4) * (KILLED_DRIVERS + 1)
COPIED: Final = 500
COPIED_BATCH: Final = 200
STOP_IN: Final = 1
MORE: Final = 100
"""So many are published into each while no driver is there."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What the test functions look at.

    Attributes:
        place: of the sinks and copies, by name of the query.
        published: in the stream and queue of the Parquet sinks; all numbers from 0 on.
        copied: the same for the copying queries.
        errors: of the queries whose worker was killed.
    """

    broker: BrokerProcess
    place: Path
    published: int
    copied: int
    errors: Mapping[str, str]


@pytest.fixture(scope="module")
def aftermath(shared_broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Aftermath:
    place = tmp_path_factory.mktemp("crash")
    rng = random.Random(KILLED_DRIVERS)
    for name, kind in {"s": "stream", "q": "quorum", "copied-s": "stream", "copied-q": "classic"}.items():
        declare(shared_broker, f"crash-{name}", kind)
        publish(shared_broker, f"crash-{name}", COPIED if "copied" in name else COUNT)
    published, copied = COUNT, COPIED
    errors: dict[str, str] = {}
    for number in range(KILLED_DRIVERS):
        before = {name: batches(place / name / "checkpoint") for name in ("s", "q")}
        with spark_driver(place / f"driver{number}", queries(shared_broker, place, doomed=True)) as driver:
            errors |= kill_workers(driver, place, before)
            for name in ("copied-s", "copied-q"):
                driver.wait_for((place / name / "copies" / "stopped").exists, f"the stop of {name}")
            with suppress(subprocess.TimeoutExpired):
                driver.process.wait(rng.uniform(0, 0.3))
            assert not driver.ended
            driver.kill()
        for name in ("s", "q", "copied-s", "copied-q"):
            publish(shared_broker, f"crash-{name}", MORE, first=copied if "copied" in name else published)
        published, copied = published + MORE, copied + MORE
    with spark_driver(place / "last", queries(shared_broker, place, doomed=False)) as driver:
        for name in ("s", "q", "copied-s", "copied-q"):
            assert driver.rows(name) > 0
        driver.wait_ended()
    return Aftermath(shared_broker, place, published, copied, errors)


def queries(broker: BrokerProcess, place: Path, *, doomed: bool) -> dict[str, Query]:
    """Return the four queries; for a doomed driver they are slow with two attempts, or stop."""
    slow: dict[str, Any] = {"slow_ms": 150, "attempts": 2} if doomed else {}
    stop: dict[str, Any] = {"stop_in": STOP_IN} if doomed else {}
    at = {"url": url(broker)}

    def from_stream(name: str, batch: int, **more: Any) -> Query:
        return stream_query(
            at | {"stream": f"crash-{name}", "maxOffsetsPerTrigger": batch}, place / name, **more
        )

    def from_queue(name: str, batch: int, deduplicate: str, **more: Any) -> Query:
        options = {"queue": f"crash-{name}", "maxMessagesPerTrigger": batch, "deduplicate": deduplicate}
        return stream_query(at | options | {"spoolLocation": place / name / "spool"}, place / name, **more)

    return {
        "s": from_stream("s", BATCH, **slow),
        "q": from_queue("q", BATCH, "messageId", **slow),
        "copied-s": from_stream("copied-s", COPIED_BATCH, copies=place / "copied-s" / "copies", **stop),
        "copied-q": from_queue(
            "copied-q", COPIED_BATCH, "none", copies=place / "copied-q" / "copies", **stop
        ),
    }


def kill_workers(driver: DriverProcess, place: Path, before: Mapping[str, int]) -> dict[str, str]:
    """Kill a worker of each query to Parquet after its first batch; the second attempt goes on."""
    errors = {}
    for name, count in before.items():
        driver.wait_for_batches(place / name / "checkpoint", count + 1)
        driver.kill_worker(name)
    for name, count in before.items():
        errors[name] = driver.error(name)
        driver.wait_for_batches(place / name / "checkpoint", count + BATCHES_BEFORE_A_KILL)
    return errors


def sink_of(aftermath: Aftermath, spark: SparkSession, name: str) -> Tally:
    frame = spark.read.parquet(str(aftermath.place / name / "sink"))
    return tally(frame, aftermath.published, offsets=name == "s")


def test_a_killed_python_worker_fails_the_query(aftermath: Aftermath) -> None:
    """With a local master Spark does not retry tasks; the error names the worker."""
    assert sorted(aftermath.errors) == ["q", "s"]
    for error in aftermath.errors.values():
        assert "Python worker exited unexpectedly" in error


def test_each_row_of_a_stream_is_in_the_sink_once(spark: SparkSession, aftermath: Aftermath) -> None:
    found = sink_of(aftermath, spark, "s")
    assert found.exactly_once, found


def test_each_message_of_a_queue_is_in_the_sink_once_with_deduplicate(
    spark: SparkSession, aftermath: Aftermath
) -> None:
    """Nothing accepted is lost, and redeliveries are dropped."""
    found = sink_of(aftermath, spark, "q")
    assert found.exactly_once, found
    aftermath.broker.wait_for_counts("crash-q", ready=0)


@pytest.mark.parametrize(
    ("name", "columns"), [("s", ("messageId", "body", "offset")), ("q", ("messageId", "body"))]
)
def test_a_batch_that_was_written_but_not_noted_comes_again_as_it_was(
    aftermath: Aftermath, name: str, columns: tuple[str, ...]
) -> None:
    """It has the same rows in the same order, though more rows were available by then."""
    attempts = read_copies(aftermath.place / f"copied-{name}" / "copies", *columns)
    assert len(attempts[STOP_IN]) == KILLED_DRIVERS + 1
    assert len(attempts[STOP_IN][0]) == COPIED_BATCH
    for again in attempts[STOP_IN][1:]:
        assert again == attempts[STOP_IN][0]
    assert all(len(each) == 1 for number, each in enumerate(attempts) if number != STOP_IN)


def test_the_last_copies_of_a_stream_have_each_row_once_in_order(aftermath: Aftermath) -> None:
    """So a sink that overwrites by batch number has them exactly once, too."""
    attempts = read_copies(aftermath.place / "copied-s" / "copies", "messageId", "body", "offset")
    rows = [row for each in attempts for row in each[-1]]
    assert tally_rows(rows, aftermath.copied).exactly_once
    assert [row[2] for row in rows] == list(range(aftermath.copied))


def test_the_last_copies_of_a_queue_have_every_message(aftermath: Aftermath) -> None:
    """Only deliveries that were unsettled when the driver was killed are double: at most one batch."""
    attempts = read_copies(aftermath.place / "copied-q" / "copies", "messageId", "body")
    found = tally_rows((row for each in attempts for row in each[-1]), aftermath.copied)
    assert found.nothing_lost, found
    assert len(found.twice) <= KILLED_DRIVERS * COPIED_BATCH, found
    aftermath.broker.wait_for_counts("crash-copied-q", ready=0)
