"""What an operation may ask of the running node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from amqp10broker.management.cluster_node import ClusterNode
from amqp10broker.management.inspection import Inspection
from amqp10broker.management.snapshot import (
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


class Sink(Protocol):
    """Where the lines of a trace go.

    Attributes:
        ended: why it takes no more; None while it does.
    """

    ended: str | None

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        """Take lines of a connection, without its number and the time; must not raise."""

    def put(self, lines: Sequence[str]) -> None:
        """Take lines that are as they are to be; must not raise."""

    def close(self, reason: str) -> None:
        """Nothing more comes."""


class FaultsOnRequest(Protocol):
    """Faults that the node commits because a test wants it to."""

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
        """Commit one from now on; what is shown of it.

        Raises:
            BadRequest: it cannot be understood, or there are too many.
        """

    def lift(self, number: int) -> FaultView:
        """Commit it no more: what it has kept back goes on its way.

        Raises:
            NotFound: it is not on.
        """

    def views(self) -> Sequence[FaultView]:
        """Those that are on."""


class Node(Protocol):
    """The node that the caller talks to, as far as operations look at it or change it.

    After a `RefusedError` or a `ConfigError` nothing was changed; what fails on the
    way is another `BrokerError`.
    """

    @property
    def cluster(self) -> ClusterNode:
        """It as one of a cluster, or alone."""

    @property
    def faults(self) -> FaultsOnRequest | None:
        """That it commits on request; None: it is not in test mode."""

    def now_ms(self) -> int:
        """The broker's time, milliseconds since 1970."""

    async def inspect(self) -> Inspection:
        """What it finds when it looks at itself and at its machine."""

    def view(self, choose: Mapping[str, Any]) -> BrokerView:
        """What it is doing.

        Raises:
            BadRequest: what is chosen by cannot be understood.
        """

    def set_flow(self, name: str, value: int | str) -> None:
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

    def clock_notes(self) -> list[str]:
        """What is wrong with clocks, a sentence each."""

    async def waiting(
        self, choose: Mapping[str, Any], *, queues: bool
    ) -> tuple[SummaryView, Sequence[WaitingView]]:
        """What clients of this node wait for, worst first, looked at a few connections at a time.

        Args:
            choose: what of it, as in `view`.
            queues: also count queues, and those that are full.

        Raises:
            BadRequest: what is chosen by cannot be understood.
        """

    async def connections(self, after: int, most: int | None) -> Sequence[ConnectionView]:
        """Connections to this node with numbers above `after`, in their order; None: all of them."""

    def close_connection(self, number: int, reason: str) -> None:
        """Close one connection in order; its client hears the reason.

        Raises:
            NotFound: there is none of this number.
        """

    def close_connections(self, reason: str, *, user: str | None = None, vhost: str | None = None) -> None:
        """Close those of a user, or of a virtual host."""

    def suspended_links(self) -> Sequence[SuspendedLinkView]:
        """Links that are kept, and have no end in a session now."""

    def end_suspended_link(self, number: int) -> SuspendedLinkView:
        """End one before its time; what was shown of it.

        Raises:
            NotFound: none of this number is suspended.
        """

    def definitions_imported(self, left_out: Sequence[str]) -> None:
        """Say in the log what of them was left out, and what acts otherwise than it reads."""

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

    def trace_into_file(self, what: str, file: str, *, frames: bool) -> TraceView:
        """Begin a trace into a file of the node's machine; what is shown of it.

        Args:
            what: connection, user or address.
            file: its path.
            frames: as a recording of frames, see `frames.records`; else as text.

        Raises:
            NotFound: there is nothing to trace.
            NotAllowed: it is being traced already.
            StorageError: the file cannot be opened.
        """

    def trace_into(self, what: str, sink: Sink, *, frames: bool) -> TraceView:
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

    def watches(self) -> Sequence[WatchView]:
        """What is recorded now."""

    def unwatch_link(self, watch: int, user: str | None) -> WatchView:
        """Record them no more; what was shown of that.

        Args:
            watch: its number.
            user: only if it is of a connection of this user; None: of anybody.

        Raises:
            NotFound: there is no such watch, or it is over.
        """

    def follow_links(self, vhost: str, *, on: bool) -> FollowedView:
        """Watch every link and channel of a virtual host from its beginning on, or no more.

        Raises:
            NotFound: it is to end, and is not on.
        """

    def timeline(
        self, watch: int, since: int | None, limit: int, *, frames: bool, user: str | None
    ) -> tuple[WatchView, dict[str, Any]]:
        """Which link that is, and what it did since it is watched, or since a cursor.

        Args:
            watch: its number.
            since, limit, frames: see `service.timeline.document`.
            user: as in `unwatch_link`.

        Raises:
            NotFound: there is no such watch, or it is over.
        """
