"""``amqp10broker status``: fetch the status document and show it, once or again and again."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

from amqp10broker.cli import admin, status_view

EXIT_OK: Final = 0

# The alternate screen keeps the user's scrollback; the cursor would flicker.
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"


def run(
    place: admin.Place,
    *,
    watch_s: float | None,
    as_json: bool,
    stream: TextIO | None = None,
    fetch: Callable[[], Any] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show the status of the broker at `place`.

    Args:
        place: where the broker is.
        watch_s: show it again every so many seconds until ctrl-C; None: once.
        as_json: the document instead of tables; one line each time if watched.
        stream: where to; None is standard output.
        fetch, sleep: replaced by tests.

    Raises:
        AdminSocketError: no broker is there, or none any more.
    """
    stream = stream if stream is not None else sys.stdout
    fetch = fetch if fetch is not None else lambda: admin.ask(place, {"op": "status"})
    if watch_s is None:
        document = fetch()
        text = json.dumps(document, indent=2) if as_json else "\n".join(status_view.render(document))
        stream.write(f"{text}\n")
        return EXIT_OK
    try:
        if as_json:
            _repeat(fetch, sleep, watch_s, lambda document: _write(stream, f"{json.dumps(document)}\n"))
        elif stream.isatty():
            _watch_screen(stream, fetch, sleep, watch_s)
        else:
            _repeat(
                fetch,
                sleep,
                watch_s,
                lambda document: _write(stream, "\n".join([*status_view.render(document), "", ""])),
            )
    except KeyboardInterrupt:
        pass
    return EXIT_OK


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
    return frame(status_view.render(document, width=max(columns, 40)), rows)


def frame(lines: list[str], rows: int) -> str:
    """One picture: written over the last one line by line, so nothing is ever blank in between."""
    if len(lines) > rows:
        hidden = len(lines) - rows + 1
        lines = [*lines[: rows - 1], f"... {hidden} more lines; a higher window shows them"]
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
