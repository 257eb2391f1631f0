"""The senders of commands in this broker: ids, as queues use them, to the mailboxes for answers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from amqp10broker.metadata.proposing import Decided
from amqp10broker.queues.commands import PeerId, ReplyTo
from amqp10broker.queues.effects import Effect
from amqp10broker.runtime.mailbox import InlineSteps, Mailbox
from amqp10broker.sessions.amqp10.resumable_links import ResumableLink

EffectBox = Mailbox[Any] | ResumableLink
"""What takes the answers of queues, by `put`."""


class ReplyRegistry:
    """The sessions, channels and others that may ask queues, from `open` to `close`. `inline`:
    by which messages to them and to queues are handled inline.
    """

    __slots__ = ("_boxes", "_sessions", "incarnation", "inline", "node")

    def __init__(self, *, node: int = 0, incarnation: int = 1) -> None:
        """Start without senders. `incarnation`: which of its starts this is, from 1."""
        self.node = node
        self.incarnation = incarnation
        self._sessions = count(1)
        self._boxes: dict[PeerId, EffectBox] = {}
        self.inline = InlineSteps()

    def __len__(self) -> int:
        return len(self._boxes)

    def open(self, label: str, box: EffectBox | None = None) -> ReplyTo:
        """Register a sender. `box`: where the answers go; None: answers are dropped."""
        reply_to = ReplyTo(PeerId(self.node, self.incarnation, next(self._sessions)), label)
        if box is not None:
            self._boxes[reply_to.id] = box
        return reply_to

    def close(self, reply_to: ReplyTo) -> None:
        """Remove a sender: later answers to it are dropped."""
        self._boxes.pop(reply_to.id, None)

    def tell(self, decided: Decided) -> None:
        """Put an answer into the sender's mailbox; drop it if the sender was removed."""
        box: Any = self._boxes.get(decided.ref.reply_to)
        if box is not None:
            box.put(decided)  # one that has requests decided takes it

    def is_open(self, peer: PeerId) -> bool:
        return peer in self._boxes

    def post(self, effects: Mapping[PeerId, list[Effect]]) -> None:
        """Put effects into the mailboxes of their receivers.

        A removed receiver takes nothing: its `Unsubscribe`, with the count of seen deliveries, takes back the
        rest.
        """
        boxes = self._boxes
        for reply_to, batch in effects.items():
            box = boxes.get(reply_to)
            if box is not None:
                box.put(batch)
