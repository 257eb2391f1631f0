"""Errors between Spark and a broker.

Spark shows the text of an error at the end of a long traceback, so each text is complete: the fault and the
remedy. None contains a password.
"""

from __future__ import annotations

import time
from typing import Final

from amqp10broker.errors import BrokerError


class SparkSourceError(BrokerError):
    """Base class: Spark cannot read from, or write to, the broker as requested."""


class ColumnError(SparkSourceError):
    """The columns of a DataFrame are not those of a message; nothing was connected."""


class OptionError(SparkSourceError):
    """An option cannot be used; nothing was connected. `allowed`: the accepted values, as a clause: "must be
    an integer from 1".
    """

    def __init__(self, option: str, problem: str, allowed: str) -> None:
        super().__init__(option, problem, allowed)
        self.option = option
        self.problem = problem
        self.allowed = allowed

    def __str__(self) -> str:
        return f"option {self.option} {self.problem}; {self.allowed}"


class BrokerUnreachable(SparkSourceError):
    """No connection could be made, or it was lost, and retries for the time allowed did not help."""


class BrokerRefused(SparkSourceError):
    """The broker or TLS refused, and would refuse again: correct the options."""


class QueueUnusable(SparkSourceError):
    """The queue or stream does not exist, or is of another kind: declare it, or correct the option."""


class FilterRefused(SparkSourceError):
    """The broker does not apply the filter, so that rows would arrive that were not requested."""


class DataLost(SparkSourceError):
    """Retention removed messages that were still to be read."""


class UnreadableMessage(SparkSourceError):
    """The bytes of a message are not a valid AMQP 1.0 message."""


class ReadStalled(SparkSourceError):
    """No message arrived for the option idleTimeout although messages are missing."""


class SpoolError(SparkSourceError):
    """The spool of a queue source cannot be used; the message has the file and the remedy."""


class NotDelivered(SparkSourceError):
    """The broker released, rejected or modified messages, or sent no outcome in time."""


class MissingExtraError(SparkSourceError):
    """A package of an extra is missing; the message has the command that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'amqp10broker[{extra}]'")


class JavaNotFound(SparkSourceError):
    """No Java that Spark runs on was found; the message lists the places searched, and how to get one."""


PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0


class RetryBudget:
    """Counts failures in a row, and pauses between attempts. `timeout_s`: how long after the first failure of
    a row another attempt may begin.
    """

    def __init__(self, timeout_s: float) -> None:
        self.failures = 0
        self._timeout_s = timeout_s
        self._until = 0.0

    def progress(self) -> None:
        self.failures = 0

    def failed(self) -> bool:
        """Record a failure, and pause if there is time for another attempt; the pauses grow. Returns whether
        to try again: true after the first failure of a row, however late it came.
        """
        self.failures += 1
        now = time.monotonic()
        if self.failures == 1:
            self._until = now + self._timeout_s
        elif now >= self._until:
            return False
        # An unbounded exponent would exceed the range of floats.
        pause_s = min(PAUSE_FIRST_S * 2.0 ** min(self.failures - 1, 20), PAUSE_MAX_S)
        time.sleep(min(pause_s, self._until - now))
        return True
