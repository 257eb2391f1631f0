"""A queue that breaks down: AMQP 1.0 publishers hear which of their messages it did not take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amqp10broker.message.amqp10 import make_head
from amqp10broker.protocols.amqp10.performatives import Detach, Disposition, Rejected
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import Confirmed, Effect, Publish, Unconfirmed
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.stream.queue import StreamQueue
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.queues import RESTARTS_MAX
from tests.runtime.conftest import LogRecorder
from tests.support.declaring import declare
from tests.support.rawframes import attach_sender, transfer
from tests.support.reply_addresses import reply_to_at
from tests.support.trioclient import connect, running_broker

MESSAGE = (make_head(None, None, "", "q"), b"a")


async def test_messages_that_a_broken_queue_did_not_take_are_rejected(
    log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is precondition-failed `queue 'q' is unavailable`; then the link ends."""
    async with running_broker() as broker:
        declare(broker.catalog, "/", "q")
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q"))
        await client.idle()
        break_at_publish(monkeypatch, "classic")
        disposition = await client.call(Disposition, transfer(0, 0, b"x"))
        assert isinstance(disposition.state, Rejected)
        assert disposition.state.error.condition == "amqp:precondition-failed"
        assert disposition.state.error.description == "queue 'q' is unavailable"
        assert disposition.state.error.info == {"queue": "q", "reason": "unavailable"}
        assert (await client.until(Detach)).error.condition == "amqp:resource-deleted"
        assert [event for event, _ in log.of("error")] == [
            "queue failed by a fault in the broker and is gone"
        ]


KINDS: dict[str, type[QueueMachine]] = {"classic": ClassicQueue, "quorum": QuorumQueue, "stream": StreamQueue}


def break_at_publish(patch: pytest.MonkeyPatch, kind: str) -> None:
    """The next publish and each later one meets a fault; late requests get an answer."""
    owner = KINDS[kind]
    sound = owner.apply

    def apply(self: Any, command: Any, now_ms: int) -> None:
        if type(command) is Publish and not self.deleted:
            raise RuntimeError("out of order")
        sound(self, command, now_ms)

    patch.setattr(owner, "apply", apply)


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("kind", "kept", "becomes"),
    [
        ("classic", False, "is gone"),
        ("classic", True, "begins again"),
        ("quorum", False, "is gone"),
        ("quorum", True, "stays down until the broker is started again"),
        ("stream", False, "is gone"),
        ("stream", True, "stays down until the broker is started again"),
    ],
)
async def test_what_becomes_of_a_queue_that_fails(
    kind: str, kept: bool, becomes: str, log: LogRecorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Publishers get the failure, whatever becomes of the queue; another queue is unaffected."""
    settings = {"data_dir": str(tmp_path / "data")} if kept else {}
    async with running_broker(**settings) as broker:
        queue, _ = declare(broker.catalog, "/", "q", durable=True, arguments={"x-queue-type": kind})
        other, _ = declare(broker.catalog, "/", "other", durable=True)
        box: Mailbox[list[Effect]] = Mailbox()
        publisher = reply_to_at(queue, box).publisher()
        await queue.handle.begun.wait()  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            break_at_publish(patch, kind)
            queue.handle.post(Publish(publisher, [1], [MESSAGE], False))
            (refused,) = [effect for letter in await box.take_all() for effect in letter]
        assert isinstance(refused, Unconfirmed)
        assert (list(refused.ids), refused.failed) == ([1], True)
        noun = "stream" if kind == "stream" else "queue"
        assert [event for event, _ in log.of("error")] == [
            f"{noun} failed by a fault in the broker and {becomes}"
        ]
        # What is gone has no name any more; what is kept has it, with the reason.
        found = broker.catalog.lookup_vhost("/").find("q")
        assert (found is queue) is kept
        assert (found is not None and found.last_error is not None) is kept
        queue.handle.post(Publish(publisher, [2], [MESSAGE], False))
        (answer,) = [effect for letter in await box.take_all() for effect in letter]
        assert isinstance(answer, Confirmed if becomes == "begins again" else Unconfirmed)
        other.handle.post(Publish(reply_to_at(other, box).publisher(), [3], [MESSAGE], False))
        (answer,) = [effect for letter in await box.take_all() for effect in letter]
        assert isinstance(answer, Confirmed)


@pytest.mark.real_clock
async def test_a_classic_queue_that_fails_again_and_again_stays_down(
    log: LogRecorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        queue, _ = declare(broker.catalog, "/", "q", durable=True)
        box: Mailbox[list[Effect]] = Mailbox()
        publisher = reply_to_at(queue, box).publisher()
        break_at_publish(monkeypatch, "classic")
        for number in range(RESTARTS_MAX + 1):
            queue.handle.post(Publish(publisher, [number], [MESSAGE], False))
            await box.take_all()
        events = [
            event.removeprefix("queue failed by a fault in the broker and ") for event, _ in log.of("error")
        ]
    assert events == [*["begins again"] * RESTARTS_MAX, "stays down until the broker is started again"]
