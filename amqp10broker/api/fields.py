"""Readers of request bodies, which are JSON objects. A value of a wrong type raises `RequestRefused` with
400.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Never

from amqp10broker.api.messages import bad_request


def read_object(body: bytes) -> dict[str, Any]:
    """Return the object of a request's body, whatever its content type; an empty body is an empty object."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
        # A half of a surrogate pair has no UTF-8 form: it could be stored but never shown again.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise bad_request("not_json") from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object, in braces")
    return value


def require(given: Mapping[str, Any], *keys: str) -> None:
    """Check that an object has these keys; the refusal names all that are missing."""
    missing = [key for key in keys if key not in given]
    if missing:
        raise bad_request(f"[{','.join(f'{{key_missing,{key}}}' for key in missing)}]")


def flag(given: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return a truth value, which may also be a string."""
    value = given.get(key, default)
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise bad_request(f"'{key}' must be true or false")


def integer(given: Mapping[str, Any], key: str, default: int) -> int:
    """Return an integer, which may also be a string of digits."""
    value = given.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 20:
            return int(value)
    raise bad_request(f"'{key}' must be a whole number")


def text(given: Mapping[str, Any], key: str, default: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str):
        raise bad_request(f"'{key}' must be a string")
    return value


def table(given: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object, empty if the key is absent."""
    value = given.get(key)
    # RabbitMQ's older clients write an empty table as an empty array.
    if value is None or value == []:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"'{key}' must be an object")
    return value


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON")
