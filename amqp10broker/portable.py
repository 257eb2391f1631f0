"""The differences between operating systems: the calls that POSIX has and Windows lacks, each with its
portable form.

No other module checks the system, except for code that only tunes Linux, and `syncing`, which is also a
separate program. A form is chosen by whether Python has the call, so that a test can hide the call and run
the portable form.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt, _resource = map(_module, ("fcntl", "msvcrt", "resource"))

# --- files ----------------------------------------------------------------------------------------

BINARY: Final[int] = getattr(os, "O_BINARY", 0)
"""The flag of `os.open` without which Windows changes line ends."""
_DIRECTORY: Final[int | None] = getattr(os, "O_DIRECTORY", None)
_LOCKED_AT: Final = 1 << 30
"""The byte that Windows locks and makes unreadable: after the end of any file with a lock."""
_moving = threading.Lock()
"""Held between a seek and its read or write."""


def _pread(fd: int, length: int, offset: int) -> bytes:
    with _moving:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, length)


def _pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
    with _moving:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


def _pwritev(fd: int, pieces: Iterable[bytes], offset: int) -> int:
    return pwrite(fd, b"".join(pieces), offset)


pread: Final[Callable[[int, int, int], bytes]] = getattr(os, "pread", _pread)
pwrite: Final[Callable[[int, bytes | memoryview, int], int]] = getattr(os, "pwrite", _pwrite)
pwritev: Final[Callable[[int, Sequence[bytes], int], int]] = getattr(os, "pwritev", _pwritev)


def open_folder(path: str) -> int:
    """Open a folder, to lock or to sync it. Windows cannot: the null device replaces it, which `lock` refuses
    and `syncing` skips, because NTFS logs changes of names by itself.
    """
    if _DIRECTORY is not None:
        return os.open(path, os.O_RDONLY | _DIRECTORY)
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return os.open(os.devnull, os.O_RDWR | BINARY)


def lock(fd: int) -> bool:
    """Lock a file or folder for this process until it is closed; return False if another has it. Raises
    `OSError` if it cannot be locked.
    """
    try:
        if _fcntl is not None:
            _fcntl.flock(fd, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        elif stat.S_ISREG(os.fstat(fd).st_mode) and _msvcrt is not None:
            os.lseek(fd, _LOCKED_AT, os.SEEK_SET)
            _msvcrt.locking(fd, _msvcrt.LK_NBLCK, 1)
        else:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    except (BlockingIOError, PermissionError):
        return False
    return True


# --- users ----------------------------------------------------------------------------------------

_getuid: Final[Callable[[], int] | None] = getattr(os, "getuid", None)


def user_id() -> int:
    """Return the number of this user; 0 where users have none."""
    return 0 if _getuid is None else _getuid()


def is_ours(found: os.stat_result) -> bool:
    """Return whether a file is this user's; true where owners are unknown."""
    return _getuid is None or found.st_uid == _getuid()


def open_to_others(found: os.stat_result) -> bool:
    """Return whether its mode lets other users use a file; False where modes do not describe users."""
    return _getuid is not None and bool(found.st_mode & 0o077)


# --- sockets --------------------------------------------------------------------------------------

UNIX: Final[int | None] = getattr(socket, "AF_UNIX", None)
"""The family of Unix sockets."""
# sun_path has 108 bytes on Linux and 104 on macOS and the BSDs, the last one a NUL.
ENDPOINT_BYTES_MAX: Final = 103 if UNIX is not None else 32_000
ENDPOINT_MODE: Final = 0o600
REUSE_ADDRESS: Final[int] = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
"""The option to listen at a port that another process has just left; SO_REUSEADDR of Windows would take it
from a process that still listens.
"""
send_fds: Final[Any] = getattr(socket, "send_fds", None)
"""None where a socket cannot carry descriptors."""
_BACKLOG: Final = 8
_HOST: Final = "127.0.0.1"
_SECRET_BYTES: Final = 32
_JOINED_BYTES_MAX: Final = 262_144


def _send_joined(sock: socket.socket, pieces: Sequence[bytes | memoryview]) -> int:
    # Buffers beyond the socket's room would be copied without use.
    size, count = 0, 0
    for piece in pieces:
        if size and size + len(piece) > _JOINED_BYTES_MAX:
            break
        size, count = size + len(piece), count + 1
    return sock.send(pieces[0] if count == 1 else b"".join(pieces[:count]))


send_pieces: Final[Callable[[Any, Sequence[bytes | memoryview]], int]] = getattr(
    socket.socket, "sendmsg", _send_joined
)
"""Send a part of some buffers, from the first on, and return its bytes."""


