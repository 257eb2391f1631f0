"""Errands at queues (`sessions.jobs`), run by a living broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from amqp10broker.errors import BrokerError
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.reply_registry import ReplyRegistry
from amqp10broker.sessions.context import QueueCommand
from amqp10broker.sessions.jobs import BackgroundJob
from amqp10broker.sessions.mail import SessionLetter

E = TypeVar("E", bound=BackgroundJob)

ANSWER_S: Final = 15.0
"""How long a queue may take for anything that it tells."""


async def run_job(reply_registry: ReplyRegistry, label: str, begin: Callable[[ReplyTo], E]) -> E:
    """Run a job to its end. Raises a `RefusedError` subclass with the reason, or `BrokerError` if a queue
    has not answered.
    """
    mailbox: Mailbox[SessionLetter] = Mailbox()
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


async def _heard_out(job: BackgroundJob, mailbox: Mailbox[SessionLetter]) -> None:
    while not job.done:
        with trio.move_on_after(ANSWER_S) as patience:
            letters = await mailbox.take_all()
        if patience.cancelled_caught:
            raise BrokerError(f"a queue has not answered for {ANSWER_S:g} s: it is overloaded; try again")
        for letter in letters:
            if isinstance(letter, list):
                for effect in letter:
                    job.hear(effect)
