"""Time for suspended links: each ends when it has been kept for as long as was granted."""

from __future__ import annotations

import math

import trio

from amqp10broker.catalog.plan import Key as PlanKey
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.service.sessions.kept import Kept, KeptLinks, Mail
from amqp10broker.tasks.letter_box import post_mail
from amqp10broker.tasks.surroundings import Surroundings


class SuspendedLinks:
    """The broker around `KeptLinks`, and the task that looks at what has run out.

    Attributes:
        links: those that are kept.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._sooner = trio.Event()
        self.links = KeptLinks(self)

    def open(self, label: str, box: Kept) -> ReplyTo:
        """See `kept.Host`."""
        return self._surroundings.askers.open(label, box)

    def close(self, reply_to: ReplyTo) -> None:
        """See `kept.Host`."""
        self._surroundings.askers.close(reply_to)

    def post(self, mail: Mail) -> None:
        """See `kept.Host`."""
        post_mail(mail)

    def now_ms(self) -> int:
        """See `kept.Host`."""
        return self._surroundings.clock.now_ms()

    def timer_started(self) -> None:
        """See `kept.Host`."""
        self._sooner.set()

    def left(self, key: PlanKey) -> None:
        """A user or a virtual host has been deleted (`Catalog.on_left`)."""
        if key[0] == "user":
            self.links.revoke(user=key[1])
        else:
            self.links.revoke(vhost=key[1])

    async def run(self) -> None:
        """End links in time, until cancelled."""
        while True:
            self._sooner = trio.Event()
            due_ms = self.links.deadline_ms
            due = math.inf if due_ms is None else self._surroundings.clock.trio_time(due_ms)
            with trio.move_on_at(due):
                await self._sooner.wait()
            self.links.expire()
