"""Messages over a link that is lost again and again, with both maps kept: exactly once in mode second."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.protocols.amqp10.performatives import Accepted, Received
from amqp10broker.protocols.amqp10.resumption import (
    Arrival,
    NotOurs,
    Resume,
    State,
    on_resumed,
    resume_as_receiver,
    resume_as_sender,
)

PIECES = 3
"""Transfers of a delivery."""


@dataclass
class Sender:
    """Has messages to send, and forgets one when its outcome is known and settled."""

    waiting: list[int]
    unsettled: dict[bytes, State] = field(default_factory=dict)
    acted: list[bytes] = field(default_factory=list)

    def act(self, tag: bytes) -> None:
        """Act on an outcome: what a queue does that removes the message."""
        self.acted.append(tag)
        self.unsettled[tag] = Accepted()


@dataclass
class Receiver:
    """Posts what it has whole, and keeps its outcome until the sender has settled."""

    unsettled: dict[bytes, State] = field(default_factory=dict)
    posted: list[bytes] = field(default_factory=list)

    def piece(self, tag: bytes, at: int) -> None:
        """One transfer of a delivery has come."""
        if at == PIECES - 1:
            self.posted.append(tag)
            self.unsettled[tag] = Accepted()
        else:
            self.unsettled[tag] = Received(section_number=0, section_offset=at + 1)


class Lost(Exception):
    """The connection is gone; frames on their way with it."""


@dataclass
class Wire:
    """Carries frames while it holds."""

    frames: int

    def carry(self) -> None:
        """Take one frame over.

        Raises:
            Lost: it did not arrive.
        """
        if self.frames == 0:
            raise Lost
        self.frames -= 1


def settle(wire: Wire, sender: Sender, receiver: Receiver, tag: bytes) -> None:
    """Mode second: the outcome comes back, the sender acts and settles, the receiver forgets."""
    wire.carry()
    sender.act(tag)
    del sender.unsettled[tag]  # it settles with the frame that it sends now
    wire.carry()
    del receiver.unsettled[tag]


def send(wire: Wire, sender: Sender, receiver: Receiver, tag: bytes, begin: int) -> None:
    """Send a delivery from its piece `begin` on, to its end."""
    for at in range(begin, PIECES):
        wire.carry()
        receiver.piece(tag, at)
    settle(wire, sender, receiver, tag)


def connect(wire: Wire, sender: Sender, receiver: Receiver, shown: int | None) -> None:
    """Attach, resume what is unsettled, then send what is new.

    Args:
        wire: of this connection.
        sender: one end.
        receiver: the other.
        shown: entries of the sender's map that fit its frame; None: all.
    """
    theirs = dict(list(sender.unsettled.items())[:shown])
    incomplete = len(theirs) < len(sender.unsettled)
    kept = resume_as_receiver(receiver.unsettled, theirs, incomplete=incomplete)
    for tag in kept.settled:
        del receiver.unsettled[tag]
    ours = kept.awaited | {tag: receiver.unsettled[tag] for tag in kept.open}
    plan = resume_as_sender(sender.unsettled, ours, incomplete=incomplete)
    for tag in plan.settled:
        del sender.unsettled[tag]
    resumed = [(each.tag, each.how, each.state, each.apply) for each in plan.resumed]
    for tag, how, state, apply in resumed:
        if how is Resume.OUTCOME:
            if apply:
                sender.act(tag)
            del sender.unsettled[tag]
            wire.carry()
            known = receiver.unsettled.get(tag, NotOurs.ABSENT)
            assert on_resumed(known, settled=True, aborted=False) is Arrival.SETTLED
            del receiver.unsettled[tag]
        else:
            known = receiver.unsettled.get(tag, NotOurs.ABSENT)
            assert on_resumed(known, settled=False, aborted=False) is Arrival.CONTINUED
            assert state is None or isinstance(state, Received)
            send(wire, sender, receiver, tag, state.section_offset if state is not None else 0)
    if incomplete:
        return  # nothing new: both attach again
    for tag in plan.unknown:
        # It goes back, and comes again as a new delivery.
        del sender.unsettled[tag]
        sender.waiting.insert(0, int.from_bytes(tag, "big"))
    while sender.waiting:
        tag = sender.waiting.pop(0).to_bytes(4, "big")
        sender.unsettled[tag] = None
        send(wire, sender, receiver, tag, 0)


@given(
    messages=st.integers(1, 5),
    lives=st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(1, 3)), max_size=12),
)
def test_every_message_is_posted_and_acted_on_exactly_once(
    messages: int, lives: list[tuple[int, int | None]]
) -> None:
    """However often the connection goes, at whatever frame, also with maps that do not fit a frame."""
    sender, receiver = Sender(list(range(messages))), Receiver()
    for frames, shown in [*lives, (1_000, None)]:
        try:
            connect(Wire(frames), sender, receiver, shown)
        except Lost:
            pass
        assert len(receiver.posted) == len(set(receiver.posted))
        assert set(sender.acted) <= set(receiver.posted)
    tags = [at.to_bytes(4, "big") for at in range(messages)]
    assert sorted(receiver.posted) == sorted(sender.acted) == tags
    assert sender.unsettled == {}
    assert receiver.unsettled == {}
