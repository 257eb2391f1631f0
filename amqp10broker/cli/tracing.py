"""``amqp10broker frames trace``: shows frames of a connection, a user or an address while the broker runs."""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from amqp10broker.cli.commands import Command, Parser, add_where, ask, place_of
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK
from amqp10broker.errors import ConfigError
from amqp10broker.operations.operation import counted


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "what",
        metavar="CONNECTION|USER|ADDRESS|everything",
        help="a connection's number ('connection list'), a user's name, a client's address (127.0.0.1, or "
        "with its port), or the address of links (/queues/orders, /exchanges/shop/*)",
    )
    parser.add_argument(
        "switch", choices=("on", "off"), metavar="on|off", help="begin, or end what was begun"
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="let the broker write into a file, until off, or until it has 1 GiB (default: into this "
        "terminal, until ctrl-C)",
    )
    parser.add_argument(
        "--frames",
        action="store_true",
        help="for 'frames' and 'lint': a JSON object a line, without the contents of messages",
    )
    add_where(parser)


def _run(arguments: argparse.Namespace) -> int:
    given = {"what": arguments.what, "on": arguments.switch == "on"}
    if arguments.frames:
        given["frames"] = True
    if not given["on"]:
        if arguments.file is not None or arguments.frames:
            flag = "--frames" if arguments.file is None else "--file"
            raise ConfigError(f"flag {flag}", "is given with off", "leave it out")
        ended = ask(arguments, "trace", **given)
        print(f"{ended['target']} was traced into {ended['into']}: {counted(ended['lines'], 'line')}")
        return EXIT_OK
    if arguments.file is not None:
        # The broker may run in another folder.
        begun = ask(arguments, "trace", **given, file=os.path.abspath(arguments.file))
        print(f"tracing {begun['target']} into {begun['into']}")
        return EXIT_OK
    return _stream(arguments, given)


def _stream(arguments: argparse.Namespace, given: dict[str, Any]) -> int:
    import sys

    from amqp10broker.cli import admin

    answers = admin.ask_stream(place_of(arguments), {"op": "trace", "arguments": given})
    try:
        print(f"tracing {next(answers)['target']} until ctrl-C", file=sys.stderr, flush=True)
        for answer in answers:
            print("".join(f"{line}\n" for line in answer["lines"]), end="", flush=True)
            if answer["left_out"]:
                left_out = counted(answer["left_out"], "line")
                print(f"... {left_out} left out: too many for this terminal, use --file", flush=True)
            if answer["ended"] is not None:
                print(f"the trace has ended: {answer['ended']}", file=sys.stderr)
                return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_OK
    print("the broker has ended", file=sys.stderr)
    return EXIT_FAILED


COMMANDS: Final = (
    Command(
        "frames trace",
        _arguments,
        _run,
        "Show every frame of a connection, of a user's connections, of a client's address, or of the links "
        "to an address, of both protocols, from now on. Passwords, tokens and what else lets somebody in are "
        "left out; properties of messages and the first 32 bytes of each body are shown. What is not traced "
        "costs nothing. 'serve --trace-frames' traces everything into the log.",
    ),
)
