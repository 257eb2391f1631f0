"""Starting and stopping recordings of flow events. What records is loaded when it is first asked for."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from amqp10broker.config import Config
from amqp10broker.config.records import CONFIG_SETTINGS
from amqp10broker.errors import BrokerError
from amqp10broker.operations.snapshot import RecordingFailed, RecordingView
from amqp10broker.runtime.connections.connections import Connection, Occupied

if TYPE_CHECKING:
    from amqp10broker.runtime.observe.recorder import Recorder

_EVERY: Final = CONFIG_SETTINGS["record_every"]


class Recordings:
    """The recording of a broker, if there is one; one at a time. `failed`: how the last one failed
    (`Recorder.failed`), until another one begins; None if it did not.
    """

    def __init__(self, node_context: Occupied) -> None:
        self._node_context = node_context
        self._nursery: trio.Nursery | None = None
        self._starting = False
        self.recorder: Recorder | None = None
        self.failed: RecordingFailed | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Allow recordings inside the block, and begin at once if so configured. Raises `BrokerError` if that
        fails.
        """
        config = self._node_context.config
        failure: Exception | None = None
        async with trio.open_nursery() as self._nursery:
            try:
                if config.record is not None:
                    await self.start(config.record, every_ms=config.record_every, run_id=config.record_run)
                yield
            except Exception as error:
                # Not out of the nursery, which would make a group of it.
                failure = error
            finally:
                if self.recorder is not None:
                    self.recorder.stop()
        if failure is not None:
            raise failure

    async def start(self, folder: str, *, every_ms: object, run_id: str | None) -> RecordingView:
        """Begin to record. Raises a `BrokerError` subclass with the reason if that fails."""
        from amqp10broker.runtime.observe.recorder import Recorder, Recording

        assert self._nursery is not None, "the broker is not running"
        if self.recorder is not None or self._starting:
            where = "" if self.recorder is None else f" into {self.recorder.recording.folder}"
            raise BrokerError(f"the broker records already{where}; 'amqp10broker record stop' ends that")
        _EVERY.check(every_ms, "every")
        assert isinstance(every_ms, int)
        self._starting = True
        try:
            recorder = Recorder(
                self._node_context, Recording(os.path.join(os.getcwd(), folder), every_ms, run_id)
            )
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
        """A session or channel begins, of which everything counts."""
        if self.recorder is not None:
            self.recorder.join(connection, connection.parts[part])

    def configured(self, config: Config) -> None:
        """The flow settings are about to be changed while running."""
        if self.recorder is not None:
            self.recorder.configured(config)

    async def _run(self, recorder: Recorder) -> None:
        try:
            await recorder.run()
        finally:
            self.recorder, self.failed = None, recorder.failed
