"""Checks of exchange declarations (name, alternate, equivalence with an existing one), and of names in
general.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqp10broker.errors import AccessRefused, Inequivalent, InvalidArgument
from amqp10broker.routing.arguments import canonical, plain_text, type_name
from amqp10broker.routing.exchange import Exchange, ExchangeSpec

NAME_BYTES_MAX: Final = 255
"""The limit of an AMQP 0-9-1 short string; its clients could not receive a longer name."""
ALTERNATE_EXCHANGE: Final = "alternate-exchange"
RESERVED_PREFIX: Final = "amq."
DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The pseudo-queue of an AMQP 0-9-1 client for replies; each real name begins with it and a dot."""

_CR_LF: Final = {ord("\r"): None, ord("\n"): None}


def stripped(name: str) -> str:
    """Return a name without carriage returns and line feeds, as it is declared."""
    return name.translate(_CR_LF) if "\r" in name or "\n" in name else name


def check_not_direct_reply_to(queue: str) -> None:
    """Refuse to bind, or to delete, the queue of a direct reply-to consumer."""
    if queue == DIRECT_REPLY_TO or queue.startswith(DIRECT_REPLY_TO + "."):
        raise AccessRefused(
            f"queue '{queue}'", f"operation not permitted on the direct reply-to queue '{queue}'"
        )


def check_length(what: str, name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NAME_BYTES_MAX:
        raise InvalidArgument(
            what, f"{what} '{name[:32]}...' has {size} bytes: use at most {NAME_BYTES_MAX}, counted in UTF-8"
        )


def alternate_of(name: str, vhost: str, arguments: Mapping[str, object]) -> str | None:
    """Return the name in ``alternate-exchange``. Raises `InvalidArgument` if it is not a text."""
    if ALTERNATE_EXCHANGE not in arguments:
        return None
    value = arguments[ALTERNATE_EXCHANGE]
    # Only text, because permissions are checked on it.
    if not isinstance(value, str):
        given = "binary" if isinstance(value, bytes) else type_name(value)
        raise InvalidArgument(
            f"exchange '{name}'",
            f"invalid type '{given}' for arg '{ALTERNATE_EXCHANGE}' in exchange '{name}' in vhost '{vhost}'",
        )
    return str(value)


def check_equivalent(exchange: Exchange, vhost: str, spec: ExchangeSpec) -> None:
    """Raise `Inequivalent` with the first difference. The alternate is the only argument that counts."""

    def differ(argument: str, received: str, current: str) -> Inequivalent:
        return Inequivalent(
            f"exchange '{exchange.name}'",
            f"inequivalent arg '{argument}' for exchange '{exchange.name}' in vhost '{vhost}':"
            f" received {received} but current is {current}",
        )

    for argument in ("type", "durable", "auto_delete", "internal"):
        given, kept = getattr(spec, argument), getattr(exchange, argument)
        if given != kept:
            raise differ(argument, f"'{plain_text(given)}'", f"'{plain_text(kept)}'")
    received = _alternate_text(spec.arguments)
    current = _alternate_text(exchange.arguments)
    if (received == "none") != (current == "none"):
        raise differ(ALTERNATE_EXCHANGE, received, current)
    now, before = spec.arguments.get(ALTERNATE_EXCHANGE), exchange.arguments.get(ALTERNATE_EXCHANGE)
    if canonical(now) != canonical(before):
        raise differ(ALTERNATE_EXCHANGE, f"'{plain_text(now)}'", f"'{plain_text(before)}'")


def _alternate_text(arguments: Mapping[str, object]) -> str:
    if ALTERNATE_EXCHANGE not in arguments:
        return "none"
    value = arguments[ALTERNATE_EXCHANGE]
    return f"the value '{plain_text(value)}' of type '{type_name(value)}'"
