"""The file with a node's process id, for tools that manage several nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.broker")

PID: Final = "pid"


@contextmanager
def pid_file(folder: str) -> Iterator[None]:
    """Have this process's number in a folder that it holds, for so long."""
    path = os.path.join(folder, PID)
    try:
        # Aside and renamed: half of it is never seen.
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        os.replace(f"{path}.new", path)
    except OSError as error:
        # As with the lock: a full disk must not keep a broker from starting.
        _log.warning("the process's number cannot be written", path=path, reason=error.strerror)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
