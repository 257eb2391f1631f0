"""What can go wrong between Spark and a broker, as exceptions.

Spark shows the text of an error at the end of a long traceback, so that each text says by itself what is
wrong and what to do; none of them holds a password::

    SparkSourceError
    |-- ColumnError           a DataFrame has a column that a sink does not take, or lacks one
    |-- OptionError           an option is unknown, missing, of a wrong value, or contradicts another
    |-- BrokerUnreachable     no broker answers, or it went away and did not come back in time
    |-- BrokerRefused         user, password, virtual host, permission or TLS: trying again does not help
    |-- QueueUnusable         there is no such queue or stream, or it is of the other kind
    |-- FilterRefused         the broker does not apply the filter that was asked for
    |-- DataLost              messages that should have been read are no longer in the stream
    |-- UnreadableMessage     a message of the stream is no AMQP 1.0
    |-- ReadStalled           messages that should be there do not come
    |-- SpoolError            the folder of a queue source cannot be used
    |-- NotDelivered          the broker did not take messages of a sink over
    |-- MissingExtraError     pyspark, pyarrow or pandas is not installed
    `-- JavaNotFound          no Java that Spark runs on
"""

from __future__ import annotations

from amqp10broker.errors import BrokerError


class SparkSourceError(BrokerError):
    """Spark cannot read from, or write to, the broker as asked."""


class ColumnError(SparkSourceError):
    """The columns of a DataFrame are not those of a message; nothing was connected."""


class OptionError(SparkSourceError):
    """An option cannot be used; nothing was connected.

    Args:
        option: its name as documented: ``linkCredit``.
        problem: what was given, as a clause: "is 'many'". Without secrets.
        allowed: what would be accepted, as a clause: "must be an integer from 1".
    """

    def __init__(self, option: str, problem: str, allowed: str) -> None:
        super().__init__(option, problem, allowed)
        self.option = option
        self.problem = problem
        self.allowed = allowed

    def __str__(self) -> str:
        return f"option {self.option} {self.problem}; {self.allowed}"


class BrokerUnreachable(SparkSourceError):
    """No connection could be made, or it was lost, and trying again for the time allowed did not help."""


class BrokerRefused(SparkSourceError):
    """The broker, or TLS, said no: the same attempt would be refused again. Correct the options."""


class QueueUnusable(SparkSourceError):
    """The queue or stream does not exist, or is not what the option says. Declare it, or correct it."""


class FilterRefused(SparkSourceError):
    """The broker did not put the filter in place: without it, rows would come that were not asked for."""


class DataLost(SparkSourceError):
    """Retention removed messages that were still to be read."""


class UnreadableMessage(SparkSourceError):
    """The bytes of a message are no AMQP 1.0 message.

    Args:
        stream: where it came from.
        place: how many messages of the same batch stand in front of it.
        reason: what is wrong with it.
    """

    def __init__(self, stream: str, place: int, reason: str) -> None:
        super().__init__(stream, place, reason)
        self.stream = stream
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"message {self.place} of a batch of '{self.stream}' is no AMQP 1.0 message: {self.reason}; "
            "mend its publisher, and begin behind it or filter it out"
        )


class ReadStalled(SparkSourceError):
    """Nothing came for the option idleTimeout although messages are missing."""


class SpoolError(SparkSourceError):
    """The spool of a queue source cannot be used; the message names the file and what to do."""


class NotDelivered(SparkSourceError):
    """The broker released, rejected or modified messages, or did not answer for them in time."""


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
