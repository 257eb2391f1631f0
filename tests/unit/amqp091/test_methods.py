"""Methods as bytes, with pamqp as the independent oracle."""

from __future__ import annotations

import struct
from dataclasses import fields
from functools import cache
from typing import Any

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.codec import METHODS
from amqp10broker.protocols.amqp091.content import method_frame
from amqp10broker.protocols.amqp091.errors import DecodeError, ReplyCode
from amqp10broker.protocols.amqp091.methods import decode_method

CLASSES: list[type[Any]] = list(METHODS.values())
IN_PAMQP = [method for method in CLASSES if method.CLASS_ID != 30]

SHORTSTR = st.text(st.characters(codec="utf-8"), max_size=60)
TABLE = st.dictionaries(
    st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=20),
    st.booleans() | st.text(max_size=20),
    max_size=4,
)
IN_OURS = {"nowait": "no_wait", "exchange_type": "type"}
"""Names of fields that pamqp has otherwise."""
WIDTHS = (8, 16, 32, 63)
"""Bits of the integer types; pamqp reads the widest as signed, hence 63."""


@cache
def bits_of(method: type[Any], name: str) -> int:
    """The widest integer that a field takes, in bits."""
    fitting = 0
    for bits in WIDTHS:
        try:
            method(**{name: 2**bits - 1}).encode()
        except (ValueError, struct.error):
            break
        fitting = bits
    return fitting


@st.composite
def method_values(draw: st.DrawFn, classes: list[type[Any]]) -> Any:
    method = draw(st.sampled_from(classes))
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "str": SHORTSTR,
        "bytes": st.binary(max_size=50) if method.CLASS_ID != 10 else SHORTSTR.map(str.encode),
        "bool": st.booleans(),
        "dict[str, Any]": TABLE,
    }
    return method(
        **{
            field.name: draw(
                st.integers(0, 2 ** bits_of(method, field.name) - 1)
                if field.type == "int"
                else strategies[str(field.type)]
            )
            for field in fields(method)
        }
    )


@pytest.mark.parametrize("method", CLASSES, ids=lambda method: method.NAME)
def test_a_method_with_its_defaults_comes_back(method: type[Any]) -> None:
    """Every method: what is written is read as the same."""
    assert decode_method(method().encode()) == method()


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@given(method_values(IN_PAMQP))
def test_pamqp_reads_what_we_write(method: Any) -> None:
    """It finds the same method with the same values, and reserved fields empty."""
    frame = method_frame(1, method)
    read, channel, theirs = pamqp.frame.unmarshal(frame)
    assert (read, channel) == (len(frame), 1)
    assert theirs.name.replace("-", "").replace(".", "").lower() == type(method).__name__.lower()
    for slot in theirs.__slots__:
        ours = getattr(method, IN_OURS.get(slot, slot), None)
        value = getattr(theirs, slot)
        assert value == (ours.decode() if isinstance(ours, bytes) else ours) or (ours is None and not value)


@pytest.mark.parametrize("method", CLASSES, ids=lambda method: method.NAME)
def test_arguments_cut_off_anywhere_are_a_syntax_error(method: type[Any]) -> None:
    """502 with class and method, wherever the payload ends."""
    payload = method().encode()
    for end in range(4, len(payload)):
        with pytest.raises(DecodeError) as caught:
            decode_method(payload[:end])
        assert caught.value.code is ReplyCode.SYNTAX_ERROR
        assert (caught.value.class_id, caught.value.method_id) == (method.CLASS_ID, method.METHOD_ID)


@pytest.mark.parametrize("method", CLASSES, ids=lambda method: method.NAME)
def test_bytes_behind_the_arguments_are_a_syntax_error(method: type[Any]) -> None:
    """502: the payload has exactly the arguments."""
    with pytest.raises(DecodeError, match="1 bytes follow the arguments"):
        decode_method(method().encode() + b"\0")


def test_access_request_is_read_although_0_9_1_has_dropped_it() -> None:
    """Old clients ask for a ticket first."""
    payload = b"\x00\x1e\x00\x0a\x05/data\x1d"
    assert decode_method(payload) == methods.AccessRequest("/data", True, False, True, True, True)
    assert methods.AccessRequestOk(1).encode() == b"\x00\x1e\x00\x0b\x00\x01"
