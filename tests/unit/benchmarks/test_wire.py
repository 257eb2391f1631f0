"""The generator's frames against literal bytes, and against proton's codec where it is installed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import wire
from benchmarks.errors import WireError


def spaced(data: bytes) -> str:
    """Write bytes as groups of two digits."""
    return data.hex(" ")


def test_a_transfer_has_every_field_at_its_fixed_place() -> None:
    """Handle, delivery-id and tag lie where `blocks` rewrites them."""
    data = wire.frame(wire.transfer_performative(7, 0x01020304, settled=True) + b"\xff", channel=3)
    assert spaced(data) == (
        "00 00 00 1f 02 00 00 03 00 53 14 c0 11 06 52 07 70 01 02 03 04 a0 04 01 02 03 04 43 41 42 ff"
    )


def test_a_session_flow_has_the_four_session_fields() -> None:
    """A flow without handle speaks of the session only (§2.7.4)."""
    data = wire.session_flow_frame(1, next_incoming_id=5, incoming_window=6, next_outgoing_id=7)
    assert spaced(data) == (
        "00 00 00 22 02 00 00 01 00 53 13 c0 15 04 "
        "70 00 00 00 05 70 00 00 00 06 70 00 00 00 07 70 ff ff ff ff"
    )


def test_a_link_flow_sets_credit_and_restates_the_windows() -> None:
    """Handle, delivery-count and link-credit follow the session fields; drain and echo are told."""
    data = wire.link_flow_frame(
        1,
        2,
        delivery_count=3,
        link_credit=4,
        next_incoming_id=5,
        incoming_window=6,
        next_outgoing_id=7,
        drain=True,
    )
    performative = wire.decode_performative(data, 8)
    assert performative.code == wire.FLOW
    assert performative.fields == [5, 6, 7, 0xFFFFFFFF, 2, 3, 4, None, True, False]
    assert performative.end == len(data) == int.from_bytes(data[:4], "big")


def test_a_disposition_accepts_and_settles_a_range() -> None:
    """Role, first, last, settled and the outcome `accepted`."""
    data = wire.disposition_frame(3, receiver=True, first=1, last=9)
    assert spaced(data) == (
        "00 00 00 1e 02 00 00 03 00 53 15 c0 11 05 41 70 00 00 00 01 70 00 00 00 09 41 00 53 24 45"
    )


def test_attach_names_the_queue_in_the_terminus_of_the_far_end() -> None:
    """The address is the target's when we send and the source's when we receive."""
    sending = wire.decode_performative(
        wire.attach_frame(0, 1, name="n", receiver=False, address="q", presettled=True), 8
    )
    receiving = wire.decode_performative(
        wire.attach_frame(0, 1, name="n", receiver=True, address="q", presettled=False), 8
    )
    assert sending.fields[:5] == ["n", 1, False, 1, 0]
    assert sending.fields[6] == wire.Described(wire.TARGET, ["q"])
    assert sending.fields[9] == 0
    assert receiving.fields[:5] == ["n", 1, True, 0, 0]
    assert receiving.fields[5] == wire.Described(wire.SOURCE, ["q"])
    assert receiving.field(9) is None


def test_sasl_plain_carries_user_and_password_between_nuls() -> None:
    """The response is authzid NUL authcid NUL password (RFC 4616)."""
    performative = wire.decode_performative(wire.sasl_init("guest", "secret"), 8)
    assert performative.fields == ["PLAIN", b"\0guest\0secret"]


def test_a_message_is_one_data_section_of_the_size_asked_for() -> None:
    """Twelve bytes take the short form, 300 the long one; a durable message has a header section first."""
    assert wire.data_message(b"some payload") == b"\x00\x53\x75\xa0\x0csome payload"
    assert wire.data_message(bytes(300))[:8] == b"\x00\x53\x75\xb0\x00\x00\x01\x2c"
    assert wire.data_message(b"x", durable=True) == b"\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x75\xa0\x01x"


def test_a_message_with_all_sections_has_them_in_the_order_of_the_standard() -> None:
    """Header, properties, application-properties, data (part 3 §3.2)."""
    data = wire.data_message(b"body", durable=True, sections=True)
    position, found = 0, []
    while position < len(data):
        value, position = wire.decode(data, position)
        found.append((value.descriptor, value.value))
    assert [descriptor for descriptor, _ in found] == [0x70, 0x73, 0x74, 0x75]
    assert found[2][1] == {"tenant": "blue", "attempt": 1, "urgent": False}
    assert found[3][1] == b"body"


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [(0, 0xFFFFFFFF, 1), (0xFFFFFFFF, 0, -1), (5, 5, 0), (0x7FFFFFFF, 0, 0x7FFFFFFF)],
)
def test_serial_differences_wrap(a: int, b: int, distance: int) -> None:
    """RFC 1982 with 32 bits."""
    assert wire.serial_difference(a, b) == distance


@pytest.mark.parametrize("data", [b"\xa0\x05abc", b"\xc0\x10\x01", b"\x00\x53", b"", b"\xd0\x00\x00"])
def test_a_value_that_runs_over_the_end_is_refused(data: bytes) -> None:
    """A cut value is a WireError, never an IndexError."""
    with pytest.raises(WireError, match="runs over the end"):
        wire.decode(data, 0)


def test_an_unknown_constructor_is_refused() -> None:
    """The error names constructor and place."""
    with pytest.raises(WireError, match="0x3f at offset 0"):
        wire.decode(b"\x3f", 0)


def frames_for_the_oracle() -> list[bytes]:
    """Return one frame of each kind that is written."""
    link_flow = wire.link_flow_frame(
        1, 2, delivery_count=3, link_credit=4, next_incoming_id=5, incoming_window=6, next_outgoing_id=7
    )
    return [
        wire.open_frame("c", max_frame_size_bytes=65536, channel_max=63),
        wire.begin_frame(1, incoming_window=2048, handle_max=255),
        wire.attach_frame(1, 0, name="n", receiver=True, address="q", presettled=None),
        wire.session_flow_frame(1, next_incoming_id=5, incoming_window=6, next_outgoing_id=7),
        link_flow,
        wire.frame(wire.transfer_performative(7, 300, settled=False, more=True)),
        wire.disposition_frame(1, receiver=True, first=1, last=0xFFFFFFFF),
        wire.detach_frame(1, 2),
        wire.end_frame(1),
        wire.close_frame(),
        wire.sasl_init(),
    ]


def plain(value: Any) -> Any:
    """Turn proton's values, and ours, into lists, tuples and scalars that compare."""
    if isinstance(value, wire.Described):
        return (plain(value.descriptor), plain(value.value))
    if hasattr(value, "descriptor"):
        return (plain(value.descriptor), plain(value.value))
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, memoryview | bytes):
        return bytes(value)
    return str(value)


@pytest.mark.parametrize("data", frames_for_the_oracle(), ids=lambda data: f"0x{data[10]:02x}")
def test_proton_reads_every_frame_as_we_do(data: bytes) -> None:
    """An independent codec decodes the performative to the same values."""
    proton = pytest.importorskip("proton")
    codec = proton.Data()
    assert codec.decode(data[8:]) == len(data) - 8
    codec.rewind()
    codec.next()
    ours, end = wire.decode(data, 8)
    assert end == len(data)
    assert plain(codec.get_object()) == plain(ours)
