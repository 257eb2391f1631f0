"""AMQP 0-9-1 frames of the generator, read by pamqp, which shares no code with it; and the other way."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from pamqp import body, commands, frame, header

from benchmarks import wire091
from benchmarks.errors import WireError


def unmarshal(data: bytes) -> list[tuple[int, Any]]:
    """Read every frame with pamqp: channel and frame."""
    found = []
    while data:
        consumed, channel, one = frame.unmarshal(data)
        found.append((channel, one))
        data = data[consumed:]
    return found


@pytest.mark.parametrize(
    ("code", "values", "expected"),
    [
        (wire091.CONNECTION_TUNE_OK, (2047, 131072, 60), commands.Connection.TuneOk(2047, 131072, 60)),
        (wire091.CONNECTION_OPEN, ("/", "", 0), commands.Connection.Open("/")),
        (wire091.CONNECTION_CLOSE, (200, "done", 0, 0), commands.Connection.Close(200, "done", 0, 0)),
        (wire091.CHANNEL_FLOW_OK, (1,), commands.Channel.FlowOk(True)),
        (wire091.CHANNEL_CLOSE_OK, (), commands.Channel.CloseOk()),
        (
            wire091.QUEUE_DECLARE,
            (0, "q", wire091.DECLARE_DURABLE, {"x-queue-type": "quorum"}),
            commands.Queue.Declare(queue="q", durable=True, arguments={"x-queue-type": "quorum"}),
        ),
        (
            wire091.QUEUE_DECLARE,
            (0, "q", wire091.DECLARE_PASSIVE, {}),
            commands.Queue.Declare(queue="q", passive=True, arguments={}),
        ),
        (wire091.QUEUE_PURGE, (0, "q", 0), commands.Queue.Purge(queue="q")),
        (wire091.BASIC_QOS, (0, 200, 0), commands.Basic.Qos(prefetch_count=200)),
        (
            wire091.BASIC_CONSUME,
            (0, "q", "tag", wire091.CONSUME_NO_ACK, {}),
            commands.Basic.Consume(queue="q", consumer_tag="tag", no_ack=True, arguments={}),
        ),
        (wire091.BASIC_ACK, (7, wire091.ACK_MULTIPLE), commands.Basic.Ack(7, True)),
        (wire091.CONFIRM_SELECT, (0,), commands.Confirm.Select()),
    ],
)
def test_methods_are_written_as_the_oracle_reads_them(
    code: int, values: tuple[Any, ...], expected: Any
) -> None:
    """Every method that the generator sends, argument by argument."""
    ((channel, found),) = unmarshal(wire091.method(3, code, *values))
    assert channel == 3
    assert type(found) is type(expected)
    assert dict(found) == dict(expected)


def test_a_channel_is_opened_with_nothing_in_the_reserved_field() -> None:
    """The oracle insists on "0" there; the definition says only that it is reserved."""
    assert wire091.method(3, wire091.CHANNEL_OPEN, "") == bytes.fromhex("01 0003 00000005 0014000a 00 ce")


def test_the_login_names_user_password_and_capabilities() -> None:
    """SASL PLAIN: an empty authorisation identity, the user, the password."""
    ((_, found),) = unmarshal(wire091.start_ok("me", "secret"))
    assert isinstance(found, commands.Connection.StartOk)
    assert (found.mechanism, found.locale) == ("PLAIN", "en_US")
    assert found.response == "\0me\0secret"
    assert found.client_properties["capabilities"]["publisher_confirms"] is True


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            commands.Connection.Start(0, 9, {"product": "X", "n": 1}, "PLAIN AMQPLAIN", "en_US"),
            [0, 9, None, b"PLAIN AMQPLAIN", b"en_US"],
        ),
        (commands.Connection.Tune(2047, 131072, 60), [2047, 131072, 60]),
        (commands.Connection.Close(320, "why", 60, 40), [320, "why", 60, 40]),
        (commands.Connection.Blocked("low on memory"), ["low on memory"]),
        (commands.Channel.OpenOk(), [b"0"]),
        (commands.Channel.Flow(False), [0]),
        (commands.Queue.DeclareOk("q", 5, 2), ["q", 5, 2]),
        (commands.Basic.ConsumeOk("tag"), ["tag"]),
        (commands.Basic.Cancel("tag", True), ["tag", 1]),
        (commands.Basic.Return(312, "NO_ROUTE", "", "q"), [312, "NO_ROUTE", "", "q"]),
        (commands.Basic.Deliver("tag", 1 << 40, True, "x", "key"), ["tag", 1 << 40, 1, "x", "key"]),
        (commands.Basic.Nack(9, True, True), [9, 3]),
    ],
)
def test_methods_are_read_as_the_oracle_writes_them(method: Any, expected: list[Any]) -> None:
    """Every method that a broker may send; None stands for a table, which is not decoded."""
    data = frame.marshal(method, 1)
    found = wire091.arguments(int.from_bytes(data[7:11], "big"), data, 11)
    assert [
        value if want is not None else None for value, want in zip(found, expected, strict=True)
    ] == expected


def test_a_content_is_cut_to_the_peers_frame_max() -> None:
    """frame-max counts the whole frame, its eight octets of head and end included."""
    payload = bytes(range(256)) * 4
    content = wire091.content(2, payload, wire091.properties(), frame_max=508)
    (_, head), *pieces = unmarshal(content)
    assert isinstance(head, header.ContentHeader)
    assert head.body_size == 1024
    assert all(isinstance(one, body.ContentBody) for _, one in pieces)
    assert [len(one.value) for _, one in pieces] == [500, 500, 24]
    assert b"".join(one.value for _, one in pieces) == payload


def test_an_empty_message_has_no_body_frame() -> None:
    """The content header alone says that there is nothing to come."""
    ((_, head),) = unmarshal(wire091.content(1, b"", wire091.properties(), frame_max=4096))
    assert head.body_size == 0


def test_properties_stand_in_the_order_of_their_flags() -> None:
    """All that a client library would add."""
    flags = wire091.properties(content_type="text/plain", durable=True, sections=True)
    ((_, head), _) = unmarshal(wire091.content(1, b"x", flags, frame_max=4096))
    found = head.properties
    assert (found.content_type, found.delivery_mode) == ("text/plain", 2)
    assert found.headers == {"tenant": "blue", "attempt": 1, "urgent": False}
    assert found.message_id == "3f1c2c1e-4c57-4c51-9a3c-0d2b0c6a7f10"
    assert found.timestamp == datetime.datetime.fromtimestamp(1_700_000_000, tz=datetime.UTC)


def test_a_method_that_nobody_asked_for_is_refused() -> None:
    """Better no figure than one that rests on a frame not understood."""
    with pytest.raises(WireError, match=r"method 90\.10 is not expected"):
        wire091.arguments(0x005A000A, b"", 0)


def test_a_method_that_is_cut_short_is_refused() -> None:
    """The arguments end before the table of arguments does."""
    with pytest.raises(WireError, match="cut short"):
        wire091.arguments(wire091.CONNECTION_TUNE, b"\x00\x01\x00", 0)


def test_a_reason_names_code_text_and_method() -> None:
    """What a user must read when the broker refuses something."""
    assert wire091.reason([404, "NOT_FOUND - no queue", 50, 10]) == "404 NOT_FOUND - no queue (method 50.10)"
    assert wire091.reason([320, "CONNECTION_FORCED", 0, 0]) == "320 CONNECTION_FORCED"
