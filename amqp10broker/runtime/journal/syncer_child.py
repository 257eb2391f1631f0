"""The helper process that syncs: ``python -I -S syncer_child.py FD``, the standard library only.

FD is one end of a Unix stream socket. A request is one byte with up to `FDS_MAX` descriptors attached
(SCM_RIGHTS); each is synced and closed, and the answer is four bytes: 0, or the error number. It ends
when the socket is closed, which the system does if the broker dies, and for no signal: a service manager
that stops all processes at once must not take it from a broker that still has to write.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import stat
import struct
import sys

# Linux takes 253 with one message.
FDS_MAX = 200
ANSWER = struct.Struct(">i")


def sync(fds: array.array[int]) -> int:
    """Sync all; the number of the first error, or 0."""
    fdatasync = getattr(os, "fdatasync", os.fsync)
    try:
        for fd in fds:
            # A folder needs fsync: a new name changes no size, and fdatasync may leave it for later.
            (os.fsync if stat.S_ISDIR(os.fstat(fd).st_mode) else fdatasync)(fd)
    except OSError as error:
        return error.errno or 1
    finally:
        for fd in fds:
            os.close(fd)
    return 0


def serve(channel: socket.socket) -> None:
    """Answer requests until the other end is closed."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(FDS_MAX * fds.itemsize)
    while True:
        request, attached, _, _ = channel.recvmsg(1, space)
        if not request:
            return
        fds = array.array("i")
        for level, kind, data in attached:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        channel.sendall(ANSWER.pack(sync(fds)))


def main() -> None:
    """Serve the socket whose descriptor is the argument."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        try:
            serve(channel)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the broker is gone between a request and its answer


if __name__ == "__main__":
    main()
