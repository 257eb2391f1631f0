"""Recordings of consumers that never were: the simulation's, written by its broker."""

from __future__ import annotations

from amqp10broker.protocols.amqp10.performatives import Accepted, Attach, Begin, Open, Source
from amqp10broker.tools.replay.forecast import ConsumerModel, Delivering
from tests.support.rawframes import attach_receiver, begin, disposition, flow, frame, open_frame, transfer
from tests.support.tape import Tape


class TapedConsumer(Delivering):
    """A simulation whose broker records its frames."""

    def __init__(self, habits: ConsumerModel, credit: int, trip_s: float, *, settled: bool) -> None:
        super().__init__(habits, credit, trip_s / 2)
        self.tape = Tape(number=1)
        self.tape.came(open_frame(), begin(), attach_receiver(0, "/queues/q"))
        name = "in-0-0-/queues/q"
        attach = Attach(
            name=name, handle=0, role=False, source=Source(address="/queues/q"), initial_delivery_count=0
        )
        self.tape.went(
            frame(0, Open(container_id="b")),
            frame(0, Begin(remote_channel=0, next_outgoing_id=0, incoming_window=400, outgoing_window=1)),
            frame(0, attach),
        )
        self._presettled = settled
        self._told = self._done = 0

    def told(self, at: float, kind: str, content: tuple[float, ...]) -> None:
        self.tape.now_s = 1000 + at
        if kind == "grant":
            count, credit = map(int, content)
            self.tape.came(
                flow(handle=0, delivery_count=count, link_credit=credit, next_incoming_id=self._told)
            )
        elif kind == "transfer":
            self.tape.went(transfer(0, self._told, b"x" * int(content[0]), settled=self._presettled))
            self._told += 1
        elif not self._presettled:
            self.tape.came(disposition(self._done, state=Accepted()))
            self._done += 1


def taped_consumer(
    habits: ConsumerModel, *, credit: int, trip_s: float, messages: int, settled: bool = False
) -> Tape:
    simulation = TapedConsumer(habits, credit, trip_s, settled=settled)
    simulation.run(messages)
    return simulation.tape
