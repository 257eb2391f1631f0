"""For tests that need Spark: one small session for the whole run, and what its libraries warn about.

A process has one JVM and one session, so tests share it: give streaming queries and temporary views
names of their own, and stop the queries. Tests that kill or reconfigure Spark start a driver as a
process of its own (tests/support).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from amqp10broker.spark.session import local_session
from tests.support.broker_process import broker, queue, shared_broker, start_broker
from tests.support.deadline import deadline
from tests.support.spark_process import QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker", "deadline", "queue", "shared_broker", "start_broker"]

_HERE: Final = Path(__file__).parent

# Faults of pyspark and py4j, not of ours; everything else is an error here too.
_WARNINGS: Final = (
    # pyspark converts through pandas with calls that pandas 2 and 3 spell differently.
    "ignore::DeprecationWarning:pyspark",
    "ignore::FutureWarning:pyspark",
    # What pyspark says of every plain function with annotations that it makes a UDF of.
    "ignore:Cannot infer the eval type:UserWarning:pyspark",
    # py4j leaves sockets to the garbage collector.
    "ignore:unclosed <socket:ResourceWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and filter the warnings of Spark's own libraries."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            for warning in _WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session has two cores and one shuffle partition. Workers can import the package and `tests`."""
    folder = tmp_path_factory.mktemp("spark")
    session = local_session(
        "tests",
        cores="local[2]",
        conf={
            "spark.sql.shuffle.partitions": "1",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.driver.extraJavaOptions": QUICK_JAVA,
        },
    )
    yield session
    session.stop()
