"""Recordings of clients that never were: the simulation's, written by its broker."""

from __future__ import annotations

from typing import Final

from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Disposition,
    Open,
    Role,
    Source,
    Target,
)
from amqp10broker.tools.replay.forecast import ConsumerModel, Delivering
from amqp10broker.tools.replay.pace import Habits, Simulation
from tests.support import rawframes as raw
from tests.support.tape import Tape

BUSY: Final = Habits(0.0, None, (0.001,), (1,), (100,))

"""A publisher that sends as fast as it may."""


class Taped(Simulation):
    """A simulation whose broker records the frames of link 0."""

    def __init__(self, habits: Habits, credit: int, window: int, trip_s: float) -> None:
        super().__init__([habits], credit, window, trip_s / 2)
        self.tape = Tape(number=1)
        self.tape.came(raw.open_frame(), raw.begin(), raw.attach_sender(0, "/queues/q"))
        self.tape.went(
            raw.frame(0, Open(container_id="b")),
            raw.frame(
                0, Begin(remote_channel=0, next_outgoing_id=0, incoming_window=window, outgoing_window=1)
            ),
            raw.frame(
                0, Attach(name="out-0-0-/queues/q", handle=0, role=True, target=Target(address="/queues/q"))
            ),
        )
        self._next = self._came = self._confirmed = 0
        self._window = window

    def told(self, at: float, kind: str, number: int, content: tuple[int, int]) -> None:
        self.tape.now_s = 1000 + at
        # What the broker believes to have, counted from what came.
        given = {"next_incoming_id": self._came, "incoming_window": self._incoming.left}
        match kind:
            case "transfer":
                for piece in range(content[0]):
                    more = piece + 1 < content[0]
                    self.tape.came(raw.transfer(0, self._next, b"x" * 10, more=more))
                    self._came += 1
                self._next += 1
            case "credit":
                count, credit = content
                self.tape.went(raw.flow(handle=0, delivery_count=count, link_credit=credit, **given))
            case "window":
                self.tape.went(raw.flow(next_incoming_id=content[0], incoming_window=content[1]))
            case _:
                outcome = Disposition(
                    role=Role.RECEIVER, first=self._confirmed, settled=True, state=Accepted()
                )
                self.tape.went(raw.frame(0, outcome))
                self._confirmed += 1


def taped(habits: Habits, *, credit: int, window: int, trip_s: float, messages: int) -> Tape:
    simulation = Taped(habits, credit, window, trip_s)
    simulation.run(messages)
    return simulation.tape


class TapedConsumer(Delivering):
    """A simulation whose broker records its frames."""

    def __init__(self, habits: ConsumerModel, credit: int, trip_s: float, *, settled: bool) -> None:
        super().__init__(habits, credit, trip_s / 2)
        self.tape = Tape(number=1)
        self.tape.came(raw.open_frame(), raw.begin(), raw.attach_receiver(0, "/queues/q"))
        name = "in-0-0-/queues/q"
        attach = Attach(
            name=name, handle=0, role=False, source=Source(address="/queues/q"), initial_delivery_count=0
        )
        self.tape.went(
            raw.frame(0, Open(container_id="b")),
            raw.frame(0, Begin(remote_channel=0, next_outgoing_id=0, incoming_window=400, outgoing_window=1)),
            raw.frame(0, attach),
        )
        self._presettled = settled
        self._told = self._done = 0

    def told(self, at: float, kind: str, content: tuple[float, ...]) -> None:
        self.tape.now_s = 1000 + at
        if kind == "grant":
            count, credit = map(int, content)
            self.tape.came(
                raw.flow(handle=0, delivery_count=count, link_credit=credit, next_incoming_id=self._told)
            )
        elif kind == "transfer":
            self.tape.went(raw.transfer(0, self._told, b"x" * int(content[0]), settled=self._presettled))
            self._told += 1
        elif not self._presettled:
            self.tape.came(raw.disposition(self._done, state=Accepted()))
            self._done += 1


def taped_consumer(
    habits: ConsumerModel, *, credit: int, trip_s: float, messages: int, settled: bool = False
) -> Tape:
    simulation = TapedConsumer(habits, credit, trip_s, settled=settled)
    simulation.run(messages)
    return simulation.tape
