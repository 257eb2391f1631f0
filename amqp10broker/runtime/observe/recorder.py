"""Recordings of flow events of the running broker: begin, end, and pass the events to the helper process.

The pause after a sample of `flow_sampler` is at least 50 times as long as the sample, with the probes before
it, has taken. So recording takes 2 % of a processor at most, with any number of links. A failure of the disk,
the helper or an observer ends the recording, is logged once, and affects nothing else.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Self

import trio

import amqp10broker
from amqp10broker import __version__, portable
from amqp10broker.config import Config, FlowSettings
from amqp10broker.config.settings import CONFIG_SETTINGS
from amqp10broker.errors import BrokerError
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.observe.flow_events import PACK, EventRing
from amqp10broker.observe.recording import (
    LinkName,
    RecordingError,
    RunRecord,
    check_run_name,
    new_run_id,
    numbered,
)
from amqp10broker.operations.snapshot import RecordingFailed, RecordingView
from amqp10broker.runtime.connections.connection091 import ChannelTask
from amqp10broker.runtime.connections.connection10 import SessionTask
from amqp10broker.runtime.connections.connections import ClientsContext, Connection
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe import recorder_child
from amqp10broker.runtime.observe.flow_sampler import FlowSampler
from amqp10broker.runtime.observe.recorder_child import END, EVENTS, FRAME, NOTE, RUN

_log = Log("amqp10broker.recorder")

LOOK_SHARE: Final = 50
FEED_S: Final = 0.1
"""The interval at which the helper gets events. The ring holds six times as many as a busy broker makes."""
BACKLOG_BYTES_MAX: Final = 8 * 1024 * 1024
"""The bytes that may wait for the helper besides the ring, when runs follow each other fast."""
LINKS_NAMED_MAX: Final = 100_000
"""The links of a recording that have names, some 250 bytes each; further ones have only their numbers."""
QUEUES_NAMED_MAX: Final = 10_000
"""The queues that have names in the row of a run; further ones have only their numbers."""


class Recorder:
    """One recording. The first run in the folder has the given name, the next ones ``NAME-2``, ``NAME-3``;
    without a name each run gets a fresh one. `run_id`: that of the present run; a guess until the helper has
    found a free one, some ms after it began. `failed`: None if it did not fail.
    """

    def __init__(self, node_context: ClientsContext, folder: str, every_ms: int, run_id: str | None) -> None:
        try:
            first = None if run_id is None else check_run_name(run_id)
        except ValueError as error:
            raise RecordingError(f"{error}; choose another name for the run") from error
        self.folder = folder
        self._every_ms = every_ms
        self._named = bool(run_id)
        self.run_id = self._name = first or new_run_id("broker")
        self.ended = trio.Event()
        self.failed: RecordingFailed | None = None
        self._node_context = node_context
        self._ring = EventRing()
        self._number = 1  # the suffix of the name
        self._runs = 1
        self._runs_begun = 0  # those that the helper has answered
        self._repetitions: Counter[FlowSettings] = Counter()
        self._protocols_told = 0
        self._row = self._new_row(self._name, node_context.config)
        self._repetitions[node_context.config.flow] += 1
        self._processor_before_ns = time.process_time_ns()
        self._before_ns = time.monotonic_ns()
        self._dropped_before = 0
        self._offered_before = 0
        self._written = 0
        self._process: RecorderProcess | None = None
        self._backlog: deque[tuple[int, bytes, int]] = deque()
        self._stopping = trio.Event()
        self._links: list[LinkName] = []
        self._links_named = 0
        self._looks = FlowSampler(node_context, self._ring.add, self.crash, self._name_queue, self._name_link)

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the helper, which creates the folder and the row of the run. Raises `RecordingError`."""
        self._process = await RecorderProcess.start(self.folder, asdict(self._row))
        self._begun(self._process.begun)

    async def run(self) -> None:
        """Record until `stop`, or until the helper fails; complete the files."""
        assert self._process is not None, "open it first"
        try:
            self._row = replace(self._row, began_ns=time.time_ns())  # the helper takes time to start
            self._put(NOTE, json.dumps({"began_ns": self._row.began_ns}).encode())
            self._looks.begin()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_again)
                nursery.start_soon(self._feed)
                nursery.start_soon(self._listen)
                await self._stopping.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._end()
            self.ended.set()

    def stop(self) -> None:
        self._stopping.set()

    def fail(self, reason: str) -> None:
        """End the recording; the broker continues."""
        if self.failed is None:
            events = self._ring.offered - self._offered_before
            self.failed = RecordingFailed(
                folder=self.folder,
                run_id=self.run_id,
                reason=reason,
                events=events,
                events_written=self._written,
                events_lost=max(0, events - self._written),
            )
            _log.error("recording ended: the broker goes on without", **asdict(self.failed))
        self._stopping.set()

    def crash(self, error: Exception) -> None:
        if self.failed is None:
            _log.error("an observer failed by a fault in the broker", exc_info=error)
        self.fail(f"fault in the broker: {type(error).__name__}")

    async def _end(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        ts_ns = self._look_at_all()
        self._looks.detach()
        if self.failed is None:
            try:
                end_s = max(1.0, self._node_context.config.shutdown_timeout_ms / 1000)
                with trio.move_on_after(end_s) as limit:
                    self._put_events()
                    self._put(END, json.dumps({"ended_ns": ts_ns}).encode())
                    while self._backlog:
                        await process.send(*self._backlog.popleft())
                    while (answer := await process.answer()) is not None:
                        self._hear(answer)
                if limit.cancelled_caught:
                    self.fail("the helper process does not follow: its last events are lost")
            except RecordingError as error:
                self.fail(str(error))
        await process.close()
        if self.failed is None:
            _log.info("recording complete", run_id=self.run_id, **self._counts())

    # --- the helper -------------------------------------------------------------------------------

    async def _feed(self) -> None:
        assert self._process is not None
        try:
            while True:
                await trio.sleep(FEED_S)
                self._put_events()
                while self._backlog:
                    await self._process.send(*self._backlog.popleft())
        except RecordingError as error:
            self.fail(str(error))

    async def _listen(self) -> None:
        assert self._process is not None
        while (answer := await self._process.answer()) is not None:
            self._hear(answer)
        self.fail("the helper process that records has ended")

    def _hear(self, answer: Mapping[str, Any]) -> None:
        if "ready" in answer:
            self._begun(answer)
        if "written" in answer and self._runs_begun == self._runs:
            self._written = answer["written"]
        if "failed" in answer:
            self.fail(str(answer["failed"]))

    def _begun(self, answer: Mapping[str, Any]) -> None:
        self._runs_begun += 1
        first, run_id = self._runs_begun == 1, answer["run_id"]
        if self._runs_begun == self._runs:
            self.run_id, self._number = run_id, answer["number"]
        _log.info(
            "recording" if first else "the next run is recorded",
            **({"folder": self.folder} if first else {}),
            run_id=run_id,
            **({"there_is_already": self._name} if first and run_id != self._name else {}),
        )

    def _put(self, kind: int, payload: bytes) -> None:
        if kind == EVENTS:
            if sum(len(each) for _, each, _ in self._backlog) + len(payload) > BACKLOG_BYTES_MAX:
                self._ring.lose(payload)
                return
            if not payload and not self._backlog:
                return
        self._backlog.append((kind, payload, self._dropped))

    @property
    def _dropped(self) -> int:
        return self._ring.dropped - self._dropped_before

    def _look_at_all(self) -> int:
        if self.failed is None:
            self._looks.look(whole=True)
            self._tell_protocols()
        ts_ns = time.time_ns()
        self._ring.settle(ts_ns)
        return ts_ns

    # --- runs -------------------------------------------------------------------------------------

    def configured(self, config: Config) -> None:
        """Begin the next run before the configuration is replaced, because a run has only one."""
        name = self._name if self._named else new_run_id("broker")
        row = self._new_row(name, config)  # before any change: a fault in it is reported now
        row = replace(row, began_ns=self._look_at_all())
        self._put_events()
        dropped = self._dropped
        self._runs += 1
        self._number = self._number + 1 if name == self._name else 1
        self.run_id, self._name = numbered(name, self._number), name
        self._row = row
        self._repetitions[config.flow] += 1
        self._dropped_before = self._ring.dropped
        self._offered_before = self._ring.offered
        self._written = 0
        self._looks.protocols.clear()
        self._protocols_told = 0
        self._backlog.append((RUN, json.dumps(asdict(self._row)).encode(), dropped))

    def _new_row(self, run_id: str, config: Config) -> RunRecord:
        return RunRecord(
            run_id=run_id,
            benchmark="broker",
            case="",
            repetition=self._repetitions[config.flow],
            began_ns=time.time_ns(),
            max_link_credit=_fixed(config.flow.max_link_credit),
            max_incoming_window=_fixed(config.flow.max_incoming_window),
            max_queue_credit=_fixed(config.flow.max_queue_credit),
            sample_ms=self._every_ms,
            broker_version=__version__,
            python_version=platform.python_version(),
            machine=_machine(),
            settings=json.dumps(
                {
                    "credit_flow_initial": config.credit_flow_initial,
                    "credit_flow_more_after": config.credit_flow_more_after,
                    "writer_buffer_bytes": config.writer_buffer_bytes,
                    "overrides": len(config.overrides),
                    "automatic": config.flow.automatic,
                    "in_memory": config.data_dir is None,
                }
            ),
        )

    # --- looking ----------------------------------------------------------------------------------

    async def _look_again(self) -> None:
        looks = self._looks
        every_s = self._every_ms / 1000
        before_ns = looks.cost_ns
        while True:
            began = trio.current_time()
            await looks.look_in_turns()
            self._tell_protocols()
            # This includes the time of the probes since the last sample.
            cost_s = (looks.cost_ns - before_ns) / 1e9
            before_ns = looks.cost_ns
            await trio.sleep(max(every_s - (trio.current_time() - began), LOOK_SHARE * cost_s))

    def join(self, connection: Connection, running: SessionTask | ChannelTask) -> None:
        """Add a new session or channel, which may end before the next sample."""
        if not self._stopping.is_set():
            self._looks.join(connection, running)

    def _tell_protocols(self) -> None:
        protocols = self._looks.protocols
        if len(protocols) > self._protocols_told:
            self._protocols_told = len(protocols)
            self._put(NOTE, json.dumps({"protocols": sorted(protocols)}).encode())

    def _name_queue(self, number: int, queue: DeclaredQueue) -> None:
        if number <= QUEUES_NAMED_MAX:
            named = {str(number): {"name": queue.name, "vhost": queue.vhost, "type": queue.type}}
            self._put(NOTE, json.dumps({"queues": named}).encode())

    def _name_link(self, name: LinkName) -> None:
        if self._links_named < LINKS_NAMED_MAX:
            self._links_named += 1
            self._links.append(name)

    def _put_events(self) -> None:
        # Let events wait for `_feed`, and before them the names of the links to which they may refer.
        if self._links:
            self._put(NOTE, json.dumps({"links": list(map(asdict, self._links))}).encode())
            self._links.clear()
        self._put(EVENTS, self._ring.take_all())

    # --- status -----------------------------------------------------------------------------------

    def view(self) -> RecordingView:
        past_ns = time.monotonic_ns() - self._before_ns
        # The observers have a share of this: the broker's processor time since the recording began.
        used_ns = time.process_time_ns() - self._processor_before_ns
        return RecordingView(
            folder=self.folder,
            run_id=self.run_id,
            every_ms=self._every_ms,
            began_ns=self._row.began_ns,
            looks=self._looks.count,
            processor_percent=round(100 * self._looks.cost_ns / max(1, past_ns), 2),
            cost_percent=round(100 * self._looks.cost_ns / max(1, used_ns), 2),
            **self._counts(),
        )

    def _counts(self) -> dict[str, int]:
        ring = self._ring
        return {
            "events": ring.offered - self._offered_before,
            "events_written": self._written,
            "events_dropped": self._dropped,
            "buffered_bytes": ring.waiting * PACK.size,
        }


def _fixed(setting: int | str) -> int | None:
    return None if isinstance(setting, str) else setting


def _machine() -> str:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{system}, {os.cpu_count()} processors, {platform.python_implementation()}"


START_S: Final = 30.0
"""How long the helper may take to load pyarrow and make its folders."""
END_S: Final = 10.0
"""How long it may take to complete its files when the recording ends, before it is killed."""
READ_BYTES: Final = 65_536


class RecorderProcess:
    def __init__(self, channel: socket.socket, process: trio.Process) -> None:
        self._channel = channel
        self._process = process
        self.begun: dict[str, Any] = {}
        self._received = bytearray()
        self._unsent = memoryview(b"")

    @classmethod
    async def start(cls, recording: str, row: Mapping[str, Any]) -> Self:
        """Start a helper and begin the first run. Raises `RecordingError`."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                process = await trio.lowlevel.open_process(
                    [
                        sys.executable,
                        "-I",
                        recorder_child.__file__,
                        str(theirs.fileno()),
                        recording,
                        json.dumps(_search_path()),
                    ],
                    stdin=subprocess.DEVNULL,
                    # Ctrl-C at a terminal is sent to a whole session; the helper must outlive it.
                    **portable.OWN_SESSION,
                    **portable.inherited(theirs),
                )
            except BaseException as error:
                ours.close()
                if isinstance(error, OSError):
                    raise RecordingError(
                        f"the helper process that records cannot be started: {error.strerror}; "
                        "see whether there are too many processes"
                    ) from error
                raise
        helper = cls(ours, process)
        try:
            await helper.send(RUN, json.dumps(dict(row)).encode())
            with trio.move_on_after(START_S):
                answer = await helper.answer()
                if answer is None:
                    raise RecordingError("the helper process that records has ended; its errors say why")
                if "failed" in answer:
                    raise RecordingError(str(answer["failed"]))
                helper.begun = answer
                return helper
            raise RecordingError(f"the helper process that records has not answered for {START_S:g} s")
        except BaseException:
            await helper.close(end_s=0)
            raise

    async def send(self, kind: int, payload: bytes, dropped: int = 0) -> None:
        """Send one frame, waiting until the helper takes it. After a cancellation the next call sends the
        rest of the frame. Raises `RecordingError` if the helper has ended.
        """
        self._unsent = memoryview(b"".join((self._unsent, FRAME.pack(kind, len(payload), dropped), payload)))
        try:
            while len(self._unsent):
                try:
                    self._unsent = self._unsent[self._channel.send(self._unsent) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._channel)
        except OSError as error:
            raise RecordingError("the helper process that records has ended") from error

    async def answer(self) -> dict[str, Any] | None:
        """Wait for the next line of the helper; None at the end."""
        while (end := self._received.find(b"\n")) < 0:
            await trio.lowlevel.wait_readable(self._channel)
            try:
                data = self._channel.recv(READ_BYTES)
            except OSError:
                data = b""
            if not data:
                return None
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def close(self, *, end_s: float = END_S) -> None:
        with trio.CancelScope(shield=True):
            trio.lowlevel.notify_closing(self._channel)
            self._channel.close()
            with trio.move_on_after(end_s):
                await self._process.wait()
                return
            self._process.kill()
            await self._process.wait()


def _search_path() -> list[str]:
    # The module search path, with this package first: it may have been found by the working directory.
    package = str(Path(amqp10broker.__file__).resolve().parent.parent)
    return [package, *(path for path in sys.path if path and path != package)]


class Recordings:
    """The recording of a broker, if there is one. `failed`: the error of the last one, until another one
    begins; None if it did not fail.
    """

    def __init__(self, node_context: ClientsContext) -> None:
        self._node_context = node_context
        self._nursery: trio.Nursery | None = None
        self._starting = False
        self.recorder: Recorder | None = None
        self.failed: RecordingFailed | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Allow recordings inside the block, and begin at once if so configured. Raises `BrokerError`."""
        config = self._node_context.config
        failure: Exception | None = None
        async with trio.open_nursery() as self._nursery:
            try:
                if config.record is not None:
                    await self.start(config.record, every_ms=config.record_every, run_id=config.record_run)
                yield
            except Exception as error:
                # It is not raised out of the nursery, which would wrap it in a group.
                failure = error
            finally:
                if self.recorder is not None:
                    self.recorder.stop()
        if failure is not None:
            raise failure

    async def start(self, folder: str, *, every_ms: object, run_id: str | None) -> RecordingView:
        """Begin to record. Raises `BrokerError`."""
        assert self._nursery is not None, "the broker is not running"
        if self.recorder is not None or self._starting:
            where = "" if self.recorder is None else f" into {self.recorder.folder}"
            raise BrokerError(f"the broker records already{where}; 'amqp10broker record stop' ends that")
        CONFIG_SETTINGS["record_every"].check(every_ms, "every")
        assert isinstance(every_ms, int)
        self._starting = True
        try:
            folder = os.path.join(os.getcwd(), folder)
            recorder = Recorder(self._node_context, folder, every_ms, run_id)
            await recorder.open()
            self.recorder, self.failed = recorder, None
            self._nursery.start_soon(self._run, recorder)
        finally:
            self._starting = False
        return recorder.view()

    async def stop(self) -> RecordingView:
        recorder = self.recorder
        if recorder is None:
            before = "" if self.failed is None else f". The last recording failed: {self.failed.reason}"
            raise BrokerError(
                f"the broker does not record; 'amqp10broker record start DIR' begins to{before}"
            )
        recorder.stop()
        await recorder.ended.wait()
        return recorder.view()

    def view(self) -> RecordingView | None:
        return None if self.recorder is None else self.recorder.view()

    def join(self, connection: Connection, part: int) -> None:
        if self.recorder is not None:
            self.recorder.join(connection, connection.parts[part])

    def configured(self, config: Config) -> None:
        if self.recorder is not None:
            self.recorder.configured(config)

    async def _run(self, recorder: Recorder) -> None:
        try:
            await recorder.run()
        finally:
            self.recorder, self.failed = None, recorder.failed
