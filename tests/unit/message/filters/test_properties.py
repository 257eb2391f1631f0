"""Property filters: which are valid, and which messages they let through."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from amqp10broker.message.filters.fields import PROPERTIES, FilterError
from amqp10broker.message.filters.filter_set import (
    MessageFilter,
    parse_application_properties,
    parse_properties,
)
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.protocols.amqp10.codec import array_of
from tests.support.filtering import NOW_MS, message


def by_properties(on: Message, **references: Any) -> bool:
    named = {t10.Symbol(name.replace("_", "-")): value for name, value in references.items()}
    return MessageFilter.of_properties(parse_properties(named)).matches(on, NOW_MS)


def by_application(on: Message, references: dict[str, Any]) -> bool:
    return MessageFilter.of_properties(parse_application_properties(references)).matches(on, NOW_MS)


FIELDS: dict[str, tuple[Any, Any]] = {
    "message_id": (t10.ULong(999), t10.ULong(998)),
    "user_id": (b"guest", b"other"),
    "to": ("/exchanges/x/k", "/exchanges/x"),
    "subject": ("\u2603", ""),
    "reply_to": ("/queues/q", "/queues/"),
    "correlation_id": ("corr", b"corr"),
    "content_type": (t10.Symbol("text/plain"), t10.Symbol("text/html")),
    "content_encoding": (t10.Symbol("gzip"), t10.Symbol("br")),
    "absolute_expiry_time": (t10.Timestamp(NOW_MS + 1), t10.Timestamp(NOW_MS)),
    "creation_time": (t10.Timestamp(NOW_MS), t10.Timestamp(0)),
    "group_id": ("group", "Group"),
    "group_sequence": (t10.UInt(2**32 - 1), t10.UInt(0)),
    "reply_to_group_id": ("other", "group"),
}
"""Of each field the message's value, and another one."""
VALUES = {name: value for name, (value, _) in FIELDS.items()}


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "properties_section")
def test_every_field_of_properties_can_be_asked_for() -> None:
    assert {name.replace("_", "-") for name in VALUES} == set(PROPERTIES)
    full = message(**VALUES)
    assert by_properties(full, **VALUES)
    for name, (value, other) in FIELDS.items():
        assert by_properties(full, **{name: value})
        assert not by_properties(full, **{name: other})
        assert not by_properties(full, **(VALUES | {name: other}))


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "properties_section")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message-id", t10.UInt(1)),
        ("message-id", 1),
        ("message-id", t10.Symbol("x")),
        ("correlation-id", True),
        ("user-id", "guest"),
        ("to", t10.Symbol("x")),
        ("to", b"x"),
        ("subject", 1),
        ("subject", t10.Symbol("x")),
        ("reply-to", ["x"]),
        ("content-type", "text/plain"),
        ("content-encoding", "gzip"),
        ("absolute-expiry-time", t10.Long(1)),
        ("creation-time", 1),
        ("group-id", t10.UInt(3)),
        ("group-sequence", t10.ULong(3)),
        ("group-sequence", 3),
        ("reply-to-group-id", b"x"),
    ],
)
def test_a_value_that_the_field_cannot_have_is_an_error(name: str, value: Any) -> None:
    with pytest.raises(FilterError, match=f"^{name} is of type .* not {type(value).__name__}$"):
        parse_properties({t10.Symbol("subject"): "x", t10.Symbol(name): value})


@pytest.mark.parametrize(
    "key", ["subject", t10.Symbol("Subject"), t10.Symbol("message_id"), t10.Symbol("x"), b"subject", 1]
)
def test_a_field_that_there_is_not_is_an_error(key: Any) -> None:
    with pytest.raises(FilterError, match="is no field of properties"):
        parse_properties({key: "x"})


@pytest.mark.parametrize("parse", [parse_properties, parse_application_properties])
@pytest.mark.parametrize(
    "value", [None, "x", [], [("k", 1)], t10.Map((("k", 1), (t10.Symbol("k"), 2))), b"", 1], ids=repr
)
def test_the_value_is_a_map(parse: Any, value: Any) -> None:
    """Its keys have one type that a dict can hold."""
    with pytest.raises(FilterError, match="must be a map"):
        parse(value)


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "application_properties_section")
def test_a_filter_has_1_to_16_entries() -> None:
    assert len(parse_application_properties({str(index): 1 for index in range(16)})) == 16
    for count in (0, 17):
        with pytest.raises(FilterError, match=f"has {count} entries; 1 to 16"):
            parse_application_properties({str(index): 1 for index in range(count)})
    with pytest.raises(FilterError, match="has 0 entries"):
        parse_properties({})


