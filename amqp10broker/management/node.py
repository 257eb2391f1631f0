"""What an operation may ask of the running node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from amqp10broker.management.cluster_node import ClusterNode
from amqp10broker.management.snapshot import BrokerView, RecordingsView, RecordingView, TraceView, WatchView


class Sink(Protocol):
    """Where the lines of a trace go.

    Attributes:
        ended: why it takes no more; None while it does.
    """

    ended: str | None

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        """Take lines of a connection; must not raise."""

    def close(self, reason: str) -> None:
        """Nothing more comes."""


class Node(Protocol):
    """The node that the caller talks to, as far as operations look at it or change it.

    After a `RefusedError` or a `ConfigError` nothing was changed; what fails on the
    way is another `BrokerError`.
    """

    @property
    def cluster(self) -> ClusterNode:
        """It as one of a cluster, or alone."""

    def view(self, choose: Mapping[str, Any]) -> BrokerView:
        """What it is doing.

        Raises:
            BadRequest: what is chosen by cannot be understood.
        """

    def set_flow(self, name: str, value: int) -> None:
        """Change a flow setting.

        Raises:
            ConfigError: there is none of this name, or it is out of range.
        """

    def set_limit(self, name: str, value: str) -> int | None:
        """Change where an alarm begins; the limit in bytes, None if it is not known.

        Raises:
            ConfigError: there is none of this name, or it cannot be read.
        """

    def set_alarm(self, name: str, on: bool) -> None:
        """Raise an alarm of `table.ALARMS` by hand, or take that back."""

    def alarms(self) -> list[str]:
        """Names of those that are on, for whatever reason."""

    def close_connection(self, number: int, reason: str) -> None:
        """Close one connection in order; its client hears the reason.

        Raises:
            NotFound: there is none of this number.
        """

    def close_connections(self, reason: str, *, user: str | None = None, vhost: str | None = None) -> None:
        """Close those of a user, or of a virtual host."""

    def definitions_imported(self) -> None:
        """Say in the log what of them acts otherwise than it reads."""

    async def start_recording(self, folder: str, every_ms: int | None, run_id: str | None) -> RecordingView:
        """Begin to record flow events; what is shown of the recording.

        Raises:
            BrokerError: it cannot be: of the class that says why.
        """

    async def stop_recording(self) -> RecordingView:
        """End the recording; what is shown of it, when its files are complete.

        Raises:
            BrokerError: there is none.
        """

    def recording(self) -> RecordingsView:
        """The present one, and how the last one failed."""

    def trace_into_file(self, what: str, file: str) -> TraceView:
        """Begin a trace into a file of the node's machine; what is shown of it.

        Raises:
            NotFound: there is nothing to trace.
            NotAllowed: it is being traced already.
            StorageError: the file cannot be opened.
        """

    def trace_into(self, what: str, sink: Sink) -> TraceView:
        """Begin a trace whose lines the door takes; what is shown of it.

        Raises:
            NotFound, NotAllowed: as `trace_into_file`.
        """

    def end_trace(self, what: str, reason: str | None = None) -> TraceView:
        """End a trace; what is shown of it.

        Raises:
            NotFound: there is no such trace.
        """

    def watch_link(
        self, connection: int, link: str | None, channel: int | None, role: str | None
    ) -> WatchView:
        """Record the frames of a link, or of a channel of AMQP 0-9-1, from now on; what is shown of that.

        Raises:
            BadRequest: a link has no name, or a channel no number.
            NotFound: there is no such thing.
            NotAllowed: it is not clear which is meant, or too many are watched.
        """

    def unwatch_link(self, watch: int) -> WatchView:
        """Record them no more; what was shown of that.

        Raises:
            NotFound: there is no such watch, or it is over.
        """

    def timeline(self, watch: int, since: int | None, limit: int, *, frames: bool) -> dict[str, Any]:
        """What a link did since it is watched, or since a cursor; see `service.timeline.document`.

        Raises:
            NotFound: there is no such watch, or it is over.
        """
