"""``amqp10broker get``: takes messages from a queue, or shows them and returns them."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.cli import tables
from amqp10broker.cli.commands import Command, Parser, seconds
from amqp10broker.cli.connecting import add_client, connect, positive
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.client.url import queue_address

if TYPE_CHECKING:
    from amqp10broker.client.message import Message

_WAIT_S_MAX: Final = 86_400.0
_SECTIONS: Final = ("header", "message_annotations", "properties", "application_properties", "footer")


def _arguments(parser: Parser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="its name")
    parser.add_argument("-n", "--count", type=positive, default=1, metavar="N", help="so many (default 1)")
    parser.add_argument(
        "--ack-mode",
        choices=("requeue", "ack"),
        default="requeue",
        help="put them back to their places, or have the queue forget them (default: requeue)",
    )
    parser.add_argument(
        "--wait",
        type=seconds(0, _WAIT_S_MAX),
        default=0.0,
        metavar="SECONDS",
        help="wait so long for messages (default 0: take what is there)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "body"),
        default="text",
        help="body: the bodies as they are, and nothing else (default: text)",
    )
    add_client(parser)


def _get(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        receiver = client.receiver(queue_address(arguments.queue), credit=0)
        deliveries = receiver.fetch(arguments.count, timeout_s=arguments.wait)
        shown = show([each.message() for each in deliveries], arguments.format, arguments.queue)
        sys.stdout.flush()
        sys.stdout.buffer.write(shown)
        # Messages are only settled when they have been shown.
        sys.stdout.buffer.flush()
        if arguments.ack_mode == "ack":
            receiver.accept(deliveries)
        else:
            receiver.release(deliveries)
        receiver.detach()
    return EXIT_OK


def show(messages: Sequence[Message], form: str, queue: str) -> bytes:
    if form == "body":
        return b"".join(_body_bytes(each) for each in messages)
    documents = [document_of(each) for each in messages]
    if form == "json":
        return tables.as_json(documents).encode(errors="backslashreplace")
    lines: list[str] = []
    for number, document in enumerate(documents, 1):
        if lines:
            lines.append("")
        lines.append(f"message {number} of {len(documents)}")
        for section in _SECTIONS:
            lines += [
                f"  {section.replace('_', '-')} {tables.cell(name)}: {tables.cell(value)}"
                for name, value in document.get(section, {}).items()
            ]
        body = document["body"] if isinstance(document["body"], str) else json.dumps(document["body"])
        lines.append(f"  body ({document['body_encoding']}): {tables.cell(body)}")
    if not lines:
        lines.append(f"queue '{queue}' has no ready message")
    return "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")


def document_of(message: Message) -> dict[str, Any]:
    """Convert a message to JSON values; absent sections and fields are left out."""
    document: dict[str, Any] = {}
    for section in _SECTIONS:
        value = getattr(message, section)
        if is_dataclass(value):
            value = {
                field.name: getattr(value, field.name)
                for field in fields(value)
                if getattr(value, field.name) is not None
            }
        if value:
            document[section] = _plain(value)
    body = message.body
    if isinstance(body, bytes):
        document["body"], document["body_encoding"] = _text(body)
    else:
        assert message.kind is not None
        document["body"] = _plain(body)
        document["body_encoding"] = f"amqp-{message.kind.name.lower()}"
    return document


def _text(body: bytes) -> tuple[str, str]:
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def _body_bytes(message: Message) -> bytes:
    if isinstance(message.body, bytes):
        return message.body
    if isinstance(message.body, str):
        return message.body.encode()
    return json.dumps(_plain(message.body), ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return _text(value)[0]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    return str(value)


COMMANDS: Final = (
    Command(
        "get",
        _arguments,
        _get,
        "Get messages as a client of AMQP 1.0 does, and show them with their properties. By default they go "
        "back to their places in the queue.",
    ),
)
