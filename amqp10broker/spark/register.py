"""``register(spark)``: makes ``format("amqp10")`` known to a Spark session."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from amqp10broker.spark.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_MIN: Final = (4, 2)
"""The first whose Python sources can say how far a batch goes."""


def register(spark: SparkSession) -> None:
    """Make the data source ``amqp10`` known to a session; again for each session, and harmless twice.

    The workers import the package by name: it must be installed where they run.

    Args:
        spark: the session.

    Raises:
        MissingExtraError: pyspark is too old, or pyarrow or numpy is not installed.
    """
    require("pyspark", "pyarrow", "numpy")
    import pyspark

    if _version(pyspark.__version__) < PYSPARK_MIN:
        needed = ".".join(map(str, PYSPARK_MIN))
        raise MissingExtraError(f"pyspark {needed} or newer (not {pyspark.__version__})", "spark")
    from amqp10broker.spark.datasource import Amqp10DataSource

    spark.dataSource.register(Amqp10DataSource)


def require(*packages: str) -> None:
    """Import packages of the extra ``spark``, or raise MissingExtraError for the first that is missing."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or package, "spark") from error


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in text.split(".")[:2])
