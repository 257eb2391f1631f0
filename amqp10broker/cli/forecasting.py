"""``amqp10broker frames what-if``: simulates other settings with recorded publishers and consumers."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amqp10broker.cli.commands import STANDARD, Command, Parser
from amqp10broker.cli.connecting import positive
from amqp10broker.cli.exits import EXIT_OK, Failed
from amqp10broker.cli.frames import recording
from amqp10broker.cli.tables import render
from amqp10broker.errors import ConfigError

if TYPE_CHECKING:
    from amqp10broker.tools.replay.forecast import Forecast, Forecasts, Settings
    from amqp10broker.tools.replay.pace import PublisherWait

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


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "recordings",
        nargs="+",
        metavar="FILE",
        help="recordings; a folder stands for its *.jsonl; - alone reads one from standard input",
    )
    parser.add_argument(
        "--max-link-credit",
        type=_several(positive),
        default=[],
        metavar="MESSAGES[,...]",
        help="several are tried, each with each of the other options (default: as it was recorded)",
    )
    parser.add_argument(
        "--max-incoming-window",
        type=_several(positive),
        default=[],
        metavar="TRANSFERS[,...]",
        help="default: as it was recorded",
    )
    parser.add_argument(
        "--round-trip-ms",
        type=_several(_milliseconds),
        default=[],
        metavar="MILLISECONDS[,...]",
        help="between client and broker (default: as it was recorded)",
    )
    parser.add_argument(
        "--client-credit",
        type=_several(positive),
        default=[],
        metavar="MESSAGES[,...]",
        help="that a client grants which receives (default: as it was recorded)",
    )
    parser.add_argument(
        "--connection", type=int, metavar="NUMBER", help="look at this connection alone (default: all)"
    )
    parser.add_argument(
        "--format", choices=("text", "json", "csv"), default="text", help="csv: a table (default: text)"
    )


def _run(arguments: argparse.Namespace) -> int:
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
            raise ConfigError("-", "is given beside files", "one recording alone can come from there")
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
        raise Failed(f"there is no link of AMQP 1.0 in {names} of which something can be said")
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
        f"{title}{_rate(run.rate)}; waits for {_shares(shares(run))}; at most {run.held} messages without "
        f"outcome, {run.held_bytes} bytes of them {'delivered' if forecast.receives else 'in the broker'}"
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
            "waits": {reason.name.lower(): share for reason, share in shares(forecast.run).items()},
            "messages_held": forecast.run.held,
            "bytes_held": forecast.run.held_bytes,
        },
        "unknown": list(forecast.unknown),
    }


COMMANDS: Final = (
    Command(
        "frames what-if",
        _arguments,
        _run,
        "Say what another credit, incoming-window or round trip would have done to the publishers and "
        "consumers of recordings of frames: their rate, what they would wait for, memory, and what cannot be "
        "known. Many recordings and settings make one table. docs/analysis.md says how.",
    ),
)
