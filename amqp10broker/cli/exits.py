"""Exit codes, and the errors that choose among them."""

from __future__ import annotations

from typing import Final

from amqp10broker.errors import AdminSocketError, BrokerError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""Refused by the broker, or failed on the way."""
EXIT_USAGE: Final = 2
"""Used or configured wrongly; the broker was not asked."""
EXIT_UNREACHABLE: Final = 3
"""No broker answers there; nothing was done."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C."""


class RefusedByBroker(AdminSocketError):
    """The broker is there and does not do what was asked; the message says why."""


class Unreachable(BrokerError):
    """There is no broker to talk to; the message says what to do."""


class Failed(BrokerError):
    """A command has not done what was asked, and the message says what to do."""


def exit_code(error: BrokerError) -> int:
    """The exit code of a command that ended with this error."""
    if isinstance(error, RefusedByBroker):
        return EXIT_FAILED
    return EXIT_UNREACHABLE if isinstance(error, AdminSocketError | Unreachable) else EXIT_FAILED