def test_all_entries_must_match() -> None:
    on = message({"a": 1, "b": 2})
    assert by_application(on, {"a": 1, "b": 2})
    assert not by_application(on, {"a": 1, "b": 3})
    assert not by_application(on, {"a": 1, "c": 3})


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "application_properties_section")
@pytest.mark.parametrize(
    "value",
    [10, 10.0, t10.UByte(10), t10.UShort(10), t10.Byte(10), t10.Float(10), t10.ULong(10), t10.Timestamp(10)],
)
def test_numbers_match_by_value(value: Any) -> None:
    """Integers of any width and floats are compared."""
    for reference in (t10.UInt(10), t10.Int(10), 10.0, t10.Float(10.0)):
        assert by_application(message({"n": value}), {"n": reference})
    for reference in (t10.UInt(11), 10.1, "10", True, b"\n"):
        assert not by_application(message({"n": value}), {"n": reference})


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "application_properties_section")
def test_strings_and_symbols_match_by_content() -> None:
    """Case counts; a binary matches no text."""
    for value in ("hey", t10.Symbol("hey")):
        for reference in ("hey", t10.Symbol("hey")):
            assert by_application(message({"k": value}), {"k": reference})
        for reference in ("Hey", "he", b"hey"):
            assert not by_application(message({"k": value}), {"k": reference})
    assert by_application(message({"k": b"hey"}), {"k": b"hey"})
    assert by_application(message({"k": t10.Char("h")}), {"k": "h"})


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "string_modifier")
def test_a_prefix_and_a_suffix() -> None:
    """&p: and &s: apply to texts only, including the empty one."""
    on = message({"k": "abc 8", "s": t10.Symbol("abc"), "n": 8, "b": b"abc"})
    for reference in ("&p:abc", "&p:abc 8", "&p:", "&s:8", "&s:abc 8", "&s:"):
        assert by_application(on, {"k": reference})
    for reference in ("&p:b", "&p:abc 8 ", "&s:abc", "&s:xxxxxxxxxxxxx", "&p:&p:abc"):
        assert not by_application(on, {"k": reference})
    assert by_application(on, {"s": "&p:ab"})
    for key in ("n", "b", "absent"):
        assert not by_application(on, {key: "&p:"})


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "string_modifier")
def test_modifiers_are_for_strings_in_properties_too() -> None:
    names = ["to", "reply_to", "subject", "group_id", "reply_to_group_id", "message_id", "correlation_id"]
    on = message(**{name: f"abc {index}" for index, name in enumerate(names)})
    assert by_properties(on, **dict.fromkeys(names, "&p:abc"))
    assert by_properties(on, **{name: f"&s: {index}" for index, name in enumerate(names)})
    for name in names:
        assert not by_properties(on, **{name: "&p:bc"})
    assert not by_properties(message(message_id=b"abc"), message_id="&p:abc")


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "string_modifier")
def test_a_doubled_ampersand_is_a_single_one() -> None:
    """This is at the beginning; elsewhere an ampersand is plain text."""
    assert by_application(message({"k": "&Hello"}), {"k": "&&Hello"})
    assert by_application(message({"k": "&p:a"}), {"k": "&&p:a"})
    assert by_application(message({"k": "&&"}), {"k": "&&&"})
    assert by_application(message({"k": "a&p:"}), {"k": "a&p:"})
    assert by_application(message({"k": "&p:a"}), {"k": t10.Symbol("&p:a")})
    assert not by_application(message({"k": "a"}), {"k": t10.Symbol("&p:a")})


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "string_modifier")
@pytest.mark.parametrize("reference", ["&", "&Hello", "&p", "&P:x", "&x:y", "& p:x"])
def test_any_other_modifier_is_an_error(reference: str) -> None:
    with pytest.raises(FilterError, match="begins with neither"):
        parse_application_properties({"k": reference})
    with pytest.raises(FilterError, match="begins with neither"):
        parse_properties({t10.Symbol("subject"): reference})


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "application_properties_section")
@pytest.mark.parametrize("key", [t10.Symbol("k"), b"k", 1, None, UUID(int=1)], ids=repr)
def test_keys_of_application_properties_are_strings(key: Any) -> None:
    with pytest.raises(FilterError, match="keys of application-properties are strings"):
        parse_application_properties({key: 1})


@pytest.mark.parametrize(
    "value", [[1], {}, t10.Map(), array_of([1]), t10.Described(t10.Symbol("x"), 1)], ids=repr
)
def test_a_value_with_values_inside_is_an_error(value: Any) -> None:
    with pytest.raises(FilterError, match="cannot be compared with"):
        parse_application_properties({"k": value})
