"""The interface of the running node for operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from amqp10broker.operations.cluster_node import ClusterNode
from amqp10broker.operations.inspection import Inspection
from amqp10broker.operations.snapshot import (
    BrokerView,
    ConnectionView,
    FaultView,
    FollowedView,
    RecordingsView,
    RecordingView,
    SummaryView,
    SuspendedLinkView,
    TraceView,
    WaitingView,
    WatchView,
)


class TraceSink(Protocol):
    """A receiver of the lines of a trace. `ended`: reason for which it accepts no more lines; None:
    it does.
    """

    ended: str | None

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        """Write lines of a connection, without its number and the time; must not raise."""

    def put(self, lines: Sequence[str]) -> None:
        """Write complete lines; must not raise."""

    def close(self, reason: str) -> None:
        """End the output with a reason."""


class FaultsOnRequest(Protocol):
    """Faults that the node commits on request of a test."""

    def inject(
        self,
        kind: str,
        vhost: str,
        queue: str | None,
        client: str | None,
        link: str | None,
        most: int | None,
        condition: str,
        code: int,
        text: str,
    ) -> FaultView:
        """Inject a fault, and return its view.

        Raises `BadRequest` if it is not valid, or there are too many.
        """

    def lift(self, number: int) -> FaultView:
        """Remove a fault, and release what it has held back. Raises `NotFound`."""

    def views(self) -> Sequence[FaultView]:
        """Return the faults that are injected now."""


class Node(Protocol):
    """The node to which the caller is connected.

    After a `RefusedError` or a `ConfigError` nothing was changed; later failures are other `BrokerError`s.
    """

    @property
    def cluster(self) -> ClusterNode:
        """The node as a member of a cluster, or alone."""

    @property
    def faults(self) -> FaultsOnRequest | None:
        """Faults on request; None: the node is not in test mode."""

    def now_ms(self) -> int:
        """Return the broker's time, milliseconds since 1970."""

    async def inspect(self) -> Inspection:
        """Return facts about the node and its machine."""

    def view(self, choose: Mapping[str, Any]) -> BrokerView:
        """Return a snapshot of its activity. Raises `BadRequest` if `choose` is not valid."""

    def set_flow(self, name: str, value: int | str) -> None:
        """Change a flow setting. Raises `ConfigError` if the name does not exist, or the value is out of
        range.
        """

    def set_limit(self, name: str, value: str) -> int | None:
        """Change the threshold of an alarm; return it in bytes, None if it is not known. Raises `ConfigError`
        if the name does not exist, or the value is not valid.
        """

    def set_alarm(self, name: str, on: bool) -> None:
        """Raise an alarm of `table.ALARMS` by hand, or cancel that."""

    def alarms(self) -> list[str]:
        """Return the names of the present alarms, for whatever reason."""

    def clock_notes(self) -> list[str]:
        """Return faults of clocks, a sentence each."""

    async def waiting(
        self, choose: Mapping[str, Any], *, queues: bool
    ) -> tuple[SummaryView, Sequence[WaitingView]]:
        """Return what clients of this node wait for, worst first, collected a few connections at a time.
        Raises `BadRequest` if `choose` is not valid.
        """

    async def connections(self, after: int, most: int | None) -> Sequence[ConnectionView]:
        """Return connections to this node with numbers above `after`, in order, at most `most`; None: all."""

    def close_connection(self, number: int, reason: str) -> None:
        """Close one connection in order, with a reason for the client. Raises `NotFound`."""

    def close_connections(self, reason: str, *, user: str | None = None, vhost: str | None = None) -> None:
        """Close the connections of a user, or of a virtual host."""

    def suspended_links(self) -> Sequence[SuspendedLinkView]:
        """Return durable links that are not attached."""

    def end_suspended_link(self, number: int) -> SuspendedLinkView:
        """End a suspended link before its time, and return its last view. Raises `NotFound`."""

    def definitions_imported(self, left_out: Sequence[str]) -> None:
        """Log the import, with the parts that were left out or that act otherwise than in RabbitMQ."""

    async def start_recording(self, folder: str, every_ms: int | None, run_id: str | None) -> RecordingView:
        """Begin to record flow events. Raises `BrokerError` on failure."""

    async def stop_recording(self) -> RecordingView:
        """End the recording when its files are complete. Raises `BrokerError` if there is none."""

    def recording(self) -> RecordingsView:
        """Return the present recording, and the failure of the last one."""

    def trace_into_file(self, what: str, file: str, *, frames: bool) -> TraceView:
        """Begin a trace into a file of the node's machine.

        Raises:
            NotFound: there is nothing to trace.
            NotAllowed: it is being traced already.
            StorageError: the file cannot be opened.
        """

    def trace_into(self, what: str, sink: TraceSink, *, frames: bool) -> TraceView:
        """Begin a trace with lines for the front end.

        Raises:
            NotFound, NotAllowed: as `trace_into_file`.
        """

    def end_trace(self, what: str, reason: str | None = None) -> TraceView:
        """End a trace. Raises `NotFound`."""

    def watch_link(
        self, connection: int, link: str | None, channel: int | None, role: str | None
    ) -> WatchView:
        """Record the frames of a link, or of a channel of AMQP 0-9-1, from now on.

        Raises:
            BadRequest: a link has no name, or a channel no number.
            NotFound: it does not exist.
            NotAllowed: it is ambiguous, or too many are watched.
        """

    def watches(self) -> Sequence[WatchView]:
        """Return the watches that record now."""

    def unwatch_link(self, watch: int, user: str | None) -> WatchView:
        """End a watch, and return its last view. `user`: restricts it to connections of this user; None: no
        restriction. Raises `NotFound` if it does not exist any more.
        """

    def follow_links(self, vhost: str, *, on: bool) -> FollowedView:
        """Watch every link and channel of a virtual host from its beginning on, or stop that. Raises
        `NotFound` if it cannot be stopped, since it is not on.
        """

    def timeline(
        self, watch: int, since: int | None, limit: int, *, frames: bool, user: str | None
    ) -> tuple[WatchView, dict[str, Any]]:
        """Return a watch, and the actions of its link since its beginning or a cursor. Raises `NotFound` if
        the watch does not exist any more.
        """
