"""Amounts of memory and disk as people write them, with RabbitMQ's unit words.

``512MB``, ``1GiB``, ``0.6`` (a share of the memory that this process may use), ``absolute 1073741824``,
``mem_relative 1.5``. What a number without a unit means differs by setting, as it does in RabbitMQ: for
the memory watermark a share, for the disk limit bytes.
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
    """Read a share of something: ``0``, ``0.01``, ``1``.

    Raises:
        ValueError: it is none; see `SHARE_FORM`.
    """
    if not _SHARE.fullmatch(written) or not 0 <= float(written) <= 1:
        raise ValueError(written)
    return float(written)


@dataclass(frozen=True, slots=True)
class Amount:
    """So many bytes, or so much of the memory that this process may use: one of the two is given."""

    size_bytes: int | None = None
    share: float | None = None

    def bytes_of(self, memory_total_bytes: int | None) -> int | None:
        """The amount in bytes; None if it is a share and the memory's size is not known.

        Args:
            memory_total_bytes: what this process may use; None if the system does not say.
        """
        if self.share is None:
            return self.size_bytes
        return None if memory_total_bytes is None else int(self.share * memory_total_bytes)

    def __str__(self) -> str:
        return f"{self.size_bytes} bytes" if self.share is None else f"{self.share:g} of memory"


def memory_watermark(written: str) -> Amount:
    """Read a memory high watermark: ``0.6``, ``relative 0.6``, ``512MB``, ``absolute 1073741824``.

    More than all memory is refused as a share; as an amount it is taken, and is never reached.

    Raises:
        ValueError: it is none; see `MEMORY_FORM`.
    """
    kind, value = _split(written)
    if kind in _RELATIVE or (not kind and _NUMBER.fullmatch(value)):
        share = _share(value)
        if share > 1:
            raise ValueError(f"{written!r} is more than all memory")
        return Amount(share=share)
    return Amount(size_bytes=_bytes(value))


def disk_limit(written: str) -> Amount:
    """Read a disk free limit: ``50MB``, ``1000000000``, ``mem_relative 1.5``, or ``1.5`` for that.

    Raises:
        ValueError: it is none; see `DISK_FORM`.
    """
    kind, value = _split(written)
    if kind in _RELATIVE or (not kind and "." in value):
        return Amount(share=_share(value))
    return Amount(size_bytes=_bytes(value))


def from_file(value: Any) -> Any:
    """What a configuration file gives, as text: a number, or RabbitMQ's ``NAME.relative = 0.6``.

    Anything else is given back as it is, for the check of the setting to refuse.
    """
    if isinstance(value, dict) and len(value) == 1:
        ((kind, inner),) = value.items()
        if kind == _ABSOLUTE or kind in _RELATIVE:
            return f"{kind} {from_file(inner)}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def _split(written: str) -> tuple[str, str]:
    """The word before the value, empty if there is none, and the value."""
    words = written.split()
    if len(words) == 1:
        return "", words[0]
    if len(words) == 2 and (words[0] == _ABSOLUTE or words[0] in _RELATIVE):
        return words[0], words[1]
    raise ValueError(f"{written!r} is no amount")


def _bytes(value: str) -> int:
    """Bytes with a unit as RabbitMQ 4 reads it: k, kB 1000; Ki, KiB 1024; and so on up to P.

    Raises:
        ValueError: it is none.
    """
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
