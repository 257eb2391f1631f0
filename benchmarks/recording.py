"""Recordings of runs: what broker and clients saw of each measured run, as flow events.

`--record DIR` makes each measured run of a benchmark a run of a recording
(`amqp10broker.observe.flow_events` has the layout). The broker writes its own events while it runs;
those of the load process wait in its memory and are written here when the broker has ended, together with
the run's row, so that no file is written by us while anything is measured. Reading and writing need
pyarrow, which is imported at the first recorded run and not before.
"""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import spec
from benchmarks.broker_process import BrokerSettings
from benchmarks.errors import MeasureError
from benchmarks.results import Row, machine, revision

if TYPE_CHECKING:
    from amqp10broker.observe.recording import RunRecord
    from benchmarks.client_events import Recorded
    from benchmarks.stream import Counts

CLIENTS: Final = "clients"
"""Prefix of the files that hold the events of load processes."""


@dataclass(slots=True)
class Recording:
    """The recording that one benchmark adds its runs to."""

    folder: Path
    benchmark: str
    every_ms: int
    """How often the broker samples; 0 is every wake of every session."""
    own_broker: bool = True
    """Whether the broker is started here, and so records as well."""
    claimed: BrokerSettings | None = None
    """Settings of a broker that runs already, as far as the command line tells them."""
    _repetitions: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def begin(self, case: str) -> RecordedRun:
        """Name a run that is about to be measured.

        Args:
            case: what is measured, equal for all repetitions and all settings of the broker.
        """
        from amqp10broker.observe.recording import new_run_id

        return RecordedRun(self, new_run_id(self.benchmark), case)

    def check(self) -> None:
        """Make sure that recordings can be written.

        Raises:
            MeasureError: pyarrow is missing; the message says how to install it.
        """
        from amqp10broker.observe.recording import load_arrow

        with _told():
            load_arrow()

    def repetition(self, run: RunRecord) -> int:
        """Return how many runs of this configuration were written before, and count this one."""
        from amqp10broker.observe.flow_events import CONFIGURATION

        key = tuple(getattr(run, name) for name in CONFIGURATION)
        self._repetitions[key] += 1
        return self._repetitions[key] - 1


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of a recording, from its name to its row."""

    recording: Recording
    run_id: str
    case: str

    def broker_arguments(self) -> tuple[str, ...]:
        """Return what tells the broker to record this run; nothing for one that runs already."""
        if not self.recording.own_broker:
            return ()
        every = str(self.recording.every_ms)
        folder = str(self.recording.folder.resolve())
        return "--record", folder, "--record-run", self.run_id, "--record-every", every

    def write(
        self,
        what: spec.Load,
        recorded: Recorded | None,
        settings: BrokerSettings,
        row: Row,
        *,
        queue_type: str,
        durable: bool = False,
        more: dict[str, Any] | None = None,
    ) -> RunRecord:
        """Write the clients' events and the run's row; to be called when the broker has ended.

        Args:
            what: the load.
            recorded: what the load process handed over.
            settings: of the broker.
            row: the figures of the tables, kept with the run.
            queue_type: of the queue that counts, which is that of stream 0.
            durable: messages that were there beforehand are durable; else those of stream 0 decide.
            more: what else is worth knowing.

        Returns:
            The row.

        Raises:
            MeasureError: the load process has not recorded, or the folder cannot be written.
        """
        from amqp10broker.observe.recording import EventWriter, write_run

        if recorded is None or len(recorded.edges) != 2:
            raise MeasureError(f"{self.case}: the load process has recorded no window")
        with _told(), EventWriter(self.recording.folder, self.run_id, CLIENTS) as writer:
            writer.write(recorded.events)
        run = replace(
            self._row_of(what, recorded, settings),
            queue_type=queue_type,
            durable=durable or any(group.durable for group in what.publishing if group.stream == 0),
            settings=json.dumps(self._described(recorded, settings, row, more or {}), ensure_ascii=False),
        )
        run = replace(run, repetition=self.recording.repetition(run))
        with _told():
            write_run(self.recording.folder, run)
        return run

    def discard(self) -> None:
        """Remove what was written of a run that failed."""
        from amqp10broker.observe.flow_events import RUNS
        from amqp10broker.observe.recording import events_folder

        shutil.rmtree(events_folder(self.recording.folder, self.run_id), ignore_errors=True)
        (self.recording.folder / RUNS / f"{self.run_id}.parquet").unlink(missing_ok=True)

    def _row_of(self, what: spec.Load, recorded: Recorded, settings: BrokerSettings) -> RunRecord:
        """Return the columns that follow from load, settings and broker."""
        from amqp10broker.observe.recording import RunRecord

        began, ended = recorded.edges
        broker = self._brokers_row()
        publish, consume = what.publishing, what.consuming
        sizes = {one.size_bytes for one in (publish or consume)}
        rates = sum(one.rate_per_s for one in publish)
        link_credit, incoming_window, queue_credit = self._flow_settings(settings)
        about = machine()
        return RunRecord(
            run_id=self.run_id,
            benchmark=self.recording.benchmark,
            case=self.case,
            # The events of the edges themselves end at these moments: the first belongs to the warm-up, the
            # last to the window, whether a reader includes the ends or leaves them out.
            began_ns=began.wall_ns + 1,
            ended_ns=ended.wall_ns + 1,
            max_link_credit=link_credit,
            max_incoming_window=incoming_window,
            max_queue_credit=queue_credit,
            message_size_bytes=sizes.pop() if len(sizes) == 1 else None,
            protocol="amqp091" if isinstance(what.parts[0], spec.Channel) else "amqp10",
            publishers=sum(len(one.addresses) for one in publish),
            consumers=sum(len(one.addresses) for one in consume),
            rate_limit_per_s=rates or None,
            sample_ms=self.recording.every_ms,
            events_dropped=recorded.dropped + ((broker.events_dropped if broker else None) or 0),
            broker_version=broker.broker_version if broker else None,
            python_version=(broker.python_version if broker else None) or platform.python_version(),
            machine=f"{about['cpu']}, {about['cores']} cores, {about['memory_mb']} MB, {about['system']}",
        )

    def _brokers_row(self) -> RunRecord | None:
        """Return the row that the broker has written of this run, None if it has not."""
        from amqp10broker.observe.recording import NotARecording, read_run

        try:
            return read_run(self.recording.folder, self.run_id)
        except NotARecording:
            return None

    def _flow_settings(self, settings: BrokerSettings) -> tuple[int | None, int | None, int | None]:
        """Return the three settings of flow control that were in force; None where they are not known."""
        if not self.recording.own_broker:
            known = self.recording.claimed or BrokerSettings(max_link_credit=None)
            return known.max_link_credit, known.max_incoming_window, known.max_queue_credit
        from amqp10broker.config import FlowSettings

        default = FlowSettings()
        return (
            settings.max_link_credit or default.link_credit,
            settings.max_incoming_window or default.incoming_window,
            settings.max_queue_credit or default.queue_credit,
        )

    def _described(
        self, recorded: Recorded, settings: BrokerSettings, row: Row, more: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "command": "python -m benchmarks " + shlex.join(sys.argv[1:]),
            "revision": revision(),
            "broker_events": self.recording.own_broker,
            "broker_arguments": settings.arguments(),
            "data_folder": settings.data_root is not None,
            "load_average_1_min": machine()["load_average_1_min"],
            "clients_events_dropped": recorded.dropped,
            "streams_total": [asdict(counts) for counts in recorded.totals],
            "streams_window": [asdict(after - before) for before, after in _edges(recorded)],
            "measured": {key: value for key, value in row.items() if key not in ("case", "target")},
            **more,
        }


@contextmanager
def whole_or_nothing(run: RecordedRun | None) -> Iterator[None]:
    """Discard the run if the block fails; without a run do nothing."""
    try:
        yield
    except BaseException:
        if run is not None:
            run.discard()
        raise


@contextmanager
def _told() -> Iterator[None]:
    """Make what is wrong with a recording an error of benchmarks."""
    from amqp10broker.observe.recording import RecordingError

    try:
        yield
    except RecordingError as error:
        raise MeasureError(str(error)) from error


def _edges(recorded: Recorded) -> Iterable[tuple[Counts, Counts]]:
    began, ended = recorded.edges
    return zip(began.counts, ended.counts, strict=True)
