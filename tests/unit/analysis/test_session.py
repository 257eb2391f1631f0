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


def test_without_a_package_of_the_report_it_says_what_to_install(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a JVM is started for a report that cannot be written."""
    import_module("pyspark")  # without it, that is what it says
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(CannotStart, match=r"jinja2 is not installed; .*amqp10broker\[spark\]"):
        session.analysis_session("local[1]", "1g")
    assert asked == []
