"""``amqp10broker publish``: sends messages, and prints their outcomes."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.cli.commands import Command, Parser, pairs, read_file
from amqp10broker.cli.connecting import add_client, connect, positive
from amqp10broker.cli.exits import EXIT_OK, Failed
from amqp10broker.client.url import exchange_address, queue_address
from amqp10broker.errors import ConfigError
from amqp10broker.operations.operation import counted

if TYPE_CHECKING:
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


def _arguments(parser: Parser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--queue", metavar="NAME", help="to this queue")
    target.add_argument("--exchange", metavar="NAME", help="to this exchange, with --key")
    parser.add_argument("--key", default="", help="routing key (default: empty)")
    parser.add_argument("body", nargs="?", metavar="BODY", help="text; without it standard input is read")
    parser.add_argument("--file", metavar="FILE", help="the body is in a file; - for standard input")
    parser.add_argument(
        "--count", type=positive, default=1, metavar="N", help="send it so many times (default 1)"
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
        help="an application property (a header in AMQP 0-9-1), repeatable; VALUE is JSON if it can be read "
        'so (10, true, "10"), else text',
    )
    message.add_argument(
        "--annotation",
        dest="annotations",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a message annotation, repeatable; KEY begins with x-",
    )
    message.add_argument(
        "--transient", action="store_true", help="it need not survive a restart (default: it does)"
    )
    message.add_argument("--priority", type=int, metavar="N", help=f"0 to {_PRIORITY_MAX}")
    message.add_argument("--ttl", type=int, metavar="MS", help="it lives so many milliseconds")
    add_client(parser)


def _publish(arguments: argparse.Namespace) -> int:
    message = message_of(arguments).encode()
    if arguments.queue is not None:
        if arguments.key:
            raise ConfigError("option --key", "is given with --queue", "is for --exchange: leave one out")
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
    """Print the outcomes of messages."""
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
    """Make the message of the options."""
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
            raise ConfigError("BODY", "is given beside --file", "give one of them")
        # As the shell gave it, whatever its encoding.
        return str(arguments.body).encode(errors="surrogateescape")
    if arguments.file is None and sys.stdin.isatty():
        raise ConfigError("BODY", "is missing", "give it, or --file, or send it to standard input")
    return read_file(arguments.file or "-")


COMMANDS: Final = (
    Command(
        "publish",
        _arguments,
        _publish,
        "Send messages as a client of AMQP 1.0 does, and wait for their outcomes. Exit code 1 if not all are "
        "accepted, as when an exchange has no queue for them.",
    ),
)
