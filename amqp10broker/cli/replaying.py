"""``amqp10broker frames replay``: replays recorded clients, and prints the differences."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from amqp10broker.cli.commands import Command, Parser, seconds
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK, Failed, Unreachable
from amqp10broker.cli.frames import recording
from amqp10broker.config.load import URL_VARIABLE
from amqp10broker.errors import ConfigError
from amqp10broker.operations.operation import counted

if TYPE_CHECKING:
    from amqp10broker.client.url import BrokerUrl
    from amqp10broker.tools.replay.player import Script
    from amqp10broker.tools.replay.replay import Replay

_PATIENCE_S: Final = 10.0


def _arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the recording; - reads it from standard input")
    parser.add_argument(
        "--url",
        metavar="URL",
        help="the broker, amqp://user:password@host:port/vhost (default: AMQP10BROKER_URL); without a user "
        "it is guest, without a virtual host that of the recording",
    )
    parser.add_argument(
        "--connection", type=int, metavar="NUMBER", help="play this connection alone (default: all)"
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="as fast as credit allows, without the times of the recording",
    )
    parser.add_argument(
        "--patience",
        type=seconds(0.1, 3600),
        default=_PATIENCE_S,
        metavar="SECONDS",
        help=f"how long to wait for what came in the recording (default {_PATIENCE_S:g})",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def _run(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli.replay_sockets import drive
    from amqp10broker.tools.replay.player import ReplayLogin, read_script
    from amqp10broker.tools.replay.replay import Replay

    url = _url(arguments.url)
    with recording(arguments.file) as records:
        script = read_script(records, arguments.connection)
    if not script.parts:
        why = "; ".join(script.left_out) or "there is no such connection in it"
        raise Failed(
            f"nothing of {arguments.file} can be played: {why}. Begin the recording before the client "
            "connects: 'trace USER on --frames --file FILE', or 'serve --record-frames DIR'"
        )
    user = "guest" if url.user is None else url.user
    password = url.password if url.password is not None else "guest"
    replay = Replay(
        script, ReplayLogin(user, password, url.vhost), fast=arguments.fast, patience_s=arguments.patience
    )
    began = time.monotonic()
    drive(replay, url, arguments.patience)
    took_s = time.monotonic() - began
    for player in replay.players:
        if player.refused:
            raise Failed(f"{player.over}; give another user in --url")
    if not any(player.received_bytes for player in replay.players):
        raise Unreachable(f"{replay.players[0].over}: {_what_helps(url)}")
    return _tell(replay, script, took_s, as_json=arguments.format == "json")


def _what_helps(url: BrokerUrl) -> str:
    helps = "start the broker, or correct --url"
    return f"{helps}; SSL_CERT_FILE names a file of authorities that are trusted" if url.tls else helps


def _url(written: str | None) -> BrokerUrl:
    from amqp10broker.cli.broker_url import from_environment
    from amqp10broker.client.url import UrlError, parse_url

    if written is None:
        url = from_environment(os.environ)
        if url is None:
            raise ConfigError(
                "replay --url", "is not given", f"say to which broker to play, or set {URL_VARIABLE}"
            )
        return url
    try:
        return parse_url(written)
    except UrlError as fault:
        raise ConfigError("replay --url", fault.problem, fault.allowed) from None


def _tell(replay: Replay, script: Script, took_s: float, *, as_json: bool) -> int:
    differences = list(replay.differences())
    frames = sum(player.played for player in replay.players)
    recorded_s = (script.end_ns - script.start_ns) / 1e9
    left_out = [*script.left_out]
    for player in replay.players:
        left_out += [f"connection {player.part.number}: {each}" for each in player.left_out]
        if player.part.unreadable:
            unreadable = counted(player.part.unreadable, "frame")
            left_out.append(f"connection {player.part.number}: {unreadable} that could not be decoded")
    if as_json:
        document = {
            "connections": len(replay.players),
            "frames": frames,
            "seconds": round(took_s, 6),
            "recorded_seconds": round(recorded_s, 6),
            "left_out": left_out,
            "differences": [
                {
                    "kind": each.kind.value,
                    "connection": each.connection,
                    "where": each.where,
                    "said": each.said,
                }
                for each in differences
            ],
        }
        print(json.dumps(document, indent=2))
    else:
        for left in left_out:
            print(f"left out: {left}", file=sys.stderr)
        for difference in differences:
            print(difference)
        played = f"{counted(frames, 'frame')} of {counted(len(replay.players), 'connection')}"
        took = f"in {took_s:.3f} s, {recorded_s:.3f} s in the recording"
        print(f"{counted(len(differences), 'difference')}; played {played} {took}")
    return EXIT_FAILED if differences else EXIT_OK


COMMANDS: Final = (
    Command(
        "frames replay",
        _arguments,
        _run,
        "Play the client's side of recorded connections again, against any broker, and say what came "
        "otherwise than in the recording. Messages have the length that was recorded, and zeros in them. "
        "Exits with 1 if there is a difference. docs/frames.md says what is compared.",
    ),
)
