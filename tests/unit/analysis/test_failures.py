"""What Spark throws, in words: the file that it names, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from amqp10broker.tools.analysis.session import SparkFailed, explained

SAID = """An error occurred while calling o91.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult: [FAILED_READ_FILE] Error while reading
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a%20b/part-3.parquet.
"""


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (
            SAID,
            (
                "/a b/part-3.parquet: Spark has given up: [FAILED_READ_FILE.NO_HINT] Encountered error",
                "move it away and analyse again",
            ),
        ),
        ("java.lang.OutOfMemoryError: Java heap space", ("/rec: Spark has", "give it more with --memory")),
        ("", ("it has said nothing; analyse it again",)),
    ],
)
def test_what_spark_throws_is_explained(said: str, parts: tuple[str, ...]) -> None:
    """In one line, without the traces of Java."""
    with pytest.raises(SparkFailed) as failed, explained(Path("/rec")):
        raise Py4JError(said)
    assert "\n" not in str(failed.value)
    assert "scala" not in str(failed.value)
    for part in parts:
        assert part in str(failed.value)
