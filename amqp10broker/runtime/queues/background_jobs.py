"""Errands at queues (`sessions.errands`), run by a living broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from amqp10broker.errors import BrokerError
from amqp10broker.metadata.queue import QueueHandle
from amqp10broker.queues.commands import Command, ReplyTo
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.reply_registry import Askers
from amqp10broker.sessions.errands import Errand
from amqp10broker.sessions.mail import SessionLetter

E = TypeVar("E", bound=Errand)

ANSWER_S: Final = 15.0
"""How long a queue may take for anything that it tells."""


async def run_errand(askers: Askers, label: str, begin: Callable[[ReplyTo], E]) -> E:
    """Run an errand to its end. Raises a `RefusedError` subclass with the reason, or `BrokerError` if a queue
    has not answered.
    """
    mailbox: Mailbox[SessionLetter] = Mailbox()
    address = askers.open(label, mailbox)
    try:
        errand = begin(address)
        try:
            await _heard_out(errand, mailbox)
        finally:
            errand.end()
    finally:
        askers.close(address)
        mailbox.close()
    return errand


def post(handle: QueueHandle, command: Command) -> None:
    """Put a letter to a queue, as errands do."""
    handle.post(command)


async def _heard_out(errand: Errand, mailbox: Mailbox[SessionLetter]) -> None:
    while not errand.done:
        with trio.move_on_after(ANSWER_S) as patience:
            letters = await mailbox.take_all()
        if patience.cancelled_caught:
            raise BrokerError(f"a queue has not answered for {ANSWER_S:g} s: it is overloaded; try again")
        for letter in letters:
            if isinstance(letter, list):
                for effect in letter:
                    errand.hear(effect)
