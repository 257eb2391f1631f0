"""Scalar settings: type, range, meaning, and the check of a value.

`number`, `text` and `switch` are used as dataclass field defaults, so that a setting is defined once: file
loader, environment and command line read the field's name, default, range and help from there. Amounts of
memory and disk have RabbitMQ's unit words: ``512MB``, ``1GiB``, ``0.6`` (a share of the memory that this
process may use), ``absolute 1073741824``, ``mem_relative 1.5``. A number without a unit differs by setting:
for the memory watermark it is a share, for the disk limit bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError

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


UINT_MAX: Final = 2**32 - 1
AUTO: Final = "auto"
"""The word for a number that the broker adjusts itself."""

_METADATA_KEY: Final = "setting"
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
# Ten digits represent every limit here; a cap keeps absurd input out of int() and out of the message.
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Setting:
    """The type, range and meaning of one scalar setting."""

    name: str
    kind: type[int] | type[str] | type[bool]
    help: str
    minimum: int = 0
    maximum: int = 0
    zero_means: str | None = None
    """The effect of 0, if it is allowed although it lies below `minimum`."""
    word: str | None = None
    """A word that is allowed instead of a number."""
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False
    may_be_none: bool = False
    reads: Callable[[str], object] | None = None
    """The parser of a text with a grammar; raises ValueError."""
    form: str = ""
    """The allowed form of a text with a grammar, as a clause."""

    @property
    def variable(self) -> str:
        return f"AMQP10BROKER_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def allowed(self) -> str:
        """The accepted values, as a clause: "must be an integer from 1 to 10"."""
        if self.kind is bool:
            return "must be true or false"
        if self.kind is int:
            zero = f", or 0 ({self.zero_means})" if self.zero_means is not None else ""
            word = f", or {self.word}" if self.word is not None else ""
            return f"must be an integer from {self.minimum} to {self.maximum}{zero}{word}"
        if self.choices:
            return f"must be one of {', '.join(self.choices)}"
        if self.reads is not None:
            return self.form
        return "must be a string" if self.may_be_empty else "must be a string that is not empty"

    def check(self, value: object, source: str) -> None:
        """Check the type and range of a value. Raises `ConfigError` if names `source`, the value and the
        allowed values.
        """
        if (value is None and self.may_be_none) or (value == self.word and value is not None):
            return
        # Exact types: True is an int to Python, but not a port number to a reader.
        if type(value) is not self.kind:
            raise ConfigError(source, f"is {describe(value)}", self.allowed)
        if isinstance(value, bool):
            return
        if isinstance(value, int):
            good = self.minimum <= value <= self.maximum or (value == 0 and self.zero_means is not None)
        elif isinstance(value, str) and self.choices:
            good = value in self.choices
        elif isinstance(value, str) and self.reads is not None:
            good = self._readable(value)
        else:
            good = self.may_be_empty or bool(value)
        if not good:
            raise ConfigError(source, f"is {describe(value)}", self.allowed)

    def _readable(self, value: str) -> bool:
        assert self.reads is not None
        try:
            self.reads(value)
        except ValueError:
            return False
        return True

    def parse(self, written: str, source: str) -> int | str | bool:
        """Parse a value from text of environment or command line. Raises `ConfigError` as `check`."""
        value: int | str | bool = written
        if self.kind is bool:
            lowered = written.strip().lower()
            if lowered in _TRUE:
                value = True
            elif lowered in _FALSE:
                value = False
        elif self.kind is int and _INTEGER.fullmatch(written.strip()):
            value = int(written)
        self.check(value, source)
        return value


def describe(value: object) -> str:
    """Format a value for an error message, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def number(
    default: int | None, meaning: str, *, within: tuple[int, int] = (1, UINT_MAX), **others: Any
) -> Any:
    """An integer field. `others`: `zero_means` and `word` of `Setting`."""
    return _field(default, meaning, kind=int, minimum=within[0], maximum=within[1], **others)


def text(default: str | None, meaning: str, *, secret: bool = False, **others: Any) -> Any:
    """A string field. `secret`: it is not in the repr. `others`: fields of `Setting`."""
    return _field(default, meaning, shown=not secret, kind=str, **others)


def switch(default: bool | None, meaning: str) -> Any:
    """A boolean field."""
    return _field(default, meaning, kind=bool)


def _field(default: object, meaning: str, *, shown: bool = True, **description: Any) -> Any:
    # A default of None makes the field optional.
    description |= {"help": meaning, "may_be_none": default is None}
    return field(default=default, repr=shown, metadata={_METADATA_KEY: description})


def settings_of(record: type) -> dict[str, Setting]:
    """Return the scalar settings of a dataclass, by name, in the order of its fields."""
    return {
        each.name: Setting(name=each.name, **each.metadata[_METADATA_KEY])
        for each in fields(record)
        if _METADATA_KEY in each.metadata
    }
