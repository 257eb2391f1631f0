"""The x-arguments of a declaration of a queue: their checks, and the comparison with the existing queue.

The table of arguments is `queue_settings.SETTINGS`. Refusals begin as RabbitMQ's do, because clients match
that, and go on with what is allowed. Unknown arguments are kept without a meaning, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp10broker.errors import Inequivalent, InvalidArgument, closest
from amqp10broker.metadata.queue import QueueType
from amqp10broker.metadata.queue_settings import ARGUMENTS, SUBSCRIPTION
from amqp10broker.routing.arguments import canonical, plain_text, type_name


def selector_in(arguments: Mapping[str, Any]) -> str | None:
    """Of the checked arguments of a queue: the selector of the subscription that it is for."""
    subscription = arguments.get(SUBSCRIPTION)
    return None if subscription is None else subscription.get("selector")


def plain(value: Any) -> Any:
    """The value without its wire type: what is kept, shown and compared."""
    match value:
        case bool() | None | str() | bytes():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return value


def check(arguments: Mapping[str, Any], kind: QueueType, resource: str) -> None:
    """Refuse bad values, and arguments of other kinds of queue: raises `InvalidArgument`."""
    for name, value in arguments.items():
        setting = ARGUMENTS.get(name)
        if setting is None or kind not in setting.kinds:
            continue
        fault = setting.value.fault(value, arguments)
        if fault is not None:
            raise InvalidArgument(resource, f"invalid arg '{name}' for {resource}: {fault}")
    for name in arguments:
        setting = ARGUMENTS.get(name)
        if setting is not None and kind not in setting.kinds:
            takers = " or ".join(sorted(setting.kinds))
            raise InvalidArgument(
                resource,
                f"invalid arg '{name}' for {resource}: not for a queue of type {kind}, only of type {takers}",
            )


def misspelt(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first unknown argument that resembles a known one, and that one: ``x-max-lenght``.

    Clients may declare queues with any argument; the log warns of a probable misspelling.
    """
    for name in arguments:
        meant = None if name in ARGUMENTS else closest(name, ARGUMENTS)
        if meant is not None:
            return name, meant
    return None


def assert_equivalent(
    received: Mapping[str, Any],
    current: Mapping[str, Any],
    kind: QueueType,
    resource: str,
    *,
    relaxed: bool = False,
) -> None:
    """Refuse a redeclaration with other x-arguments than the queue's.

    Only what `kind`, that of the existing queue, has is compared; with `relaxed`, only settings that are so.
    Integers of different widths are the same. Raises `Inequivalent` with RabbitMQ's text.
    """
    for name, setting in ARGUMENTS.items():
        if kind not in setting.kinds or not setting.compared or (relaxed and not setting.relaxed):
            continue
        new, old = received.get(name), current.get(name)
        if name in received and name in current:
            if canonical(new) == canonical(old):
                continue
            difference = f"received '{plain_text(new)}' but current is '{plain_text(old)}'"
        elif name in current:
            shown = f"'{plain_text(old)}' of type '{type_name(old)}'"
            difference = f"received none but current is the value {shown}"
        elif name in received:
            shown = f"'{plain_text(new)}' of type '{type_name(new)}'"
            difference = f"received the value {shown} but current is none"
        else:
            continue
        raise inequivalent(name, resource, difference)


def inequivalent(name: str, resource: str, difference: str) -> Inequivalent:
    """The refusal of a redeclaration that differs in one property or argument."""
    return Inequivalent(resource, f"inequivalent arg '{name}' for {resource}: {difference}")
