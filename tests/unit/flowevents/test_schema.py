"""The record of an event: its size and its names are what files depend on."""

from __future__ import annotations

from amqp10broker.flowevents.schema import CONFIGURATION, FIELDS, PACK, RUN_FIELDS, Kind, Reason
from amqp10broker.service.sessions.status import Wait


def test_an_event_is_packed_without_padding() -> None:
    """64 bytes and their values back."""
    values = (2**62, Kind.LINK_IN, Reason.NO_CREDIT, 2**32 - 1, 65535, 7, 2**32 - 1, 400, 256, 9, 100, -1, 3)
    assert PACK.size == 64
    assert PACK.unpack(PACK.pack(*values)) == values


def test_the_columns_are_those_of_the_design() -> None:
    """Order and names, for other programs read these files."""
    assert [field.name for field in FIELDS] == [
        "ts_ns", "kind", "reason", "connection", "channel", "handle", "link_credit", "incoming_window",
        "queue_credit", "n", "bytes", "value_ns", "queue_depth",
    ]  # fmt: skip


def test_every_reason_to_wait_has_its_number() -> None:
    """The nine of AMQP 1.0 have the names and the order of `Wait`."""
    assert [Reason(number).name for number in range(1, 10)] == [wait.name for wait in Wait]


def test_a_configuration_is_made_of_columns_of_a_run() -> None:
    """All of them, and none of the measured ones."""
    names = {name for name, _ in RUN_FIELDS}
    assert set(CONFIGURATION) <= names
    assert not {"run_id", "repetition", "began_ns", "ended_ns", "events_dropped"} & set(CONFIGURATION)
