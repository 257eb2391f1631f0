"""What the HTTP API shows of a queue's messages."""

from __future__ import annotations

from amqp10broker.api import queue_objects


def test_dead_letters_that_wait_for_their_target_are_messages_of_the_queue() -> None:
    """Seed 004: they are live until a target queue has confirmed them; RabbitMQ 4.3.6 counts them, too."""
    row = {"type": "quorum", "message_count": 3, "messages_unsettled": 4, "messages_dlx": 2}
    assert queue_objects.counts(row) == {"messages": 9, "messages_ready": 3, "messages_unacknowledged": 4}
