"""Amounts of memory and disk as text, with RabbitMQ's unit words.

``512MB``, ``1GiB``, ``0.6`` (a share of the memory that this process may use), ``absolute 1073741824``,
``mem_relative 1.5``. A number without a unit differs by setting, as in RabbitMQ: for the memory watermark
it is a share, for the disk limit bytes.
"""

from __future__ import annotations

import re
from typing import Any, Final

from amqp10broker.dataclass import dataclass

_BYTES: Final = re.compile(r"([0-9]{1,18})(?:([kmgtp]?)(i?)(b?))?", re.ASCII | re.IGNORECASE)
_SHARE: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,9})?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9.]+", re.ASCII)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_ABSOLUTE: Final = "absolute"
_RELATIVE: Final = frozenset({"relative", "mem_relative"})

MEMORY_FORM: Final = (
    "must be a share of memory from 0 to 1 such as 0.6, or an amount with its unit such as 512MB or 1GiB"
)
DISK_FORM: Final = (
    "must be an amount such as 50MB, 1GiB or 1000000000 (bytes), or a multiple of memory such as "
    "'mem_relative 1.5'"
)


SHARE_FORM: Final = "must be a number from 0 to 1 such as 0.01"


def share(written: str) -> float:
    """Parse a share: ``0``, ``0.01``, ``1``. Raises ValueError for a text of another form (`SHARE_FORM`)."""
    value = _share(written)
    if value > 1:
        raise ValueError(f"{written!r} is more than all")
    return value


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of bytes, or a share of the memory that this process may use."""

    size_bytes: int | None = None
    share: float | None = None

    def bytes_of(self, memory_total_bytes: int | None) -> int | None:
        """Return the amount in bytes; None if it is a share and the memory's size is unknown."""
        if self.share is None:
            return self.size_bytes
        return None if memory_total_bytes is None else int(self.share * memory_total_bytes)

    def __str__(self) -> str:
        return f"{self.size_bytes} bytes" if self.share is None else f"{self.share:g} of memory"


def memory_watermark(written: str) -> Amount:
    """Parse a memory high watermark: ``0.6``, ``relative 0.6``, ``512MB``, ``absolute 1073741824``.

    A share above 1 is refused; a larger amount is accepted, and never reached. Raises `ValueError` if the
    text has another form (`MEMORY_FORM`).
    """
    kind, value = _split(written)
    if kind in _RELATIVE or (not kind and _NUMBER.fullmatch(value)):
        return Amount(share=share(value))
    return Amount(size_bytes=_bytes(value))


def disk_limit(written: str) -> Amount:
    """Parse a disk free limit: ``50MB``, ``1000000000``, ``mem_relative 1.5``, or ``1.5`` for that. Raises
    `ValueError` if the text has another form (`DISK_FORM`).
    """
    kind, value = _split(written)
    if kind in _RELATIVE or (not kind and "." in value):
        return Amount(share=_share(value))
    return Amount(size_bytes=_bytes(value))


def from_file(value: Any) -> Any:
    """Convert a value of a configuration file, or of a program, to text: a number, or RabbitMQ's
    ``NAME.relative = 0.6``.

    Any other value is returned unchanged, for the check of the setting to refuse.
    """
    if isinstance(value, dict) and len(value) == 1:
        ((kind, inner),) = value.items()
        if kind == _ABSOLUTE or kind in _RELATIVE:
            return f"{kind} {from_file(inner)}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def _split(written: str) -> tuple[str, str]:
    words = written.split()
    if len(words) == 1:
        return "", words[0]
    if len(words) == 2 and (words[0] == _ABSOLUTE or words[0] in _RELATIVE):
        return words[0], words[1]
    raise ValueError(f"{written!r} is no amount")


def _bytes(value: str) -> int:
    # Units as in RabbitMQ 4: k, kB 1000; Ki, KiB 1024; and so on up to P.
    found = _BYTES.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is no amount of bytes")
    digits, letter, binary, _ = (part or "" for part in found.groups())
    if binary and not letter:
        raise ValueError(f"{value!r} has no unit that is known")
    scale: int = (1024 if binary else 1000) ** _POWERS[letter.lower()]
    return int(digits) * scale


def _share(value: str) -> float:
    if not _SHARE.fullmatch(value):
        raise ValueError(f"{value!r} is no share")
    return float(value)
