"""Names of methods by their numbers: channel.close and connection.close contain only the numbers."""

from __future__ import annotations

from typing import Final, get_args

from amqp10broker.protocols.amqp091.methods import Method

_NAMES: Final = {(kind.CLASS_ID, kind.METHOD_ID): kind.NAME for kind in get_args(Method)}


def method_name(class_id: int, method_id: int) -> str | None:
    """Return the name of a method, as ``queue.declare``; None if the numbers are unknown."""
    return _NAMES.get((class_id, method_id))
