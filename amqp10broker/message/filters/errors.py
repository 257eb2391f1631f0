"""The only error that reading a filter raises, for any bytes of a client; functions do not list it."""

from __future__ import annotations

from typing import Any


class FilterError(ValueError):
    """A filter cannot be used, and the reply to the attach leaves it out; the message has the reason, for the
    log. `reason`: a clause: "is 4097 characters long; 4096 are allowed". `position`: of the character in the
    text of an SQL filter, from 0; None without one.
    """

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason if position is None else f"{reason} (at character {position + 1})")
        self.reason = reason
        self.position = position


def shown(value: Any) -> str:
    """Show the beginning of a value that a client gave."""
    return repr(value)[:100]
