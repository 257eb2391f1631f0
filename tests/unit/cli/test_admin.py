"""One JSON line out, one back; everything that goes wrong is a sentence."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amqp10broker.cli import admin
from amqp10broker.cli.exits import RefusedByBroker
from amqp10broker.errors import AdminSocketError
from amqp10broker.runtime.admin import path as adminpath


@pytest.fixture(autouse=True)
def _own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


@contextmanager
def broker(path: str, answer: bytes | None, received: list[bytes]) -> Iterator[None]:
    """Run a broker that answers one request in pieces and hangs up; for None it never answers."""
    listener = adminpath.listen(path)
    listener.setblocking(True)
    asked = threading.Event()

    def serve() -> None:
        stream: socket.socket
        stream, _ = listener.accept()
        with stream:
            received.append(stream.recv(65_536))
            if answer is None:
                asked.wait(10)
            else:
                for at in range(0, len(answer), 7):
                    stream.sendall(answer[at : at + 7])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        asked.set()
        thread.join()
        listener.close()
        adminpath.remove(path)


def ask(answer: bytes | None, timeout_s: float = 5.0) -> object:
    received: list[bytes] = []
    with broker(adminpath.default_path(5672), answer, received):
        result = admin.ask(admin.Place(5672, None), {"op": "status"}, timeout_s=timeout_s)
    assert json.loads(received[0]) == {"op": "status"}
    assert received[0].endswith(b"\n")
    return result


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection before it answered"),
        (b'{"ok": true, "res', "closed the connection before it answered"),
        (b"HTTP/1.1 400\n", "not an amqp10broker of this version"),
        (b"[]\n", "not an amqp10broker of this version"),
        (b'{"ok": true}\n', "not an amqp10broker of this version"),
    ],
)
def test_a_bad_answer_is_told_in_words(answer: bytes, message: str) -> None:
    with pytest.raises(AdminSocketError, match=message):
        ask(answer)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'{"ok": false, "error": "no such setting"}\n', "the broker refuses: no such setting"),
        (
            b'{"ok": false, "error": "no q", "kind": "NotFound", "resource": "queue \'q\'"}\n',
            "the broker refuses: no q (see 'amqp10broker queue list')",
        ),
        (
            b'{"ok": false, "error": "differs", "kind": "Inequivalent", "resource": "queue \'q\'"}\n',
            "the broker refuses: differs (declare it with the same properties, or delete it first)",
        ),
        (
            b'{"ok": false, "error": "odd", "kind": "NotFound", "resource": "thing"}\n',
            "the broker refuses: odd",
        ),
    ],
)
def test_a_refusal_is_told_with_what_to_do(answer: bytes, message: str) -> None:
    """The advice depends on the kind of refusal; its class shows that there is a broker."""
    with pytest.raises(RefusedByBroker) as raised:
        ask(answer)
    assert str(raised.value) == message


def test_a_socket_without_a_broker_is_as_good_as_none(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    adminpath.listen(path).close()
    with pytest.raises(AdminSocketError, match="no broker serves .*; start a broker with"):
        admin.ask(admin.Place(5672, path), {})


def test_brokers_on_other_ports_are_named() -> None:
    adminpath.listen(adminpath.default_path(5673)).close()
    adminpath.listen(adminpath.default_path(5674)).close()
    with pytest.raises(AdminSocketError, match="try --port 5673 or --port 5674"):
        admin.ask(admin.Place(5672, None), {})


def test_an_unsafe_directory_is_refused(tmp_path: Path) -> None:
    adminpath.listen(adminpath.default_path(5672)).close()
    (tmp_path / f"amqp10broker-{os.getuid()}").chmod(0o777)
    with pytest.raises(AdminSocketError, match="may be used by others"):
        admin.ask(admin.Place(5672, None), {})
