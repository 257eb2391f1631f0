"""``frames replay`` against a broker, ``frames what-if`` against a model of one."""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amqp10broker.cli.commands import STANDARD, Command, Parser, add_format, seconds
from amqp10broker.cli.connecting import positive
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK, Failed, Unreachable
from amqp10broker.cli.frames import recording
from amqp10broker.cli.tables import render
from amqp10broker.client.options import WOULD_BLOCK, UrlError, parse_url, receive_some, with_tls
from amqp10broker.config.load import URL_VARIABLE
from amqp10broker.errors import BrokerError, ConfigError
from amqp10broker.operations.operation import counted

if TYPE_CHECKING:
    from ssl import SSLContext

    from amqp10broker.client.options import BrokerUrl
    from amqp10broker.tools.replay.forecast import Forecast, Forecasts, Settings
    from amqp10broker.tools.replay.pace import PublisherWait
    from amqp10broker.tools.replay.player import Player, Script
    from amqp10broker.tools.replay.replay import Replay


_PATIENCE_S: Final = 10.0


def _replay_arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="file of the recording; - for standard input")
    parser.add_argument(
        "--url",
        metavar="URL",
        help="the broker, amqp://user:password@host:port/vhost (default: AMQP10BROKER_URL, user guest, the "
        "virtual host of the recording)",
    )
    parser.add_argument(
        "--connection", type=int, metavar="NUMBER", help="replay only this connection (default: all)"
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="send as fast as credit permits",
    )
    parser.add_argument(
        "--patience",
        type=seconds(0.1, 3600),
        default=_PATIENCE_S,
        metavar="SECONDS",
        help=f"how long to wait for a recorded frame (default {_PATIENCE_S:g})",
    )
    add_format(parser)


