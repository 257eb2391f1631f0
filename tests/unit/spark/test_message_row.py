"""Which times a row may have: those that Python can show in any time zone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql.types import TimestampType

from amqp10broker.spark.layout_learning import MS_MAX, MS_MIN, microseconds


@pytest.fixture(params=["UTC", "Pacific/Kiritimati", "Asia/Manila", "America/Juneau", "Etc/GMT+12"])
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process is in another time zone, among them those that differ most from UTC, now or long ago."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("time_zone")
def test_what_a_row_has_can_be_collected() -> None:
    """Spark makes `datetime`s in the zone of the process, and one that fails is no rows at all."""
    for ms, year in ((MS_MIN, 1), (MS_MAX, 9999), (0, 1970)):
        us = microseconds(ms)
        assert us is not None
        assert TimestampType().fromInternal(us).year in (year, year - 1)
    assert microseconds(MS_MIN - 1) is None
    assert microseconds(MS_MAX + 1) is None
