"""Queues declared, counted and refused over AMQP 0-9-1, against a scripted server in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pamqp import commands, frame

from benchmarks import spec
from benchmarks.errors import PeerError
from benchmarks.queues091 import Queues

Answer = Callable[[Any], Any]


@contextmanager
def server(answer: Answer, *, greeting: bytes | None = None) -> Iterator[spec.Endpoint]:
    """Serve one connection: `answer` makes a method of a method, None sends nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def serve() -> None:
        stream, _ = listener.accept()
        with stream:
            stream.settimeout(10)
            assert stream.recv(8) == b"AMQP\x00\x00\x09\x01"
            if greeting is not None:
                stream.sendall(greeting)
                return
            properties = {"product": "script"}
            stream.sendall(frame.marshal(commands.Connection.Start(0, 9, properties, "PLAIN", "en_US"), 0))
            data = b""
            while some := stream.recv(65536):
                data += some
                while data:
                    consumed, channel, method = frame.unmarshal(data)
                    data = data[consumed:]
                    reply = _set_up(method)
                    if reply is None:
                        reply = answer(method)
                    if reply is not None:
                        stream.sendall(frame.marshal(reply, channel))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield spec.Endpoint("127.0.0.1", listener.getsockname()[1], "me", "secret", virtual_host="v")
    finally:
        thread.join(10)
        listener.close()
    assert not thread.is_alive()


def _set_up(method: Any) -> Any:
    """Answer what every connection begins and ends with."""
    if isinstance(method, commands.Connection.StartOk):
        assert method.response == "\0me\0secret"
        return commands.Connection.Tune(0, 0, 0)
    if isinstance(method, commands.Connection.Open):
        assert method.virtual_host == "v"
        return commands.Connection.OpenOk()
    if isinstance(method, commands.Channel.Open):
        return commands.Channel.OpenOk()
    if isinstance(method, commands.Connection.Close):
        return commands.Connection.CloseOk()
    return None


def test_a_missing_queue_is_declared_with_its_type() -> None:
    """One that exists is left as it is, whatever its type."""
    declared: list[Any] = []

    def answer(method: Any) -> Any:
        if isinstance(method, commands.Queue.Declare):
            if method.passive and method.queue == "new":
                return commands.Channel.Close(404, "NOT_FOUND - no queue 'new' in vhost 'v'", 50, 10)
            if not method.passive:
                declared.append(method)
            return commands.Queue.DeclareOk(method.queue, 3, 0)
        assert isinstance(method, commands.Connection.TuneOk | commands.Channel.CloseOk)
        return None

    with server(answer) as endpoint, Queues(endpoint) as queues:
        queues.declare({"old": "classic", "new": "quorum"})
        assert queues.counts(("old",)) == {"old": 3}
    (only,) = declared
    assert (only.queue, only.durable, only.arguments) == ("new", True, {"x-queue-type": "quorum"})


def test_a_queue_to_be_counted_must_exist() -> None:
    """Zero would be a lie."""

    def answer(method: Any) -> Any:
        if isinstance(method, commands.Queue.Declare):
            return commands.Channel.Close(404, "NOT_FOUND", 50, 10)
        return None

    with (
        server(answer) as endpoint,
        pytest.raises(PeerError, match="no queue 'q'"),
        Queues(endpoint) as queues,
    ):
        queues.counts(("q",))