def listen_at(path: str) -> socket.socket:
    """Listen, without blocking, where only this user can connect. This is a Unix socket or, without those, a
    loopback port that a file names together with a secret, which each client sends first.
    """
    listener = socket.socket(socket.AF_INET if UNIX is None else UNIX, socket.SOCK_STREAM)
    try:
        if UNIX is not None:
            # It uses the mask, not a later chmod: there is no moment at which others could connect.
            before = os.umask(0o777 & ~ENDPOINT_MODE)
            try:
                listener.bind(path)
            finally:
                os.umask(before)
            listener.listen(_BACKLOG)
        else:
            listener.bind((_HOST, 0))
            listener.listen(_BACKLOG)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, ENDPOINT_MODE)
            with open(fd, "wb") as file:
                secret = os.urandom(_SECRET_BYTES // 2).hex()
                file.write(f"{listener.getsockname()[1]} {secret}\n".encode())
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def secret_at(path: str) -> bytes:
    """Return the bytes that clients of `listen_at` send first; empty where the system checks them."""
    return b"" if UNIX is not None else _named(path)[1]


def connect_to(path: str, *, timeout_s: float) -> socket.socket:
    """Connect to a listener of `listen_at`. Raises `OSError` if there is none. `timeout_s`: also that of each
    later call; 0: calls do not wait.
    """
    if UNIX is not None:
        return _connected(socket.socket(UNIX, socket.SOCK_STREAM), path, b"", timeout_s)
    port, secret = _named(path)
    return _connected(socket.socket(), (_HOST, port), secret, timeout_s)


def _connected(stream: socket.socket, address: Any, secret: bytes, timeout_s: float) -> socket.socket:
    try:
        stream.settimeout(timeout_s)
        stream.connect(address)
        if secret:
            stream.sendall(secret)
    except BaseException:
        stream.close()
        raise
    return stream


def is_endpoint(path: str) -> bool:
    """Return whether a path may be one of `listen_at`; other files must not be changed. Raises `OSError`."""
    mode = os.lstat(path).st_mode
    if UNIX is not None:
        return stat.S_ISSOCK(mode)
    try:
        return stat.S_ISREG(mode) and _named(path)[0] > 0
    except ValueError:
        return False


def _named(path: str) -> tuple[int, bytes]:
    # Raise `ValueError` for a file that `listen_at` has not written.
    with open(path, "rb") as file:
        port, secret = file.read(100).split()
    return int(port), secret


# --- processes and signals ------------------------------------------------------------------------

STOP: Final[int] = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM)
"""The signal that requests a process of `OWN_SESSION` to stop in order."""
KILL: Final[int] = getattr(signal, "SIGKILL", signal.SIGTERM)
STOP_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name)
)
"""Signals that stop a broker in order."""
SERVICE_SIGNALS: Final = (*STOP_SIGNALS, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""Signals that a terminal or a service manager sends to all processes at once."""
_NEW_PROCESS_GROUP: Final = 0x200  # CREATE_NEW_PROCESS_GROUP of Windows
OWN_SESSION: Final[Mapping[str, Any]] = (
    {"creationflags": _NEW_PROCESS_GROUP} if STOP != signal.SIGTERM else {"start_new_session": True}
)
"""Options of a process that Ctrl-C at the terminal must not reach."""
nice: Final[Callable[[int], object]] = getattr(os, "nice", int)
"""Lowers the priority of this process; does nothing where priorities are different."""


def inherited(sock: socket.socket) -> dict[str, Any]:
    """Return the options of a process that has a socket under the same number, and make that possible."""
    if send_fds is not None:
        return {"pass_fds": [sock.fileno()]}
    sock.set_inheritable(True)
    return {"close_fds": False}


# --- figures of the machine and of this process ---------------------------------------------------


def libc() -> Any:
    """Return the C library by `ctypes`; None where a process has no symbol table of its own."""
    import ctypes  # this import takes milliseconds of the start, and most brokers never need it

    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None


def resident_bytes() -> int | None:
    """Return the memory of this process that is in RAM; None if the system has no figure."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * page_bytes() or None
    except (OSError, ValueError):
        return _resident_by_mach() if UNIX is not None else _windows("K32GetProcessMemoryInfo", 72, 16)


def page_bytes() -> int:
    """Return the size of a page of memory; 0 if the system has no figure."""
    return _sysconf("SC_PAGE_SIZE") or 0


def machine_memory() -> int | None:
    """Return the bytes of memory of the machine; None if the system has no figure."""
    pages = _sysconf("SC_PHYS_PAGES")
    return pages * page_bytes() or None if pages else _windows("GlobalMemoryStatusEx", 64, 8)


def limit(name: str) -> int | None:
    """Return a soft limit of this process, such as "RLIMIT_AS"; None: there is none."""
    if _resource is None:
        return None
    found: int = _resource.getrlimit(getattr(_resource, name))[0]
    return None if found == _resource.RLIM_INFINITY else found


def open_files() -> int | None:
    """Return the number of open files and sockets; None if the system has no figure."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder)) - 1  # that of the listing is closed again
        except OSError:
            continue
    return None


def _sysconf(name: str) -> int | None:
    try:
        found: int = getattr(os, "sysconf", _none)(name)
    except (OSError, ValueError):
        return None
    return found if found > 0 else None


def _none(name: str) -> int:
    raise ValueError(name)


def _resident_by_mach() -> int | None:
    # task_info(MACH_TASK_BASIC_INFO) of macOS: 12 integers, of which the first two pairs are 64-bit numbers,
    # virtual and resident size.
    import ctypes

    library = libc()
    if not hasattr(library, "mach_task_self_"):
        return None
    answer, count = (ctypes.c_uint64 * 6)(), ctypes.c_uint32(12)
    task = ctypes.c_uint32.in_dll(library, "mach_task_self_")
    failed = library.task_info(task, ctypes.c_int(20), ctypes.byref(answer), ctypes.byref(count))
    return None if failed else answer[1]


def _windows(call: str, size: int, at: int) -> int | None:
    # Call a function of kernel32 that fills a structure which begins with its own size, and return the number
    # in it at an offset: MEMORYSTATUSEX.ullTotalPhys, PROCESS_MEMORY_COUNTERS.WorkingSetSize (64 bits).
    import ctypes

    if not hasattr(ctypes, "windll") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    answer = (ctypes.c_uint64 * (size // 8))()
    ctypes.c_uint32.from_buffer(answer).value = size
    kernel = ctypes.windll.kernel32
    own = (ctypes.c_void_p(-1),) if call.startswith("K32") else ()
    sized = (ctypes.c_uint32(size),) if own else ()
    return answer[at // 8] if getattr(kernel, call)(*own, ctypes.byref(answer), *sized) else None
