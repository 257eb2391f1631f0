"""The closed set of codes, and the page that explains it."""

from __future__ import annotations

import pytest

from amqp10broker.operations.snapshot import document
from amqp10broker.sessions.diagnosis.waits import NO_WAIT, Wait, Waiting


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        (NO_WAIT, {"waits": None, "waits_why": None, "waits_for_s": None}),
        (
            Waiting(Wait.QUEUE_EMPTY, "why", 1_500),
            {"waits": "queue-empty", "waits_why": "why", "waits_for_s": 1.5},
        ),
        (Waiting(Wait.DRAINING, "why"), {"waits": "draining", "waits_why": "why", "waits_for_s": None}),
        (Waiting(None, "its turn"), {"waits": None, "waits_why": "its turn", "waits_for_s": None}),
    ],
)
def test_a_waiting_as_the_document_has_it(waiting: Waiting, expected: dict[str, object]) -> None:
    """Code, sentence, seconds; null for what is not."""
    assert document(waiting.view()) == expected
