"""``python -m tests.support.no_posix COMMAND ...``: the command line as where Python has nothing of POSIX.

Trio and the standard library are loaded first, as they were made for this system; then what Windows lacks is
hidden, what it has is put in place of it, and files are as there: an open one can be neither removed, renamed
nor replaced, a folder cannot be opened, and a file that is opened as text is refused.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import ssl
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import trio

LOADED = (asyncio, ssl, subprocess, trio)
PACKAGE = f"{os.sep}amqp10broker{os.sep}"
# By Python's documentation "Availability: Unix". `shutil` needs statvfs here, and something else there.
HIDDEN = {
    os: (
        *("pread", "pwrite", "preadv", "pwritev", "fdatasync", "sysconf", "getuid", "geteuid"),
        *("uname", "nice", "fork", "fchmod", "chown", "getloadavg", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW"),
    ),
    socket: ("AF_UNIX", "SCM_RIGHTS", "SO_PEERCRED", "CMSG_SPACE", "CMSG_LEN", "send_fds", "recv_fds"),
    signal: ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGQUIT"),
}
BINARY = 1 << 30


class _Absent:
    """A method that objects of a class do not have."""

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError("hidden")


def hide() -> None:
    """Hide POSIX modules from modules loaded from now on."""
    # That of Windows is made of two sockets of loopback.
    socket.socketpair = partial(socket.socketpair, socket.AF_UNIX)
    for module, names in HIDDEN.items():
        for name in names:
            delattr(module, name)
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None  # type: ignore[assignment]
    for name in ("sendmsg", "recvmsg"):
        setattr(socket.socket, name, _Absent())
    sys.modules["msvcrt"] = _msvcrt()
    _restrict_files()


def _msvcrt() -> types.ModuleType:
    module = types.ModuleType("msvcrt")

    def locking(fd: int, mode: int, count: int) -> None:
        # Nobody can read the bytes that are locked there, so they have to be behind all others.
        assert (mode, count) == (module.LK_NBLCK, 1)
        assert os.lseek(fd, 0, os.SEEK_CUR) > os.fstat(fd).st_size
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(13, "Permission denied") from error

    module.LK_NBLCK = 2  # type: ignore[attr-defined]
    module.locking = locking  # type: ignore[attr-defined]
    return module


def _restrict_files() -> None:
    open_file, remove, replace, rename = os.open, os.unlink, os.replace, os.rename
    os.O_BINARY = BINARY  # type: ignore[attr-defined]

    def open_(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)
        if PACKAGE in sys._getframe(1).f_code.co_filename:
            assert flags & BINARY, f"{path} is opened as text"
        return open_file(path, flags & ~BINARY, *arguments, **options)

    def refuse_open(*paths: Any) -> None:
        for path in paths:
            for fd in os.listdir("/proc/self/fd"):
                try:
                    name = os.readlink(f"/proc/self/fd/{fd}")
                except FileNotFoundError:
                    continue  # of the listing
                if Path(name).is_relative_to(os.path.realpath(path)):
                    raise PermissionError(13, "it is used by another process", path)

    def unlink(path: Any, **options: Any) -> None:
        refuse_open(path)
        remove(path, **options)

    def replace_(old: Any, new: Any, **options: Any) -> None:
        refuse_open(old, new)
        replace(old, new, **options)

    def rename_(old: Any, new: Any, **options: Any) -> None:
        refuse_open(old)
        if os.path.lexists(new):
            raise FileExistsError(17, "File exists", new)
        rename(old, new, **options)

    os.open, os.unlink, os.remove, os.replace, os.rename = open_, unlink, unlink, replace_, rename_


if __name__ == "__main__":
    hide()
    from amqp10broker.cli.main import main

    sys.exit(main())
