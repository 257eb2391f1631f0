"""A broker in a thread of this process, with its own Trio loop.

Calls come from any thread, whatever loop runs there: the test's may be asyncio's or Trio's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

import trio

from amqp10broker.config import Config
from amqp10broker.errors import BrokerError
from amqp10broker.operations.snapshot import document
from amqp10broker.runtime.admin.admin import run_operation
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe.tracing import EVERYTHING
from amqp10broker.sessions.diagnosis.survey import Selection
from amqp10broker.testing.linting import LintRecording, lines_since
from amqp10broker.testing.server import NOT_KEPT, ConnectionFrames, RecordedFrames

START_S: Final = 30.0
STOP_S: Final = 10.0
# More than any operation takes before its own timeout.
ASK_S: Final = 60.0


class InProcess:
    """A broker that runs until `stop`, a `server.Server`."""

    is_shared = False

    def __init__(self, config: Config, frames: int) -> None:
        """Start the broker, and wait until clients can connect. `config`: its port is 0. `frames`: kept per
        connection; 0: none.
        """
        self._config = config
        self._frames = RecordedFrames(frames, self._waiting) if frames else None
        self._lines = LintRecording()
        self._begun: Future[tuple[Broker, trio.lowlevel.TrioToken, trio.Nursery]] = Future()
        self._thread = threading.Thread(target=self._run, name="amqp10broker", daemon=True)
        self._thread.start()
        self._broker, self._token, self._nursery = self._begun.result(START_S)
        self.host, self.port = self._broker.addresses[0]

    @property
    def http_url(self) -> str | None:
        """The address of the HTTP API and the page, without a slash at its end; None if HTTP is off."""
        addresses = self._broker.http_addresses
        return f"http://{addresses[0][0]}:{addresses[0][1]}" if addresses else None

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self, operation: str, arguments: Mapping[str, Any], vhost: str | None) -> Any:
        answer: Future[Any] = Future()
        given = operation, arguments, vhost
        try:
            self._token.run_sync_soon(self._nursery.start_soon, self._answer, answer, *given)
        except trio.RunFinishedError:
            raise BrokerError("the test's broker has ended; its log says why") from None
        return answer.result(ASK_S)

    def frames(self, began_ns: int) -> dict[int, ConnectionFrames]:
        return {} if self._frames is None else self._frames.since(began_ns)

    def recorded(self, began_ns: int) -> list[list[str]]:
        if self._frames is None:
            raise BrokerError(NOT_KEPT)
        kept: Future[list[str]] = Future()
        try:
            self._token.run_sync_soon(lambda: kept.set_result(self._lines.all()))
        except trio.RunFinishedError:
            kept.set_result(self._lines.all())
        return [lines_since(kept.result(ASK_S), began_ns)]

    def stop(self) -> None:
        try:
            self._token.run_sync_soon(self._broker.stop)
        except trio.RunFinishedError:
            return
        self._thread.join(STOP_S)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            if self._begun.done():
                raise
            self._begun.set_exception(error)

    async def _serve(self) -> None:
        async with Broker(self._config) as broker, trio.open_nursery() as nursery:
            if self._frames is not None:
                broker.tracing.begin(EVERYTHING, self._frames, "the report of a test")
                broker.tracing.record_into("the frames of tests", self._lines, "their lint")
            self._begun.set_result((broker, trio.lowlevel.current_trio_token(), nursery))
            await broker.over.wait()
            nursery.cancel_scope.cancel()

    async def _answer(
        self, answer: Future[Any], operation: str, arguments: Mapping[str, Any], vhost: str | None
    ) -> None:
        try:
            answer.set_result(await run_operation(self._broker, operation, arguments, vhost))
        except trio.Cancelled:
            answer.set_exception(BrokerError("the test's broker was stopped"))
            raise
        except Exception as error:
            answer.set_exception(error)

    def _waiting(self, connection: int) -> list[dict[str, Any]]:
        view = self._broker.view(Selection(connection=connection))
        return [document(each) for each in view.waiting]
