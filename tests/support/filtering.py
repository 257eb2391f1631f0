"""Messages for tests of filters, and what an SQL expression says of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.message.filters.filter_set import FieldReader
from amqp10broker.message.filters.sql_eval import SqlFilter, compile_sql
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong

NOW_MS = 1_700_000_000_000


def message(
    application: dict[Any, Any] | None = None,
    *,
    priority: int | None = None,
    durable: bool | None = None,
    annotations: dict[str, Any] | None = None,
    body: bytes = b"body",
    **properties: Any,
) -> Message:
    payload = Header(durable=durable, priority=priority).encode()
    if annotations is not None:
        named = {Symbol(key): value for key, value in annotations.items()}
        payload += encode(Described(ULong(0x72), named))
    if properties:
        payload += Properties(**properties).encode()
    if application is not None:
        payload += encode(Described(ULong(0x74), application))
    payload += encode(Described(ULong(0x75), body))
    return MessageReader("", "q", "guest", impersonator=True).read(payload)


def evaluate(text: str, on: Message, compiled: Callable[[str], SqlFilter] = compile_sql) -> Any:
    """Return an expression's value: True, False, None for unknown, or any other."""
    sql = compiled(text)
    values = FieldReader(sql.fields, uuid_as_binary=True).read(on)
    if sql.uses_time:
        values.append(NOW_MS)
    return sql.run(values)


def described(descriptor: str | int, value: Any) -> Described:
    return Described(Symbol(descriptor) if isinstance(descriptor, str) else ULong(descriptor), value)
