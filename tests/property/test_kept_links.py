"""Links that are kept, lost again and again: each message passes exactly once.

The broker is whole but for its tasks (`tests/support/session_harness.py`). The client is a model that keeps
what is unsettled for it and decides by the same table, for the other role. A connection ends after any number
of frames of either side; what was on its way then is lost.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.protocols.amqp10 import delivery, performatives
from tests.support.script import ScriptRunner

LIVES_TRIED = 1_000 if "AMQP10BROKER_LONG" in os.environ else 30


class Lost(Exception):
    """The connection ends here."""


class Life(NamedTuple):
    """How long a connection lasts, and what queues do meanwhile."""

    sends: int
    """Frames of the client that arrive, beyond its begin."""
    hears: int
    """Frames of the broker that arrive, beyond its begin."""
    withholds: bool
    """Queues do not speak."""
    shown: int | None
    """Entries of its map that the client shows; None: all."""


FOREVER = Life(10_000, 10_000, withholds=False, shown=None)
LIVES = st.lists(
    st.builds(
        Life, st.integers(1, 12), st.integers(0, 12), st.booleans(), st.one_of(st.none(), st.integers(1, 3))
    ),
    max_size=8,
)


@dataclass
class Peer:
    """A client with one link, which it attaches again and again.

    Attributes:
        script: the broker.
        unsettled: what is unsettled for it.
        life: of the connection of now; what is left of it.
    """

    script: ScriptRunner
    second: bool
    unsettled: dict[bytes, delivery.State] = field(default_factory=dict)
    life: Life = FOREVER
    heard: int = 0

    @property
    def mode(self) -> str:
        return "second" if self.second else "first"

    def connect(self, life: Life) -> None:
        queue = self.script.world.queues["q"]
        queue.withholding = life.withholds
        if not life.withholds:
            self.script.do(f"confirm q {len(queue.held)}")
        self.script.do("connect C container=mine")
        self.script.do("C> BEGIN")
        self.script.world.clients["C"].bodies = []
        self.life, self.heard = life, 0

    def send(self, line: str) -> None:
        """Send one frame.

        Raises:
            Lost: it does not arrive.
        """
        if self.life.sends == 0:
            raise Lost
        self.life = self.life._replace(sends=self.life.sends - 1)
        self.script.do(f"C> {line}")

    def hear(self) -> list[object]:
        bodies = self.script.world.clients["C"].bodies
        arrived = bodies[self.heard : self.life.hears]
        self.heard += len(arrived)
        return [performatives.decode_composite(body)[0] for body in arrived]

    def lose(self) -> None:
        self.script.do("lose C")

    def attach(self, link: str) -> tuple[performatives.Attach, bool]:
        """Attach the link with a map; returns the answer, and whether one of the maps is incomplete.

        Raises:
            Lost: there is none.
        """
        shown = list(self.unsettled.items())[: self.life.shown]
        pairs = ",".join(f"#{int.from_bytes(tag, 'big')}:{_name(state)}" for tag, state in shown)
        incomplete = len(shown) < len(self.unsettled)
        flag = " incomplete-unsettled=true" if incomplete else ""
        self.send(
            f"ATTACH h=1 name=mine {link} timeout=60 rcv-settle-mode={self.mode} unsettled={{{pairs}}}{flag}"
        )
        for frame in self.hear():
            if isinstance(frame, performatives.Attach):
                return frame, incomplete or frame.incomplete_unsettled
        raise Lost


def _name(state: delivery.State) -> str:
    return "accepted" if isinstance(state, performatives.Accepted) else "null"


# --- the client sends -----------------------------------------------------------------------------


@dataclass
class Sender(Peer):
    """Sends messages, and forgets one when its outcome is known and settled."""

    waiting: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    ids: dict[int, bytes] = field(default_factory=dict)

    def live(self, life: Life) -> None:
        self.connect(life)
        self.ids = {}
        try:
            answer, incomplete = self.attach("target=/queues/q")
            self._resume(delivery.unsettled_map(answer), incomplete=incomplete)
            while self.waiting and not incomplete:
                number = self.waiting.pop(0)
                tag = number.to_bytes(4, "big")
                # It may be lost on its way, or taken: the sender cannot know.
                self.unsettled[tag] = None
                self._transfer(tag)
                self._listen()
            self._listen()
        except Lost:
            pass
        self.lose()

    def _transfer(self, tag: bytes, more: str = "") -> None:
        number = int.from_bytes(tag, "big")
        delivery_id = len(self.ids)
        self.ids[delivery_id] = tag
        self.send(f"TRANSFER h=1 did={delivery_id} tag={number} body=m{number}{more}")

    def _resume(self, theirs: dict[bytes, delivery.State], *, incomplete: bool) -> None:
        plan = delivery.resume_as_sender(self.unsettled, theirs, incomplete=incomplete)
        for tag in plan.settled:
            del self.unsettled[tag]
        for tag in plan.unknown:
            del self.unsettled[tag]
            self.waiting.insert(0, int.from_bytes(tag, "big"))
        for each in plan.resumed:
            if each.how is delivery.Resume.OUTCOME:
                if each.apply:
                    self.done.append(int.from_bytes(each.tag, "big"))
                    self.unsettled[each.tag] = each.state
                self._transfer(each.tag, " resume=true settled=true")
                del self.unsettled[each.tag]
            else:
                self._transfer(each.tag, " resume=true")
                self._listen()

    def _listen(self) -> None:
        for frame in self.hear():
            if not isinstance(frame, performatives.Disposition):
                continue
            assert isinstance(frame.state, performatives.Accepted)
            for delivery_id in range(frame.first, (frame.last or frame.first) + 1):
                tag = self.ids[delivery_id]
                if tag not in self.unsettled:
                    continue
                if self.unsettled[tag] is None:
                    self.done.append(int.from_bytes(tag, "big"))
                    self.unsettled[tag] = frame.state
                if not frame.settled:
                    self.send(f"DISPOSITION role=sender first={delivery_id} settled=true state=accepted")
                del self.unsettled[tag]


@settings(max_examples=LIVES_TRIED)
@given(messages=st.integers(1, 6), lives=LIVES, second=st.booleans())
def test_every_message_of_a_sender_is_taken_exactly_once(
    messages: int, lives: list[Life], second: bool
) -> None:
    """This holds for mode first too, if no more deliveries are in doubt than are kept."""
    script = ScriptRunner()
    script.do("queue q")
    sender = Sender(script, second, waiting=list(range(messages)))
    for life in [*lives, FOREVER]:
        sender.live(life)
    assert sorted(sender.done) == list(range(messages))
    assert sender.unsettled == {}
    script.do("D> BEGIN")
    script.do("D> ATTACH h=1 source=/queues/q")
    script.do("D> FLOW h=1 dc=0 cr=100")
    bodies = script.world.clients["D"].mine[0].received
    assert sorted(bodies) == [f"m{number}" for number in range(messages)]
    script.do("pass 60")
    assert len(script.world.resumable_links) == 0


# --- the client receives --------------------------------------------------------------------------


@dataclass
class Receiver(Peer):
    """Receives messages, and forgets one when the broker has settled it.

    Attributes:
        taken: messages on which it has acted.
    """

    taken: list[int] = field(default_factory=list)
    ids: dict[int, bytes] = field(default_factory=dict)

    def live(self, life: Life) -> None:
        self.connect(life)
        self.ids = {}
        try:
            answer, incomplete = self.attach("source=/queues/q")
            plan = delivery.resume_as_receiver(
                self.unsettled, delivery.unsettled_map(answer), incomplete=incomplete
            )
            for tag in plan.settled:
                del self.unsettled[tag]
            self.send("FLOW h=1 dc=0 cr=100")
            self._listen()
        except Lost:
            pass
        self.lose()

    def _listen(self) -> None:
        frames = self.hear()
        while frames:
            for frame in frames:
                if isinstance(frame, performatives.Transfer):
                    self._take(frame)
                elif isinstance(frame, performatives.Disposition) and frame.settled:
                    for delivery_id in range(frame.first, (frame.last or frame.first) + 1):
                        self.unsettled.pop(self.ids[delivery_id], None)
            frames = self.hear()

    def _take(self, frame: performatives.Transfer) -> None:
        tag, delivery_id = frame.delivery_tag, frame.delivery_id
        assert tag is not None
        self.ids[delivery_id] = tag
        if frame.resume:
            known = self.unsettled.get(tag, delivery.NotOurs.ABSENT)
            arrival = delivery.on_resumed(known, settled=bool(frame.settled), aborted=frame.aborted)
            assert arrival in (delivery.Arrival.CONTINUED, delivery.Arrival.SETTLED)
            if arrival is delivery.Arrival.SETTLED:
                del self.unsettled[tag]
                return
        # It has it, and acts on it later: the connection may be lost in between.
        self.unsettled[tag] = None
        if self.life.sends:
            self.taken.append(int.from_bytes(tag, "big"))
            self.unsettled[tag] = None if not self.second else performatives.Accepted()
            if not self.second:
                del self.unsettled[tag]
            settled = "" if self.second else " settled=true"
            self.send(f"DISPOSITION role=receiver first={delivery_id}{settled} state=accepted")


@settings(max_examples=LIVES_TRIED)
@given(messages=st.integers(1, 6), lives=LIVES, second=st.booleans())
def test_every_message_of_a_receiver_is_acted_on(messages: int, lives: list[Life], second: bool) -> None:
    """It is exactly once with mode second; with first at least once, as it forgets settled deliveries."""
    script = ScriptRunner()
    script.do("queue q")
    script.do(f"publish q {messages}")
    receiver = Receiver(script, second)
    for life in [*lives, FOREVER]:
        receiver.live(life._replace(withholds=False))
    wanted = list(range(messages))
    assert sorted(receiver.taken) == wanted if second else sorted(set(receiver.taken)) == wanted
    assert receiver.unsettled == {}
    script.do("pass 60")
    script.do("count q")
    assert script.do("count q") == ["= ready=0 unsettled=0"]
