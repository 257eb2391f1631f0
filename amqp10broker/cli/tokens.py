"""``user explain-token``: the rights of a token, by a broker's configuration."""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import UTC, datetime
from typing import Any, Final

from amqp10broker.cli.commands import STANDARD, Command, Parser
from amqp10broker.cli.connecting import first_line
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK
from amqp10broker.config.settings import Config


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", help="configuration file of the broker; environment variables apply, too"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        default=STANDARD,
        help="file whose first line is the token (default: standard input)",
    )
    parser.add_argument(
        "--formatter", choices=("text", "json"), default="text", help="output format (default: text)"
    )


def _run(arguments: argparse.Namespace) -> int:
    from amqp10broker.runtime.connections.key_sets import explained

    config = Config.load(file=arguments.config, environ=os.environ)
    found = explained(config, first_line(arguments.token_file).strip().encode(), time.time())
    if arguments.formatter == "json":
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        for line in _lines(found):
            print(line)
    return EXIT_OK if found["refused"] is None else EXIT_FAILED


def _lines(found: dict[str, Any]) -> list[str]:
    refused = found["refused"]
    lines = ["accepted" if refused is None else f"refused: {refused}"]
    if "user" in found:
        lines += [f"user:    {found['user']}", f"expires: {_when(found['expires_at'])}"]
        lines += [f"tags:    {', '.join(found['tags']) or 'none'}"]
        lines += [f"allows:  {scope}" for scope in found["scopes"]] or ["allows:  nothing"]
        lines += [f"ignored: {each['scope']}: {each['reason']}" for each in found["dropped"]]
    return lines


def _when(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(min(max(seconds, 0), 253_402_300_799), UTC).isoformat()


COMMANDS: Final = (
    Command(
        "user explain-token",
        _arguments,
        _run,
        "Print what a token permits, and why some of its scopes permit nothing, with the settings "
        "oauth2_... of a configuration. The command needs no broker; it downloads a configured key set. "
        "The exit code is 1 if a broker would refuse the token now.",
    ),
)
