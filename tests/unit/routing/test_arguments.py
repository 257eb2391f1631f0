"""When argument values are equal, how they hash and how errors write them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from amqp10broker.routing.exchange import canonical, hash64, table_hash, type_name


class UInt8(int):
    """As a protocol's own integer."""


class Float32(float):
    """As a protocol's own float."""


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (5, UInt8(5)),
        ("é", "é".encode()),
        (b"\xff", bytearray(b"\xff")),
        (1.5, Float32(1.5)),
        ([1, "a"], (UInt8(1), b"a")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (None, None),
    ],
)
def test_values_of_one_kind_and_content_are_equal(left: object, right: object) -> None:
    """Widths of numbers, text or bytes, and the order of keys do not count."""
    assert canonical(left) == canonical(right)
    assert hash64(left) == hash64(right)
    assert table_hash({"k": left}, 4) == table_hash({"k": right}, 4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (1, True),
        (1.0, True),
        (0, False),
        (1, "1"),
        (b"\xff", "\xff"),
        (None, ""),
        (Decimal(1), 1),
        ([1], [True]),
        ({"a": 1}, {"a": 1.0}),
        (["ab"], ["a", "b"]),
    ],
)
def test_values_of_different_kind_or_content_differ(left: object, right: object) -> None:
    """An integer, a float, a boolean and a text are never equal, also inside arrays and tables."""
    assert canonical(left) != canonical(right)
    assert hash64(left) != hash64(right)
    assert table_hash({"k": left}, 4) != table_hash({"k": right}, 4)


def test_arguments_hash_keeps_its_value() -> None:
    """The figures are part of the interface: a change breaks paths that clients hold."""
    assert table_hash({"x-match": "all", "number": 1}, 4) == "Qrjc8A"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a", "longstr"),
        (b"a", "longstr"),
        (True, "bool"),
        (1, "signedint"),
        (2**40, "long"),
        (UInt8(1), "unsignedbyte"),
        (Float32(1), "float"),
        (1.0, "double"),
        (None, "void"),
        ([], "array"),
        ({}, "table"),
        (Decimal(1), "decimal"),
        (object(), "binary"),
    ],
)
def test_type_names_are_those_of_field_tables(value: object, name: str) -> None:
    """Errors name the type as RabbitMQ does."""
    assert type_name(value) == name
