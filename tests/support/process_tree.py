"""All processes that come of one start: which they are, where they listen, and their certain end.

Spark starts processes that start others, in process groups of their own, and an executor outlives the
worker that started it if that is killed. All of them inherit the environment, so a family is known by a
variable in it that nobody else has. Linux only: it reads /proc.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WAIT_S: Final = 60.0
_POLL_S: Final = 0.02
_VARIABLE: Final = "TEST_PROCESS_FAMILY"
_PROC: Final = Path("/proc")
_LISTENS: Final = "0A"


@dataclass(frozen=True, slots=True)
class Listening:
    """A TCP port that a process of the family listens on."""

    pid: int
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    program: str


class Family:
    """The processes that were started with `environment`, and all that came of them."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables to add to the environment of the first process."""
        return {_VARIABLE: self._mark}

    def members(self, *words: str) -> list[int]:
        """Return ids of live members whose command line has all these words, oldest first."""
        return sorted(
            (pid for pid in self._all() if all(word in command_line(pid) for word in words)), key=_started
        )

    def listening(self) -> list[Listening]:
        owners = {inode: pid for pid in self.members() for inode in _sockets(pid)}
        return [
            Listening(owners[inode], address, port, command_line(owners[inode]))
            for address, port, inode in _listening_sockets()
            if inode in owners
        ]

    def kill(self, *words: str) -> int:
        """SIGKILL members with these words in the command line until none is left; return the number."""
        killed: set[int] = set()
        end = time.monotonic() + WAIT_S
        while members := self.members(*words):
            assert time.monotonic() < end, f"not to be killed: {members}"
            killed.update(pid for pid in members if self.kill_one(pid))
            time.sleep(_POLL_S)
        return len(killed)

    def kill_one(self, pid: int) -> bool:
        """SIGKILL one member; return False if it has ended or its id was reused."""
        try:
            handle = os.pidfd_open(pid)  # from here on the id means this process and no later one
        except ProcessLookupError:
            return False
        try:
            if not self._is_member(pid):
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def _all(self) -> Iterator[int]:
        for path in _PROC.iterdir():
            if path.name.isdigit() and self._is_member(int(path.name)):
                yield int(path.name)

    def _is_member(self, pid: int) -> bool:
        entry = f"{_VARIABLE}={self._mark}".encode()
        return entry in _read(pid, "environ").split(b"\0")


@contextmanager
def family() -> Iterator[Family]:
    """Every process of the family has ended when the block ends, whatever happens in it."""
    members = Family()
    try:
        yield members
    finally:
        members.kill()


def wait_until(
    condition: Callable[[], Any],
    what: str,
    *,
    timeout_s: float = WAIT_S,
    explain: Callable[[], str] = lambda: "",
) -> Any:
    """Poll until the condition holds and return its value; other processes send no notice."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}\n{explain()}"
        time.sleep(_POLL_S)
    return value


def command_line(pid: int) -> str:
    """Return program and arguments, joined by blanks; empty if the process has ended."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def _stat(pid: int) -> list[str]:
    """Return the fields after the name, which may contain blanks and brackets."""
    return _read(pid, "stat").rpartition(b")")[2].decode().split()


def _started(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:  # it is over, or another user's
        return b""


def _sockets(pid: int) -> Iterator[str]:
    """Return the inodes of the sockets that a process has open."""
    try:
        handles = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return
    for handle in handles:
        try:
            target = os.readlink(handle)
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _listening_sockets() -> Iterator[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int, str]]:
    """Return (address, port, inode) of all listening sockets of this machine."""
    for name in ("tcp", "tcp6"):
        for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS:
                address, _, port = fields[1].partition(":")
                yield parse_address(address), int(port, 16), fields[9]


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address of /proc/net/tcp: 32-bit words in the machine's byte order, in hexadecimal."""
    words = (int(text[start : start + 8], 16) for start in range(0, len(text), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
