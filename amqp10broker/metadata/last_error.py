"""The last error of a connection, session, channel, link or queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp10broker.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LastError:
    """One thing that went wrong. `details`: `text`, which the client got, and where it happened: connection,
    channel, link, queue, .
    """

    time: str
    event: str
    details: Mapping[str, Any]

    def shown(self) -> dict[str, Any]:
        """As the status document has it: time, event, and the details."""
        return {"time": self.time, "event": self.event, **self.details}


def shown(error: LastError | None) -> dict[str, Any] | None:
    return None if error is None else error.shown()
