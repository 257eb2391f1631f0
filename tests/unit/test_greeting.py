"""A client's first eight bytes: every row of RabbitMQ's table, whole and cut anywhere."""

from __future__ import annotations

import pytest

from amqp10broker.protocols import connection

SPOKEN = [
    (b"AMQP\x03\x01\x00\x00", connection.WireProtocol.AMQP_10),
    (b"AMQP\x00\x01\x00\x00", connection.WireProtocol.AMQP_10),
    (b"AMQP\x00\x00\x09\x01", connection.WireProtocol.AMQP_091),
    (b"AMQP\x01\x01\x00\x09", connection.WireProtocol.AMQP_091),
]
OTHER_0_9 = [
    b"AMQP\x00\x00\x09\x00",
    b"AMQP\x00\x00\x09\x02",
    b"AMQP\x00\x00\x0a\x00",
    b"AMQP\x00\x00\x0a\x01",
    b"AMQP\x00\x00\xff\xff",
]
UNKNOWN = [
    b"AMQP\x01\x01\x08\x00",  # 0-8
    b"AMQP\x01\x01\x00\x0a",  # 0-10
    b"AMQP\x01\x01\x00\x08",
    b"AMQP\x00\x00\x08\x00",
    b"AMQP\x00\x00\x00\x00",
    b"AMQP\x02\x01\x00\x00",  # TLS within AMQP, which nobody uses
    b"AMQP\x03\x01\x00\x01",
    b"AMQP\x03\x00\x00\x00",
    b"AMQP\x00\x01\x00\x01",
    b"AMQP\x00\x01\x01\x00",
    b"AMQP\x00\x02\x00\x00",
    b"AMQP\xff\xff\xff\xff",
    b"amqp\x00\x00\x09\x01",
    b"GET / HTTP/1.1\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01",  # a TLS hello
    b"\x00\x00\x00\x00\x00\x00\x00\x00",
    b"QMQP\x00\x01\x00\x00",
]


def say(data: bytes, size: int) -> connection.Greeting | None:
    for end in range(size, len(data) + size, size):
        greeting = connection.answer(data[:end])
        if greeting is not None:
            return greeting
    return None


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 64])
@pytest.mark.parametrize(("header", "protocol"), SPOKEN)
def test_headers_that_are_spoken_choose_the_protocol(
    header: bytes, protocol: connection.WireProtocol, size: int
) -> None:
    """They are 1.0 with and without SASL, 0-9-1, and 0-9 which is answered as 0-9-1, in any cut."""
    assert say(header, size) == connection.Greeting(protocol)


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("header", UNKNOWN)
def test_everything_else_is_told_sasl(header: bytes, size: int) -> None:
    """It is AMQP 1.0, 2.2: this covers older versions, other programs, and meaningless bytes."""
    assert say(header, size) == connection.Greeting(None, connection.SASL_HEADER)


@pytest.mark.parametrize("header", [header for header, _ in SPOKEN] + OTHER_0_9 + UNKNOWN[:12])
def test_nothing_is_decided_before_the_last_byte_of_a_header(header: bytes) -> None:
    """As long as a header can still become another, there is no answer."""
    assert [connection.answer(header[:end]) for end in range(8)] == [None] * 8


@pytest.mark.parametrize("start", [b"G", b"\x16", b"a", b"AMQQ", b"AM ", b"\x00"])
def test_what_can_become_no_header_is_answered_at_once(start: bytes) -> None:
    """An HTTP client that waits after its first line must not wait for the time-out."""
    assert connection.answer(start) == connection.Greeting(None, connection.SASL_HEADER)


def test_the_last_byte_of_a_header_decides() -> None:
    """Each byte changed alone makes another header, for which there is another answer."""
    for spoken, protocol in SPOKEN:
        for place in range(8):
            changed = bytes([*spoken[:place], spoken[place] ^ 0x40, *spoken[place + 1 :]])
            greeting = connection.answer(changed)
            assert greeting.protocol is None, changed
            # 0-9-1 with another minor version, or a bigger one, is the only near miss that hears of 0-9-1.
            near = spoken == connection.AMQP_091_HEADER and place in (6, 7)
            assert greeting.reply == (connection.AMQP_091_HEADER if near else connection.SASL_HEADER), (
                changed,
                protocol,
            )
    assert connection.AMQP_10_HEADER in [header for header, _ in SPOKEN]
