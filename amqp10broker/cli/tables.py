"""Formats rows as the box table of RabbitMQ's `pretty_table`, JSON, CSV, or plain lines; and texts.

Names come from clients, so control characters are escaped in every form, and in CSV formulas, too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

FORMATS: Final = ("table", "json", "csv", "plain")

Row = Mapping[str, Any]

_BOX: Final = "─│┌┬┐├┼┤└┴┘"
_ASCII: Final = "-|+++++++++"
_FORMULA: Final = ("=", "+", "-", "@")
_MARKS: Final = " .-_/:,"
CELL_MIN: Final = 8
"""The least width of a cell: a text is not broken into less, even if the box is too wide."""
_WIDE: Final = frozenset("WF")


def render(
    columns: Sequence[str],
    rows: Sequence[Row],
    form: str,
    *,
    header: bool = True,
    encoding: str | None = "utf-8",
    width: int | None = None,
) -> str:
    """Format rows as text that ends with a line break; empty without output.

    Args:
        encoding: of the output; a box that it cannot show is drawn in ASCII.
        width: columns of the terminal, within which long texts take several lines. None: unlimited.
    """
    if form == "json":
        return as_json([{column: row.get(column) for column in columns} for row in rows])
    if form == "csv":
        return _csv(columns, rows, header)
    lines = [[cell(row.get(column)) for column in columns] for row in rows]
    if header:
        lines.insert(0, list(columns))
    if not lines:
        return ""
    if form == "plain":
        return "".join("\t".join(line) + "\n" for line in lines)
    return _box(lines, _BOX if _can_show(_BOX, encoding) else _ASCII, width)


def _box(lines: Sequence[Sequence[str]], drawn: str, width: int | None) -> str:
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        widths = _narrowed(widths, lines, width)
    bar, side, corners = drawn[0], drawn[1], drawn[2:]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join(bar * (room + 2) for room in widths) + right

    between = "\n" + rule(*corners[3:6]) + "\n"
    shown = (
        "\n".join(
            side
            + side.join(
                f" {text}{' ' * (room - _width(text))} " for text, room in zip(part, widths, strict=True)
            )
            + side
            for part in zip_longest(
                *(_in_pieces(text, room) for text, room in zip(line, widths, strict=True)), fillvalue=""
            )
        )
        for line in lines
    )
    return f"{rule(*corners[:3])}\n{between.join(shown)}\n{rule(*corners[6:])}\n"


def _narrowed(widths: Sequence[int], lines: Sequence[Sequence[str]], width: int) -> list[int]:
    narrow = list(widths)
    texts = [at for at, column in enumerate(zip(*lines, strict=True)) if not all(map(_is_number, column[1:]))]
    excess = sum(narrow) + 3 * len(narrow) + 1 - width
    while excess > 0:
        widest = max(texts, key=lambda at: narrow[at], default=None)
        if widest is None or narrow[widest] <= CELL_MIN:
            break
        narrow[widest] -= 1
        excess -= 1
    return narrow


def _is_number(text: str) -> bool:
    return text == "" or text.replace(".", "", 1).isdecimal()


def _in_pieces(text: str, width: int) -> list[str]:
    # A line breaks after a separator in the name that is near, else anywhere.
    pieces = []
    while _width(text) > width:
        end = min(width, len(text))
        while _width(text[:end]) > width:
            end -= 1
        parted = max((text.rfind(mark, 0, end) for mark in _MARKS), default=-1) + 1
        cut = parted if parted > width // 2 else max(end, 1)
        pieces.append(text[:cut].rstrip())
        text = text[cut:].lstrip()
    return [*pieces, text]


def as_json(document: object) -> str:
    """Format a document as JSON in lines, with non-printable characters escaped."""
    import json

    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if text.replace("\n", "").isprintable():
        return text
    # JSON requires that below U+0020 only, not for DEL, U+009B, which begins an escape sequence of terminals,
    # or marks that change the direction of writing.
    return "".join(
        each if each == "\n" or each.isprintable() else json.dumps(each).strip('"') for each in text
    )


def _csv(columns: Sequence[str], rows: Sequence[Row], header: bool) -> str:
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([_csv_cell(row.get(column)) for column in columns] for row in rows)
    return out.getvalue()


def _csv_cell(value: object) -> str:
    # A text that a spreadsheet would interpret as a formula begins with an apostrophe.
    text = cell(value)
    is_text = isinstance(value, str | list)
    return f"'{text}" if is_text and text.startswith(_FORMULA) else text


def plain(value: object) -> str:
    """Format a value: nothing for None, names with commas, JSON for other lists and maps."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case list() if all(isinstance(each, str) for each in value):
            return ", ".join(value)
        case dict() | list():
            import json

            return json.dumps(value, ensure_ascii=False) if value else ""
        case _:
            return str(value)


def cell(value: object) -> str:
    text = plain(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in _WIDE)
        for each in text
    )


def _can_show(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def wrapped(text: str, width: int, first: str, hanging: str) -> list[str]:
    """Break a sentence into lines between words; a longer word stays whole."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def seconds_text(seconds: object) -> str:
    """Format seconds, with a tenth below 10: ``0.4 s``, ``12 s``, ``3 min 5 s``."""
    if isinstance(seconds, int | float) and seconds < 10:
        return f"{seconds:.1f} s"
    return duration(seconds)


def fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."[: min(width, 3)]


def clean(value: object) -> str:
    """Format a value as a cell. Control characters, which clients may choose, are escaped."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def size(count: object) -> str:
    if not isinstance(count, int | float):
        return "-"
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes everything")


def duration(seconds: object) -> str:
    """Format seconds in the two biggest units: 3 h 12 min."""
    if not isinstance(seconds, int | float):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def shortened(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    front = max((width - 3) // 3, 0)
    back = max(width - 3 - front, 0)
    return f"{name[:front]}...{name[len(name) - back :]}"
