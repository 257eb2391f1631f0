"""``amqp10broker what-if``: what other settings would have done to recorded publishers."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.connecting import positive
from amqp10broker.cli.exits import EXIT_OK, Failed
from amqp10broker.cli.frames import recording

if TYPE_CHECKING:
    from amqp10broker.replay.forecast import Forecast
    from amqp10broker.replay.pace import Reason
    from amqp10broker.replay.simulation import Run

_WIDTH: Final = 110
_ROUND_TRIP_MS_MAX: Final = 60_000.0


def _milliseconds(written: str) -> float:
    try:
        number = float(written)
    except ValueError:
        number = -1.0
    if not 0 <= number <= _ROUND_TRIP_MS_MAX:
        raise argparse.ArgumentTypeError(f"{written[:40]!r} must be 0 to {_ROUND_TRIP_MS_MAX:g} milliseconds")
    return number


def _arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the recording; - reads it from standard input")
    parser.add_argument(
        "--max-link-credit", type=positive, metavar="MESSAGES", help="default: as it was recorded"
    )
    parser.add_argument(
        "--max-incoming-window", type=positive, metavar="TRANSFERS", help="default: as it was recorded"
    )
    parser.add_argument(
        "--round-trip-ms",
        type=_milliseconds,
        metavar="MILLISECONDS",
        help="between client and broker (default: as it was recorded)",
    )
    parser.add_argument(
        "--connection", type=int, metavar="NUMBER", help="look at this connection alone (default: all)"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def _run(arguments: argparse.Namespace) -> int:
    from amqp10broker.replay.forecast import Settings, forecasts
    from amqp10broker.replay.script import read_script

    with recording(arguments.file) as records:
        script = read_script(records, arguments.connection)
    asked = Settings(arguments.max_link_credit, arguments.max_incoming_window, arguments.round_trip_ms)
    found, without = forecasts(script, asked)
    if arguments.format == "json":
        document = {"forecasts": [_document(each) for each in found], "without": without}
        print(json.dumps(document, indent=2))
    else:
        for forecast in found:
            print("\n".join(_page(forecast)))
        for each in without:
            print(f"no forecast: {each}")
    if not found:
        raise Failed(f"there is no publisher of AMQP 1.0 in {arguments.file} of which something can be said")
    return EXIT_OK


def _page(forecast: Forecast) -> list[str]:
    round_trip = 1000 * forecast.round_trip_s
    run = forecast.run
    was = (
        f"{_rate(forecast.rate)} at credit {forecast.credit}, incoming-window {forecast.window}, round trip "
        f"at most {round_trip:.1f} ms; waited for {_shares(forecast.waits)}"
    )
    would_be = (
        f"{_rate(run.rate)}; waits for {_shares(_of(run))}; at most {run.held} messages without outcome, "
        f"{run.held_bytes} bytes of them in the broker"
    )
    lines = [f"connection {forecast.connection}, {forecast.link}: {forecast.messages} messages"]
    lines += textwrap.wrap(was, _WIDTH, initial_indent="  recorded: ", subsequent_indent=" " * 12)
    lines += textwrap.wrap(would_be, _WIDTH, initial_indent="  what if:  ", subsequent_indent=" " * 12)
    for unknown in forecast.unknown:
        lines += textwrap.wrap(
            unknown, _WIDTH, initial_indent="  cannot know: ", subsequent_indent="               "
        )
    return lines


def _rate(rate: float) -> str:
    return f"{rate:.0f} messages/s" if math.isfinite(rate) else "as fast as client and broker are"


def _of(run: Run) -> dict[Reason, float]:
    whole = sum(run.waits.values()) or 1.0
    return {reason: wait / whole for reason, wait in run.waits.items()}


def _shares(waits: dict[Reason, float]) -> str:
    shown = [f"{reason.value} {100 * share:.0f} %" for reason, share in waits.items() if share >= 0.005]
    return ", ".join(shown) or "nothing"


def _document(forecast: Forecast) -> dict[str, Any]:
    return {
        "connection": forecast.connection,
        "link": forecast.link,
        "messages": forecast.messages,
        "recorded": {
            "rate": _number(forecast.rate),
            "max_link_credit": forecast.credit,
            "max_incoming_window": forecast.window,
            "round_trip_ms": 1000 * forecast.round_trip_s,
            "waits": {reason.name.lower(): share for reason, share in forecast.waits.items()},
            "rate_of_the_model": _number(forecast.check.rate),
        },
        "forecast": {
            "rate": _number(forecast.run.rate),
            "waits": {reason.name.lower(): share for reason, share in _of(forecast.run).items()},
            "messages_held": forecast.run.held,
            "bytes_held": forecast.run.held_bytes,
        },
        "unknown": list(forecast.unknown),
    }


def _number(rate: float) -> float | None:
    """JSON has no infinity."""
    return rate if math.isfinite(rate) else None


COMMANDS: Final = (
    Command(
        "what-if",
        _arguments,
        _run,
        "Say what another credit, incoming-window or round trip would have done to the publishers of a "
        "recording of frames: their rate, what they would wait for, and memory, and what cannot be known. "
        "docs/what-if.md says how.",
    ),
)
