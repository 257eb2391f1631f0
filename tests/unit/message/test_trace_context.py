"""The trace that a message belongs to, where its publisher wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.client.message import Message as Made
from amqp10broker.message import amqp091
from amqp10broker.message.message import Message, MessageReader
from amqp10broker.message.traits import LOOKED_THROUGH_BYTES, destination, ids, trace_fields
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10.performatives import Properties

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def amqp10(**sections: Any) -> Message:
    """Published with AMQP 1.0 to exchange ``x`` with key ``k``."""
    return MessageReader("x", "k", "guest", False).read(Made(b"body", **sections).encode())


def amqp091_(headers: dict[str, Any] | None = None, **properties: Any) -> Message:
    encoded = encode_properties(BasicProperties(headers=headers, **properties))
    return amqp091.make_head("x", "k", encoded), b"body traceparent"


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (amqp10(application_properties={"traceparent": PARENT}), {"traceparent": PARENT}),
        (
            amqp10(application_properties={"traceparent": PARENT, "tracestate": "a=1", "b": 2}),
            {"traceparent": PARENT, "tracestate": "a=1"},
        ),
        (amqp10(application_properties={"traceparent": f"{PARENT[:-1]}0"}), None),
        (
            amqp10(application_properties={"traceparent": f"{PARENT[:-1]}3"}),
            {"traceparent": f"{PARENT[:-1]}3"},
        ),
        (amqp091_({"traceparent": f"{PARENT[:-1]}2"}), None),
        (amqp10(application_properties={"tracestate": "a=1"}), {}),
        (amqp10(application_properties={"traceparent": 7}), {}),
        (amqp10(), {}),
        (
            amqp10(application_properties={"a": "x" * LOOKED_THROUGH_BYTES, "traceparent": PARENT}),
            {},
        ),
        (
            amqp091_({"traceparent": PARENT, "tracestate": "a=1"}),
            {"traceparent": PARENT, "tracestate": "a=1"},
        ),
        (amqp091_({"x": "y"}), {}),
        (amqp091_(), {}),
    ],
)
def test_the_fields_are_read_where_they_may_stand(message: Message, fields: dict[str, str] | None) -> None:
    """In application-properties, in headers; never in a body."""
    assert trace_fields(message) == fields


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (amqp10(), (None, None)),
        (amqp10(properties=Properties(message_id="m", correlation_id=7)), ("m", "7")),
        (amqp10(properties=Properties(message_id=b"\xff\x00")), ("ff00", None)),
        (amqp091_(message_id="m", correlation_id="c"), ("m", "c")),
        (amqp091_(), (None, None)),
    ],
)
def test_ids_are_texts(message: Message, found: tuple[str | None, str | None]) -> None:
    assert ids(message) == found


@pytest.mark.parametrize("message", [amqp10(), amqp091_()])
def test_the_destination_is_what_was_published_to(message: Message) -> None:
    assert destination(message) == ("x", "k")