def _replay(arguments: argparse.Namespace) -> int:
    from amqp10broker.tools.replay.player import ReplayLogin, read_script
    from amqp10broker.tools.replay.replay import Replay

    url = _url(arguments.url)
    with recording(arguments.file) as records:
        script = read_script(records, arguments.connection)
    if not script.parts:
        why = "; ".join(script.left_out) or "it does not contain this connection"
        raise Failed(
            f"no connection of {arguments.file} can be replayed: {why}. Begin the recording before the "
            "client connects: 'trace USER on --frames --file FILE', or 'serve --record-frames DIR'"
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
    return f"{helps}; set SSL_CERT_FILE to a file of trusted certificate authorities" if url.tls else helps


def _url(written: str | None) -> BrokerUrl:
    from amqp10broker.cli.admin import from_environment

    if written is None:
        url = from_environment(os.environ)
        if url is None:
            raise ConfigError("replay --url", "is not given", f"name the broker, or set {URL_VARIABLE}")
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


# --- sockets: one thread ----------------------------------------------------------------------------

_LOOK_AGAIN_S: Final = 0.25
"""The longest wait of the selector, so that Ctrl-C works on every system."""


def drive(replay: Replay, url: BrokerUrl, timeout_s: float) -> None:
    context = None
    if url.tls:
        import ssl

        context = ssl.create_default_context()
    sockets: dict[Player, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                for player in replay.wanted(time.monotonic()):
                    sock = _connect(replay, player, url, context, timeout_s)
                    if sock is not None:
                        sockets[player] = sock
                        selector.register(sock, selectors.EVENT_READ, player)
                        replay.connected(player, time.monotonic())
                wake = replay.advance(time.monotonic())
                written = False
                for player, sock in list(sockets.items()):
                    was_full = replay.is_full(player)
                    _write(replay, player, sock)
                    written = written or (was_full and not replay.is_full(player))
                    if player.closed:
                        selector.unregister(sock)
                        sock.close()
                        del sockets[player]
                        continue
                    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if player.unsent else 0)
                    if selector.get_key(sock).events != events:
                        selector.modify(sock, events, player)
                if wake is None:
                    return
                pause = 0.0 if written else min(max(0.0, wake - time.monotonic()), _LOOK_AGAIN_S)
                for key, ready in selector.select(pause):
                    if ready & selectors.EVENT_READ:
                        _read(replay, key.data, sockets[key.data])
        finally:
            for sock in sockets.values():
                sock.close()


def _connect(
    replay: Replay, player: Player, url: BrokerUrl, context: SSLContext | None, timeout_s: float
) -> socket.socket | None:
    try:
        sock = socket.create_connection((url.host, url.port), timeout_s)
        if context is not None:
            sock = with_tls(sock, context, url.host, url.port)
    except OSError as error:
        replay.lost(player, f"no connection to {url.host}:{url.port}: {error.strerror or error}")
        return None
    except BrokerError as error:
        replay.lost(player, str(error))
        return None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def _write(replay: Replay, player: Player, sock: socket.socket) -> None:
    while player.unsent:
        try:
            with memoryview(player.unsent) as view:
                sent = sock.send(view)
        except WOULD_BLOCK:
            return
        except OSError as error:
            replay.lost(player, f"the connection was lost: {error.strerror or error}")
            return
        del player.unsent[:sent]


def _read(replay: Replay, player: Player, sock: socket.socket) -> None:
    try:
        data = receive_some(sock)
    except WOULD_BLOCK:
        return
    except OSError as error:
        replay.lost(player, f"the connection was lost: {error.strerror or error}")
        return
    if data:
        replay.receive(player, data, time.monotonic())
    else:
        replay.lost(player, "the broker closed the socket without a close frame")


# --- what if ----------------------------------------------------------------------------------------

_WIDTH: Final = 110
_ROUND_TRIP_MS_MAX: Final = 60_000.0
_Value = TypeVar("_Value")


def _milliseconds(written: str) -> float:
    try:
        number = float(written)
    except ValueError:
        number = -1.0
    if not 0 <= number <= _ROUND_TRIP_MS_MAX:
        raise argparse.ArgumentTypeError(f"{written[:40]!r} must be 0 to {_ROUND_TRIP_MS_MAX:g} milliseconds")
    return number


def _several(one: Callable[[str], _Value]) -> Callable[[str], list[_Value]]:
    return lambda written: [one(each) for each in written.split(",")]


def _what_if_arguments(parser: Parser) -> None:
    parser.add_argument(
        "recordings",
        nargs="+",
        metavar="FILE",
        help="recordings; a folder: its *.jsonl; - alone: standard input",
    )
    parser.add_argument(
        "--max-link-credit",
        type=_several(positive),
        default=[],
        metavar="MESSAGES[,...]",
        help="several are combined with those of other options (default: as recorded)",
    )
    parser.add_argument(
        "--max-incoming-window",
        type=_several(positive),
        default=[],
        metavar="TRANSFERS[,...]",
        help="default: as recorded",
    )
    parser.add_argument(
        "--round-trip-ms",
        type=_several(_milliseconds),
        default=[],
        metavar="MILLISECONDS[,...]",
        help="between client and broker (default: as recorded)",
    )
    parser.add_argument(
        "--client-credit",
        type=_several(positive),
        default=[],
        metavar="MESSAGES[,...]",
        help="of clients that receive (default: as recorded)",
    )
    parser.add_argument(
        "--connection", type=int, metavar="NUMBER", help="forecast only this connection (default: all)"
    )
    parser.add_argument(
        "--format", choices=("text", "json", "csv"), default="text", help="csv: a table (default: text)"
    )


def _forecast(arguments: argparse.Namespace) -> int:
    from amqp10broker.tools.replay.forecast import COLUMNS, grid, table_rows

    settings = grid(
        arguments.max_link_credit,
        arguments.max_incoming_window,
        arguments.round_trip_ms,
        arguments.client_credit,
    )
    found = _answers(arguments, settings)
    alone = len(found) == 1
    if arguments.format == "json":
        document = {
            "forecasts": [_document(one.recording, *each) for one in found for each in one.forecasts],
            "without": [each for one in found for each in _without(one, alone=alone)],
        }
        print(json.dumps(document, indent=2))
    elif arguments.format == "csv":
        print(render(list(COLUMNS), [row for one in found for row in table_rows(one)], "csv"), end="")
    else:
        for one in found:
            for line in _page(one, alone=alone, named=len(settings) > 1):
                print(line)
    return _judged(found)


def _answers(arguments: argparse.Namespace, settings: list[Settings]) -> list[Forecasts]:
    from amqp10broker.tools.replay.forecast import answer, answer_of_file, files_of

    if STANDARD in arguments.recordings:
        if arguments.recordings != [STANDARD]:
            raise ConfigError("-", "is given beside files", "give either files or --file")
        with recording(STANDARD) as records:
            return [answer(STANDARD, records, settings, arguments.connection)]
    return [answer_of_file(path, settings, arguments.connection) for path in files_of(arguments.recordings)]


def _judged(found: list[Forecasts]) -> int:
    bad = [f"{one.recording}: {one.problem}" for one in found if one.problem is not None]
    if bad:
        others = f"; the other {len(found) - len(bad)} were looked at" if len(found) > len(bad) else ""
        raise Failed("; ".join(bad) + others)
    if not any(one.forecasts for one in found):
        names = found[0].recording if len(found) == 1 else f"{len(found)} recordings"
        raise Failed(f"{names} has no link of AMQP 1.0 that can be forecast")
    return EXIT_OK


def _without(one: Forecasts, *, alone: bool) -> list[str]:
    said = one.without if one.problem is None else [one.problem]
    return said if alone else [f"{one.recording}: {each}" for each in said]


def _page(one: Forecasts, *, alone: bool, named: bool) -> Iterator[str]:
    if not alone:
        yield f"{one.recording}:"
    last = None
    for asked, forecast in one.forecasts:
        if (forecast.connection, forecast.link) != last:
            yield f"connection {forecast.connection}, {forecast.link}: {forecast.messages} messages"
            yield from _wrapped("  recorded: ", _recorded(forecast))
        last = forecast.connection, forecast.link
        yield from _wrapped("  what if:  ", _what_if(asked if named else None, forecast))
        for unknown in forecast.unknown:
            yield from _wrapped("  cannot know: ", unknown)
    for each in [*one.without, *([one.problem] if one.problem is not None else [])]:
        yield f"no forecast: {each}"


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=title, subsequent_indent=" " * len(title))


