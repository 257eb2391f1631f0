"""Errands at queues (`sessions.jobs`), run by a living broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from amqp10broker.errors import BrokerError
from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.reply_registry import ReplyRegistry
from amqp10broker.sessions.jobs import BackgroundJob
from amqp10broker.sessions.messages import SessionMessage

E = TypeVar("E", bound=BackgroundJob)

ANSWER_S: Final = 15.0
"""How long a queue may take for anything that it tells."""


async def run_job(reply_registry: ReplyRegistry, label: str, begin: Callable[[ReplyTo], E]) -> E:
    """Run a job to its end. Raises a `RefusedError` subclass with the reason, or `BrokerError` if a queue
    has not answered.
    """
    mailbox: Mailbox[SessionMessage] = Mailbox()
    address = reply_registry.open(label, mailbox)
    try:
        job = begin(address)
        try:
            await _heard_out(job, mailbox)
        finally:
            job.end()
    finally:
        reply_registry.close(address)
        mailbox.close()
    return job


def to_queue(command: QueueCommand) -> None:
    """Send a command to its queue at once, as jobs do."""
    command[0].post(command[1])


async def _heard_out(job: BackgroundJob, mailbox: Mailbox[SessionMessage]) -> None:
    while not job.done:
        with trio.move_on_after(ANSWER_S) as patience:
            messages = await mailbox.take_all()
        if patience.cancelled_caught:
            raise BrokerError(f"a queue has not answered for {ANSWER_S:g} s: it is overloaded; try again")
        for message in messages:
            if isinstance(message, list):
                for effect in message:
                    job.hear(effect)
