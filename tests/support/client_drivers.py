"""The client's two drivers behind one face, so that one suite runs on both.

The face is the blocking client's. The Trio client runs in a thread of its own; a call of a method goes there,
and waits for its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from queue import SimpleQueue
from typing import Any, Final, Self

import pytest
import trio

from amqp10broker.client import blocking
from amqp10broker.client import trio as on_trio
from amqp10broker.client.core import LinkBase

Connect = Callable[..., Any]
"""As `blocking.connect`."""


class Face:
    """An object of a Trio client, whose methods are called in its thread."""

    def __init__(self, inner: Any, token: trio.lowlevel.TrioToken) -> None:
        self._inner = inner
        self._token = token

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._method(value) if callable(value) else value

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        run = trio.from_thread.run if iscoroutinefunction(method) else trio.from_thread.run_sync

        def call(*arguments: Any, **named: Any) -> Any:
            result = run(partial(method, *arguments, **named), trio_token=self._token)
            return Face(result, self._token) if isinstance(result, LinkBase) else result

        return call


class TrioClient(Face):
    """A Trio client in a thread: connected when it is made, with the ends that the blocking client has."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._ends = trio.Event()
        self._scope = trio.CancelScope()
        opened: SimpleQueue[Any] = SimpleQueue()

        async def live() -> None:
            with self._scope:
                try:
                    async with on_trio.connect(*arguments, **named) as client:
                        opened.put((client, trio.lowlevel.current_trio_token()))
                        await self._ends.wait()
                except Exception as error:
                    opened.put(error)

        self._thread = threading.Thread(target=trio.run, args=(live,))
        self._thread.start()
        found = opened.get()
        if isinstance(found, Exception):
            self._thread.join()
            raise found.with_traceback(None)
        super().__init__(*found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._end(self._ends.set)

    def abort(self) -> None:
        """Cancel the block, which closes the stream at once."""
        self._end(self._scope.cancel)

    def _end(self, how: Callable[[], object]) -> None:
        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(how, trio_token=self._token)
        self._thread.join()


DRIVERS: Final[dict[str, Connect]] = {"blocking": blocking.connect, "trio": TrioClient}


@pytest.fixture(params=DRIVERS)
def connect(request: pytest.FixtureRequest) -> Connect:
    """Connects the client on one driver, and then on the other."""
    return DRIVERS[request.param]
