"""The one error of this folder::

    FilterError     a filter is invalid, and not in place: the reply to the attach leaves it out

Whatever bytes a client sends as a filter, nothing but this comes of it.
"""

from __future__ import annotations


class FilterError(ValueError):
    """A filter cannot be used; the message says what is wrong with it, for the log.

    Args:
        reason: a clause: "is 4097 characters long; 4096 are allowed".
        position: of the character in the text of an SQL filter, from 0; None where there is no place to name.
    """

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason if position is None else f"{reason} (at character {position + 1})")
        self.reason = reason
        self.position = position
