"""``register(spark)``: makes ``format("amqp10")`` known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the data source ``amqp10`` known to a session; again for each session, and harmless twice.

    The workers import the package by name: it must be installed where they run.

    Args:
        spark: the session.
    """
    from amqp10broker.spark.datasource import Amqp10DataSource

    spark.dataSource.register(Amqp10DataSource)


__all__ = ["register"]
