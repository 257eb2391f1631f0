"""The record of an event: its size and its names are what files depend on."""

from __future__ import annotations

from amqp10broker.observe.flow_events.schema import (
    CONFIGURATION,
    FIELDS,
    GENERAL,
    NO_CREDIT,
    PACK,
    REASONS,
    RUN_FIELDS,
    EventKind,
    LimitReason,
)
from amqp10broker.sessions.auto_limit import Why
from amqp10broker.sessions.diagnosis.waits import Wait


def test_an_event_is_packed_without_padding() -> None:
    """64 bytes and their values back."""
    values = (2**62, EventKind.LINK_IN, NO_CREDIT, 2**32 - 1, 65535, 7, 2**32 - 1, 400, 256, 9, 100, -1, 3)
    assert PACK.size == 64
    assert PACK.unpack(PACK.pack(*values)) == values


def test_the_columns_are_those_of_the_design() -> None:
    """Order and names, for other programs read these files."""
    assert [field.name for field in FIELDS] == [
        "ts_ns", "kind", "reason", "connection", "channel", "handle", "link_credit", "incoming_window",
        "queue_credit", "n", "bytes", "value_ns", "queue_depth",
    ]  # fmt: skip


def test_every_reason_of_an_automatic_limit_has_its_number() -> None:
    """One for each `Why`, of the same name, and never another."""
    assert [reason.name for reason in LimitReason] == [why.name for why in Why]
    assert [(reason.name, reason.value) for reason in LimitReason][:3] == [
        ("DEFAULT", 0),
        ("GROWING", 1),
        ("GROWN", 2),
    ]
    assert [reason.value for reason in LimitReason] == list(range(len(LimitReason)))


def test_numbers_of_reasons_are_for_ever() -> None:
    """Files have them: what is read here must never change, and is only added to."""
    assert [REASONS[number] for number in range(12)] == [
        "none",
        "no-credit",
        "credit-withheld",
        "peer-window-closed",
        "blocked-by-alarm",
        "queue-empty",
        "not-active",
        "queue-credit-in-flight",
        "writer-blocked",
        "draining",
        "credit-flow",
        "prefetch-full",
    ]
    assert sorted(REASONS) == list(range(len(Wait) + 2))


def test_a_general_reason_is_a_case_of_no_other() -> None:
    """So that sums by general reasons are sums by all."""
    assert all(GENERAL.get(general, general) == general for general in GENERAL.values())


def test_a_configuration_is_made_of_columns_of_a_run() -> None:
    """All of them, and none of the measured ones."""
    names = {name for name, _ in RUN_FIELDS}
    assert set(CONFIGURATION) <= names
    assert not {"run_id", "repetition", "began_ns", "ended_ns", "events_dropped"} & set(CONFIGURATION)
