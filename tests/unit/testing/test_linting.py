"""Which frames of a broker the lint of a test looks at."""

from __future__ import annotations

import re
from pathlib import Path

import pika
import pytest

from amqp10broker.errors import BrokerError
from amqp10broker.observe.frames import records
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.testing import frames, running

BEGAN_NS = 1_000


def listening(connection: int, at_ns: int, *, begins: bool = True) -> str:
    return records.listening_line(
        records.Listening(at_ns, connection, "peer:1", WireProtocol.AMQP_10, begins)
    )


def heartbeat(connection: int, at_ns: int) -> str:
    return records.frame_line(connection, at_ns, "in", records.TracedFrame(0, said="(empty frame)"))


LINES = [
    records.first_line(),
    listening(1, 900),
    heartbeat(1, 1_000),
    listening(2, 1_001, begins=False),
    heartbeat(2, 1_002),
    listening(3, 1_003),
    heartbeat(3, 1_004),
]


def test_only_connections_that_began_with_the_test_are_looked_at(tmp_path: Path) -> None:
    """They are in memory, and in files of a broker with several lives; a line may be half written."""
    shown = [
        (each.connection, each.at_ns) for each in records.read_lines(frames.lines_since(LINES, BEGAN_NS))
    ]
    assert shown == [(3, 1_003), (3, 1_004)]
    for name in ("first", "second"):
        (tmp_path / name).write_text("\n".join(LINES) + '\n{"connection": 3, "at_ns": 1005, "dir')
    lives = [list(records.read_lines(lines)) for lines in frames.lines_in(str(tmp_path), BEGAN_NS)]
    assert [[each.at_ns for each in life] for life in lives] == [[1_003, 1_004]] * 2


def test_nobody_can_say_what_was_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "LINES_MAX", len(LINES) - 1)
    assert frames.lines_since(LINES[1:], BEGAN_NS)
    with pytest.raises(AssertionError, match="more than 6 frames"):
        frames.lines_since([*LINES[2:], LINES[-1]], BEGAN_NS)
    (tmp_path / "full").write_text("".join(f"{line}\n" for line in LINES))
    monkeypatch.setattr(frames, "FILE_BYTES_MAX", 1024 * 1024)
    with pytest.raises(AssertionError, match="is full"):
        list(frames.lines_in(str(tmp_path), BEGAN_NS))
    with pytest.raises(BrokerError, match="frames are not kept"):
        list(frames.lines_in("", BEGAN_NS))


def test_it_names_messages_that_were_routed_nowhere_and_folds_handshakes() -> None:
    """This covers both protocols; the first frame behind the handshake is shown in full."""
    with running() as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "topic")
        channel.queue_declare("orders")
        for exchange, key in (("shop", "k"), ("", "nowhere"), ("", "orders")):
            channel.basic_publish(exchange, key, b"tea")
        channel.queue_declare("orders", passive=True)  # the broker has taken what came before
        with broker.client():
            report = broker.report()
    assert "exchange 'shop': 1 of 1 messages were routed to no queue" in report
    assert "exchange '': 1 of 2 messages were routed to no queue" in report
    assert not re.search(r"connection\.(start|tune|open)|SASL|OPEN", report)
    assert re.search(r"\(opened, after \d frames\)\n.*<- ch 1 channel\.open", report)
    assert re.search(r"\(opened, after 9 frames\)\n.*<- ch 0 BEGIN", report)
