"""The tests' own instrument: processes are found, seen to listen, and ended, and nobody else is."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.support.process_family import Family, family, parse_address, wait_until

pytestmark = pytest.mark.skipif(
    sys.implementation.name == "pypy", reason="families are of Spark's processes, and Spark is not for PyPy"
)

# A child in a session of its own listens and says where; the parent then ends, as an executor's may.
PROGRAM = """
import os, socket, sys
if os.fork():
    os._exit(0)
os.setsid()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
listener.accept()
"""


def start(members: Family, ended: ExitStack) -> int:
    """Start PROGRAM; the port that its orphan listens on."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **members.environment}, stdout=subprocess.PIPE
    )
    ended.enter_context(process)
    assert process.stdout
    port = int(process.stdout.readline())
    assert process.wait(20) == 0
    return port


def test_an_orphan_is_of_the_family_and_ends_with_it() -> None:
    """Its parent is gone, and its process group and session are its own."""
    with ExitStack() as ended, family() as members, family() as others:
        port, other_port = start(members, ended), start(others, ended)
        (orphan,) = members.members()
        (listening,) = members.listening()
        assert (listening.pid, str(listening.address), listening.port) == (orphan, "127.0.0.1", port)
        assert members.members("fork", "setsid") == [orphan]
        assert members.members("fork", "no such word") == []
        assert members.kill("no such word") == 0
        assert members.kill() == 1
        assert members.members() == members.listening() == []
        assert [each.port for each in others.listening()] == [other_port]


def test_the_family_ends_when_the_test_fails() -> None:
    """Nothing is left running behind a failure."""
    with ExitStack() as ended:
        seen: list[int] = []

        def fail() -> None:
            with family() as members:
                start(members, ended)
                seen.extend(members.members())
                raise LookupError

        with pytest.raises(LookupError):
            fail()
        assert len(seen) == 1
        wait_until(lambda: not os.path.exists(f"/proc/{seen[0]}/fd/0"), "the end of the orphan")


def test_a_stranger_is_not_killed() -> None:
    """Whatever its id was before."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        assert not Family().kill_one(stranger.pid)
        assert stranger.poll() is None
        stranger.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("0100007F", "127.0.0.1", True),
        ("00000000", "0.0.0.0", False),
        ("0100000A", "10.0.0.1", False),
        ("00000000000000000000000001000000", "::1", True),
        ("00000000000000000000000000000000", "::", False),
        ("0000000000000000FFFF00000100007F", "127.0.0.1", True),
        ("0000000000000000FFFF000000000000", "0.0.0.0", False),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the texts are those of a little-endian machine")
def test_addresses_are_read_as_the_kernel_writes_them(text: str, address: str, loopback: bool) -> None:
    """Those that other machines reach are told from loopback, in both families."""
    assert parse_address(text) == ipaddress.ip_address(address)
    assert parse_address(text).is_loopback == loopback
