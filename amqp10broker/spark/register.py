"""Registers the format ``amqp10`` in a Spark session."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from amqp10broker.spark.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first version in which Python sources can limit a batch.
PYSPARK_MIN: Final = (4, 2)


def register(spark: SparkSession) -> None:
    """Register the data source ``amqp10`` in a session; needed for each session, and safe to repeat.

    The workers import the package by name: it must be installed where they run. Raises `MissingExtraError` if
    pyspark is too old, or pyarrow or numpy is not installed.
    """
    require("pyspark", "pyarrow", "numpy")
    import pyspark

    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < PYSPARK_MIN:
        needed = ".".join(map(str, PYSPARK_MIN))
        raise MissingExtraError(f"pyspark {needed} or newer (not {pyspark.__version__})", "spark")
    from amqp10broker.spark.datasource import Amqp10DataSource

    spark.dataSource.register(Amqp10DataSource)


def require(*packages: str) -> None:
    """Import packages of the extra ``spark``. Raises `MissingExtraError` if one is missing."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or package, "spark") from error
