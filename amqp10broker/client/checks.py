"""Checks of arguments that no frame can carry, made where the program passes them.

Output is encoded when it is written, by the next call that waits, or by a separate task: a value without
an encoding would fail there, far from the call that passed it, and break the connection for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.errors import EncodeError
from amqp10broker.protocols.amqp10.performatives import Accepted, Modified, Rejected, Released
from amqp10broker.protocols.amqp10.types import Symbol

UINT_MAX: Final = 4_294_967_295
ULONG_MAX: Final = 18_446_744_073_709_551_615


def check_integer(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; give an integer from {least} to {most}")


def check_text(name: str, value: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}; give a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has half a character in it, a lone surrogate: give Unicode text") from error


def fields(name: str, given: Mapping[str, Any] | None) -> dict[Symbol, Any] | None:
    """Make a map of the type `fields`, which has symbols for keys (part 2, section 2.8.15)."""
    if given is None:
        return None
    made: dict[Symbol, Any] = {}
    for key, value in given.items():
        try:
            made[Symbol(key)] = value
            encode(value)
        except (EncodeError, AttributeError) as error:
            raise ValueError(f"{name} has {key!r}: {value!r}, which cannot be sent: {error}") from error
    return made


def check_outcome(outcome: Any) -> None:
    match outcome:
        case Accepted() | Released():
            return
        case Rejected() | Modified():
            try:
                encode(outcome)
            except EncodeError as error:
                raise ValueError(f"outcome is {outcome!r}, which cannot be sent: {error}") from error
        case _:
            raise ValueError(
                f"outcome is {outcome!r}; give ACCEPTED, RELEASED, rejected(...) or modified(...) of "
                "amqp10broker.client.outcomes"
            )
