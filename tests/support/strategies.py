"""Hypothesis strategies for AMQP 1.0 values, and a way to compare them type by type."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.protocols.amqp10.codec import array_of, encode

INTEGERS: tuple[type[Any], ...] = (
    t10.UByte,
    t10.UShort,
    t10.UInt,
    t10.ULong,
    t10.Byte,
    t10.Short,
    t10.Int,
    t10.Long,
    t10.Timestamp,
)


def integers(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.integers(kind.MIN, kind.MAX).map(kind)


symbols = st.text(st.characters(max_codepoint=127), max_size=20).map(t10.Symbol)

by_type: tuple[st.SearchStrategy[Any], ...] = (
    st.booleans(),
    *(integers(kind) for kind in INTEGERS),
    st.floats(),
    st.floats(width=32).map(t10.Float),
    st.characters(exclude_categories=["Cs"]).map(t10.Char),
    st.text(max_size=20),
    st.text(min_size=120, max_size=300),
    st.binary(max_size=20),
    st.binary(min_size=250, max_size=260),
    symbols,
    st.uuids(),
    st.binary(min_size=4, max_size=4).map(t10.Decimal32),
    st.binary(min_size=8, max_size=8).map(t10.Decimal64),
    st.binary(min_size=16, max_size=16).map(t10.Decimal128),
)
"""Scalars, one strategy for each type, so that arrays can draw items of one type."""


# Composites, because Hypothesis shows strategies in its messages: written out they are 43 kB long.
@st.composite
def _scalars(draw: st.DrawFn) -> Any:
    return draw(st.none() | st.one_of(by_type))


scalars: st.SearchStrategy[Any] = _scalars()

descriptors = integers(t10.ULong) | symbols


@st.composite
def arrays(draw: st.DrawFn) -> t10.Array:
    """Generate arrays of scalars, described values and arrays, and empty arrays of every constructor."""
    flat = st.one_of([st.lists(kind, min_size=1, max_size=4).map(array_of) for kind in by_type])
    codes = [0x40, 0x52, 0x56, 0x70, 0x72, 0x98, 0xA0, 0xA1, 0xA3, 0xB1, 0xC0, 0xD1, 0xF0]
    empty = st.sampled_from(codes).map(t10.Array)
    described = st.builds(
        lambda array, descriptor: t10.Array(array.constructor, array.items, (descriptor,)), flat, descriptors
    )
    simple = flat | empty | described
    return draw(simple | st.lists(simple, min_size=1, max_size=3).map(array_of))


def maps(values: st.SearchStrategy[Any]) -> st.SearchStrategy[t10.Map]:
    """Generate maps whose keys differ on the wire; most of them decode to a dict."""
    keys = scalars | st.lists(scalars, max_size=2)
    pairs = st.lists(st.tuples(keys, values), max_size=4, unique_by=lambda pair: encode(pair[0]))
    return pairs.map(lambda found: t10.Map(tuple(found)))


_nested: st.SearchStrategy[Any] = st.recursive(
    scalars | arrays(),
    lambda inner: (
        st.lists(inner, max_size=5) | maps(inner) | st.builds(t10.Described, descriptors | scalars, inner)
    ),
    max_leaves=12,
)


@st.composite
def _values(draw: st.DrawFn) -> Any:
    return draw(_nested)


values: st.SearchStrategy[Any] = _values()
"""Any value there is an encoding for."""


def typed(value: Any) -> Any:
    """Return a form that is equal only for equal AMQP values: numbers have their type, NaN equals NaN."""
    if isinstance(value, (list, tuple)):
        return ("list", [typed(item) for item in value])
    if isinstance(value, (dict, t10.Map)):
        return ("map", [(typed(key), typed(item)) for key, item in value.items()])
    if isinstance(value, t10.Described):
        return ("described", typed(value.descriptor), typed(value.value))
    if isinstance(value, t10.Array):
        return ("array", value.constructor, typed(value.descriptors), typed(value.items))
    if isinstance(value, t10.Float):
        return ("float", struct.pack(">f", value))
    if isinstance(value, float):
        return ("double", struct.pack(">d", value))
    if type(value) is int:
        return (t10.Long, value)
    assert value is None or type(value) in (
        *(bool, bytes, str, UUID, t10.Symbol, t10.Char, t10.Decimal32, t10.Decimal64, t10.Decimal128),
        *INTEGERS,
    )
    return (type(value), value)
