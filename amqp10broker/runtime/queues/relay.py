"""Turns that are taken at once: a message that is alone goes its whole way in its reader's turn.

A task that waits for letters is woken by the scheduler a turn later, and the message of a client that waits
for each confirm goes through four such turns: reader, session, queue, session. Each costs as much as what is
done in it. So a reader that was given little opens the relay while it hands that over: the tasks for which
there is a letter then, and which wait for one, have it carried out in the reader's turn, one after the
other and never one within another. They take all their letters, as they would in their own turn.

What comes in bulk, or on many connections, goes its way by tasks, so that letters of many senders become
one batch, and nobody is held up by the work of a big batch for others.
"""

from __future__ import annotations

from typing import Final, Protocol

TURNS_MAX: Final = 8
"""Taken in one turn of a reader; who would be next has its own turn, as ever."""

LITTLE_BYTES: Final = 2048
"""A read of so much goes on at once: a wave of some messages, a settlement, a flow."""

OTHERS_MAX: Final = 1
"""Reads of other connections between two of one: with more, tasks make batches of what all of them sent."""


class WaitingMailbox(Protocol):
    """A mailbox whose owner waits for messages."""

    def work(self) -> None:
        """Have the letters that are there carried out; wakes the owner where that needs its task."""

    def wake(self) -> None:
        """Have the owner do it in its own turn."""


class Relay:
    __slots__ = ("_due", "open", "reads")

    def __init__(self) -> None:
        self.open = False
        self.reads = 0
        self._due: list[WaitingMailbox] = []

    def add(self, mailbox: WaitingMailbox) -> None:
        """Add an owner with a new message; once until it has run."""
        self._due.append(mailbox)

    def carry(self) -> None:
        """Carry out what there is to do now, and what comes of that; then the relay is closed."""
        try:
            for turns, mailbox in enumerate(self._due):  # it grows meanwhile
                if turns < TURNS_MAX:
                    mailbox.work()
                else:
                    mailbox.wake()
        finally:
            self.open = False
            self._due.clear()