def _recorded(forecast: Forecast) -> str:
    window = "" if forecast.window is None else f", incoming-window {forecast.window}"
    return (
        f"{_rate(forecast.rate)} at credit {forecast.credit}{window}, round trip at most "
        f"{1000 * forecast.round_trip_s:.1f} ms; waited for {_shares(forecast.waits)}"
    )


def _what_if(asked: Settings | None, forecast: Forecast) -> str:
    from amqp10broker.tools.replay.forecast import shares

    run = forecast.run
    title = "" if asked is None else f"({asked}) "
    return (
        f"{title}{_rate(run.rate)}; waits for {_shares(shares(run.waits))}; at most {run.held} messages "
        f"without outcome, {run.held_bytes} bytes of them "
        f"{'delivered' if forecast.receives else 'in the broker'}"
    )


def _rate(rate: float) -> str:
    from amqp10broker.tools.replay.forecast import finite

    return "as fast as client and broker are" if finite(rate) is None else f"{rate:.0f} messages/s"


def _shares(waits: dict[PublisherWait, float]) -> str:
    shown = [f"{reason.value} {100 * share:.0f} %" for reason, share in waits.items() if share >= 0.005]
    return ", ".join(shown) or "nothing"


def _document(name: str, asked: Settings, forecast: Forecast) -> dict[str, Any]:
    from amqp10broker.tools.replay.forecast import finite, shares

    return {
        "recording": name,
        "connection": forecast.connection,
        "link": forecast.link,
        "messages": forecast.messages,
        "recorded": {
            "rate": finite(forecast.rate),
            "client_credit" if forecast.receives else "max_link_credit": forecast.credit,
            "max_incoming_window": forecast.window,
            "round_trip_ms": 1000 * forecast.round_trip_s,
            "waits": {reason.name.lower(): share for reason, share in forecast.waits.items()},
            "rate_of_the_model": finite(forecast.check.rate),
        },
        "asked": {
            "max_link_credit": asked.max_link_credit,
            "max_incoming_window": asked.max_incoming_window,
            "round_trip_ms": asked.round_trip_ms,
            "client_credit": asked.client_credit,
        },
        "forecast": {
            "rate": finite(forecast.run.rate),
            "waits": {reason.name.lower(): share for reason, share in shares(forecast.run.waits).items()},
            "messages_held": forecast.run.held,
            "bytes_held": forecast.run.held_bytes,
        },
        "unknown": list(forecast.unknown),
    }


COMMANDS: Final = (
    Command(
        "frames replay",
        _replay_arguments,
        _replay,
        "Replay the client's side of recorded connections against any broker, and print what differs from "
        "the recording. Messages have the recorded length and contain zeros. The exit code is 1 if there "
        "is a difference. docs/frames.md describes the comparison.",
    ),
    Command(
        "frames what-if",
        _what_if_arguments,
        _forecast,
        "Forecast the publishers and consumers in recordings of frames with another credit, "
        "incoming-window or round trip: their rate, their waits, their memory, and what cannot be known. "
        "Several recordings and settings make one table. docs/analysis.md describes the method.",
    ),
)
