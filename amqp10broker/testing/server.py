"""The interface of a broker for tests: `in_process.InProcess`, `process.Process`, `process.SharedProcess`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from amqp10broker.testing.frames import ConnectionFrames

NOT_KEPT: Final = "frames are not kept: set amqp_broker_frames to more than 0 in the configuration of pytest"


class Server(Protocol):
    """A running broker. `is_shared`: with other test processes, so that not all connections are
    this one's.
    """

    host: str
    port: int
    is_shared: bool

    @property
    def alive(self) -> bool:
        """Return whether the broker is running."""

    def ask(self, operation: str, arguments: Mapping[str, Any], vhost: str | None) -> Any:
        """Run an operation of `operations.registry`. Raises `BrokerError` if it was refused, or the broker is
        not running; contains the reason.
        """

    def frames(self, began_ns: int) -> dict[int, ConnectionFrames]:
        """Return the last frames of connections with any since then, by number."""

    def recorded(self, began_ns: int) -> Iterable[Sequence[str]]:
        """Return recordings of the frames of connections that have begun since then, as lines. Raises
        `BrokerError` if frames are not recorded.
        """

    def stop(self) -> None:
        """Stop the broker for good."""
