"""AMQP 1.0 performatives as readable lines, with the specification's names and without SASL responses and
challenges.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, Final

from amqp10broker.protocols.amqp10.performatives import (
    ReceiverSettleMode,
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslOutcome,
    SaslResponse,
    SenderSettleMode,
)

# Fields with numbers that have names.
_CHOICES: Final[dict[str, dict[Any, str]]] = {
    "role": {False: "sender", True: "receiver"},
    "snd_settle_mode": {mode.value: mode.name.lower() for mode in SenderSettleMode},
    "rcv_settle_mode": {mode.value: mode.name.lower() for mode in ReceiverSettleMode},
    "code": {code.value: code.name.lower() for code in SaslCode},
}
SECRETS: Final = {
    (SaslInit, "initial_response"),
    (SaslResponse, "response"),
    # Of SCRAM: with the response it allows guessing of the password offline.
    (SaslChallenge, "challenge"),
    (SaslOutcome, "additional_data"),
}


def header_text(header: bytes) -> str:
    """Return a protocol header as text: ``AMQP 0 1 0 0``."""
    return f"AMQP {' '.join(str(number) for number in header[4:8])}"


def describe(performative: Any) -> str:
    """Return a performative with the fields that are set, by the specification's names."""
    name = re.sub("(?<=[a-z])(?=[A-Z])", "-", type(performative).__name__).upper()
    return f"{name} {' '.join(_fields(performative))}".rstrip()


def _fields(composite: Any) -> list[str]:
    shown: list[str] = []
    for field in fields(composite):
        content = getattr(composite, field.name)
        if content is None or (content is False and field.default is False):
            continue
        name = field.name.replace("_", "-")
        if (type(composite), field.name) in SECRETS:
            text = "(hidden)"
        elif field.name in _CHOICES:
            text = _CHOICES[field.name].get(content, str(content))
        else:
            text = show(content)
        shown.append(f"{name}={text}")
    return shown


def show(value: Any) -> str:
    """Return any value inside a performative as text."""
    if is_dataclass(value) and hasattr(value, "DESCRIPTOR"):
        inside = " ".join(_fields(value))
        return f"{type(value).__name__.lower()}({inside})" if inside else type(value).__name__.lower()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex() or "(empty)"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(show(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(key)}: {show(item)}" for key, item in value.items()) + "}"
    return str(value)
