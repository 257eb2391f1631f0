"""Formats texts, numbers and times for a terminal."""

from __future__ import annotations

import textwrap
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def wrapped(text: str, width: int, first: str, hanging: str) -> list[str]:
    """Break a sentence into lines between words; a word that is longer than a line stays whole."""
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
    """Cut a text with three dots if it is too long."""
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."[: min(width, 3)]


def clean(value: object) -> str:
    """Format a value as a cell. Clients choose names: control characters for a terminal are escaped."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def size(count: object) -> str:
    """Format bytes with a unit: 1.5 MiB."""
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
    """Shorten a name in the middle if it is too long."""
    if len(name) <= width:
        return name
    front = max((width - 3) // 3, 0)
    back = max(width - 3 - front, 0)
    return f"{name[:front]}...{name[len(name) - back :]}"
