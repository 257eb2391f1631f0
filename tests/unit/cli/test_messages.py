"""``publish`` and ``get``: the message that options describe, and what is shown of one."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from amqp10broker.cli import getting, main, publishing
from amqp10broker.client.message import BodyKind, Header, Message, Properties, Symbol, decode_message
from amqp10broker.errors import ConfigError
from amqp10broker.protocols.amqp10.types import UInt


def parsed(*argv: str) -> argparse.Namespace:
    return main.build_parser(["publish"]).parse_args(["publish", "--queue", "q", *argv])


def message_of(*argv: str) -> Message:
    return decode_message(publishing.message_of(parsed(*argv)).encode())


def test_a_message_of_all_options() -> None:
    """Properties are texts or numbers by their meaning, headers are typed as they look."""
    message = message_of(
        *("body", "--priority", "3", "--ttl", "100", "--transient"),
        *(
            "--property",
            "message-id=7",
            "--property",
            "user-id=guest",
            "--property",
            "content-type=text/plain",
        ),
        *("--property", "group-sequence=5", "--property", "creation-time=1000", "--property", "subject=a=b"),
        *("--header", "n=5", "--header", "t=text", "--header", "b=true", "--header", 's="5"'),
        *("--annotation", "x-a=1"),
    )
    assert message.body == b"body"
    assert message.kind is BodyKind.DATA
    assert message.header == Header(durable=False, priority=3, ttl=100)
    assert message.properties == Properties(
        message_id="7",
        user_id=b"guest",
        content_type=Symbol("text/plain"),
        group_sequence=5,
        creation_time=1000,
        subject="a=b",
    )
    assert message.application_properties == {"n": 5, "t": "text", "b": True, "s": "5"}
    assert message.message_annotations == {Symbol("x-a"): 1}


def test_the_body_is_an_argument_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes as they are, whatever they are."""
    (tmp_path / "b").write_bytes(b"\xff\n\0")
    assert message_of("--file", str(tmp_path / "b")).body == b"\xff\n\0"
    for argv in ((), ("--file", "-")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xfe from stdin")))
        assert message_of(*argv).body == b"\xfe from stdin"
    assert message_of("\udcff").body == b"\xff"
    assert message_of("").body == b""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("x", "--priority", "256"), "option --priority is 256; must be 0 to 255"),
        (("x", "--ttl", "-1"), "option --ttl is -1; must be 0 to"),
        (("x", "--property", "colour=red"), "is 'colour=red'; must be KEY=VALUE with one of absolute-"),
        (("x", "--property", "group-sequence=many"), "is 'many'; must be an integer"),
        (("x", "--property", "content-type=tëxt"), "is not ASCII"),
        (("x", "--header", "l=[1]"), "option --header l is a list or a map"),
        (("x", "--annotation", "a=1"), "must begin with x-"),
        (("x", "--file", "f"), "BODY is given beside --file"),
        (("--file", "no-such-file"), "file no-such-file cannot be read"),
    ],
)
def test_what_is_no_message_is_refused(argv: tuple[str, ...], message: str) -> None:
    """With what would be right, before anybody connects."""
    with pytest.raises(ConfigError) as raised:
        publishing.message_of(parsed(*argv))
    assert message in str(raised.value)


def test_a_routing_key_without_an_exchange_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be ignored, which nobody means."""
    assert main.main(["publish", "--queue", "q", "--key", "k", "x"]) == 2
    assert "leave one out" in capsys.readouterr().err


FULL = Message(
    b"caf\xc3\xa9",
    header=Header(durable=True, priority=4),
    properties=Properties(message_id=UUID(int=5), user_id=b"\xff", content_type=Symbol("a/b")),
    application_properties={"n": UInt(3), "none": None},
    message_annotations={Symbol("x-l"): [1, b"b"]},
    kind=BodyKind.DATA,
)
VALUE = Message({"k": [1]}, kind=BodyKind.VALUE)


def test_json_of_messages() -> None:
    """Sections that are there, in plain values; bytes as text, or base64 if they are none."""
    shown = json.loads(getting.show([FULL, Message(b"\xff"), VALUE], "json", "q"))
    assert shown == [
        {
            "header": {"durable": True, "priority": 4},
            "message_annotations": {"x-l": [1, "b"]},
            "properties": {"message_id": str(UUID(int=5)), "user_id": "/w==", "content_type": "a/b"},
            "application_properties": {"n": 3, "none": None},
            "body": "café",
            "body_encoding": "utf-8",
        },
        {"body": "/w==", "body_encoding": "base64"},
        {"body": {"k": [1]}, "body_encoding": "amqp-value"},
    ]
    assert getting.show([], "json", "q") == b"[]\n"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (Message(b"\xff\0"), b"\xff\0"),
        (Message("text", kind=BodyKind.VALUE), b"text"),
        (VALUE, b'{"k": [1]}'),
    ],
)
def test_a_body_alone_is_shown_as_it_is(message: Message, shown: Any) -> None:
    """Bytes untouched, for a file or another program."""
    assert getting.show([message], "body", "q") == shown


@pytest.mark.parametrize("terminal", [True, False])
def test_publishing_that_takes_long_shows_its_progress_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a second on standard error, and at the end; the messages are the same."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    times = iter(range(0, 100, 2))  # each look at the clock is two seconds after the last
    monkeypatch.setattr(publishing.time, "monotonic", lambda: next(times))
    assert list(publishing._with_progress(b"m", 3)) == [b"m"] * 3
    shown = "".join(f"\r{number} of 3 messages sent" for number in (0, 1, 2, 3)) + "\n"
    assert screen.getvalue() == (shown if terminal else "")
