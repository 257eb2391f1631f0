"""A queue that breaks down: AMQP 1.0 publishers hear which of their messages it did not take."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from amqp10broker.amqp10.performatives import Detach, Disposition, Rejected
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import Publish
from tests.support.declaring import declare
from tests.support.rawframes import attach_sender, transfer
from tests.support.trioclient import connect, running_broker
from tests.tasks.conftest import LogRecorder


async def test_messages_that_a_broken_queue_did_not_take_are_rejected(
    autojump_clock: MockClock, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Precondition-failed `queue 'q' is unavailable`, then the link to the queue ends."""

    sound = ClassicQueue._publish

    def broken(self: ClassicQueue, command: Publish) -> None:
        if not self.deleted:
            raise RuntimeError("out of order")
        sound(self, command)

    async with running_broker() as broker:
        declare(broker.catalog, "/", "q")
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q"))
        await client.idle()
        monkeypatch.setattr(ClassicQueue, "_publish", broken)
        await client.send(transfer(0, 0, b"x"))
        disposition = await client.until(Disposition)
        assert isinstance(disposition.state, Rejected)
        assert disposition.state.error.condition == "amqp:precondition-failed"
        assert disposition.state.error.description == "queue 'q' is unavailable"
        assert disposition.state.error.info == {"queue": "q", "reason": "unavailable"}
        assert (await client.until(Detach)).error.condition == "amqp:resource-deleted"
        assert [event for event, _ in log.of("error")] == [
            "queue failed by a fault in the broker and is gone"
        ]
