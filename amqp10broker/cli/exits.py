"""Exit codes, and the errors that select them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqp10broker.errors import AdminSocketError, BrokerError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""The broker refused the command, or it failed during execution."""
EXIT_USAGE: Final = 2
"""The command or configuration is wrong; nothing was sent."""
EXIT_UNREACHABLE: Final = 3
"""No broker answers; nothing was done."""
EXIT_INTERRUPTED: Final = 130

EXIT_USAGE_OF_TOOL: Final = 64
EXIT_NO_SUCH: Final = 67
EXIT_UNAVAILABLE: Final = 69
EXIT_SOFTWARE: Final = 70
EXIT_TRY_AGAIN: Final = 75
"""For commands of a cluster, as in RabbitMQ's tools; this one for all commands."""
_OF_CLUSTER: Final[Mapping[str, int]] = {
    "BadRequest": EXIT_USAGE_OF_TOOL,
    "InvalidArgument": EXIT_USAGE_OF_TOOL,
    "NotFound": EXIT_NO_SUCH,
    "Unavailable": EXIT_TRY_AGAIN,
}


class RefusedByBroker(AdminSocketError):
    """The broker refuses a command. `kind`: class of the refusal, or empty. `of_cluster`: it is a command of
    the cluster, which has other exit codes.
    """

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.of_cluster = False


class Unreachable(BrokerError):
    """The broker cannot be reached; the message has a remedy."""


class Failed(BrokerError):
    """A command has failed; the message has a remedy."""


def exit_code(error: BrokerError) -> int:
    if isinstance(error, RefusedByBroker):
        if error.kind == "Unavailable":
            return EXIT_TRY_AGAIN
        return _OF_CLUSTER.get(error.kind, EXIT_SOFTWARE) if error.of_cluster else EXIT_FAILED
    return EXIT_UNREACHABLE if isinstance(error, AdminSocketError | Unreachable) else EXIT_FAILED
