"""The service manager is told that clients can come in, where there is one."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from amqp10broker.cli import serve
from amqp10broker.cli.serve import report_ready
from amqp10broker.config import Config


def listening(address: str) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(address)
    manager.setblocking(False)
    return manager


def test_it_is_told_when_the_broker_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not earlier: a journal may have to be read first."""
    place = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", place)
    heard = []

    async def run_broker(config: Config, on_up: Callable[..., None]) -> None:
        with pytest.raises(BlockingIOError):
            manager.recv(100)
        on_up(SimpleNamespace(addresses=[("127.0.0.1", 5672)], tls_addresses=[]))
        heard.append(manager.recv(100))

    monkeypatch.setattr(serve, "run_broker", run_broker)
    monkeypatch.setattr(serve, "COUNTS_REFERENCES", False)
    with listening(place) as manager:
        assert serve.run(Config()) == 0
    assert heard == [b"READY=1"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has addresses without a file")
def test_an_address_without_a_file_begins_with_an_at_sign() -> None:
    """systemd writes an address of the abstract namespace that way."""
    with listening("\0amqp10broker-test-notify") as manager:
        report_ready({"NOTIFY_SOCKET": "@amqp10broker-test-notify"})
        assert manager.recv(100) == b"READY=1"
