"""``amqp10broker status``: fetches the status document and shows it, once or repeatedly."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from amqp10broker.cli import admin, status_view
from amqp10broker.cli.commands import Command, Parser, add_where, place_of, seconds
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.cli.text import fit

SHOWN_MAX: Final = 20
"""Connections and waits shown by default: the first lines must not scroll away."""

# The alternate screen preserves the user's scrollback; the cursor would flicker.
WIDTH_MIN: Final = 40
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"


def _status_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds(0.1, 3_600),
        const=1.0,
        metavar="SECONDS",
        help="show again every so many seconds (default 1) until ctrl-C",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    chosen = parser.add_argument_group("what of it")
    chosen.add_argument("--connection", type=int, metavar="ID", help="one connection, by its number")
    chosen.add_argument("--user", metavar="NAME", help="connections of a user")
    chosen.add_argument("--queue", metavar="NAME", help="links and consumers of a queue; * and ? mean any")
    chosen.add_argument("--link", metavar="NAME", help="links and consumer tags of that name; likewise")
    chosen.add_argument("--reason", metavar="CODE", help="what waits so: a code, or no-credit for all such")
    chosen.add_argument(
        "--longer", type=seconds(0, 31_536_000), metavar="SECONDS", help="what has waited so long"
    )
    chosen.add_argument(
        "--all", action="store_true", help="all connections; else the worst 20, and of JSON always all"
    )
    add_where(parser)


def _status(arguments: argparse.Namespace) -> int:
    chosen = {name: getattr(arguments, name) for name in ("connection", "user", "queue", "link", "reason")}
    chosen["longer_s"] = arguments.longer
    return run(
        place_of(arguments),
        watch_s=arguments.watch,
        as_json=arguments.format == "json",
        choose={name: each for name, each in chosen.items() if each is not None},
        all_of_them=arguments.all,
    )


def run(
    place: admin.Place,
    *,
    watch_s: float | None,
    as_json: bool,
    choose: Mapping[str, Any] | None = None,
    all_of_them: bool = False,
    stream: TextIO | None = None,
    fetch: Callable[[], Any] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show the status of the broker at `place`.

    Args:
        watch_s: show it again every so many seconds until ctrl-C; None: once.
        choose: a selection of it (`sessions.diagnosis.survey.Selection`); None or empty: everything.
        stream: None is standard output.
    """
    stream = stream if stream is not None else sys.stdout
    on_screen = watch_s is not None and not as_json and stream.isatty()
    if fetch is None:

        def fetch() -> Any:
            limit = shutil.get_terminal_size().lines if on_screen else SHOWN_MAX
            bound = {} if as_json or (all_of_them and not on_screen) else {"limit": limit}
            return admin.ask(place, {"op": "status", "arguments": {"choose": {**(choose or {}), **bound}}})

    width = width_of(stream)
    if watch_s is None:
        document = fetch()
        shown = status_view.render(document, width=width)
        text = json.dumps(document, indent=2) if as_json else "\n".join(shown)
        stream.write(f"{text}\n")
        return EXIT_OK
    try:
        if as_json:
            _repeat(fetch, sleep, watch_s, lambda document: _write(stream, f"{json.dumps(document)}\n"))
        elif on_screen:
            _watch_screen(stream, fetch, sleep, watch_s)
        else:
            _repeat(
                fetch,
                sleep,
                watch_s,
                lambda document: _write(
                    stream, "\n".join([*status_view.render(document, width=width), "", ""])
                ),
            )
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def width_of(stream: TextIO) -> int:
    """Return the columns of the terminal, even behind a pager, or COLUMNS; else a usual number."""
    if stream.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(shutil.get_terminal_size().columns, WIDTH_MIN)
    try:
        return max(os.get_terminal_size(sys.stderr.fileno()).columns, WIDTH_MIN)
    except (OSError, ValueError, AttributeError):  # not a terminal, or not a file
        return status_view.WIDTH


def _watch_screen(
    stream: TextIO, fetch: Callable[[], Any], sleep: Callable[[float], None], watch_s: float
) -> None:
    first = fetch()  # before the screen is taken, so that a missing broker is an ordinary error
    _write(stream, _ENTER)
    try:
        _write(stream, _frame(first))
        sleep(watch_s)
        _repeat(fetch, sleep, watch_s, lambda document: _write(stream, _frame(document)))
    finally:
        _write(stream, _LEAVE)


def _frame(document: Any) -> str:
    columns, rows = shutil.get_terminal_size()
    return frame(status_view.render(document, width=max(columns, WIDTH_MIN)), rows, columns)


def frame(lines: list[str], rows: int, columns: int | None = None) -> str:
    """Format one picture, written over the last one line by line, so nothing is ever blank in between.

    Args:
        columns: of the screen; a longer line would take two rows. None: no line is longer.
    """
    if len(lines) > rows:
        hidden = len(lines) - rows + 1
        lines = [*lines[: rows - 1], f"... {hidden} more lines; a higher window, or --reason, --queue, ..."]
    if columns is not None:
        lines = [fit(line, columns) for line in lines]
    return _HOME + "\n".join(line + _CLEAR_LINE for line in lines) + _CLEAR_BELOW


def _repeat(
    fetch: Callable[[], Any], sleep: Callable[[float], None], watch_s: float, show: Callable[[Any], None]
) -> None:
    while True:
        show(fetch())
        sleep(watch_s)


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


COMMANDS: Final = (
    Command(
        "status",
        _status_arguments,
        _status,
        "Show what waits in a running broker, the longest first, and its connections, sessions, links and "
        "queues. Codes of reasons are explained in docs/waiting.md.",
    ),
)
