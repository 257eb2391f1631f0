"""The benchmark of automatic credit: its proxy, what is compared with what, and what is judged."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from benchmarks.adaptive import arguments, compared, judged
from benchmarks.delaying_proxy import DelayingProxy


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        yield listener


def test_the_proxy_hands_on_everything_in_order_and_later_in_both_directions(server: socket.socket) -> None:
    """Megabytes, more than a socket takes at once, and the end behind them."""
    data = bytes(range(256)) * 16_384
    with DelayingProxy(server.getsockname()[1], 0.05) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), 30)
        accepted, _ = server.accept()
        accepted.settimeout(30)
        for sender, receiver in ((client, accepted), (accepted, client)):
            began = time.monotonic()
            sender.sendall(data[:1])
            assert receiver.recv(1) == data[:1]
            assert time.monotonic() - began >= 0.05
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        got = bytearray()
        while piece := accepted.recv(1 << 20):
            got += piece
        assert got == data
        accepted.sendall(b"still there")
        assert client.recv(100) == b"still there"
        accepted.close()
        assert client.recv(1) == b""
        client.close()


def test_the_proxy_tells_a_client_that_nobody_listens(server: socket.socket) -> None:
    port = server.getsockname()[1]
    server.close()
    with (
        DelayingProxy(port, 0.001) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), 30) as client,
    ):
        assert client.recv(1) == b""


def test_an_automatic_limit_has_an_automatic_window_and_a_fixed_one_twice_its_size() -> None:
    assert arguments("default") == ()
    assert arguments("auto") == ("--max-link-credit", "auto", "--max-incoming-window", "auto")
    assert arguments("680") == ("--max-link-credit", "680", "--max-incoming-window", "1360")


def row(setting: str, rate: float, place: str = "round trip 20 ms") -> dict[str, object]:
    return {"case": f"{place}, {setting}", "target": "broker", "setting": setting, "rate_per_s": rate}


def test_rates_are_compared_with_the_default_and_the_best_fixed_limit() -> None:
    """Of the same repetition; what failed is compared with nothing."""
    rows = [row("default", 10.0), row("auto", 45.0), row("680", 40.0), row("2720", 50.0)]
    rows.append({"case": "round trip 20 ms, 9", "target": "broker", "setting": "9", "failed": "so"})
    compared(rows)
    assert [each.get("to_default") for each in rows] == [1.0, 4.5, 4.0, 5.0, None]
    assert [each.get("to_best") for each in rows] == [0.2, 0.9, 0.8, 1.0, None]


def test_what_is_missed_is_said() -> None:
    """By the median of the repetitions; near, only not to be worse counts."""
    samples = []
    for default, auto, best in ((10, 19, 20), (10, 25, 20), (10, 15, 20)):
        rows = [row("default", default), row("auto", auto), row("680", best)]
        compared(rows)
        samples += rows
    near = [row("default", 100, "0 ms"), row("auto", 94, "0 ms")]
    compared(near)
    far = "1.90 times the default (>= 2): MISSED; 0.95 of the best fixed limit (>= 0.85): reached"
    assert judged(near + samples) == [
        "0 ms, auto: 0.94 of the default (>= 0.95): MISSED",
        f"round trip 20 ms, auto: {far}",
    ]
