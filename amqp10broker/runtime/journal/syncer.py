"""Syncing files without holding up the event loop: a small helper process does it.

Not a thread: a thread that comes back from the system asks a busy loop for the interpreter's lock, and
waits 5 ms and more for it, each time (`docs/adr/0010`). The helper gets descriptors over a Unix socket,
and answers when they are synced; where sockets cannot carry descriptors it is a thread after all. There is
no second try after an error, and no second helper after one that died: nobody could tell what the system
has done with the pages that were to be written.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from amqp10broker import portable, syncing
from amqp10broker.errors import StorageFailed

_CHILD: Final = Path(syncing.__file__)
# How long the helper may take to end when its socket is closed, before it is killed.
_END_S: Final = 5.0


class Syncer:
    """The way to the helper; one sync at a time."""

    def __init__(self, channel: socket.socket, *, delay_ms: int = 0) -> None:
        self._channel = channel
        self._delay_s = delay_ms / 1000
        # Answers to syncs that nobody waits for any more: they were cancelled.
        self._unread = 0

    async def sync(self, fds: Sequence[int]) -> None:
        """Make durable the written content of these files and folders. Raises `StorageFailed` if it may not
        be durable, and no later sync can show that. Stop.
        """
        try:
            while self._unread:
                await self._take_answer()
            for start in range(0, len(fds), syncing.FDS_MAX):
                some = fds[start : start + syncing.FDS_MAX]
                # Straight to the system, here and below: Trio's own sockets let others run at each call,
                # which is half of what a commit costs. One byte always has room.
                portable.send_fds(self._channel, [b"s"], some)
                self._unread += 1
                await self._take_answer()
        except OSError as error:
            raise _failed(f"cannot be reached: {error.strerror}") from error
        if self._delay_s:
            await trio.sleep(self._delay_s)

    async def _take_answer(self) -> None:
        await trio.lowlevel.wait_readable(self._channel)
        # Four bytes that one call has sent come in one piece.
        data = self._channel.recv(syncing.ANSWER.size)
        if len(data) < syncing.ANSWER.size:
            raise _failed("has ended")
        self._unread -= 1
        _check(syncing.ANSWER.unpack(data)[0])


class ThreadSyncer:
    """As `Syncer`, in a thread, with descriptors of its own."""

    def __init__(self, *, delay_ms: int = 0) -> None:
        self._delay_s = delay_ms / 1000

    async def sync(self, fds: Sequence[int]) -> None:
        _check(await trio.to_thread.run_sync(syncing.sync, [os.dup(fd) for fd in fds]))
        await trio.sleep(self._delay_s)


def _check(number: int) -> None:
    if number:
        raise StorageFailed(
            "the data folder",
            f"what was written cannot be synced: {os.strerror(number)}",
            "look at the disk; the broker stops, and a start recovers what was confirmed",
        )


@asynccontextmanager
async def open_syncer(*, delay_ms: int = 0) -> AsyncIterator[Syncer | ThreadSyncer]:
    """Start the helper; it ends with the block. Raises `StorageFailed` if it cannot be started."""
    if portable.send_fds is None:
        yield ThreadSyncer(delay_ms=delay_ms)
        return
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours:
        with theirs:
            try:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-I", "-S", str(_CHILD), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    # Ctrl-C at a terminal goes to a whole session; this one has to outlive it.
                    **portable.OWN_SESSION,
                    **portable.inherited(theirs),
                )
            except OSError as error:
                raise _failed(f"cannot be started: {error.strerror}") from error
        try:
            yield Syncer(ours, delay_ms=delay_ms)
        finally:
            trio.lowlevel.notify_closing(ours)
            ours.close()
            with trio.CancelScope(shield=True):
                with trio.move_on_after(_END_S) as ending:
                    await process.wait()
                if ending.cancelled_caught:
                    # It hangs in a sync that the disk does not end; even this may take until it does.
                    process.kill()
                    await process.wait()


def _failed(problem: str) -> StorageFailed:
    return StorageFailed(
        "the helper process that syncs files",
        problem,
        "start the broker again; what was confirmed is recovered",
    )
