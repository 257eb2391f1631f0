"""AMQP 0-9-1 frames as readable lines, with the specification's names and without secrets.

Secrets are responses, challenges and new secrets.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

from amqp10broker.protocols.amqp091.methods import (
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionUpdateSecret,
    Method,
)
from amqp10broker.protocols.amqp091.properties import decode_properties

_PROPERTIES_AT: Final = 12
SECRETS: Final = {
    (ConnectionStartOk, "response"),
    (ConnectionSecure, "challenge"),
    (ConnectionSecureOk, "response"),
    (ConnectionUpdateSecret, "new_secret"),
}
# Methods with secrets.
SECRET: Final = frozenset(kind for kind, _ in SECRETS)


def describe_header(content_header: bytes) -> str:
    """Return the payload of a content header frame as text. Raises `AmqpHardError` if it cannot be read."""
    body_size = int.from_bytes(content_header[4:_PROPERTIES_AT], "big")
    properties = _fields(decode_properties(content_header[_PROPERTIES_AT:]))
    return f"header body-size={body_size} {' '.join(properties)}".rstrip()


def describe(method: Method) -> str:
    """Return a method with the fields that are set, by the specification's names."""
    return f"{method.NAME} {' '.join(_fields(method))}".rstrip()


def without_secrets(method: Method) -> Method:
    given: dict[str, Any] = {name: b"" for kind, name in SECRETS if kind is type(method)}
    return replace(method, **given)


def _fields(record: Any) -> list[str]:
    shown: list[str] = []
    for field in fields(record):
        content = getattr(record, field.name)
        if content is None or content is False or content in ({}, "", b""):
            continue
        name = field.name.rstrip("_").replace("_", "-")
        text = "(hidden)" if (type(record), field.name) in SECRETS else _show(content)
        shown.append(f"{name}={text}")
    return shown


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode() if value.isascii() and value.decode().isprintable() else value.hex()
    if isinstance(value, list):
        return f"[{', '.join(_show(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_show(item)}" for key, item in value.items()) + "}"
    return str(value)
