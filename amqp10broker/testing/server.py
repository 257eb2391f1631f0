"""What a broker is to tests, wherever it runs: `in_process.InProcess`, `process.Process`, `SharedProcess`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from amqp10broker.testing.frames import Kept

NOT_KEPT: Final = "frames are not kept: set amqp_broker_frames to more than 0 in the configuration of pytest"


class Server(Protocol):
    """A broker that runs.

    Attributes:
        host: where it listens.
        port: likewise.
        is_shared: with other processes that run tests, so that not all connections are this one's.
    """

    host: str
    port: int
    is_shared: bool

    @property
    def alive(self) -> bool:
        """Whether it runs."""

    def ask(self, operation: str, arguments: Mapping[str, Any], vhost: str | None) -> Any:
        """Run an operation of `management.table`."""

    def frames(self, began_ns: int) -> dict[int, Kept]:
        """The last frames of connections that had any since then."""

    def recorded(self, began_ns: int) -> Iterable[Sequence[str]]:
        """Recordings of the frames of connections that have begun since then, as lines.

        Raises:
            BrokerError: frames are not kept.
        """

    def stop(self) -> None:
        """End it."""
