"""Faults of clocks: the machine's, those of other nodes, and times of earlier leaders in queues.

They are logged at beginning and end, and appear in `waiting` and `doctor` meanwhile.
"""

from __future__ import annotations

import time
from typing import Final

import trio

from amqp10broker.queues.quorum.clocks import AHEAD_MS_MAX, Clocks, difference
from amqp10broker.queues.quorum.durability import QuorumInLog
from amqp10broker.runtime.context import BrokerContext
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.clock")

LOOK_S: Final = 5


class ClockWatch:
    """Of one node. `queues`: those that it leads whose time was ahead when it began to."""

    def __init__(self, node_context: BrokerContext) -> None:
        self._node_context = node_context
        self._began_s = _apart_s()
        self.others = Clocks()
        self.queues: set[QuorumInLog] = set()

    def notes(self) -> dict[str, str]:
        """Return a sentence for each present fault, by its subject."""
        catalog, now_ms = self._node_context.catalog, self._node_context.clock.now_ms()
        found = self.others.notes({node.number: node.name for node in catalog.nodes.values()})
        ahead = {queue: queue.ahead_ms(now_ms) for queue in self.queues}
        self.queues.difference_update(queue for queue, ahead_ms in ahead.items() if not ahead_ms)
        if (most_ms := max(ahead.values(), default=0)) >= AHEAD_MS_MAX:
            found["time of queues"] = (
                f"the time of quorum queues that this node leads ({len(self.queues)}) is up to "
                f"{difference(most_ms)} the clock, as that of an earlier leader was: it goes on a tenth "
                "slower until the clock is there"
            )
        set_ms = int((_apart_s() - self._began_s) * 1000)
        if abs(set_ms) >= AHEAD_MS_MAX:
            found["clock of the machine"] = (
                f"the machine's clock was set: it is {difference(set_ms)} the time that the broker goes by; "
                "restart it"
            )
        return found

    async def run(self) -> None:
        """Log what begins and what is over, until cancelled."""
        known: dict[str, str] = {}
        while True:
            notes = self.notes()
            for about, text in notes.items():
                if about not in known:
                    _log.warning("clock is wrong", about=about, reason=text)
            for about in known.keys() - notes.keys():
                _log.warning("clock is right again", about=about)
            known = notes
            await trio.sleep(LOOK_S)


def _apart_s() -> float:
    return time.time() - time.monotonic()
