"""The helper process that writes a recording, as the broker sees it: frames out, short answers in.

It is told over a Unix socket, and the broker waits for it in one task that has nothing else to do: a helper
that does not follow fills the socket, and then the ring, and then events are dropped and counted.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import trio

import amqp10broker
from amqp10broker import portable
from amqp10broker.observe.recording.errors import RecordingError
from amqp10broker.runtime.observe import recorder_child
from amqp10broker.runtime.observe.recorder_child import END, EVENTS, FRAME, NOTE, RUN

__all__ = ["END", "EVENTS", "NOTE", "RUN", "RecorderProcess"]

START_S: Final = 30.0
"""How long the helper may take to load pyarrow and make its folders."""
END_S: Final = 10.0
"""How long it may take to complete its files when the recording ends, before it is killed."""
READ_BYTES: Final = 65_536


class RecorderProcess:
    """The way to the helper."""

    def __init__(self, channel: socket.socket, process: trio.Process) -> None:
        self._channel = channel
        self._process = process
        self.begun: dict[str, Any] = {}
        self._received = bytearray()
        self._unsent = memoryview(b"")

    @classmethod
    async def start(cls, recording: str, row: Mapping[str, Any]) -> Self:
        """Start a helper and begin the first run. Raises `RecordingError` with the reason if it cannot record
        there.
        """
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
                    # Ctrl-C at a terminal goes to a whole session; this one has to outlive it.
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
        """Send one frame, waiting until the helper takes it.

        After a cancellation the next call sends the rest of the frame. Raises `RecordingError` if the helper
        has ended.
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
        """Wait for the next line of the helper; None when there will be none."""
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
        """Let the helper end, and wait for it; kill it if it does not."""
        with trio.CancelScope(shield=True):
            trio.lowlevel.notify_closing(self._channel)
            self._channel.close()
            with trio.move_on_after(end_s):
                await self._process.wait()
                return
            self._process.kill()
            await self._process.wait()


def _search_path() -> list[str]:
    # Where modules are found, this package before all: it may have been found by the working directory.
    package = str(Path(amqp10broker.__file__).resolve().parent.parent)
    return [package, *(path for path in sys.path if path and path != package)]
