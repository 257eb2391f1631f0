"""Composites: exact bytes, defaults, and what is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.errors import DecodeError, EncodeError
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Coordinator,
    Declare,
    Declared,
    DeleteOnClose,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Header,
    Modified,
    Open,
    Properties,
    Received,
    ReceiverSettleMode,
    Rejected,
    Released,
    Role,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SenderSettleMode,
    Source,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
    TransactionalState,
    Transfer,
    as_composite,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Array, Described, Symbol, UInt, ULong

FRAMES: list[tuple[str, Composite]] = [
    ("005310 c0 04 01 a1 01 63", Open(container_id="c")),
    (
        "005310 c0 11 08 a1 01 63 40 70 00010000 40 40 40 40 a3 01 78",
        Open(container_id="c", max_frame_size=65536, offered_capabilities=(Symbol("x"),)),
    ),
    (
        "005310 c0 12 08 a1 01 63 40 40 40 40 40 40 e0 06 02 a3 01 78 01 79",
        Open(container_id="c", offered_capabilities=(Symbol("x"), Symbol("y"))),
    ),
    ("005311 c0 07 04 40 43 52 01 52 02", Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=2)),
    ("005312 c0 06 03 a1 01 6c 43 41", Attach(name="l", handle=0, role=Role.RECEIVER)),
    (
        "005312 c0 15 07 a1 01 6c 43 42 40 40 00 53 28 c0 04 01 a1 01 73 00 53 29 45",
        Attach(name="l", handle=0, role=Role.SENDER, source=Source(address="s"), target=Target()),
    ),
    (
        "005313 c0 0e 09 52 01 52 02 43 52 03 43 40 52 0a 40 41",
        Flow(
            next_incoming_id=1,
            incoming_window=2,
            next_outgoing_id=0,
            outgoing_window=3,
            handle=0,
            link_credit=10,
            drain=True,
        ),
    ),
    (
        "005314 c0 0a 06 52 01 43 a0 01 74 43 42 41",
        Transfer(handle=1, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False, more=True),
    ),
    (
        "005315 c0 0a 05 41 43 52 05 41 00 53 24 45",
        Disposition(role=Role.RECEIVER, first=0, last=5, settled=True, state=Accepted()),
    ),
    ("005316 c0 03 02 43 41", Detach(handle=0, closed=True)),
    ("005317 45", End()),
    (
        "005318 c0 0d 01 00 53 1d c0 07 02 a3 01 63 a1 01 64",
        Close(error=Error(condition=Symbol("c"), description="d")),
    ),
    ("005323 c0 05 02 52 01 53 02", Received(section_number=1, section_offset=2)),
    ("005325 c0 0a 01 00 53 1d c0 04 01 a3 01 63", Rejected(error=Error(condition=Symbol("c")))),
    ("005326 45", Released()),
    ("005327 c0 03 02 42 41", Modified(delivery_failed=False, undeliverable_here=True)),
    ("005330 c0 04 01 a3 01 74", Coordinator(capabilities=(Symbol("t"),))),
    ("005331 45", Declare()),
    ("005332 c0 05 02 a0 01 74 42", Discharge(txn_id=b"t", fail=False)),
    ("005333 c0 04 01 a0 01 74", Declared(txn_id=b"t")),
    ("005334 c0 08 02 a0 01 74 00 53 24 45", TransactionalState(txn_id=b"t", outcome=Accepted())),
    ("00532b 45", DeleteOnClose()),
    ("005340 c0 04 01 a3 01 50", SaslMechanisms(sasl_server_mechanisms=(Symbol("P"),))),
    ("005340 c0 05 01 e0 02 00 a3", SaslMechanisms(sasl_server_mechanisms=())),
    ("005341 c0 07 02 a3 01 50 a0 01 00", SaslInit(mechanism=Symbol("P"), initial_response=b"\0")),
    ("005344 c0 03 01 50 01", SaslOutcome(code=SaslCode.AUTH)),
    (
        "005370 c0 0b 05 41 50 04 70 00000100 40 43",
        Header(durable=True, priority=4, ttl=256, delivery_count=0),
    ),
    ("005373 c0 04 01 a1 01 69", Properties(message_id="i")),
    ("005373 c0 03 01 53 07", Properties(message_id=ULong(7))),
    ("005373 c0 04 01 a0 01 69", Properties(message_id=b"i")),
    ("005373 c0 12 01 98" + "00" * 16, Properties(message_id=UUID(int=0))),
    (
        "005373 c0 12 09 40 40 40 40 40 40 40 40 83 0000000000000005",
        Properties(absolute_expiry_time=5),
    ),
]


def names(rows: list[tuple[str, Any]]) -> list[str]:
    return [type(row[1]).__name__ for row in rows]


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_a_composite_has_exactly_these_bytes(text: str, composite: Composite) -> None:
    """Encoding leaves trailing absent and default fields out and keeps mandatory ones."""
    assert composite.encode().hex() == text.replace(" ", "")


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_a_composite_reads_back(text: str, composite: Composite) -> None:
    """Decoding gives an equal composite of the same class and stops after it."""
    data = bytes.fromhex(text)
    found, stop = decode_composite(b"\x99" + data + b"\x99", 1, len(data) + 1)
    assert found == composite
    assert type(found) is type(composite)
    assert stop == len(data) + 1


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_every_truncation_of_a_composite_is_a_decode_error(text: str, composite: Composite) -> None:
    """A composite cut anywhere is refused, whatever follows the cut."""
    data = bytes.fromhex(text)
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            decode_composite(data[:cut])
        with pytest.raises(DecodeError):
            decode_composite(data + b"\x40" * 8, 0, cut)


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_a_descriptor_may_be_a_name_or_a_long_number(text: str, composite: Composite) -> None:
    """Symbolic descriptors and ulongs of eight bytes mean the same as the short one."""
    fields = bytes.fromhex(text)[3:]
    for descriptor in (encode(Symbol(composite.NAME)), b"\x80" + composite.DESCRIPTOR.to_bytes(8, "big")):
        assert decode_composite(b"\x00" + descriptor + fields)[0] == composite


@pytest.mark.parametrize(("text", "composite"), FRAMES, ids=names(FRAMES))
def test_fields_end_exactly_where_their_list_does(text: str, composite: Composite) -> None:
    """A list one byte shorter or longer than its fields is refused, also when the bytes are there."""
    data = bytearray.fromhex(text.replace(" ", "") + "40")
    if data[3] == 0x45:
        return
    for size in (data[4] - 1, data[4] + 1):
        wrong = bytes(data[:4]) + bytes((size,)) + bytes(data[5:])
        with pytest.raises(DecodeError):
            decode_composite(wrong)


def fields(descriptor: int, *values: Any) -> bytes:
    return encode(Described(ULong(descriptor), list(values)))


REFUSED: list[tuple[bytes, str]] = [
    (b"", "a composite was to start at offset 0"),
    (b"\x45", "a composite was to start at offset 0"),
    (fields(0x99), "unknown descriptor 0x99 at offset 0"),
    (encode(Described(Symbol("amqp:nothing:list"), [])), "unknown descriptor amqp:nothing:list"),
    (encode(Described(UInt(0x10), ["c"])), "descriptor at offset 1 must be ulong or symbol, not uint"),
    (encode(Described("amqp:open:list", ["c"])), "must be ulong or symbol, not string"),
    (encode(Described([], ["c"])), "must be ulong or symbol, not list"),
    (encode(Described(ULong(0x10), {})), "open at offset 3 must be a list, not map"),
    (fields(0x17, None, None), "end at offset 3 has 2 fields, 1 are defined"),
    (fields(0x24, None), "accepted at offset 3 has 1 fields, 0 are defined"),
    (fields(0x16), "mandatory field 'handle' of detach is missing"),
    (fields(0x16, None), "mandatory field 'handle' of detach is missing"),
    (fields(0x12, "l", UInt(0)), "mandatory field 'role' of attach is missing"),
    (fields(0x40, None), "mandatory field 'sasl-server-mechanisms' of sasl-mechanisms is missing"),
    (
        fields(0x13, None, UInt(1), UInt(1), UInt(1), UInt(0), UInt(0), "ten"),
        "field 'link-credit' of flow must be uint, not string",
    ),
    (fields(0x16, ULong(1)), "field 'handle' of detach must be uint, not ulong"),
    (fields(0x16, 1), "field 'handle' of detach must be uint, not long"),
    (fields(0x16, UInt(1), UInt(1)), "field 'closed' of detach must be boolean, not uint"),
    (fields(0x10, Symbol("c")), "field 'container-id' of open must be string, not symbol"),
    (
        fields(0x10, "c", None, None, None, None, None, None, Array(0xA1, ("a",))),
        "field 'offered-capabilities' of open must be symbol or array of symbol, not array",
    ),
    (
        fields(0x10, "c", None, None, None, None, None, None, Array(0xA3, (), (Symbol("d"),))),
        "must be symbol or array of symbol, not array",
    ),
    (
        fields(0x15, True, UInt(0), None, None, Described(ULong(0x28), [])),
        "field 'state' of disposition must be delivery-state, not described value 0x28",
    ),
    (
        fields(0x15, True, UInt(0), None, None, Described(Symbol("x:y"), [])),
        "field 'state' of disposition must be delivery-state, not described value x:y",
    ),
    (
        fields(0x12, "l", UInt(0), True, None, None, Described(ULong(0x29), [])),
        "field 'source' of attach must be source, not described value 0x29",
    ),
    (
        fields(0x12, "l", UInt(0), True, None, None, "address"),
        "field 'source' of attach must be source, not string",
    ),
    (
        fields(0x34, b"t", Described(ULong(0x34), [b"t"])),
        "field 'outcome' of transactional-state must be outcome, not described value 0x34",
    ),
    (fields(0x33, "t"), "field 'txn-id' of declared must be binary, not string"),
    (
        fields(0x73, Symbol("i")),
        "field 'message-id' of properties must be ulong, uuid, binary or string, not symbol",
    ),
    (fields(0x25, Described(ULong(0x1D), [])), "mandatory field 'condition' of error is missing"),
    (fields(0x25, [Symbol("c")]), "field 'error' of rejected must be error, not list"),
    (
        bytes.fromhex("005316c003023f40"),
        "field 'handle' of detach must be uint, not unknown constructor 0x3f",
    ),
    (bytes.fromhex("005316c003014341"), "fields of detach end at offset 7 and were to end at 8"),
    (bytes.fromhex("005316c0020243"), "end too early"),
    (bytes.fromhex("005316c0020170"), "end too early"),
    (bytes.fromhex("005316c00202434199"), "were to end at 7"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[row[1][:60] for row in REFUSED])
def test_a_composite_that_breaks_its_definition_is_refused_with_the_field(data: bytes, message: str) -> None:
    """The message names the composite, the field, and what was expected and found."""
    with pytest.raises(DecodeError) as caught:
        decode_composite(data)
    assert message in caught.value.description


def test_absent_and_null_fields_have_their_defaults() -> None:
    """Whether a field is left out or null, the default of the definition comes out."""
    for extra in ([], [None] * 9):
        found = decode_composite(fields(0x10, "c", *extra))[0]
        assert isinstance(found, Open)
        assert (found.max_frame_size, found.channel_max, found.idle_time_out) == (4294967295, 65535, None)
    for extra in ([], [None] * 11):
        attach = decode_composite(fields(0x12, "l", UInt(0), True, *extra))[0]
        assert isinstance(attach, Attach)
        assert attach.snd_settle_mode == SenderSettleMode.MIXED
        assert attach.rcv_settle_mode == ReceiverSettleMode.FIRST
        assert attach.incomplete_unsettled is False
    source = decode_composite(fields(0x28))[0]
    assert isinstance(source, Source)
    assert source.durable == TerminusDurability.NONE
    assert source.expiry_policy == TerminusExpiryPolicy.SESSION_END


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Symbol("a"), (Symbol("a"),)),
        (Array(0xA3, (Symbol("a"), Symbol("b"))), (Symbol("a"), Symbol("b"))),
        (Array(0xB3, (Symbol("a"),)), (Symbol("a"),)),
        (Array(0xA3), ()),
        (None, None),
    ],
)
def test_a_multiple_field_is_a_tuple_of_symbols(value: Any, expected: Any) -> None:
    """One symbol, an array of either width and an empty array come out alike."""
    found = decode_composite(fields(0x30, value))[0]
    assert isinstance(found, Coordinator)
    assert found.capabilities == expected


def test_described_values_in_maps_stay_described() -> None:
    """Filters and lifetime policies in maps are not read as composites, but can be."""
    policy = Described(ULong(0x2B), [])
    source = Source(
        dynamic=True,
        dynamic_node_properties={"lifetime-policy": DeleteOnClose()},
        filter={"f": Described(Symbol("apache.org:selector-filter:string"), "a = 1")},
    )
    found = decode_composite(source.encode())[0]
    assert isinstance(found, Source)
    assert found.dynamic_node_properties == {Symbol("lifetime-policy"): policy}
    assert found.filter == {"f": Described(Symbol("apache.org:selector-filter:string"), "a = 1")}
    assert as_composite(policy) == DeleteOnClose()


def test_fields_with_colliding_keys_are_refused() -> None:
    """A dict could not hold symbol and string of the same text apart."""
    data = (
        bytes.fromhex("005310 c0 14 0a a1 01 63")
        + b"\x40" * 8
        + bytes.fromhex("c1 09 04 a1 01 61 41 a3 01 61 42")
    )
    data = data[:4] + bytes((len(data) - 5,)) + data[5:]
    with pytest.raises(DecodeError, match="mixed types"):
        decode_composite(data)


@pytest.mark.parametrize(
    "composite",
    [
        Detach(handle=-1),
        Detach(handle=2**32),
        Disposition(role=None, first=0),  # type: ignore[arg-type]
        Detach(handle="0"),  # type: ignore[arg-type]
        Begin(next_outgoing_id=0, incoming_window=0, outgoing_window=0, remote_channel=65536),
        Open(container_id=b"c"),  # type: ignore[arg-type]
        Attach(name="l", handle=0, role=True, source="s"),  # type: ignore[arg-type]
        Error(condition=Symbol("c"), info=[]),  # type: ignore[arg-type]
        Properties(message_id=True),  # type: ignore[arg-type]
        Coordinator(capabilities=("é",)),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_field_that_does_not_fit_is_an_encode_error(composite: Composite) -> None:
    """Our own mistakes are EncodeErrors, not bytes that confuse the peer."""
    with pytest.raises(EncodeError):
        composite.encode()
