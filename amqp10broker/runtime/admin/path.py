"""The path of the broker's administration socket, and the checks on both sides that it is the user's own.

Its default place is ``<port>.sock`` in a directory that only this user can enter:
``$XDG_RUNTIME_DIR/amqp10broker``, or ``<temporary directory>/amqp10broker-<uid>``. Any user may create names
in a temporary directory. So the broker and the command line both check, without following links, that the
directory is a real one, owned by this user and closed to others. The command line also requests the user at
the other end from the kernel.

It uses the standard library only: the command line starts without Trio.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Mapping
from typing import Final

from amqp10broker import portable
from amqp10broker.errors import AdminSocketError

DIRECTORY_MODE: Final = 0o700
# Windows refuses a connection after two seconds.
_PROBE_S: Final = 3.0
_PEER_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


def directories(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The default directories of sockets, the preferred one first, which the broker uses. The command line
    searches all: the broker may have been started where ``XDG_RUNTIME_DIR`` is not set, by cron or by a
    service manager.
    """
    if environ is None:
        environ = os.environ
    folders = (environ.get(name, "") for name in ("TMPDIR", "LOCALAPPDATA"))
    temporary = next(filter(os.path.isabs, folders), "/tmp")
    places = [os.path.join(temporary, f"amqp10broker-{portable.user_id()}")]
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    # After su the variable may still name the directory of the other user, which must not be used.
    if os.path.isabs(runtime) and _owned_by_us(runtime):
        places.insert(0, os.path.join(runtime, "amqp10broker"))
    return tuple(places)


def default_path(port: int, environ: Mapping[str, str] | None = None) -> str:
    """The path on which a broker that listens on `port` serves by default."""
    return os.path.join(directories(environ)[0], f"{port}.sock")


def find(port: int, environ: Mapping[str, str] | None = None) -> str | None:
    """The path of the socket of a broker on `port`; None if no default directory has one."""
    for directory in directories(environ):
        path = os.path.join(directory, f"{port}.sock")
        if os.path.lexists(path):
            return path
    return None


def found_ports(environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """The ports of the brokers that have a socket in a default directory, for a helpful message."""
    ports: set[int] = set()
    for directory in directories(environ):
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        ports |= {
            int(stem)
            for stem, dot, end in (n.partition(".") for n in names)
            if end == "sock" and stem.isascii() and stem.isdigit()
        }
    return tuple(sorted(ports))


def prepare_directory(directory: str) -> None:
    """Create the private directory if it does not exist, and check it. Raises `AdminSocketError`."""
    try:
        os.mkdir(directory, DIRECTORY_MODE)
    except FileExistsError:
        pass
    except OSError as error:
        raise AdminSocketError(
            f"cannot create {directory} for the administration socket: {error.strerror}; "
            "give another place with --admin-socket PATH"
        ) from error
    check_directory(directory)


def check_directory(directory: str) -> None:
    """Refuse a directory that another user could have prepared or could enter. Raises `AdminSocketError`."""
    try:
        found = os.lstat(directory)
    except OSError as error:
        raise AdminSocketError(f"cannot look at {directory}: {error.strerror}") from error
    problem = None
    if stat.S_ISLNK(found.st_mode):
        problem = "is a symbolic link"
    elif not stat.S_ISDIR(found.st_mode):
        problem = "is not a directory"
    elif not portable.is_ours(found):
        problem = f"belongs to user {found.st_uid}, not to you ({portable.user_id()})"
    elif portable.open_to_others(found):
        problem = f"may be used by others (mode {stat.S_IMODE(found.st_mode):04o}, must be 0700)"
    if problem:
        raise AdminSocketError(
            f"{directory} {problem}, so the administration socket in it cannot be trusted; "
            "remove it or mend it, or give another place with --admin-socket PATH"
        )


def listen(path: str) -> socket.socket:
    """Open the broker's end: a listening, non-blocking socket that only this user can open
    (`portable.listen_at`). The socket of a dead broker is replaced. A default directory is created and
    checked; any other is the user's choice and must exist. Raises `AdminSocketError` if the place is unsafe,
    or a living broker listens there.
    """
    _check_length(path)
    directory = os.path.dirname(path)
    if directory in directories():
        prepare_directory(directory)
    _remove_stale(path)
    try:
        return portable.listen_at(path)
    except OSError as error:
        raise AdminSocketError(
            f"cannot open the administration socket {path}: {error.strerror}; "
            "give another place with --admin-socket PATH, or turn it off with --admin-socket ''"
        ) from error


def remove(path: str) -> None:
    """Remove the broker's socket on shutdown. Does nothing if it does not exist."""
    try:
        os.unlink(path)
    except OSError:
        pass


def connect(path: str, *, timeout_s: float) -> socket.socket:
    """Open the command line's end, after checking its owner. Raises `AdminSocketError` if the place is unsafe
    or the other end belongs to another user, and `OSError` if no broker listens there.
    """
    _check_length(path)
    directory = os.path.dirname(path)
    if directory in directories():
        check_directory(directory)
    if not portable.is_endpoint(path):
        raise AdminSocketError(f"{path} is not a socket; give the broker's with --admin-socket PATH")
    stream = portable.connect_to(path, timeout_s=timeout_s)
    try:
        owner = peer_uid(stream)
        if owner is not None and owner not in (portable.user_id(), 0) and portable.user_id() != 0:
            raise AdminSocketError(f"the process behind {path} belongs to user {owner}, not to you")
    except BaseException:
        stream.close()
        raise
    return stream


def peer_uid(stream: socket.socket) -> int | None:
    """Return the user at the other end of a Unix socket, or None if the system does not support that."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None or stream.family != portable.UNIX:
        return None
    answer = stream.getsockopt(socket.SOL_SOCKET, option, _PEER_CREDENTIALS.size)
    uid: int = _PEER_CREDENTIALS.unpack(answer)[1]
    return uid


def _remove_stale(path: str) -> None:
    try:
        there = portable.is_endpoint(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AdminSocketError(f"cannot look at {path}: {error.strerror}") from error
    if not there:
        raise AdminSocketError(f"{path} is there and is not a socket; it is left alone, give another path")
    try:
        portable.connect_to(path, timeout_s=_PROBE_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        remove(path)
        return
    except (BlockingIOError, TimeoutError):
        pass  # the backlog is full: a broker lives
    except OSError as error:
        raise AdminSocketError(f"cannot tell whether {path} is in use: {error.strerror}") from error
    raise AdminSocketError(f"another broker serves {path}; stop it, or give another --admin-socket PATH")


def _check_length(path: str) -> None:
    size = len(os.fsencode(path))
    if size > portable.ENDPOINT_BYTES_MAX:
        raise AdminSocketError(
            f"the path of the administration socket is {size} bytes long and the system allows "
            f"{portable.ENDPOINT_BYTES_MAX}: {path}; give a shorter one with --admin-socket PATH"
        )


def _owned_by_us(directory: str) -> bool:
    try:
        return portable.is_ours(os.stat(directory))
    except OSError:
        return False
