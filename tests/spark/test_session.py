"""The session that the other tests share, and what `local_session` promises of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.functions import udf

from amqp10broker.spark.session import spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_run_this_python_and_import_the_package_and_the_tests(spark: SparkSession) -> None:
    """This holds even where the package is not installed."""

    def look(row: int) -> str:
        import sys

        import amqp10broker
        import tests.support.deadline

        assert tests.support.deadline.__file__
        return f"{sys.executable} {amqp10broker.__file__}"

    import sys

    import amqp10broker

    told = spark.range(1).select(udf(look)("id")).collect()
    assert told[0][0] == f"{sys.executable} {amqp10broker.__file__}"


def test_the_environment_of_this_process_is_as_it_was(spark: SparkSession) -> None:
    """The variables for the JVM's start are removed again."""
    wrapper = spark_environment()["JAVA_HOME"]
    assert os.environ.get("JAVA_HOME") != wrapper
    assert spark.sparkContext._jvm.java.lang.System.getenv("JAVA_HOME") == wrapper
    assert spark.sparkContext._jvm.java.lang.System.getenv("SPARK_LOCAL_IP") == "127.0.0.1"
