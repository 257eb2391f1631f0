"""Dead letters that are posted at most once: put into the mailboxes of their target queues, and forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.queues.commands import Publish
from amqp10broker.queues.effects import DeadLetters
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.queues.reply_registry import ReplyRegistry
from amqp10broker.sessions.dead_letters import route_dead_letters

_log = Log("amqp10broker.dead_letter")

_CYCLES_MAX: Final = 1000
"""Cycles that are remembered as logged; one more, and all may be logged once again."""


class DeadLetterOffice:
    """Hands on what queues give up, at most once."""

    def __init__(self, catalog: Catalog, reply_registry: ReplyRegistry, clock: WallClock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._publisher = reply_registry.open("dead letters").publisher()
        self._cycles: set[tuple[str, str, str]] = set()

    def post(self, vhost: str, queue: str, batches: Iterable[DeadLetters]) -> None:
        """Put dead letters into the mailboxes of their target queues; without any they are dropped."""
        found = self._catalog.find_vhost(vhost)
        if found is None:
            return
        now_ms = self._clock.now_ms()
        for letters in batches:
            routed = route_dead_letters(found, queue, letters, now_ms)
            for target, messages in routed.to:
                ids = range(len(messages))
                target.handle.post(Publish(self._publisher, ids, messages, settled=True))
            for name in routed.cycles:
                self._log_cycle(vhost, queue, name)

    def _log_cycle(self, vhost: str, queue: str, target: str) -> None:
        cycle = (vhost, queue, target)
        if cycle in self._cycles:
            return
        if len(self._cycles) >= _CYCLES_MAX:
            self._cycles.clear()
        self._cycles.add(cycle)
        _log.warning(
            "dead letters dropped: they had died in their target queue before, and no client rejected "
            "them since; this is logged once",
            vhost=vhost,
            queue=queue,
            target=target,
        )
