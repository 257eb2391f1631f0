"""The record of an event: its size and its names are what files depend on."""

from __future__ import annotations

from amqp10broker.observe.flow_events import REASONS, LimitReason
from amqp10broker.sessions.credit import Why
from amqp10broker.sessions.diagnosis.waits import Wait


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
