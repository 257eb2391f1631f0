"""Counters of login attempts since the start, by protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Tried(NamedTuple):
    """Logins of one protocol; a login without a verified password counts as neither."""

    succeeded: int = 0
    failed: int = 0


class Attempts:
    """Counts login attempts. Over HTTP each request is one."""

    def __init__(self) -> None:
        self._by_protocol: dict[str, Tried] = {}

    def count(self, protocol: str, *, succeeded: bool) -> None:
        """Count a login; `protocol` is named as in connections, or ``http``."""
        before = self._by_protocol.get(protocol, Tried())
        self._by_protocol[protocol] = Tried(before.succeeded + succeeded, before.failed + (not succeeded))

    def all(self) -> Mapping[str, Tried]:
        """Return the attempts of protocols with any."""
        return self._by_protocol

    def forget(self) -> None:
        self._by_protocol.clear()
