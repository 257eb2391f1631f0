"""``publish``, ``get``, and ``ping``, the health check of a container."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.cli import tables
from amqp10broker.cli.commands import Command, Parser, pairs, read_file, seconds
from amqp10broker.cli.connecting import add_address, add_client, connect, login_of, positive
from amqp10broker.cli.exits import EXIT_OK, Failed
from amqp10broker.client.options import exchange_address, queue_address
from amqp10broker.errors import ConfigError
from amqp10broker.operations.operation import counted

if TYPE_CHECKING:
    from amqp10broker.client.blocking import Client
    from amqp10broker.client.links import Outcome
    from amqp10broker.client.message import Message


_TEXTS: Final = frozenset(
    {"message-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding"}
    | {"group-id", "reply-to-group-id", "user-id"}
)
_NUMBERS: Final = frozenset({"absolute-expiry-time", "creation-time", "group-sequence"})
_PRIORITY_MAX: Final = 255
PROGRESS_EVERY_S: Final = 1.0
_UINT_MAX: Final = 2**32 - 1


def _publish_arguments(parser: Parser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--queue", metavar="NAME", help="queue to publish to")
    target.add_argument("--exchange", metavar="NAME", help="exchange to publish to, with --key")
    parser.add_argument("--key", default="", help="routing key (default: empty)")
    parser.add_argument(
        "body", nargs="?", metavar="BODY", help="text of the message (default: standard input)"
    )
    parser.add_argument("--file", metavar="FILE", help="file with the body; - for standard input")
    parser.add_argument(
        "--count", type=positive, default=1, metavar="N", help="number of times to send it (default: 1)"
    )
    message = parser.add_argument_group("message")
    name = message.add_argument(
        "--property",
        dest="properties",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"repeatable: {', '.join(sorted(_TEXTS | _NUMBERS))} (times in ms since 1970)",
    )
    name.completions = tuple(f"{each}=" for each in sorted(_TEXTS | _NUMBERS))  # type: ignore[attr-defined]
    message.add_argument(
        "--header",
        dest="headers",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help='an application property (a header in AMQP 0-9-1), repeatable; VALUE is JSON (10, true, "10") '
        "or else text",
    )
    message.add_argument(
        "--annotation",
        dest="annotations",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a message annotation, repeatable; KEY must begin with x-",
    )
    message.add_argument(
        "--transient",
        action="store_true",
        help="the message does not survive a restart (default: it is durable)",
    )
    message.add_argument("--priority", type=int, metavar="N", help=f"0 to {_PRIORITY_MAX}")
    message.add_argument("--ttl", type=int, metavar="MS", help="time to live in milliseconds")
    add_client(parser)


def _publish(arguments: argparse.Namespace) -> int:
    message = message_of(arguments).encode()
    if arguments.queue is not None:
        if arguments.key:
            raise ConfigError("option --key", "cannot be used with --queue", "use it with --exchange")
        address = queue_address(arguments.queue)
        where = f"queue '{arguments.queue}'"
    else:
        address = exchange_address(arguments.exchange, arguments.key)
        where = f"exchange '{arguments.exchange}' with key '{arguments.key}'"
    with connect(arguments) as client:
        outcomes = client.sender(address).send_many(_with_progress(message, arguments.count))
    report(outcomes, where)
    return EXIT_OK


def _with_progress(message: bytes, count: int) -> Iterator[bytes]:
    # On a terminal, once a second behind the first one.
    on_terminal, due, shown = sys.stderr.isatty(), time.monotonic() + PROGRESS_EVERY_S, False
    for number in range(count):
        if on_terminal and time.monotonic() >= due:
            print(f"\r{number} of {count} messages sent", end="", file=sys.stderr, flush=True)
            due, shown = time.monotonic() + PROGRESS_EVERY_S, True
        yield message
    if shown:
        print(f"\r{count} of {count} messages sent", file=sys.stderr)


def report(outcomes: Iterable[Outcome | None], where: str) -> None:
    from amqp10broker.client.errors import NotAcceptedError
    from amqp10broker.client.links import Accepted

    counts: Counter[str] = Counter()
    reason = ""
    for outcome in outcomes:
        if isinstance(outcome, Accepted) or outcome is None:
            counts["accepted"] += 1
        else:
            counts[type(outcome).__name__.lower()] += 1
            reason = reason or str(NotAcceptedError(outcome))
    accepted = counts.pop("accepted", 0)
    if counts:
        others = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        raise Failed(f"{where}: {accepted} accepted, {others}: {reason}")
    print(f"{counted(accepted, 'message')} accepted by {where}")


def message_of(arguments: argparse.Namespace) -> Message:
    from amqp10broker.client.message import EncodeError, Header, Message, Symbol

    if arguments.priority is not None and not 0 <= arguments.priority <= _PRIORITY_MAX:
        raise ConfigError("option --priority", f"is {arguments.priority}", f"must be 0 to {_PRIORITY_MAX}")
    if arguments.ttl is not None and not 0 <= arguments.ttl <= _UINT_MAX:
        raise ConfigError("option --ttl", f"is {arguments.ttl}", f"must be 0 to {_UINT_MAX}")
    headers = pairs("option --header", arguments.headers)
    for name, value in headers.items():
        if isinstance(value, dict | list):
            raise ConfigError(
                f"option --header {name}", "is a list or a map", "must be one value (AMQP 1.0, 3.2.5)"
            )
    annotations = pairs("option --annotation", arguments.annotations)
    if not all(name.startswith("x-") and name.isascii() for name in annotations):
        raise ConfigError("option --annotation", "has another key", "must begin with x- and be ASCII")
    message = Message(
        body=_body(arguments),
        header=Header(durable=not arguments.transient, priority=arguments.priority, ttl=arguments.ttl),
        properties=_properties(arguments.properties),
        application_properties=headers or None,
        message_annotations={Symbol(name): value for name, value in annotations.items()} or None,
    )
    try:
        message.encode()
    except EncodeError as error:
        raise ConfigError(
            "a property, header or annotation",
            f"cannot be sent: {error}",
            "give texts in UTF-8, and integers of 64 bits",
        ) from error
    return message


def _properties(written: list[str]) -> Any:
    from amqp10broker.client.message import Properties, Symbol

    # Texts, not JSON: a message-id of 10 is the text "10", as every client writes it.
    values: dict[str, Any] = {}
    for each in written:
        name, equals, value = each.partition("=")
        if not equals or name not in _TEXTS | _NUMBERS:
            raise ConfigError(
                "option --property",
                f"is {each!r}",
                f"must be KEY=VALUE with one of {', '.join(sorted(_TEXTS | _NUMBERS))}",
            )
        values[name.replace("-", "_")] = _number(name, value) if name in _NUMBERS else value
    for name in ("content_type", "content_encoding"):
        if name in values:
            if not values[name].isascii():
                raise ConfigError(f"option --property {name}", "is not ASCII", "must be ASCII")
            values[name] = Symbol(values[name])
    if "user_id" in values:
        values["user_id"] = values["user_id"].encode()
    return Properties(**values) if values else None


def _number(name: str, value: str) -> int:
    limit = _UINT_MAX if name == "group-sequence" else 2**63 - 1
    if not value.isdecimal() or int(value) > limit:
        raise ConfigError(f"option --property {name}", f"is {value!r}", f"must be an integer to {limit}")
    return int(value)


def _body(arguments: argparse.Namespace) -> bytes:
    if arguments.body is not None:
        if arguments.file is not None:
            raise ConfigError("BODY", "cannot be used with --file", "give one of them")
        # As the shell gave it, whatever its encoding.
        return str(arguments.body).encode(errors="surrogateescape")
    if arguments.file is None and sys.stdin.isatty():
        raise ConfigError("BODY", "is missing", "give it as an argument, with --file, or on standard input")
    return read_file(arguments.file or "-")


_WAIT_S_MAX: Final = 86_400.0
_SECTIONS: Final = ("header", "message_annotations", "properties", "application_properties", "footer")


def _get_arguments(parser: Parser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="its name")
    parser.add_argument(
        "-n", "--count", type=positive, default=1, metavar="N", help="number of messages (default: 1)"
    )
    parser.add_argument(
        "--ack-mode",
        choices=("requeue", "ack"),
        default="requeue",
        help="whether to return the messages to the queue or remove them (default: requeue)",
    )
    parser.add_argument(
        "--wait",
        type=seconds(0, _WAIT_S_MAX),
        default=0.0,
        metavar="SECONDS",
        help="how long to wait for messages (default: 0)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "body"),
        default="text",
        help="output format; body: only the bodies, unchanged (default: text)",
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
    """Convert a message to JSON values, without absent sections and fields."""
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


_BATCH: Final = 100
_TTL_MS: Final = 60_000
"""A message that could not be removed again must not stay forever."""
_OTHERS_MAX: Final = 1000
"""The most other messages that are read, and released, while searching for the own one."""


def _ping_arguments(parser: Parser) -> None:
    add_address(parser)
    parser.add_argument(
        "--password",
        help="default: guest. Others on this machine can see it in the process list",
    )
    parser.add_argument(
        "--timeout",
        type=seconds(0.01, 3_600),
        default=5.0,
        metavar="SECONDS",
        help="how long to wait for each response (default: 5)",
    )
    parser.add_argument(
        "--queue",
        nargs="?",
        const="",
        metavar="NAME",
        help="also send a message and receive it: through this queue, which must have no other consumers; "
        "without NAME through a temporary queue",
    )


def _ping(arguments: argparse.Namespace) -> int:
    started = time.perf_counter()
    with login_of(arguments).connect(arguments.timeout) as client:
        took = _since(started)
        opened = client.core.remote_open
        assert opened is not None
        properties = opened.properties or {}
        product = f"{properties.get('product', 'no product name')} {properties.get('version', '')}".rstrip()
        # This broker announces itself as RabbitMQ for clients, and has its real name here.
        product = str(properties.get("information", product))
        print(f"{opened.container_id} answered in {took} ({product})")
        if arguments.queue is not None:
            started = time.perf_counter()
            through = _pass_message(client, arguments.queue)
            print(f"a message passed through {through} in {_since(started)}")
    return EXIT_OK


def _pass_message(client: Client, queue: str) -> str:
    from amqp10broker.client.errors import ClientError
    from amqp10broker.client.message import Header, Message, Properties
    from amqp10broker.client.options import queue_address

    # This uses the address and not a bare name, which would declare a missing queue.
    receiver = client.receiver(queue_address(queue) if queue else None, credit=0)
    through = f"queue '{queue}'" if queue else "a temporary queue"
    sender = client.sender(receiver.address)
    bare = Message(b"ping", Properties(message_id=uuid.uuid4())).encode()
    sender.send(Header(ttl=_TTL_MS).encode() + bare)
    others = 0
    while others < _OTHERS_MAX:
        # The message was accepted, so it is in the queue, and there is no need to wait.
        batch = receiver.fetch(_BATCH, timeout_s=0)
        for delivery in batch:
            if delivery.payload.endswith(bare):
                receiver.accept(delivery)
                return through  # unsettled messages return to their places when the connection closes
        others += len(batch)
        if len(batch) < _BATCH:
            raise ClientError(
                f"{through} accepted the message, but another consumer received it: give a queue without "
                "other consumers, or --queue without a name"
            )
    raise ClientError(
        f"{through} has {others} or more messages before the one sent: give a queue with fewer messages, or "
        "--queue without a name"
    )


def _since(started: float) -> str:
    return f"{(time.perf_counter() - started) * 1000:.1f} ms"


COMMANDS: Final = (
    Command(
        "publish",
        _publish_arguments,
        _publish,
        "Send messages over AMQP 1.0, and wait for their outcomes. The exit code is 1 if a message is not "
        "accepted, for example because the exchange routes it to no queue.",
    ),
    Command(
        "get",
        _get_arguments,
        _get,
        "Get messages over AMQP 1.0, and show them with their properties. By default they return to their "
        "places in the queue.",
    ),
    Command(
        "ping",
        _ping_arguments,
        _ping,
        "Log in to a broker, open a connection and a session, and print how long it took, for health "
        "checks. If that fails, the exit code is 1 and one sentence gives the reason.",
    ),
)
