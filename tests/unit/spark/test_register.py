"""Registering: what is missing is said before Spark fails somewhere else."""

from __future__ import annotations

import sys
from typing import Any

import pyspark
import pytest

from amqp10broker.spark.errors import MissingExtraError
from amqp10broker.spark.session import register


class Session:
    def __init__(self) -> None:
        self.registered: list[Any] = []
        self.dataSource = self

    def register(self, source: Any) -> None:
        self.registered.append(source)


@pytest.mark.parametrize(
    ("version", "fits"), [("4.1.2", False), ("3.5.0", False), ("4.2.0", True), ("4.10.1", True)]
)
def test_the_version_of_pyspark(monkeypatch: pytest.MonkeyPatch, version: str, fits: bool) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    session = Session()
    if fits:
        register(session)  # type: ignore[arg-type]
    else:
        with pytest.raises(MissingExtraError, match=f"pyspark 4.2 or newer .not {version}. is not installed"):
            register(session)  # type: ignore[arg-type]
    assert len(session.registered) == fits


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pip install 'amqp10broker"):
        register(Session())  # type: ignore[arg-type]
