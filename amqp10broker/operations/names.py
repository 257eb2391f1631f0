"""Rules for names that clients give to queues and exchanges over AMQP 1.0."""

from __future__ import annotations

from typing import Final

from amqp10broker.errors import AccessRefused, BadRequest, ReservedName

RESERVED_PREFIX: Final = "amq."
NAME_BYTES_MAX: Final = 255


def check_name(kind: str, name: str) -> str:
    """Return the name, if it is valid.

    AMQP 0-9-1 drops line ends from names; over AMQP 1.0 they are refused, so that no name is silently
    changed. Raises `BadRequest` if it contains a line end, or is too long.
    """
    if "\n" in name or "\r" in name:
        raise BadRequest(
            f"{kind} '{name}'",
            f"Bad name '{name}': line feed and carriage return characters not allowed",
        )
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise BadRequest(
            f"{kind} '{name[:32]}...'", f"Bad name '{name[:32]}...': longer than {NAME_BYTES_MAX} bytes"
        )
    return name


def check_not_default(exchange: str) -> str:
    """Return the name; raises `AccessRefused` for the default exchange, which cannot be changed."""
    if exchange == "":
        raise AccessRefused("exchange ''", "operation not permitted on the default exchange")
    return exchange


def check_not_reserved(kind: str, name: str) -> str:
    """Return the name, if it does not begin as the broker's own names do. Raises `ReservedName`."""
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(
            f"{kind} '{name}'", f"{kind} name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'"
        )
    return name
