"""Errors of the Spark data source, written for the person who started the query.

::

    SparkSourceError            anything below; its message says what to do
    |-- MissingExtraError       pyspark, pyarrow or pandas is not installed
    `-- JavaNotFound            no Java that Spark runs on
"""

from __future__ import annotations

from amqp10broker.errors import BrokerError


class SparkSourceError(BrokerError):
    """Spark cannot read from, or write to, the broker as asked."""


class MissingExtraError(SparkSourceError):
    """A package of an extra is missing; the message has the command that installs it.

    Args:
        package: what could not be imported.
        extra: the extra of amqp10broker that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'amqp10broker[{extra}]'")
        self.package = package
        self.extra = extra


class JavaNotFound(SparkSourceError):
    """No Java that Spark runs on was found; the message says where was looked, and how to get one."""
