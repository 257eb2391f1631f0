"""Making files durable, and the helper process that does it: ``python -I -S syncing.py FD``.

FD is one end of a Unix stream socket. A request is one byte with up to `FDS_MAX` descriptors attached
(SCM_RIGHTS). Each is synced and closed, and the answer is four bytes: 0, or the error number. The helper ends
when the socket is closed, which the system does if the broker dies, and for no signal: a service manager that
stops all processes at once must not end it while the broker still has to write.

The helper loads this file and a few modules of the standard library: the broker's first sync waits for it.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Sequence

if sys.platform == "darwin":
    import fcntl

# Linux accepts 253 with one message.
FDS_MAX = 200
ANSWER = struct.Struct(">i")

# Not every system has it; fsync does more.
_fdatasync = getattr(os, "fdatasync", os.fsync)


def sync_file(fd: int) -> None:
    """Make the content of a file durable, or the names in a folder. Raises `OSError`."""
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        # A folder needs fsync: a new name does not change a size, and fdatasync may delay it. The null device
        # replaces a folder that cannot be opened (`portable.open_folder`).
        if not stat.S_ISCHR(mode):
            os.fsync(fd)
    elif sys.platform == "darwin":
        # fsync of macOS leaves data in the drive's cache; not every file system has the other call.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:
            os.fsync(fd)
    else:
        _fdatasync(fd)


def sync(fds: Sequence[int]) -> int:
    """Sync and close all; return the number of the first error, or 0."""
    try:
        for fd in fds:
            sync_file(fd)
    except OSError as error:
        return error.errno or 1
    finally:
        for fd in fds:
            os.close(fd)
    return 0


if sys.platform != "win32":

    def serve(channel: socket.socket) -> None:
        """Answer requests until the other end is closed."""
        while True:
            request, fds, _, _ = socket.recv_fds(channel, 1, FDS_MAX)
            if not request:
                return
            channel.sendall(ANSWER.pack(sync(fds)))

    def main() -> None:
        """Serve the socket whose descriptor is the argument."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with socket.socket(fileno=int(sys.argv[1])) as channel:
            try:
                serve(channel)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the broker ended between a request and its answer

    if __name__ == "__main__":
        main()
