"""What the analysis asks of Spark; no session is started."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest

from amqp10broker.tools.analysis import session
from amqp10broker.tools.analysis.errors import CannotStart


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each session that would have been started."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(session, "local_session", lambda name, **options: found.append(options))
    return found


def test_memory_and_master_are_handed_on(asked: list[dict[str, Any]]) -> None:
    """And what a benchmark adds goes before our own settings."""
    session.analysis_session("local[3]", "512m", {"spark.executor.cores": "1"})
    (options,) = asked
    assert options["cores"] == "local[3]"
    assert options["conf"]["spark.driver.memory"] == "512m"
    assert options["conf"]["spark.executor.cores"] == "1"
    assert "spark.sql.shuffle.partitions" not in options["conf"]


def test_a_cluster_gets_few_partitions_for_the_few_cells(asked: list[dict[str, Any]]) -> None:
    """A local session has as many as it has cores, by `spark.session`."""
    session.analysis_session("spark://127.0.0.1:7077", "1g")
    assert asked[0]["conf"]["spark.sql.shuffle.partitions"] == "4"


def test_without_a_package_of_the_report_it_says_what_to_install(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a JVM is started for a report that cannot be written."""
    import_module("pyspark")  # without it, that is what it says
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(CannotStart, match=r"jinja2 is not installed; .*amqp10broker\[spark\]"):
        session.analysis_session("local[1]", "1g")
    assert asked == []
