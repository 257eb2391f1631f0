"""How many clients tried to log in since the start, by protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Tried(NamedTuple):
    """Logins of one protocol.

    Attributes:
        succeeded: those who were let in.
        failed: those who were not; one whose password nobody looked at counts as neither.
    """

    succeeded: int = 0
    failed: int = 0


class Attempts:
    """Counts them. Over HTTP each request is one."""

    def __init__(self) -> None:
        self._by_protocol: dict[str, Tried] = {}

    def count(self, protocol: str, *, succeeded: bool) -> None:
        """A login is over.

        Args:
            protocol: as connections name theirs, or ``http``.
            succeeded: whether the client was let in.
        """
        before = self._by_protocol.get(protocol, Tried())
        self._by_protocol[protocol] = Tried(before.succeeded + succeeded, before.failed + (not succeeded))

    def all(self) -> Mapping[str, Tried]:
        """Those of protocols that any client tried."""
        return self._by_protocol

    def forget(self) -> None:
        """Begin anew."""
        self._by_protocol.clear()
